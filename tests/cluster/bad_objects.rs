//! Configurations that cannot serve, and Instances that a user edits: each problem is reported with a remedy, and the rest keeps working.

use anyhow::{Context, Result, ensure};
use leafhost_tests::cluster::{self, Container, Pod};
use leafhost_tests::wait::eventually;
use serde_json::{Value, json};

use crate::agents::{Agents, configure};

#[test]
fn a_configuration_that_cannot_serve_is_named_on_each_node_until_it_is_put_right() -> Result<()> {
    let Some(cluster) = cluster::shared()? else {
        return Ok(());
    };
    let agents = Agents::start(cluster, "bad", &[])?;
    let long = "l".repeat(70);
    let good = "{descriptions: [one]}";
    for (name, handler, details, words) in [
        (
            "no-yaml",
            "debugEcho",
            "descriptions: [",
            &["descriptions", "while parsing a flow node"][..],
        ),
        (
            "other-fields",
            "debugEcho",
            "{device: one}",
            &["other-fields", "descriptions: is missing"],
        ),
        (
            "unknown",
            "nobody",
            good,
            &["spec.discoveryHandler.name", "\"nobody\"", "add"],
        ),
    ] {
        let start = cluster.audit().now()?;
        agents.configure(name, handler, details)?;
        agents
            .until_told(&[&[name], words].concat())
            .with_context(|| format!("{name}: {words:?}"))?;
        ensure!(agents.instances(name)?.is_empty(), "{name} has Instances");
        agents.configure(name, "debugEcho", good)?;
        agents.until_solved(words[1])?;
        eventually("it is found then", || {
            let found = agents.instances(name)?.len();
            ensure!(found == 1, "{found} Instances");
            Ok(())
        })?;
        agents.check_calm(start).context(name)?;
        agents.delete("configuration", name)?;
    }

    // Too long for a resource name: the device is found, but pods cannot request it.
    let start = cluster.audit().now()?;
    agents.configure(&long, "debugEcho", good)?;
    agents.until_told(&[&long, "is not offered to the kubelet", "a shorter name"])?;
    agents.delete("configuration", &long)?;
    agents.until_solved("a shorter name")?;
    agents.check_calm(start)?;

    // The older Configuration owns the name in the whole cluster, whatever the name of its namespace.
    let start = cluster.audit().now()?;
    agents.configure("twice", "debugEcho", "{descriptions: [first]}")?;
    for site in &agents.sites {
        site.until_amounts("akri.sh/twice", 1, 1)?;
    }
    // The API server's creation times have whole seconds.
    let age = || {
        agents.cluster.get(&format!(
            "/apis/akri.sh/v0/namespaces/{}/configurations/twice",
            agents.space.name()
        ))
    };
    let created = age()?["metadata"]["creationTimestamp"].clone();
    let other = eventually("a second has passed", || {
        let other = cluster.namespace("a-second")?;
        let now = cluster.get(&format!("/api/v1/namespaces/{}", other.name()))?;
        ensure!(now["metadata"]["creationTimestamp"] != created, "{created}");
        Ok(other)
    })?;
    configure(
        cluster,
        other.name(),
        "twice",
        "debugEcho",
        "{descriptions: [second, third]}",
    )?;
    let first = format!("{}/twice", agents.space.name());
    let second = format!("{}/twice", other.name());
    agents.until_told(&[&second, "has the name of", &first, "rename one of them"])?;
    for site in &agents.sites {
        site.until_amounts("akri.sh/twice", 1, 1)?;
    }
    agents.delete("configuration", "twice")?;
    for site in &agents.sites {
        site.until_amounts("akri.sh/twice", 2, 2)?;
    }
    agents.until_solved("has the name of")?;
    agents.check_calm(start)
}

#[test]
fn an_instance_that_somebody_edits_is_as_it_was_after_one_write() -> Result<()> {
    let Some(cluster) = cluster::shared()? else {
        return Ok(());
    };
    let agents = Agents::start(cluster, "edited", &["--slot-grace", "5s"])?;
    agents.configure("cams", "debugEcho", "{descriptions: [one]}")?;
    for site in &agents.sites {
        site.until_amounts("akri.sh/cams", 1, 1)?;
    }
    let site = agents.sites.first().context("no site")?;
    let main = Container::new("main").device("akri.sh/cams", 1);
    agents.space.run(&Pod::new("user", &[main]).on(site.node))?;
    let name = || -> Result<String> {
        let found = agents.instances("cams")?;
        let name = found.first().context("no Instance")?["metadata"]["name"].as_str();
        Ok(name.context("no name")?.to_owned())
    };
    let path = agents.instance_path(&name()?);
    let right = eventually(
        "the pod's slot is claimed, and both nodes see the device",
        || {
            let now = cluster.get(&path)?;
            ensure!(
                now["spec"]["deviceUsage"]
                    .to_string()
                    .contains(site.node.name()),
                "{now:#}"
            );
            ensure!(
                now["spec"]["nodes"].as_array().map(Vec::len) == Some(2),
                "{now:#}"
            );
            Ok(now)
        },
    )?;
    let usage = right["spec"]["deviceUsage"]
        .as_object()
        .context("no usage")?;
    let slot = |used: bool| usage.iter().find(|(_, holder)| (*holder != "") == used);
    let (used, _) = slot(true).context("no slot is used")?;
    let (free, _) = slot(false).context("no slot is free")?;
    for (what, edit) in [
        ("the capacity", json!({"spec": {"capacity": 99}})),
        ("a node is missing", json!({"spec": {"nodes": ["node-b"]}})),
        ("nodes", json!({"spec": {"nodes": []}})),
        (
            "a property",
            json!({"spec": {"brokerProperties": {"MODE": "slow"}}}),
        ),
        (
            "a slot in use shown as free",
            json!({"spec": {"deviceUsage": {used: ""}}}),
        ),
        (
            "a slot in use is left out",
            json!({"spec": {"deviceUsage": {used: null}}}),
        ),
        (
            "a free slot shown as in use",
            json!({"spec": {"deviceUsage": {free: "node-b"}}}),
        ),
        (
            "the label",
            json!({"metadata": {"labels": {"leafhost.dev/shared": null}}}),
        ),
        ("the owner", json!({"metadata": {"ownerReferences": null}})),
        ("health", json!({"status": null})),
    ] {
        let start = cluster.audit().now()?;
        cluster.api().merge(&path, &edit)?;
        eventually(what, || {
            let now = cluster.get(&path)?;
            let mut nodes: Vec<&str> = texts(&now["spec"]["nodes"]);
            nodes.sort_unstable();
            ensure!(nodes == ["node-a", "node-b"], "{now:#}");
            for field in [
                "/spec/capacity",
                "/spec/brokerProperties",
                "/spec/deviceUsage",
                "/metadata/labels/leafhost.dev~1shared",
                "/metadata/labels/leafhost.dev~1configuration",
                "/metadata/ownerReferences",
                "/status/nodes",
            ] {
                ensure!(
                    now.pointer(field) == right.pointer(field),
                    "{field}: {now:#}"
                );
            }
            Ok(())
        })
        .with_context(|| agents.space.state())?;
        agents.check_calm(start).context(what)?;
        let mut writes = agents.requests(start)?;
        writes.retain(|one, _| one.is_write() && one.resource == "instances");
        // Two nodes write their entries, and one of them also the holder of its slot. Each write may conflict once with another node's.
        let count = |is_done: bool| -> usize {
            let counted = writes.iter().filter(|(one, _)| (one.code < 300) == is_done);
            counted.map(|(_, count)| count).sum()
        };
        let (done, lost) = (count(true), count(false));
        ensure!(
            done <= 3 && lost <= 2,
            "{what}: {done} writes, {lost} lost: {writes:#?}"
        );
    }

    // Deleted while a pod uses it: the Instance that replaces it has the pod's slot.
    let start = cluster.audit().now()?;
    cluster.api().delete(&path)?;
    eventually("it is made again with the pod's slot", || {
        let now = cluster.get(&path)?;
        ensure!(
            now["metadata"]["uid"] != right["metadata"]["uid"],
            "it is not deleted"
        );
        ensure!(
            now["spec"]["deviceUsage"] == right["spec"]["deviceUsage"],
            "{now:#}"
        );
        ensure!(texts(&now["spec"]["nodes"]).len() == 2, "{now:#}");
        Ok(())
    })
    .with_context(|| agents.space.state())?;
    let pod = agents.space.pod("user")?;
    ensure!(pod["status"]["phase"] == "Running", "{pod:#}");
    agents.check_calm(start)
}

#[test]
fn a_local_instance_gets_its_labels_back_and_is_not_made_again() -> Result<()> {
    let Some(cluster) = cluster::shared()? else {
        return Ok(());
    };
    let agents = Agents::start(cluster, "labels", &[])?;
    agents.configure("own", "debugEcho", "{shared: false, descriptions: [one]}")?;
    let found = eventually("each node has its own", || {
        let found = agents.instances("own")?;
        ensure!(found.len() == 2, "{found:#?}");
        Ok(found)
    })?;
    let uids = |all: &[Value]| -> Vec<String> {
        let uids = all.iter().map(|one| one["metadata"]["uid"].to_string());
        let mut uids: Vec<_> = uids.collect();
        uids.sort();
        uids
    };
    let labels = |value: Value| json!({"metadata": {"labels": {"leafhost.dev/node": value}}});
    for one in &found {
        let name = one["metadata"]["name"].as_str().context("no name")?;
        let path = agents.instance_path(name);
        for (what, edit) in [
            ("no label", labels(Value::Null)),
            ("the label of no node", labels(json!("nowhere"))),
            ("the label of a node", labels(json!("node-b"))),
            ("the label of the other node", labels(json!("node-a"))),
        ] {
            let start = cluster.audit().now()?;
            cluster.api().merge(&path, &edit)?;
            eventually(what, || {
                let now = cluster.get(&path)?;
                let labels = &now["metadata"]["labels"];
                ensure!(*labels == one["metadata"]["labels"], "{now:#}");
                Ok(())
            })
            .with_context(|| agents.space.state())?;
            agents.check_calm(start).context(what)?;
        }
    }
    assert_eq!(uids(&agents.instances("own")?), uids(&found));
    Ok(())
}

fn texts(list: &Value) -> Vec<&str> {
    list.as_array()
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .collect()
}

//! Handlers in `ConfigMap`s that cannot serve, values in Secrets that cannot be read, and reports that a user edits.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use leafhost_tests::cluster;
use leafhost_tests::program::{self, handler, leafhost};
use leafhost_tests::wait::{eventually, within};
use serde_json::{Value, json};

use crate::agents::Agents;

/// Returns the ConfigMap with the mock-gpu handler, as `leafhost handler configmap` prints it, with this name.
fn gpu(name: &str) -> Result<String> {
    let wasm = handler("mock-gpu")?;
    let arguments = ["handler", "configmap", "--name", name].map(std::ffi::OsString::from);
    program::run(
        leafhost()?,
        arguments.into_iter().chain([wasm.into_os_string()]),
    )?
    .good()
}

impl Agents {
    fn apply_map(&self, manifest: &str) -> Result<()> {
        let apply = [
            "apply",
            "--server-side",
            "--force-conflicts",
            "--namespace",
            self.space.name(),
            "--filename",
            "-",
        ];
        self.cluster.kubectl_with(&apply, manifest).map(drop)
    }

    fn map(&self, name: &str) -> String {
        format!("{}/{name}", self.space.collection("configmaps"))
    }

    /// Waits until the handler has this phase on each node, by `kubectl get dh`.
    fn until_phase(&self, handler: &str, phase: &str) -> Result<()> {
        eventually(&format!("{handler} is {phase}"), || {
            for site in &self.sites {
                let reports = self.reports(site)?;
                let found = reports.iter().find(|one| one["spec"]["handler"] == handler);
                let now = found.map_or(&Value::Null, |one| &one["status"]["phase"]);
                ensure!(now == phase, "{}: {now}", site.node.name());
            }
            Ok(())
        })
        .with_context(|| self.space.state())
    }
}

#[test]
fn a_config_map_that_cannot_be_used_is_named_and_what_was_accepted_before_serves() -> Result<()> {
    let Some(cluster) = cluster::shared()? else {
        return Ok(());
    };
    let agents = Agents::start(cluster, "maps", &[])?;
    let (good, start) = (gpu("gpu")?, cluster.audit().now()?);
    agents.apply_map(&good)?;
    agents.until_phase("mock-gpu", "Waiting")?;
    agents.configure("gpus", "mock-gpu", "{}")?;
    agents.until_phase("mock-gpu", "Active")?;
    let labels = json!({"leafhost.dev/handlers": "true"});
    let own = format!("ConfigMap {}/gpu", agents.space.name());

    let before: Value = cluster.get(&agents.map("gpu"))?;
    let key = before["binaryData"]
        .as_object()
        .and_then(|keys| keys.keys().next())
        .context("no component")?
        .clone();
    for (what, edit, words) in [
        (
            "no component",
            json!({"binaryData": {key.as_str(): "bm8gd2FzbQ=="}}),
            &["mock-gpu", "component"][..],
        ),
        (
            "text",
            json!({"binaryData": null, "data": {key.as_str(): "text"}}),
            &[&*own, "belongs into binaryData"],
        ),
        (
            "another key",
            json!({"data": {"notes.txt": "x"}}),
            &[&*own, "notes.txt", "rename or remove it"],
        ),
    ] {
        cluster.api().merge(&agents.map("gpu"), &edit)?;
        agents.until_told(words).context(what)?;
        agents.until_phase("mock-gpu", "Active").context(what)?;
        let mut right = cluster.get(&agents.map("gpu"))?;
        for field in ["data", "binaryData"] {
            right[field] = before[field].clone();
        }
        cluster.api().replace(&agents.map("gpu"), &right)?;
        agents
            .until_solved(words.last().context("no words")?)
            .context(what)?;
    }

    // A second ConfigMap with the same handler: under the same key it is not used, under another key it is another source.
    let other = good.replace("name: gpu", "name: copy");
    agents.apply_map(&other)?;
    let copy = format!("ConfigMap {}/copy", agents.space.name());
    agents.until_told(&[
        &copy,
        "is older and has the same handler file",
        "remove one of them",
    ])?;
    agents.delete("configmap", "copy")?;
    agents.until_solved("is older and has the same")?;
    let renamed: BTreeMap<String, Value> = before["binaryData"]
        .as_object()
        .into_iter()
        .flatten()
        .map(|(key, bytes)| (key.replace("mock-gpu", "second"), bytes.clone()))
        .collect();
    let mut second =
        json!({"metadata": {"name": "second", "labels": labels}, "binaryData": renamed});
    if let Some(grants) = before["data"]["mock-gpu.grants.yaml"].as_str() {
        second["data"] = json!({"second.grants.yaml": grants});
    }
    cluster
        .api()
        .create(&agents.space.collection("configmaps"), &second)?;
    agents.until_told(&["gpus", "comes from second.wasm, too", "remove it"])?;
    agents.delete("configmap", "second")?;
    agents.until_solved("comes from second.wasm")?;

    // The ConfigMap is emptied, relabelled and deleted: each time the handler disappears and comes back.
    for (what, edit, words) in [
        (
            "emptied",
            json!({"binaryData": null, "data": null}),
            Some("has no handler; add one"),
        ),
        (
            "relabelled",
            json!({"metadata": {"labels": {"leafhost.dev/handlers": null}}}),
            None,
        ),
    ] {
        cluster.api().merge(&agents.map("gpu"), &edit)?;
        if let Some(words) = words {
            agents.until_told(&[&own, words])?;
        }
        agents.until_phase("mock-gpu", "Offline").context(what)?;
        let mut right = cluster.get(&agents.map("gpu"))?;
        for field in ["data", "binaryData"] {
            right[field] = before[field].clone();
        }
        right["metadata"]["labels"] = labels.clone();
        cluster.api().replace(&agents.map("gpu"), &right)?;
        agents.until_phase("mock-gpu", "Active").context(what)?;
    }
    agents.delete("configmap", "gpu")?;
    agents.until_phase("mock-gpu", "Offline")?;
    agents.check_calm(start)
}

#[test]
fn a_value_that_cannot_be_had_is_named_and_a_new_one_is_used_within_two_seconds() -> Result<()> {
    let Some(cluster) = cluster::shared()? else {
        return Ok(());
    };
    let agents = Agents::start(cluster, "values", &[])?;
    let space = agents.space.name();
    let apply = |namespace: Option<&str>| {
        let mut reference = json!({"name": "login", "key": "password"});
        if let Some(namespace) = namespace {
            reference["namespace"] = json!(namespace);
        }
        let object = json!({
            "apiVersion": "akri.sh/v0", "kind": "Configuration", "metadata": {"name": "cams", "namespace": space},
            "spec": {"discoveryHandler": {"name": "debugEcho", "discoveryDetails": "{descriptions: [one]}",
                "discoveryProperties": [{"name": "PASSWORD", "valueFrom": {"secretKeyRef": reference}}]}},
        });
        cluster.apply(&object.to_string()).map(drop)
    };
    let secrets = agents.space.collection("secrets");
    let secret = format!("{secrets}/login");
    let own = format!("Secret {space}/login");
    let field = "spec.discoveryHandler.discoveryProperties[0]";
    let called = |site: usize| -> Result<String> {
        let site = agents.sites.get(site).context("no such site")?;
        let status = site.home.status()?;
        let all = status["configurations"]
            .as_array()
            .context("no configurations")?;
        let cams = all
            .iter()
            .find(|one| one["name"] == "cams")
            .context("no cams")?;
        let last = cams["sessions"][0]["lastCall"].as_str();
        Ok(last.context("it was not called")?.to_owned())
    };

    let start = cluster.audit().now()?;
    apply(None)?;
    agents.until_told(&[
        "cams",
        field,
        &own,
        "does not exist; create it",
        "the handler is not called",
    ])?;
    cluster.api().create(
        &secrets,
        &json!({"metadata": {"name": "login"}, "stringData": {"user": "me"}}),
    )?;
    agents.until_told(&["cams", field, &own, "has no key \"password\"; add it"])?;
    cluster
        .api()
        .merge(&secret, &json!({"stringData": {"password": "1"}}))?;
    agents.until_solved(field)?;
    eventually("the device is found", || {
        ensure!(agents.instances("cams")?.len() == 1, "it is not");
        Ok(())
    })?;
    for rotated in ["2", "3"] {
        let before = [called(0)?, called(1)?];
        cluster
            .api()
            .merge(&secret, &json!({"stringData": {"password": rotated}}))?;
        let began = Instant::now();
        within(
            Duration::from_secs(2),
            "each node calls the handler again",
            || {
                for (site, before) in before.iter().enumerate() {
                    ensure!(called(site)? != *before, "node {site}");
                }
                Ok(())
            },
        )
        .with_context(|| agents.space.state())?;
        println!("called again after {:?}", began.elapsed());
    }

    // The operator does not allow another namespace.
    apply(Some("kube-system"))?;
    agents.until_told(&["cams", field, "kube-system", "--properties-namespaces"])?;
    apply(None)?;
    agents.until_solved(field)?;

    // The right to read Secrets is removed: the values read before stay in use while nothing changes, and the problem names the field.
    let role = format!("{space}-leafhost-agent");
    agents.delete("rolebinding", &role)?;
    cluster
        .api()
        .merge(&secret, &json!({"stringData": {"password": "4"}}))?;
    let other = json!({
        "apiVersion": "akri.sh/v0", "kind": "Configuration", "metadata": {"name": "new", "namespace": space},
        "spec": {"discoveryHandler": {"name": "debugEcho", "discoveryDetails": "{descriptions: [one]}",
            "discoveryProperties": [{"name": "A", "valueFrom": {"configMapKeyRef": {"name": "m", "key": "k"}}}]}},
    });
    cluster.apply(&other.to_string())?;
    agents.until_told(&[
        "new",
        field,
        &format!("may not read ConfigMap {space}/m"),
        "allow its service account",
    ])?;
    agents.allow()?;
    agents.until_told(&["new", field, "does not exist; create it"])?;
    agents.delete("configuration", "new")?;
    agents.until_solved(field)?;
    ensure!(
        agents.instances("cams")?.len() == 1,
        "the Instance is withdrawn"
    );
    agents.check_calm(start)
}

#[test]
fn a_report_that_somebody_edits_or_deletes_is_written_again_once() -> Result<()> {
    let Some(cluster) = cluster::shared()? else {
        return Ok(());
    };
    let agents = Agents::start(cluster, "reports", &[])?;
    agents.until_phase("debugEcho", "Active")?;
    let path = "/apis/leafhost.dev/v1alpha1/discoveryhandlers/node-a.debugecho";
    let right = eventually("the device is reported", || {
        let now = cluster.get(path)?;
        ensure!(now["status"]["devices"] == 1, "{now:#}");
        Ok(now)
    })?;
    for edit in [
        Some(json!({"status": {"phase": "Offline", "devices": 99}})),
        Some(json!({"status": null})),
        Some(json!({"spec": {"handler": "other"}})),
        Some(json!({"metadata": {"labels": null, "ownerReferences": null}})),
        None,
    ] {
        let start = cluster.audit().now()?;
        match &edit {
            Some(edit) => cluster.api().merge(path, edit)?,
            None => cluster.api().delete(path)?,
        };
        let what = format!("it is as it was after {edit:?}");
        eventually(&what, || {
            let now = cluster.get(path)?;
            // Not compared: the time since which the handler is Active, which the agent writes again.
            for field in [
                "/spec",
                "/status/phase",
                "/status/devices",
                "/status/sources",
                "/status/configurations",
                "/metadata/labels",
                "/metadata/ownerReferences",
            ] {
                ensure!(
                    now.pointer(field) == right.pointer(field),
                    "{field}: {now:#}"
                );
            }
            Ok(())
        })
        .with_context(|| agents.space.state())?;
        eventually("the log has the write", || {
            let requests = agents.requests(start)?;
            let writes: usize = requests
                .iter()
                .filter(|(one, _)| {
                    one.is_write() && one.name == "node-a.debugecho" && one.code < 300
                })
                .map(|(_, count)| count)
                .sum();
            ensure!(writes == 1, "{what}: {requests:#?}");
            Ok(())
        })?;
        agents.check_calm(start)?;
    }
    Ok(())
}

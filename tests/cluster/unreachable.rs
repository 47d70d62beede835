//! API server that refuses the agents' requests, or does not answer: nothing is withdrawn, each node reports the reason, and it recovers.

use std::fs;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use leafhost_tests::cluster::{self, Cluster};
use leafhost_tests::wait::eventually;
use nix::sys::signal::Signal;
use serde_json::Value;

use crate::agents::{Agents, configure};
use crate::device::Site;
use crate::gate::{Gate, Writes};

const DEFINITIONS: &str = include_str!("../../deploy/chart/crds/crds.yaml");

/// Waits until `leafhost status` on the node has all these words and returns it.
fn until_status(site: &Site, words: &[&str]) -> Result<String> {
    eventually(&format!("leafhost status says {words:?}"), || {
        let status = site.home.leafhost(&["status"])?.good()?;
        let status = status.split_whitespace().collect::<Vec<_>>().join(" ");
        ensure!(words.iter().all(|word| status.contains(word)), "{status}");
        Ok(status)
    })
    .with_context(|| site.home.log())
}

fn until_without(site: &Site, words: &str) -> Result<()> {
    eventually(&format!("leafhost status has no {words:?}"), || {
        let status = site.home.leafhost(&["status"])?.good()?;
        ensure!(!status.contains(words), "{status}");
        Ok(())
    })
    .with_context(|| site.home.log())
}

fn until_instances(
    cluster: &Cluster,
    namespace: &str,
    configuration: &str,
    count: usize,
) -> Result<Vec<Value>> {
    let path = format!("/apis/akri.sh/v0/namespaces/{namespace}/instances");
    eventually(&format!("{configuration} has {count} Instances"), || {
        let all = cluster.get(&path)?;
        let all = all["items"].as_array().context("no items")?.iter();
        let own: Vec<Value> = all
            .filter(|one| one["spec"]["configurationName"] == configuration)
            .cloned()
            .collect();
        ensure!(own.len() == count, "{own:#?}");
        Ok(own)
    })
}

#[test]
fn agents_without_rights_withdraw_nothing_say_what_they_lack_and_go_on_when_they_have_them()
-> Result<()> {
    let Some(cluster) = cluster::shared()? else {
        return Ok(());
    };
    let mut agents = Agents::start(cluster, "rights", &[])?;
    for site in &agents.sites {
        site.until_amounts("akri.sh/steady", 1, 1)?;
        let kept = site.home.path().join("state/cluster/instances.json");
        eventually("what is needed for a start is on disk", || {
            ensure!(fs::read_to_string(&kept)?.contains("steady"), "it is not");
            Ok(())
        })?;
    }
    let start = cluster.audit().now()?;
    agents.deny()?;
    // A watch that began with the right continues, so the agents see the Configuration but may not create its Instances.
    agents.configure("later", "debugEcho", "{descriptions: [one]}")?;
    for site in &agents.sites {
        until_status(
            site,
            &[
                "cannot create resource \"instances\"",
                "rights of the chart",
            ],
        )?;
        until_status(
            site,
            &["kubectl get dh may be out of date", "discoveryhandler"],
        )?;
    }
    for site in &mut agents.sites {
        site.home.stop(Signal::SIGTERM)?;
        site.home.start(&[])?;
    }
    for site in &agents.sites {
        until_status(
            site,
            &["Configurations", "list and watch configurations.akri.sh"],
        )?;
        until_status(
            site,
            &["cannot watch Instances", "list and watch instances.akri.sh"],
        )?;
        // Known devices stay; no agent can claim a slot of them.
        site.until_amounts("akri.sh/steady", 1, 0)?;
    }
    ensure!(agents.instances("later")?.is_empty(), "they have rights");
    agents.check_calm(start)?;
    let start = cluster.audit().now()?;
    agents.allow()?;
    until_instances(cluster, agents.space.name(), "later", 1)?;
    for site in &agents.sites {
        site.until_amounts("akri.sh/later", 1, 1)?;
        until_without(site, "forbidden")?;
    }
    agents.check_calm(start)
}

#[test]
fn definitions_that_are_missing_are_named_and_their_objects_come_when_they_are_there() -> Result<()>
{
    if leafhost_tests::requirement::lacks(Cluster::missing())? {
        return Ok(());
    }
    // The CRDs belong to the whole cluster.
    let cluster: &'static Cluster = Box::leak(Box::new(Cluster::start(1)?));
    let done = without_definitions(cluster);
    // The cluster ends with the process.
    done
}

fn without_definitions(cluster: &'static Cluster) -> Result<()> {
    let mut site = Site::on(cluster, cluster.take_node()?)?;
    site.home.add_handler("debug-echo")?;
    site.home.join(cluster.kubeconfig());
    site.home.start(&[])?;
    let apply = "leafhost crds | kubectl apply";
    let space = cluster.namespace("undefined")?;
    for round in ["missing at the start", "removed"] {
        let start = cluster.audit().now()?;
        until_status(&site, &["Configurations", apply])?;
        until_status(&site, &["cannot watch Instances"]).context(round)?;
        cluster.define()?;
        eventually("the Configuration is accepted", || {
            configure(
                cluster,
                space.name(),
                "cams",
                "debugEcho",
                "{descriptions: [one]}",
            )
        })?;
        until_instances(cluster, space.name(), "cams", 1)?;
        site.until_amounts("akri.sh/cams", 1, 1)?;
        until_without(&site, apply)?;
        let requests = cluster.audit().since(start)?;
        // This test itself lists the Instances of its namespace.
        let of_agent = requests
            .iter()
            .filter(|(one, _)| one.namespace != space.name());
        let loops: Vec<_> = of_agent.filter(|(_, count)| **count > 200).collect();
        ensure!(loops.is_empty(), "{loops:#?}");
        cluster.kubectl_with(&["delete", "--filename", "-"], DEFINITIONS)?;
        // Without the CRDs their objects are lost for good.
        site.node.wait_allocatable("akri.sh/cams", 0)?;
    }
    until_status(&site, &["Configurations", apply]).map(drop)
}

#[test]
fn writes_that_are_refused_or_not_answered_are_repeated_ever_rarer_until_they_pass() -> Result<()> {
    let Some(cluster) = cluster::shared()? else {
        return Ok(());
    };
    cluster.define()?;
    let mut site = Site::on(cluster, cluster.take_node()?)?;
    let space = site.namespace("gated")?;
    let gate = Gate::start(cluster)?;
    site.home.write("kubeconfig", &gate.kubeconfig)?;
    site.home.add_handler("debug-echo")?;
    site.home.join(&site.home.path().join("kubeconfig"));
    site.home.start(&[])?;
    configure(
        cluster,
        space.name(),
        "steady",
        "debugEcho",
        "{descriptions: [steady]}",
    )?;
    let steady = until_instances(cluster, space.name(), "steady", 1)?;
    for (name, writes, words) in [
        ("busy", Writes::Refused(429), "answered 429"),
        ("broken", Writes::Refused(500), "answered 500"),
        ("silent", Writes::Silent, "did not answer within 3 seconds"),
    ] {
        gate.set(writes);
        configure(
            cluster,
            space.name(),
            name,
            "debugEcho",
            "{descriptions: [one]}",
        )?;
        until_status(&site, &[words])?;
        until_status(&site, &["kubectl get dh may be out of date"]).context(name)?;
        let pauses = eventually("it was tried three times", || {
            let pauses = gate.pauses("instances");
            ensure!(pauses.len() >= 2, "{pauses:?}");
            Ok(pauses)
        })?;
        // No request is repeated at a constant rate: each attempt waits longer than the one before.
        let first = pauses.iter().min().context("none")?;
        ensure!(*first >= Duration::from_millis(700), "{name}: {pauses:?}");
        ensure!(
            until_instances(cluster, space.name(), "steady", 1)? == steady,
            "steady was changed"
        );
        gate.set(Writes::Pass);
        until_instances(cluster, space.name(), name, 1)?;
        until_without(&site, words)?;
        until_without(&site, "kubectl get dh may be")?;
    }
    Ok(())
}

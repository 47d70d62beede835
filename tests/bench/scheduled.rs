//! Cost of devices that the scheduler allocates: pods with claims, slices of many devices, and slices that a user deletes.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use leafhost_tests::cluster::{Cluster, Container, Namespace, Node, Pod};
use leafhost_tests::wait::{pass, within};
use nix::sys::signal::Signal;
use serde_json::{Value, json};

use crate::joined::{agent, collection, configure, until_instances};
use crate::statistics::{ms, quantile};
use crate::table::Line;

/// Number of repetitions.
const TIMES: usize = 20;
const DEVICES: usize = 1_000;
const TIMEOUT: Duration = Duration::from_mins(2);
/// Address of the agent's metrics, in the network of its node.
pub const METRICS: &str = "127.0.0.1:9480";
pub const SLICES: &str = "/apis/resource.k8s.io/v1/resourceslices";

pub fn measure(cluster: &'static Cluster) -> Result<Vec<Line>> {
    let node = cluster.nodes().first().context("no node")?;
    let mut home = agent(cluster, node, &["mock-gpu", "debug-echo"])?;
    home.publish_in(&node.cdi());
    home.start(&["--metrics-listen", METRICS])?;
    let space = cluster.namespace("scheduled")?;
    let mut lines = Vec::new();

    configure(
        cluster,
        &space,
        "gpus",
        "debugEcho",
        "{shared: false, descriptions: [one, two]}",
    )?;
    until_instances(cluster, &space, 2, &home)?;
    turn(cluster, &space, "gpus", "dra")?;
    until_offered(cluster, node.name(), 2)?;
    let expression = format!(
        "device.driver == \"leafhost.dev\" && device.attributes[\"leafhost.dev\"].namespace == \"{}\"",
        space.name()
    );
    define(cluster, &space, "one", &expression)?;
    let (mut with, mut without) = (Vec::new(), Vec::new());
    for number in 0..TIMES {
        let main = Container::new("main").claim("gpu");
        let claims = json!([{"name": "gpu", "resourceClaimTemplateName": "one"}]);
        let claiming = Pod::new(&format!("with-{number}"), &[main]).on(node);
        with.push(run(
            &space,
            &claiming.with("resourceClaims", claims),
            &format!("with-{number}"),
        )?);
        let name = format!("without-{number}");
        let plain = Pod::new(&name, &[Container::new("main")]).on(node);
        without.push(run(&space, &plain, &name)?);
    }
    with.sort();
    without.sort();
    let (median, plain) = (quantile(&with, 0.5), quantile(&without, 0.5));
    lines.push(Line {
        what: format!(
            "pod with a claim: created → Running, over the same pod without, medians of {TIMES}"
        ),
        value: format!(
            "{:+.0} ms",
            (median.as_secs_f64() - plain.as_secs_f64()) * 1e3
        ),
        target: "≤ +100 ms".into(),
        reference: format!("{} and {}", ms(median), ms(plain)),
    });
    let count = value(node, "leafhost_claim_prepare_seconds_count", "")?;
    let sum = value(node, "leafhost_claim_prepare_seconds_sum", "")?;
    let fast = value(node, "leafhost_claim_prepare_seconds_bucket", "le=\"0.05\"")?;
    lines.push(Line {
        what: "Prepare of a claim, its slot taken, mean".into(),
        value: format!("{:.1} ms", sum / count * 1e3),
        target: "≤ 10 ms".into(),
        reference: format!("{fast} of {count} within 50 ms"),
    });

    let mut back = Vec::new();
    for _ in 0..TIMES / 4 {
        let slice = slices(cluster, &format!("spec.nodeName={}", node.name()))?
            .pop()
            .context("no slice")?;
        let name = slice.pointer("/metadata/name").and_then(Value::as_str);
        let name = name.context("no name")?;
        let begun = Instant::now();
        cluster.api().delete(&format!("{SLICES}/{name}"))?;
        until_offered(cluster, node.name(), 2)?;
        back.push(begun.elapsed());
        // The agent restores a slice that is deleted repeatedly with growing delays, so it is restarted.
        home.stop(Signal::SIGTERM)?;
        home.start(&["--metrics-listen", METRICS])?;
        pass(Duration::from_secs(20))?;
    }
    back.sort();
    lines.push(Line {
        what: format!(
            "slice deleted, as a kubelet does when it starts → it is back, worst of {}",
            back.len()
        ),
        value: ms(quantile(&back, 1.0)),
        target: "≤ 200 ms".into(),
        reference: format!("median {}", ms(quantile(&back, 0.5))),
    });

    configure(
        cluster,
        &space,
        "many",
        "mock-gpu",
        &format!("count: {DEVICES}"),
    )?;
    until_instances(cluster, &space, DEVICES + 2, &home)?;
    let begun = Instant::now();
    turn(cluster, &space, "many", "dra")?;
    until_offered(cluster, node.name(), DEVICES + 2)?;
    let took = begun.elapsed();
    let all = slices(cluster, &format!("spec.nodeName={}", node.name()))?;
    let bytes: usize = all
        .iter()
        .map(|one| one.get("spec").map_or(0, |spec| spec.to_string().len()))
        .sum();
    let before = value(node, "leafhost_slice_writes_total", "changed")?;
    turn(cluster, &space, "many", "dra")?;
    pass(Duration::from_secs(5))?;
    let after = value(node, "leafhost_slice_writes_total", "changed")?;
    lines.push(Line {
        what: format!("{DEVICES} local devices offered to the scheduler: time / bytes / writes if nothing changes"),
        value: format!("{} / {} KB / {}", ms(took), bytes / 1000, after - before),
        target: "≤ 1 s / ≤ 400 KB / 0".into(),
        reference: format!("{} slices", all.len()),
    });
    Ok(lines)
}

/// Returns all metrics of the agent.
pub fn metrics(node: &Node) -> Result<String> {
    node.run("curl", &["-sSf", &format!("http://{METRICS}/metrics")])
}

/// Returns the sum of the agent's metrics with this name whose lines contain `with`.
fn value(node: &Node, name: &str, with: &str) -> Result<f64> {
    let text = metrics(node)?;
    let lines = text
        .lines()
        .filter(|line| line.starts_with(name) && line.contains(with));
    let values = lines.filter_map(|line| line.rsplit(' ').next());
    let values: Vec<f64> = values.map(str::parse).collect::<Result<_, _>>()?;
    ensure!(!values.is_empty(), "no {name}");
    Ok(values.iter().sum())
}

/// Sets the allocation of a Configuration's devices: by the device plugin or by the scheduler.
pub fn turn(cluster: &Cluster, space: &Namespace<'_>, name: &str, allocation: &str) -> Result<()> {
    let path = format!("{}/{name}", collection(space, "configurations"));
    let annotations = json!({"metadata": {"annotations": {"leafhost.dev/allocation": allocation}}});
    cluster.api().merge(&path, &annotations).map(drop)
}

/// Creates a class with that condition, as the controller would, and a claim template of the same name.
pub fn define(
    cluster: &Cluster,
    space: &Namespace<'_>,
    name: &str,
    expression: &str,
) -> Result<()> {
    let class = format!("{name}.bench");
    let object = json!({"apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", "metadata": {"name": class},
        "spec": {"selectors": [{"cel": {"expression": expression}}]}});
    cluster.apply(&object.to_string())?;
    let template = json!({"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaimTemplate", "metadata": {"name": name, "namespace": space.name()},
        "spec": {"spec": {"devices": {"requests": [{"name": "device", "exactly": {"deviceClassName": class}}]}}}});
    cluster.apply(&template.to_string()).map(drop)
}

/// Runs a pod to its end; returns the time from its creation until it ran.
fn run(space: &Namespace<'_>, pod: &Pod, name: &str) -> Result<Duration> {
    let begun = Instant::now();
    space.create(pod)?;
    space.until(name, "it runs", |pod| {
        let phase = pod.pointer("/status/phase").and_then(Value::as_str);
        ensure!(phase == Some("Running"), "not yet");
        Ok(())
    })?;
    let took = begun.elapsed();
    space.delete(name)?;
    Ok(took)
}

/// Returns the slices that a field selector selects.
pub fn slices(cluster: &Cluster, selector: &str) -> Result<Vec<Value>> {
    let list = cluster.get(&format!("{SLICES}?fieldSelector={selector}"))?;
    let items = list.get("items").and_then(Value::as_array);
    Ok(items.context("no items")?.clone())
}

/// Waits until the slices of a node have `count` devices.
fn until_offered(cluster: &Cluster, node: &str, count: usize) -> Result<()> {
    within(TIMEOUT, "all devices are offered", || {
        let slices = slices(cluster, &format!("spec.nodeName={node}"))?;
        let devices = slices
            .iter()
            .filter_map(|one| one.pointer("/spec/devices")?.as_array());
        let found: usize = devices.map(Vec::len).sum();
        ensure!(found == count, "{found} of {count}");
        Ok(())
    })
}

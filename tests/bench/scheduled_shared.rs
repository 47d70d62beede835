//! Cost of 1,000 cameras that two nodes share, for the scheduler and the agents, compared with a copy of their slices made by hand.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use leafhost_tests::cluster::{Cluster, Container, Namespace, Node, Pod};
use leafhost_tests::program::processor_time;
use leafhost_tests::wait::{pass, within};
use nix::sys::signal::Signal;
use serde_json::{Value, json};

use crate::brokers::Controller;
use crate::joined::{agent, collection, configure, seconds, until_instances};
use crate::process::{Memory, mb};
use crate::scheduled::{SLICES, define, slices, turn};
use crate::table::Line;

const DEVICES: usize = 1_000;
const PODS: usize = 100;
const TIMEOUT: Duration = Duration::from_mins(3);

pub fn measure(cluster: &'static Cluster) -> Result<Vec<Line>> {
    let agents = cluster.nodes().iter().map(|node| {
        let mut home = agent(cluster, node, &["debug-echo"])?;
        home.publish_in(&node.cdi());
        home.start(&[])?;
        Ok(home)
    });
    let agents = agents.collect::<Result<Vec<_>>>()?;
    let first = agents.first().context("no agent")?;
    let space = cluster.namespace("cameras")?;
    let _controller = Controller::start(cluster, &space)?;
    let names: Vec<String> = (0..DEVICES)
        .map(|number| format!("camera-{number}"))
        .collect();
    let details = format!("{{shared: true, descriptions: [{}]}}", names.join(", "));
    configure(cluster, &space, "cameras", "debugEcho", &details)?;
    until_instances(cluster, &space, DEVICES, first)?;
    // Both nodes have joined each Instance by then, and the memory for that is freed.
    pass(Duration::from_secs(40))?;
    let before = Memory::of(first.pid()?)?;
    turn(cluster, &space, "cameras", "dra")?;
    let nodes = cluster.nodes().len();
    let begun = Instant::now();
    let slices = within(TIMEOUT, "all cameras are offered to both nodes", || {
        let slices = slices(cluster, "spec.driver=leafhost.dev")?;
        let pool = format!("{}/cameras", space.name());
        let own = slices
            .into_iter()
            .filter(|one| one.pointer("/spec/pool/name") == Some(&json!(pool)));
        let own: Vec<Value> = own.collect();
        let found: usize = own
            .iter()
            .filter(|one| seen_by(one) == nodes)
            .map(devices)
            .sum();
        ensure!(found == DEVICES, "{found} of {DEVICES}");
        Ok(own)
    })?;
    let offered = begun.elapsed();
    pass(Duration::from_secs(20))?;
    let after = Memory::of(first.pid()?)?;

    let ours = schedule(cluster, &space, "ours", "leafhost.dev")?;
    turn(cluster, &space, "cameras", "device-plugin")?;
    within(TIMEOUT, "our slices have no device", || {
        let left: usize = crate::scheduled::slices(cluster, "spec.driver=leafhost.dev")?
            .iter()
            .map(devices)
            .sum();
        ensure!(left == 0, "{left} devices");
        Ok(())
    })?;
    for (number, slice) in slices.iter().enumerate() {
        let mut spec = slice.get("spec").context("no spec")?.clone();
        for (field, value) in [
            ("driver", json!("hand.example")),
            (
                "pool",
                json!({"name": "hand", "generation": 1, "resourceSliceCount": slices.len()}),
            ),
        ] {
            spec.as_object_mut()
                .context("no object")?
                .insert(field.to_owned(), value);
        }
        let copy = json!({"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": {"name": format!("hand-{number}")}, "spec": spec});
        cluster.api().create(SLICES, &copy)?;
    }
    let by_hand = schedule(cluster, &space, "by-hand", "hand.example")?;
    for number in 0..slices.len() {
        cluster.api().delete(&format!("{SLICES}/hand-{number}"))?;
    }
    Ok(vec![
        Line {
            what: format!(
                "{DEVICES} cameras that two nodes share, capacity 5, offered to the scheduler: slices / time"
            ),
            value: format!("{} / {}", slices.len(), seconds(offered)),
            target: "≤ 20 / –".into(),
            reference: "16 full slices".into(),
        },
        Line {
            what: format!(
                "the same: the scheduler's processor time for {PODS} pods with a claim, over that with slices by hand"
            ),
            value: format!("{:.2} ×", ours.as_secs_f64() / by_hand.as_secs_f64()),
            target: "≤ 1.1 ×".into(),
            reference: format!("{} and {}", seconds(ours), seconds(by_hand)),
        },
        Line {
            what: "the same: memory of an agent, over that with device plugins".into(),
            value: format!(
                "{:+.1} MB",
                (f64::from(after.resident) - f64::from(before.resident)) * 1024.0 / 1e6
            ),
            target: "≤ +2 MB".into(),
            reference: format!("{} and {}", mb(after.resident), mb(before.resident)),
        },
    ])
}

/// Returns the scheduler's processor time for pods with a claim of a driver. The pods do not start: the kubelets are stopped.
fn schedule(
    cluster: &'static Cluster,
    space: &Namespace<'_>,
    name: &str,
    driver: &str,
) -> Result<Duration> {
    let expression = format!("device.driver == \"{driver}\"");
    define(cluster, space, name, &expression)?;
    let nodes: Vec<&Node> = cluster.nodes().iter().collect();
    for node in &nodes {
        node.stop_kubelet(Signal::SIGKILL)?;
    }
    let pid = cluster.scheduler().pid()?;
    let before = processor_time(pid)?;
    for number in 0..PODS {
        let claims = json!([{"name": "camera", "resourceClaimTemplateName": name}]);
        let pod = Pod::new(
            &format!("{name}-{number}"),
            &[Container::new("main").claim("camera")],
        );
        space.create(&pod.with("resourceClaims", claims))?;
    }
    let scheduled = within(TIMEOUT, "all pods have a node", || {
        let list = cluster.get(&space.collection("pods"))?;
        let pods = list
            .get("items")
            .and_then(Value::as_array)
            .context("no items")?;
        let has_node = |pod: &&Value| pod.pointer("/spec/nodeName").is_some();
        let found = pods.iter().filter(has_node).count();
        ensure!(found == PODS, "{found} of {PODS}");
        Ok(())
    });
    let took = processor_time(pid)?.saturating_sub(before);
    for node in &nodes {
        node.start_kubelet()?;
    }
    let pods = [
        "delete",
        "pods",
        "--all",
        "--force",
        "--grace-period=0",
        "--namespace",
        space.name(),
    ];
    cluster.kubectl(&pods)?;
    for node in &nodes {
        node.wait_ready()?;
    }
    within(TIMEOUT, "no claim is left", || {
        let path = format!(
            "/apis/resource.k8s.io/v1/namespaces/{}/resourceclaims",
            space.name()
        );
        let list = cluster.get(&path)?;
        ensure!(list.get("items") == Some(&json!([])), "some are");
        Ok(())
    })?;
    // The Instances must be without pods again before the next measurement.
    let path = collection(space, "instances");
    within(TIMEOUT, "all slots are free", || {
        let list = cluster.get(&path)?.to_string();
        ensure!(!list.contains("\"R:"), "some are not");
        Ok(())
    })?;
    scheduled.map(|()| took)
}

fn devices(slice: &Value) -> usize {
    slice
        .pointer("/spec/devices")
        .and_then(Value::as_array)
        .map_or(0, Vec::len)
}

/// Returns the number of nodes that may use the devices of a slice.
fn seen_by(slice: &Value) -> usize {
    let path = "/spec/nodeSelector/nodeSelectorTerms/0/matchExpressions/0/values";
    slice
        .pointer(path)
        .and_then(Value::as_array)
        .map_or(0, Vec::len)
}

//! Time from a new Configuration to a broker of each of its devices, and the number of writes for that.

use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use leafhost_tests::cluster::{Cluster, Container, Namespace, Pod};
use leafhost_tests::program::leafhost;
use leafhost_tests::wait::within;
use serde_json::json;

use crate::joined::{agent, collection, seconds};
use crate::table::Line;

/// Number of devices that both nodes see, each with one workload.
const DEVICES: usize = 100;
const LIMIT: Duration = Duration::from_mins(10);

/// Controller with all rights; it ends when this is dropped.
pub struct Controller(Child);

impl Controller {
    pub fn start(cluster: &Cluster, space: &Namespace<'_>) -> Result<Self> {
        let controller = Command::new(leafhost()?)
            .args(["controller", "--lease-namespace", space.name()])
            .env("KUBECONFIG", cluster.kubeconfig())
            .stderr(Stdio::null())
            .spawn()?;
        Ok(Self(controller))
    }
}

impl Drop for Controller {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

pub fn measure(cluster: &'static Cluster) -> Result<Vec<Line>> {
    let agents = cluster.nodes().iter().map(|node| {
        let mut home = agent(cluster, node, &["debug-echo"])?;
        home.start(&[])?;
        Ok(home)
    });
    let _agents = agents.collect::<Result<Vec<_>>>()?;
    let space = cluster.namespace("brokers")?;
    let _controller = Controller::start(cluster, &space)?;
    let main = Container::new("main")
        .script("trap exit TERM; sleep 2147483647 & wait")
        .device("{{PLACEHOLDER}}", 1);
    let broker = Pod::new("template", &[main]);
    let names: Vec<String> = (0..DEVICES)
        .map(|number| format!("device-{number}"))
        .collect();
    let details = format!("{{shared: true, descriptions: [{}]}}", names.join(", "));
    let object = json!({
        "apiVersion": "akri.sh/v0", "kind": "Configuration", "metadata": {"name": "brokers"},
        "spec": {"capacity": 1, "brokerSpec": {"brokerPodSpec": broker.spec()},
            "discoveryHandler": {"name": "debugEcho", "discoveryDetails": details}},
    });
    let start = cluster.audit().now()?;
    let begun = Instant::now();
    cluster
        .api()
        .create(&collection(&space, "configurations"), &object)?;
    until(cluster, &space, "all brokers are there", |_| true)?;
    let made = begun.elapsed();
    until(cluster, &space, "all brokers run", |pod| {
        pod.pointer("/status/phase") == Some(&json!("Running"))
    })?;
    let ran = begun.elapsed();
    let written = cluster.audit().since(start)?;
    let written = written
        .iter()
        .filter(|(request, _)| {
            request.is_write()
                && request.namespace == space.name()
                && request.resource == "pods"
                && !request.user.starts_with("system:")
        })
        .map(|(_, count)| count);
    let written: usize = written.sum();
    Ok(vec![Line {
        what: format!(
            "Configuration created → a broker of each of {DEVICES} devices created, two nodes"
        ),
        value: seconds(made),
        target: "≤ 10 s".into(),
        reference: format!(
            "{written} writes of pods by the controller; all run after {}",
            seconds(ran)
        ),
    }])
}

/// Waits until there are as many pods of that kind as devices.
fn until(
    cluster: &Cluster,
    space: &Namespace<'_>,
    what: &str,
    counts: impl Fn(&serde_json::Value) -> bool,
) -> Result<()> {
    within(LIMIT, what, || {
        let list = cluster.get(&space.collection("pods"))?;
        let pods = list.get("items").and_then(|items| items.as_array());
        let found = pods
            .context("a list without items")?
            .iter()
            .filter(|pod| counts(pod));
        let found = found.count();
        ensure!(found == DEVICES, "{found} of {DEVICES}");
        Ok(())
    })
}

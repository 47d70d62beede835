//! Measures one Filter call in a cluster of 500 nodes, each with 20 devices of its own, and 100 devices shared by all nodes. Cases: an expression
//! evaluated before, a new expression, and two requests that must agree on an attribute. Targets for the worst of a hundred calls: 5 ms for a known
//! expression, 50 ms for a new one.
#![allow(missing_docs, clippy::unwrap_used, reason = "a benchmark")]

use std::collections::BTreeMap;
use std::hint::black_box;
use std::sync::Arc;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use criterion::{Criterion, criterion_group, criterion_main};
use leafhost_core::instance::{Edit, Instance, InstanceKey};
use leafhost_core::ports::Written;
use leafhost_core::scheduling::{
    BindingArgs, Cluster, Given, NodeSeen, Observer as _, Pod, PodError, PodKey,
};
use leafhost_scheduler::{Args, Metrics, Scheduler};
use serde_json::{Value, json};

const NODES: usize = 500;
const OWN: usize = 20;
const SHARED: usize = 100;

/// Cluster that answers without doing anything.
struct Silent;

#[async_trait]
impl Cluster for Silent {
    async fn pod(&self, _: &PodKey) -> Result<Option<Pod>, PodError> {
        Ok(None)
    }

    async fn bind(&self, _: &BindingArgs, _: &Given) -> Result<(), PodError> {
        Err(PodError::Failed(String::new()))
    }

    async fn try_again(&self, _: &PodKey, _: &str) -> Result<(), PodError> {
        Err(PodError::Failed(String::new()))
    }

    async fn set_lock(
        &self,
        _: &str,
        _: &str,
        _: Option<&str>,
    ) -> Result<Option<NodeSeen>, PodError> {
        Ok(None)
    }

    async fn record_event(&self, _: &BindingArgs, _: &str, _: &str, _: bool) {}

    async fn instance(&self, _: &InstanceKey) -> Result<Option<Arc<Instance>>, PodError> {
        Ok(None)
    }

    async fn edit(&self, _: Vec<(Arc<Instance>, Vec<Edit>)>) -> Vec<Written> {
        Vec::new()
    }
}

fn node(number: usize) -> String {
    format!("node-{number:03}")
}

fn instance(name: &str, configuration: &str, nodes: &[String], index: usize) -> Arc<Instance> {
    let status: BTreeMap<&String, Value> = nodes
        .iter()
        .map(|node| (node, json!({"health": "Healthy"})))
        .collect();
    let instance = json!({
        "apiVersion": "akri.sh/v0", "kind": "Instance", "metadata": {"name": name, "namespace": "lab", "uid": name},
        "spec": {"configurationName": configuration, "capacity": 5, "shared": nodes.len() > 1, "nodes": nodes, "deviceUsage": {},
            "leafhost": {"id": name, "attributes": {"index": {"int": index}, "numaNode": {"int": index % 2},
                "serial": {"string": format!("{name}-serial")}, "model": {"string": "a"}}, "capacity": {"memory": "80Gi"}}},
        "status": {"nodes": status},
    });
    Arc::new(serde_json::from_value(instance).unwrap())
}

fn args(uid: usize, devices: &Value, nodes: &[String]) -> Args {
    let args = json!({
        "Pod": {"metadata": {"name": "p", "namespace": "default", "uid": format!("uid-{uid}"),
            "annotations": {"leafhost.dev/devices": json!({"main": devices}).to_string()}},
            "spec": {"containers": [{"name": "main", "resources": {"limits": {"leafhost.dev/devices": "1"}}}]}},
        "NodeNames": nodes,
    });
    serde_json::from_value(args).unwrap()
}

fn one(configuration: &str, expression: &str) -> Value {
    json!({"requests": [{"name": "a", "exactly": {"deviceClassName": configuration,
        "selectors": [{"cel": {"expression": expression}}]}}]})
}

/// Prints the median and the worst of a hundred calls, each for a different pod.
fn percentiles(
    name: &str,
    scheduler: &Scheduler,
    nodes: &[String],
    devices: impl Fn(usize) -> Value,
) {
    let mut times: Vec<Duration> = (0..100)
        .map(|number| {
            let args = args(number, &devices(number), nodes);
            let begun = Instant::now();
            black_box(scheduler.filter(args));
            let took = begun.elapsed();
            // The pod is bound before the next call, so it takes no devices from the next pod.
            scheduler.pod(Pod {
                uid: format!("uid-{number}"),
                node: node(0),
                ..Pod::default()
            });
            took
        })
        .collect();
    times.sort_unstable();
    let (median, worst) = (times.get(50), times.last());
    println!("{name}: median {median:?}, worst {worst:?}");
}

fn filter(criterion: &mut Criterion) {
    let nodes: Vec<String> = (0..NODES).map(node).collect();
    let mut all = Vec::new();
    for (number, node) in nodes.iter().enumerate() {
        let own = std::slice::from_ref(node);
        all.extend(
            (0..OWN)
                .map(|index| instance(&format!("gpu-{number:03}{index:03}"), "gpu", own, index)),
        );
    }
    all.extend((0..SHARED).map(|index| instance(&format!("cam-{index:06}"), "cam", &nodes, index)));
    let scheduler = Scheduler::new(Arc::new(Silent), Arc::new(Metrics::default()), false);
    let keys = all.iter().map(|one| one.key()).collect();
    for instance in all {
        scheduler.listed(instance);
    }
    scheduler.instances(keys);
    scheduler.pods(Vec::new());
    let index = |at: usize| format!("device.attributes[\"leafhost.dev\"].index == {at}");
    let serial = |number: usize| {
        format!(
            "device.attributes[\"leafhost.dev\"].serial != \"{number}\" && device.attributes[\"leafhost.dev\"].index < 18"
        )
    };
    let pair = json!({"requests": [{"name": "a", "exactly": {"deviceClassName": "gpu", "count": 2}}, {"name": "b", "exactly": {"deviceClassName": "cam"}}],
        "constraints": [{"matchAttribute": "resource.kubernetes.io/numaNode"}]});
    let known = one("gpu", &index(7));
    percentiles("a known expression", &scheduler, &nodes, |_| known.clone());
    percentiles(
        "a new expression on a value that few have",
        &scheduler,
        &nodes,
        |number| one("gpu", &format!("{} || {number} == 0", index(7))),
    );
    percentiles(
        "a new expression on a value that each has alone",
        &scheduler,
        &nodes,
        |number| one("gpu", &serial(number)),
    );
    percentiles(
        "a known expression of shared devices",
        &scheduler,
        &nodes,
        |_| one("cam", &index(7)),
    );
    percentiles(
        "two requests that must be alike",
        &scheduler,
        &nodes,
        |_| pair.clone(),
    );
    let mut group = criterion.benchmark_group("filter");
    group.sample_size(20);
    group.bench_function("known", |bencher| {
        bencher.iter(|| scheduler.filter(args(1, &known, &nodes)));
    });
    group.finish();
}

criterion_group!(benches, filter);
criterion_main!(benches);

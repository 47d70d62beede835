//! Pods bound per second by a scheduler that chooses their devices among those of 500 nodes, compared with the same scheduler with extenders that
//! decide nothing and without an extender. `NODES` sets the number.
//!
//! The nodes are objects without machines, and no pod starts. The times are those of Bindings in the API server's audit log.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use futures::{StreamExt as _, TryStreamExt as _};
use leafhost_tests::cluster::{Cluster, Namespace};
use leafhost_tests::scheduling::{AGENT, DEVICES, Scheduling, exactly, of};
use leafhost_tests::wait::{pass, within};
use serde_json::{Value, json};
use tokio::runtime::Runtime;

use crate::chosen::{between, calls};
use crate::empty_extender::EmptyExtender;
use crate::joined::{client, collection};
use crate::process::{Memory, mb};
use crate::statistics::metric;
use crate::table::Line;

/// Default number of nodes, without `NODES`.
const NODES: usize = 500;
/// Number of local devices of each node, and number of devices that all nodes see.
const LOCAL: usize = 20;
const SHARED: usize = 100;
/// Number of pods per node, all created at once.
const PODS_OF_NODE: usize = 2;
/// Number of different expressions of [`Wishes::Ten`].
const EXPRESSIONS: usize = 10;
/// Maximum number of concurrent requests.
const IN_FLIGHT: usize = 16;
/// Maximum number of Instances that are deleted with one request: those that all nodes see are large.
const TOGETHER: usize = 200;
/// Time within which all watchers have seen a created object.
const SEEN: Duration = Duration::from_secs(2);
/// Pause between two readings of the audit log.
const LOOK: Duration = Duration::from_millis(500);
const TIMEOUT: Duration = Duration::from_mins(10);
/// Label of the nodes.
const LABEL: &str = "leafhost.dev/bench";
const NODE_OBJECTS: &str = "/api/v1/nodes";
/// Taint of nodes without a reporting kubelet.
const UNREACHABLE: &str = "node.kubernetes.io/unreachable";

/// Kind of the pods' requests.
#[derive(Clone, Copy)]
enum Wishes {
    Alike,
    Ten,
}

pub fn measure(cluster: &'static Cluster) -> Result<Vec<Line>> {
    let nodes = std::env::var("NODES").map_or(Ok(NODES), |nodes| nodes.parse())?;
    cluster.define()?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let client = runtime.block_on(client(cluster))?;
    let bench = Bench {
        nodes,
        space: cluster.namespace("chosen-many")?,
        cluster,
        runtime,
        client,
    };
    bench.create_objects()?;
    let mut scheduling = Scheduling::start(cluster, bench.space.name(), &AGENT)?;
    let measured = bench.lines(&mut scheduling);
    let measured = measured.with_context(|| scheduling.log());
    // No scheduler must watch the cleanup.
    drop(scheduling);
    measured
}

/// Nodes, their Instances, and a namespace for pods. Dropping it deletes them all.
struct Bench {
    nodes: usize,
    space: Namespace<'static>,
    cluster: &'static Cluster,
    runtime: Runtime,
    client: kube::Client,
}

impl Bench {
    fn lines(&self, scheduling: &mut Scheduling) -> Result<Vec<Line>> {
        let pods = self.nodes * PODS_OF_NODE;
        // The extender evaluates the expression before the measurement begins.
        self.warm("warm-ours", scheduling)?;
        let before = calls(scheduling, "filter")?;
        let ours = self.run("ours", scheduling, Wishes::Alike)?;
        let known = calls(scheduling, "filter")?.since(&before);
        self.forget(Some(scheduling))?;
        let before = calls(scheduling, "filter")?;
        let ten = self.run("ten", scheduling, Wishes::Ten)?;
        let new = calls(scheduling, "filter")?.since(&before);
        let memory = Memory::of(scheduling.extender_pid())?;
        self.forget(Some(scheduling))?;

        let locals = self.nodes * LOCAL;
        let locals = (0..locals).map(|one| format!("local-{:04}{:02}", one / LOCAL, one % LOCAL));
        let extender = EmptyExtender::start(&scheduling.kubeconfig(), Some(locals.collect()))?;
        scheduling.replace_scheduler(|config| ask(config, &extender))?;
        self.warm("warm-reserving", scheduling)?;
        let reserving = self.run("reserving", scheduling, Wishes::Alike)?;
        self.forget(None)?;
        let extender = EmptyExtender::start(&scheduling.kubeconfig(), None)?;
        scheduling.replace_scheduler(|config| ask(config, &extender))?;
        self.warm("warm-empty", scheduling)?;
        let empty = self.run("empty", scheduling, Wishes::Alike)?;
        self.forget(None)?;
        scheduling.replace_scheduler(|config| {
            // kube-scheduler writes the Bindings itself, by default at most 50 a second.
            for (field, value) in [("qps", json!(5_000)), ("burst", json!(5_000))] {
                if let Some(connection) = config.pointer_mut("/clientConnection") {
                    connection[field] = value;
                }
            }
            config["extenders"] = json!([]);
        })?;
        drop(extender);
        self.warm("warm-none", scheduling)?;
        let none = self.run("none", scheduling, Wishes::Alike)?;
        self.forget(None)?;

        let share = |run: f64| format!("{:.0} %", run / empty * 100.0);
        Ok(vec![
            Line {
                what: format!(
                    "`chosen-many`: {} nodes, {LOCAL} devices of each and {SHARED} that all see, {pods} pods with one expression: bound a second, over those with an extender that decides nothing",
                    self.nodes
                ),
                value: share(ours),
                target: "≥ 90 %".into(),
                reference: format!(
                    "{ours:.1} and {empty:.1} a second; {reserving:.1} with an extender that decides nothing and writes a patch of an Instance and the Binding; with no extender {none:.1}; all were there before the first was bound"
                ),
            },
            Line {
                what: format!("the same with {EXPRESSIONS} expressions"),
                value: share(ten),
                target: "≥ 90 %".into(),
                reference: format!("{ten:.1} a second"),
            },
            Line {
                what: "the same: the extender's memory after both".into(),
                value: mb(memory.resident),
                target: "≤ 60 MB".into(),
                reference: format!("{} of it its own", mb(memory.anonymous)),
            },
            Line {
                what: "the same: p99 of Filter with one expression that was judged before, by the buckets of the extender's metrics, which are without HTTP and JSON".into(),
                value: known.quantile(0.99),
                target: "≤ 5 ms".into(),
                reference: format!(
                    "mean {:.2} ms of {}; with {EXPRESSIONS} expressions mean {:.2} ms, p99 {}",
                    known.mean().as_secs_f64() * 1e3,
                    known.count(),
                    new.mean().as_secs_f64() * 1e3,
                    new.quantile(0.99)
                ),
            },
        ])
    }

    /// Waits until one pod is bound, which shows that the scheduler has seen the cluster.
    fn warm(&self, name: &str, scheduling: &Scheduling) -> Result<()> {
        let pod = pod(name, scheduling, &half());
        self.cluster
            .api()
            .create(&self.space.collection("pods"), &pod)?;
        self.space.until(name, "it is bound", |pod| {
            pod.pointer("/spec/nodeName").context("it is not").map(drop)
        })
    }

    /// Creates pods while the scheduler is stopped, and waits until all are bound. Returns the number of pods bound per second, from the first
    /// Binding to the last.
    fn run(&self, name: &str, scheduling: &Scheduling, wishes: Wishes) -> Result<f64> {
        let pods = self.nodes * PODS_OF_NODE;
        let each = (0..pods).map(|number| {
            let indices = match wishes {
                Wishes::Alike => half(),
                Wishes::Ten => {
                    let first = number % EXPRESSIONS * 2;
                    vec![first, first + 1]
                }
            };
            pod(&format!("{name}-{number}"), scheduling, &indices)
        });
        let each: Vec<Value> = each.collect();
        let begun = self.cluster.audit().now()?;
        scheduling.still(|| {
            self.create(&self.space.collection("pods"), each)?;
            // The extender has seen them by then, too.
            pass(SEEN)
        })?;
        let start = Instant::now();
        // A line that was half written at the last reading is read again with the next but one.
        let (mut from, mut next) = (begun, begun);
        let mut bound: BTreeMap<String, String> = BTreeMap::new();
        let prefix = format!("{name}-");
        while bound.len() < pods {
            ensure!(
                start.elapsed() < TIMEOUT,
                "{} of {pods} are bound",
                bound.len()
            );
            for one in self.cluster.audit().timed(from)? {
                let request = one.request;
                let is_own = request.resource == "pods/binding"
                    && request.namespace == self.space.name()
                    && request.name.starts_with(&prefix);
                if is_own && request.code < 300 {
                    bound.insert(request.name, one.answered);
                }
            }
            (from, next) = (next, self.cluster.audit().now()?);
            pass(LOOK)?;
        }
        let first = bound.values().min().context("none is bound")?;
        let last = bound.values().max().context("none is bound")?;
        let took = between(first, last)?;
        let count = f64::from(u32::try_from(pods - 1)?);
        Ok(count / took.as_secs_f64())
    }

    /// Deletes all pods and waits until the extender has released their devices.
    fn forget(&self, scheduling: Option<&Scheduling>) -> Result<()> {
        let pods = self.space.collection("pods");
        self.delete_all(&pods, "gracePeriodSeconds=0", 1_000)?;
        if let Some(scheduling) = scheduling {
            within(TIMEOUT, "no slot is reserved", || {
                let left = metric(scheduling.address(), "leafhost_scheduler_reserved_slots")?;
                ensure!(left < 1.0, "{left} are");
                Ok(())
            })?;
        }
        // Other writes that the deletion causes, such as events, are done by then.
        pass(Duration::from_secs(10))
    }

    /// Deletes all objects of a collection, up to `together` per request.
    fn delete_all(&self, all: &str, query: &str, together: usize) -> Result<()> {
        let api = self.cluster.api();
        within(TIMEOUT, &format!("{all} are gone"), || {
            // The deletion may time out at the API server; then some objects are left.
            let deleted = api.delete(&format!("{all}?limit={together}&{query}"));
            let left = api.get(&format!("{all}?limit=1&{query}"))?;
            let left = left.get("items").and_then(Value::as_array);
            ensure!(left.is_some_and(Vec::is_empty), "some are left");
            deleted.map(drop)
        })
    }

    fn create_objects(&self) -> Result<()> {
        let nodes = (0..self.nodes).map(node).collect();
        self.create(NODE_OBJECTS, nodes)?;
        let names: Vec<String> = (0..self.nodes).map(node_name).collect();
        let mut instances = Vec::new();
        for (number, name) in names.iter().enumerate() {
            let own = std::slice::from_ref(name);
            let of_node = |index| instance("local", &format!("{number:04}{index:02}"), own, index);
            instances.extend((0..LOCAL).map(of_node));
        }
        let shared = |index| instance("shared", &format!("{index:06}"), &names, index);
        instances.extend((0..SHARED).map(shared));
        self.create(&collection(&self.space, "instances"), instances)?;
        // The nodes have no kubelet, so they become unreachable. Those writes must be done before pods, which tolerate the taint, are created.
        within(TIMEOUT, "all nodes are known to be unreachable", || {
            pass(Duration::from_secs(2))?;
            let list = format!("{NODE_OBJECTS}?labelSelector={LABEL}");
            let list = self.cluster.get(&list)?;
            let all = list.get("items").and_then(Value::as_array);
            let is_tainted = |node: &&Value| {
                let taints = node.pointer("/spec/taints");
                taints.is_some_and(|taints| taints.to_string().contains(UNREACHABLE))
            };
            let tainted = all.context("no items")?.iter().filter(is_tainted).count();
            ensure!(tainted == self.nodes, "{tainted} of {}", self.nodes);
            Ok(())
        })
    }

    /// Creates objects as fast as the API server accepts them.
    fn create(&self, path: &str, objects: Vec<Value>) -> Result<()> {
        let requests = objects.into_iter().map(|object| {
            Ok(http::Request::post(path)
                .header("content-type", "application/json")
                .body(serde_json::to_vec(&object)?)?)
        });
        let requests = requests.collect::<Result<Vec<_>>>()?;
        let created = futures::stream::iter(requests)
            .map(|request| self.client.request::<Value>(request))
            .buffer_unordered(IN_FLIGHT)
            .try_for_each(|_| async { Ok(()) });
        self.runtime
            .block_on(created)
            .with_context(|| format!("cannot create in {path}"))
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        let pods = self.space.collection("pods");
        let instances = collection(&self.space, "instances");
        let nodes = format!("labelSelector={LABEL}");
        for (all, query, together) in [
            (&*pods, "gracePeriodSeconds=0", 1_000),
            (&*instances, "", TOGETHER),
            (NODE_OBJECTS, &*nodes, 1_000),
        ] {
            if let Err(error) = self.delete_all(all, query, together) {
                eprintln!("{error:#}");
            }
        }
    }
}

fn node_name(number: usize) -> String {
    format!("chosen-{number:04}")
}

fn node(number: usize) -> Value {
    let amounts = json!({"cpu": "64", "memory": "256Gi", "pods": "110", DEVICES: "64"});
    let ready = json!({"type": "Ready", "status": "True", "reason": "Bench", "message": "",
        "lastHeartbeatTime": "2020-01-01T00:00:00Z", "lastTransitionTime": "2020-01-01T00:00:00Z"});
    json!({
        "metadata": {"name": node_name(number), "labels": {LABEL: "chosen"}},
        "status": {"capacity": amounts, "allocatable": amounts, "conditions": [ready]},
    })
}

/// Returns an Instance with one slot, which these nodes see.
fn instance(configuration: &str, hash: &str, nodes: &[String], index: usize) -> Value {
    let name = format!("{configuration}-{hash}");
    let status: BTreeMap<&String, Value> = nodes
        .iter()
        .map(|node| (node, json!({"health": "Healthy"})))
        .collect();
    json!({
        "apiVersion": "akri.sh/v0", "kind": "Instance", "metadata": {"name": name},
        "spec": {"configurationName": configuration, "capacity": 1, "shared": nodes.len() > 1, "nodes": nodes,
            "deviceUsage": {format!("{name}-0"): ""},
            "leafhost": {"id": name, "attributes": {"index": {"int": index}, "numaNode": {"int": index % 2}, "model": {"string": "a"}},
                "capacity": {"memory": "80Gi"}}},
        "status": {"nodes": status},
    })
}

/// Makes a kube-scheduler ask `extender`.
fn ask(config: &mut Value, extender: &EmptyExtender) {
    if let Some(url) = config.pointer_mut("/extenders/0/urlPrefix") {
        *url = json!(extender.url());
    }
}

/// Returns the indices of half of the devices of a node.
fn half() -> Vec<usize> {
    (0..LOCAL / 2).collect()
}

/// Returns a pod that asks for one device of its node with one of these indices.
fn pod(name: &str, scheduling: &Scheduling, indices: &[usize]) -> Value {
    let requests = json!([exactly("device", of("", "local", 1, indices))]);
    let text = json!({"main": {"requests": requests}}).to_string();
    json!({
        "metadata": {"name": name, "annotations": {DEVICES: text}},
        "spec": {
            "schedulerName": scheduling.name(),
            "automountServiceAccountToken": false,
            "tolerations": [{"operator": "Exists"}],
            "containers": [{"name": "main", "image": "none", "resources": {"limits": {DEVICES: "1"}}}],
        },
    })
}

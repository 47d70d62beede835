//! Agents of many nodes on one API server: their writes when nothing happens and when all of them restart, and the cost of one agent by the number of
//! the others. `NODES` sets the number.

use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use leafhost_tests::cluster::{Cluster, Namespace};
use leafhost_tests::wait::{pass, within};
use leafhost_tests::write_proxy::WriteProxy;
use serde_json::{Value, json};

use crate::joined::{collection, configure};
use crate::process::{Memory, mb};
use crate::simulated::{CONFIGURATIONS, HANDLER, LOCAL, Process, SHARED, SHARED_OF_NODE, name};
use crate::table::Line;

/// Default number of nodes besides the measured one, without `NODES`.
const NODES: usize = 500;
/// Number of other nodes for the first measurement.
const FEW: usize = 50;
const PROCESSES: usize = 4;
/// Time for which nothing happens.
const STEADY: Duration = Duration::from_mins(1);
/// Time after which an agent has done its writes.
const QUIET: Duration = Duration::from_secs(20);

/// Cost of one agent.
struct Cost {
    memory: u32,
    start: u64,
    steady: u64,
    restarts: u64,
    strange: Strange,
}

/// Cost of one agent for shared Instances that its node does not see, when their slots change hands and they are deleted.
struct Strange {
    instances: usize,
    /// Number of requests for single Instances.
    looks: u64,
    /// Number of bytes of Instances that the agent wrote to disk.
    kept: u64,
}

pub fn measure(cluster: &'static Cluster) -> Result<Vec<Line>> {
    let nodes = std::env::var("NODES").map_or(Ok(NODES), |nodes| nodes.parse())?;
    let few = FEW.min(nodes);
    cluster.define()?;
    let folder = tempfile::Builder::new().tempdir_in("/dev/shm")?;
    let _nodes = Nodes::create(cluster, nodes + 1)?;
    let space = cluster.namespace("nodes")?;
    for configuration in CONFIGURATIONS {
        configure(cluster, &space, configuration, HANDLER, "x")?;
    }
    let start = |first: usize, count: usize| {
        Process::start(cluster.kubeconfig(), folder.path(), first, count)
    };
    let mut processes = vec![start(1, few)?];
    settle(cluster, &space, few)?;
    let before = cost(cluster, &space, folder.path(), few, &mut processes)?;
    let each = (nodes - few).div_ceil(PROCESSES);
    let mut first = 1 + few;
    while first <= nodes {
        let count = each.min(nodes + 1 - first);
        processes.push(start(first, count)?);
        first += count;
    }
    settle(cluster, &space, nodes)?;
    let after = cost(cluster, &space, folder.path(), nodes, &mut processes)?;

    let begun = cluster.audit().now()?;
    pass(STEADY)?;
    let steady = writes(cluster, &space, begun)?;
    let begun = cluster.audit().now()?;
    for process in &mut processes {
        process.restart()?;
    }
    pass(QUIET)?;
    let restarted = writes(cluster, &space, begun)?;
    let sum = |counts: &BTreeMap<String, usize>| counts.values().sum::<usize>();
    let kb = |bytes: u64| format!("{} KB", bytes / 1000);
    Ok(vec![
        Line {
            what: format!(
                "{nodes} agents: writes of Instances and reports in {} s / when all restart one by one",
                STEADY.as_secs()
            ),
            value: format!("{} / {}", sum(&steady), sum(&restarted)),
            target: "0 / 0".into(),
            reference: format!(
                "{LOCAL} devices of each node and {SHARED_OF_NODE} of {SHARED} shared ones, {} processes, no kubelet; {steady:?}, {restarted:?}",
                processes.len()
            ),
        },
        Line {
            what: format!(
                "one agent beside {few} / {nodes} others: requests and bytes on disk for {} / {} shared Instances of others that are claimed and deleted",
                before.strange.instances, after.strange.instances
            ),
            value: format!(
                "{} and {} / {} and {}",
                before.strange.looks, before.strange.kept, after.strange.looks, after.strange.kept
            ),
            target: "0 and 0".into(),
            reference: "through a proxy that counts; the file is another if it was written".into(),
        },
        Line {
            what: format!("one agent beside {few} / {nodes} others: memory"),
            value: format!("{} / {}", mb(before.memory), mb(after.memory)),
            target: "equal".into(),
            reference: format!(
                "the bench's process with one agent; {:.1} MB a process of many agents for each of them",
                {
                    let last = processes.last().context("no process")?;
                    f64::from(Memory::of(last.pid())?.resident) * 1024.0
                        / 1e6
                        / f64::from(u32::try_from(each)?)
                }
            ),
        },
        Line {
            what: format!(
                "one agent beside {few} / {nodes} others: bytes from the API server when it starts"
            ),
            value: format!("{} / {}", kb(before.start), kb(after.start)),
            target: "equal but for nodes of shared Instances".into(),
            reference: format!(
                "in {} s in which nothing happens {} / {}; while {few} others restart {} / {}",
                QUIET.as_secs(),
                kb(before.steady),
                kb(after.steady),
                kb(before.restarts),
                kb(after.restarts)
            ),
        },
    ])
}

/// Measures the cost of the agent of node 0 next to `others` others.
fn cost(
    cluster: &Cluster,
    space: &Namespace<'_>,
    folder: &Path,
    others: usize,
    processes: &mut [Process],
) -> Result<Cost> {
    let proxy = WriteProxy::start(cluster.api())?;
    let kubeconfig = folder.join("kubeconfig");
    std::fs::write(&kubeconfig, proxy.kubeconfig())?;
    // The node's Instances exist before the measurement.
    drop(Process::start(&kubeconfig, folder, 0, 1)?);
    let one = Process::start(&kubeconfig, folder, 0, 1)?;
    settle(cluster, space, others + 1)?;
    pass(QUIET)?;
    drop(one);
    let begun = proxy.answered();
    let one = Process::start(&kubeconfig, folder, 0, 1)?;
    pass(QUIET)?;
    let started = proxy.answered();
    pass(QUIET)?;
    let steady = proxy.answered();
    processes.first_mut().context("no process")?.restart()?;
    pass(QUIET)?;
    let restarts = proxy.answered() - steady;
    let strange = strange(cluster, space, &proxy, &folder.join(name(0)))?;
    Ok(Cost {
        memory: Memory::of(one.pid())?.resident,
        start: started - begun,
        steady: steady - started,
        restarts,
        strange,
    })
}

/// Makes other nodes claim and free slots of the Instances that node 0 does not see, and deletes them; `folder` is that of node 0.
fn strange(
    cluster: &Cluster,
    space: &Namespace<'_>,
    proxy: &WriteProxy,
    folder: &Path,
) -> Result<Strange> {
    let collection = collection(space, "instances");
    let list = cluster.get(&collection)?;
    let all = list.pointer("/items").and_then(Value::as_array);
    let mut paths = Vec::new();
    for instance in all.context("no items")? {
        let nodes = instance.pointer("/spec/nodes").and_then(Value::as_array);
        let is_shared = instance.pointer("/spec/shared") == Some(&json!(true));
        let has = nodes.is_some_and(|nodes| nodes.iter().any(|node| *node == name(0)));
        let called = instance.pointer("/metadata/name").and_then(Value::as_str);
        if let Some(called) = called.filter(|_| is_shared && !has) {
            paths.push((format!("{collection}/{called}"), format!("{called}-0")));
        }
    }
    let kept = folder.join("instances.json");
    let state = || -> Result<(u64, i64, i64, u64)> {
        let file = std::fs::metadata(&kept)?;
        Ok((file.ino(), file.mtime(), file.mtime_nsec(), file.len()))
    };
    let (before, looks) = (state()?, proxy.looks());
    for holder in [name(1), String::new()] {
        for (path, slot) in &paths {
            let usage = json!({"spec": {"deviceUsage": {slot: holder}}});
            cluster.api().merge(path, &usage)?;
        }
    }
    for (path, _) in &paths {
        cluster.api().delete(path)?;
    }
    pass(QUIET)?;
    let after = state()?;
    Ok(Strange {
        instances: paths.len(),
        looks: proxy.looks() - looks,
        kept: if after == before { 0 } else { after.3 },
    })
}

/// Waits until the Instances of all nodes are written.
fn settle(cluster: &Cluster, space: &Namespace<'_>, nodes: usize) -> Result<()> {
    let shared = SHARED.min(nodes * SHARED_OF_NODE);
    let least = nodes * LOCAL + shared;
    let path = format!("{}?limit=1", collection(space, "instances"));
    within(Duration::from_mins(15), "all Instances are there", || {
        let list = cluster.get(&path)?;
        let more = list.pointer("/metadata/remainingItemCount");
        let count = more.and_then(Value::as_u64).unwrap_or_default() + 1;
        ensure!(usize::try_from(count)? >= least, "{count} of {least}");
        Ok(())
    })?;
    within(Duration::from_mins(15), "nobody writes any more", || {
        let begun = cluster.audit().now()?;
        pass(QUIET)?;
        let counts = writes(cluster, space, begun)?;
        ensure!(counts.is_empty(), "{counts:?}");
        Ok(())
    })
}

/// Returns the writes of the namespace's Instances and of reports since `begun`, by verb and kind.
fn writes(cluster: &Cluster, space: &Namespace<'_>, begun: u64) -> Result<BTreeMap<String, usize>> {
    let mut counts = BTreeMap::new();
    for (request, count) in cluster.audit().since(begun)? {
        let is_instance =
            request.resource.starts_with("instances") && request.namespace == space.name();
        if request.is_write() && (is_instance || request.resource.starts_with("discoveryhandlers"))
        {
            *counts
                .entry(format!("{} {}", request.verb, request.resource))
                .or_default() += count;
        }
    }
    Ok(counts)
}

/// Node objects without machines; removed on drop.
struct Nodes<'c> {
    cluster: &'c Cluster,
    count: usize,
}

impl<'c> Nodes<'c> {
    fn create(cluster: &'c Cluster, count: usize) -> Result<Self> {
        for number in 0..count {
            let node = json!({"metadata": {"name": name(number)}});
            cluster.api().create("/api/v1/nodes", &node)?;
        }
        Ok(Self { cluster, count })
    }
}

impl Drop for Nodes<'_> {
    fn drop(&mut self) {
        for number in 0..self.count {
            let _ = self
                .cluster
                .api()
                .delete(&format!("/api/v1/nodes/{}", name(number)));
        }
    }
}

//! Number of requests of two agents to write Instances: for new ones, for existing ones, and for those of the other node.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::Result;
use leafhost_tests::cluster::{Cluster, Namespace};
use leafhost_tests::wait::{pass, within};

use crate::joined::{agent, collection, configure, instances, until_instances};
use crate::table::Line;

/// Number of local devices of each node.
const LOCAL: usize = 20;
/// Number of devices that both nodes have.
const SHARED: usize = 20;
/// Time after which an agent has done its writes.
const QUIET: Duration = Duration::from_secs(5);

pub fn measure(cluster: &'static Cluster) -> Result<Vec<Line>> {
    let agents = cluster.nodes().iter().map(|node| {
        let mut home = agent(cluster, node, &["debug-echo"])?;
        home.start(&[])?;
        Ok(home)
    });
    let agents = agents.collect::<Result<Vec<_>>>()?;
    let [first, ..] = &*agents else {
        anyhow::bail!("no node");
    };
    let space = cluster.namespace("writes")?;

    let start = cluster.audit().now()?;
    configure(
        cluster,
        &space,
        "local",
        "debugEcho",
        &details(false, LOCAL),
    )?;
    let mut local = agents.len() * LOCAL;
    until_instances(cluster, &space, local, first)?;
    pass(QUIET)?;
    let new = writes(cluster, &space, start)?;
    let created = new.get("create").copied().unwrap_or_default();
    let all: usize = new.values().sum();
    let foreign = all - created;

    let start = cluster.audit().now()?;
    let path = format!("{}/local", collection(&space, "configurations"));
    let more = serde_json::json!({"spec": {"discoveryHandler": {"discoveryDetails": details(false, LOCAL + 1)}}});
    cluster.api().merge(&path, &more)?;
    let siblings = local;
    local += agents.len();
    until_instances(cluster, &space, local, first)?;
    pass(QUIET)?;
    let all: usize = writes(cluster, &space, start)?.values().sum();
    let sibling = all - agents.len();

    let start = cluster.audit().now()?;
    configure(
        cluster,
        &space,
        "shared",
        "debugEcho",
        &details(true, SHARED),
    )?;
    until_instances(cluster, &space, local + SHARED, first)?;
    within(Duration::from_mins(1), "both nodes are in all", || {
        let all = instances(cluster, &space)?;
        let shared = all.iter().filter(|one| {
            let nodes = one
                .pointer("/spec/nodes")
                .and_then(|nodes| nodes.as_array());
            nodes.is_some_and(|nodes| nodes.len() == agents.len())
        });
        anyhow::ensure!(shared.count() == SHARED);
        Ok(())
    })?;
    pass(QUIET)?;
    let shared = writes(cluster, &space, start)?;

    let ratio = |count: usize, of: usize| -> Result<String> {
        let (count, of) = (u32::try_from(count)?, u32::try_from(of)?);
        Ok(format!("{}", f64::from(count) / f64::from(of)))
    };
    Ok(vec![Line {
        what: "requests to write Instances: a new one / an unchanged one of the same Configuration / one of another node".into(),
        value: format!(
            "{} / {} / {}",
            ratio(created, siblings)?,
            ratio(sibling, siblings)?,
            ratio(foreign, siblings)?
        ),
        target: "1 / 0 / 0".into(),
        reference: format!(
            "{siblings} Instances of {} nodes, then {} more; {SHARED} that both nodes have took {shared:?}",
            agents.len(),
            agents.len(),
        ),
    }])
}

fn details(shared: bool, count: usize) -> String {
    let descriptions: Vec<String> = (0..count).map(|n| format!("device-{n}")).collect();
    format!(
        "{{shared: {shared}, descriptions: [{}]}}",
        descriptions.join(", ")
    )
}

/// Returns the number of write requests for Instances since `since` by verb, refused or not.
fn writes(cluster: &Cluster, space: &Namespace<'_>, since: u64) -> Result<BTreeMap<String, usize>> {
    let mut verbs = BTreeMap::new();
    for (request, count) in cluster.audit().since(since)? {
        let is_of_instance = request.resource.starts_with("instances");
        if request.is_write() && is_of_instance && request.namespace == space.name() {
            *verbs.entry(request.verb).or_default() += count;
        }
    }
    Ok(verbs)
}

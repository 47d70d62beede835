//! Hides and removes the reports of nodes on which no agent runs any more, since no other process retracts them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, ListParams};
use kube::{Client, ResourceExt as _};
use leafhost_core::names::label_value;
use leafhost_core::status_store::ReportSet;
use leafhost_core::tasks::Tasks;
use leafhost_core::wait::changed;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::answers::{self, Failure};
use crate::crd::DiscoveryHandler;
use crate::index::follow;
use crate::reports::NODE_LABEL;
use crate::requests::delete_only;
use crate::until;
use crate::watch::Watch;

/// Time without an agent after which a node's reports are outdated; an agent that is replaced is back by then.
const GRACE: Duration = Duration::from_mins(1);
/// Timeout of removing a node's reports.
const REMOVAL: Duration = Duration::from_secs(10);

/// Nodes on which an agent runs; `None` while that is unknown.
type Running = Option<BTreeSet<String>>;

/// Follows the pods of agents, which `selector` selects in `namespace`, and returns a receiver of the reports without outdated ones.
pub fn watch(
    client: &Client,
    (namespace, selector): (&str, &str),
    reports: watch::Receiver<Arc<ReportSet>>,
    leads: watch::Receiver<bool>,
    tasks: &mut Tasks,
) -> watch::Receiver<Arc<ReportSet>> {
    let (sender, running) = watch::channel(Running::default());
    let publish = move |pods: &BTreeMap<String, String>| {
        let nodes: BTreeSet<String> = pods.values().cloned().collect();
        crate::publish(&sender, nodes);
    };
    let pods: Api<Pod> = Api::namespaced(client.clone(), namespace);
    let pods = Watch::new(pods).labels(selector);
    let read = |pod, _: Option<&String>| node(pod);
    let following = follow(pods, "Pods of agents", Pod::name_any, read, publish);
    tasks.add_loop("watch of agents", following);
    let (sender, shown) = watch::channel(Arc::default());
    let api: Api<DiscoveryHandler> = Api::all(client.clone());
    let remove = async move |node: String| {
        let removed = answers::within(REMOVAL, remove(&api, &node)).await;
        match removed.map_err(|failure| failure.message) {
            Ok(()) => tracing::info!(node, "removed the reports of a node without an agent"),
            Err(error) => tracing::warn!(
                node,
                error,
                "cannot remove the reports of a node without an agent"
            ),
        }
    };
    let filtering = filter(reports, running, leads, sender, remove);
    tasks.add_loop("reports of nodes without an agent", filtering);
    shown
}

/// Returns the node of a pod that has a running container and is not being deleted.
fn node(pod: Pod) -> Option<String> {
    let status = pod.status?;
    let mut containers = status.container_statuses.iter().flatten();
    let runs = containers.any(|one| {
        let state = one.state.as_ref();
        state.is_some_and(|state| state.running.is_some())
    });
    let is_ending = pod.metadata.deletion_timestamp.is_some();
    (runs && !is_ending).then_some(pod.spec?.node_name?)
}

/// Passes on the reports without outdated ones, which the leader removes.
async fn filter(
    mut reports: watch::Receiver<Arc<ReportSet>>,
    mut running: watch::Receiver<Running>,
    mut leads: watch::Receiver<bool>,
    shown: watch::Sender<Arc<ReportSet>>,
    remove: impl AsyncFn(String),
) {
    let mut absences = Absences::default();
    loop {
        let now = Instant::now();
        let all = Arc::clone(&reports.borrow_and_update());
        let next = match &*running.borrow_and_update() {
            Some(running) => absences.update(&all, running, now),
            None => None,
        };
        let is_leader = *leads.borrow_and_update();
        let mut set = ReportSet::clone(&all);
        set.handlers
            .retain(|(node, _), _| !absences.is_long(node, now));
        crate::publish(&shown, set);
        let due = absences.due(now).filter(|_| is_leader);
        if let Some(node) = due {
            absences.tried(&node, now);
            remove(node).await;
            continue;
        }
        tokio::select! {
            () = changed(&mut reports) => {}
            () = changed(&mut running) => {}
            () = changed(&mut leads) => {}
            () = until(next) => {}
        }
    }
}

/// Nodes that have reports but no agent.
#[derive(Debug, Default)]
struct Absences {
    /// Start of each node's absence, and time of the next attempt to remove its reports.
    nodes: BTreeMap<String, (Instant, Instant)>,
}

impl Absences {
    /// Updates the absences. Returns the time of the next update if nothing changes.
    fn update(
        &mut self,
        reports: &ReportSet,
        running: &BTreeSet<String>,
        now: Instant,
    ) -> Option<Instant> {
        let nodes = reports.handlers.keys().map(|(node, _)| node);
        let absent: BTreeSet<&String> = nodes.filter(|node| !running.contains(*node)).collect();
        self.nodes.retain(|node, _| absent.contains(node));
        for node in absent {
            let since = (now, now + GRACE);
            self.nodes.entry(node.clone()).or_insert(since);
        }
        let due = self.nodes.values().map(|(_, due)| *due);
        due.filter(|due| *due > now).min()
    }

    fn is_long(&self, node: &str, now: Instant) -> bool {
        let absence = self.nodes.get(node);
        absence.is_some_and(|(since, _)| *since + GRACE <= now)
    }

    /// Returns a node whose reports are to be removed now.
    fn due(&self, now: Instant) -> Option<String> {
        let mut nodes = self.nodes.iter();
        let (node, _) = nodes.find(|(_, (_, due))| *due <= now)?;
        Some(node.clone())
    }

    fn tried(&mut self, node: &str, now: Instant) {
        if let Some((_, due)) = self.nodes.get_mut(node) {
            *due = now + REMOVAL * 3;
        }
    }
}

/// Removes the reports of a node.
async fn remove(api: &Api<DiscoveryHandler>, node: &str) -> Result<(), Failure> {
    let of_node = ListParams::default().labels(&format!("{NODE_LABEL}={}", label_value(node)));
    for object in api.list(&of_node).await? {
        if object.spec.node != node {
            continue;
        }
        let params = delete_only(object.uid(), None);
        let deleted = api.delete(&object.name_any(), &params).await;
        match deleted.map_err(Failure::from) {
            Err(failure) if !matches!(failure.code, Some(404 | 409)) => return Err(failure),
            _ => {}
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use serde_json::json;

    use super::*;

    fn mk_reports(nodes: &[&str]) -> Arc<ReportSet> {
        let handlers = nodes.iter().map(|node| {
            let key = ((*node).to_owned(), "udev".to_owned());
            (key, Arc::default())
        });
        Arc::new(ReportSet {
            complete: true,
            handlers: handlers.collect(),
        })
    }

    fn names(nodes: &[&str]) -> BTreeSet<String> {
        nodes.iter().map(|node| (*node).to_owned()).collect()
    }

    #[tokio::test(start_paused = true)]
    async fn reports_of_a_node_without_an_agent_are_left_out_and_removed_after_a_minute() {
        let (reports, reports_shown) = watch::channel(mk_reports(&["a", "b"]));
        let (running, running_shown) = watch::channel(None);
        let (leads, leading) = watch::channel(false);
        let (sender, shown) = watch::channel(Arc::default());
        let removed = Arc::new(Mutex::new(Vec::new()));
        let kept = Arc::clone(&removed);
        let remove = async move |node: String| kept.lock().unwrap().push(node);
        let mut tasks = Tasks::default();
        let filtering = filter(reports_shown, running_shown, leading, sender, remove);
        tasks.add_loop("filter", filtering);
        let pass = |seconds| tokio::time::sleep(Duration::from_secs(seconds));
        let seen = || {
            let set: Arc<ReportSet> = Arc::clone(&shown.borrow());
            let nodes = set.handlers.keys().map(|(node, _)| node.clone());
            nodes.collect::<BTreeSet<String>>()
        };
        pass(600).await;
        assert_eq!(seen(), names(&["a", "b"]), "nothing is known of the agents");
        running.send_replace(Some(names(&["a", "b"])));
        // An agent that is replaced.
        running.send_replace(Some(names(&["a"])));
        pass(50).await;
        running.send_replace(Some(names(&["a", "b"])));
        pass(1).await;
        running.send_replace(Some(names(&["a"])));
        pass(50).await;
        assert_eq!(seen(), names(&["a", "b"]));
        pass(15).await;
        assert_eq!(seen(), names(&["a"]));
        assert!(removed.lock().unwrap().is_empty(), "another one leads");
        leads.send_replace(true);
        pass(1).await;
        assert_eq!(*removed.lock().unwrap(), ["b"]);
        // The reports were not removed.
        pass(40).await;
        assert_eq!(*removed.lock().unwrap(), ["b", "b"]);
        reports.send_replace(mk_reports(&["a"]));
        pass(600).await;
        assert_eq!(removed.lock().unwrap().len(), 2);
    }

    #[test]
    fn an_agent_runs_where_its_container_does() {
        let pod = |state: serde_json::Value, ends: Option<&str>| {
            let pod = json!({"metadata": {"name": "p", "deletionTimestamp": ends},
                "spec": {"nodeName": "a", "containers": []},
                "status": {"containerStatuses": [{"name": "agent", "image": "", "imageID": "",
                    "ready": false, "restartCount": 0, "state": state}]}});
            node(serde_json::from_value(pod).unwrap())
        };
        let runs = json!({"running": {}});
        assert_eq!(pod(runs.clone(), None).as_deref(), Some("a"));
        assert_eq!(pod(runs, Some("2026-01-01T00:00:00Z")), None);
        let waits = json!({"waiting": {"reason": "CrashLoopBackOff"}});
        assert_eq!(pod(waits, None), None);
    }
}

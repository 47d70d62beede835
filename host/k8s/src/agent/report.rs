//! Report of this node: one `discoveryhandlers.leafhost.dev` for each handler, written only if it differs.
//!
//! One task compares the agent's report with the objects of the API server, so that an object that a user edits or deletes is restored.

use std::sync::Arc;
use std::time::Duration;

use kube::{Api, Client};
use leafhost_core::names::label_value;
use leafhost_core::node_report::NodeReport;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

mod object;

use object::Owner;

use crate::agent::identity::{self, NodeObject};
use crate::reconciler::Reconciler;
use crate::reports::NODE_LABEL;
use crate::watch::Watch;

/// Interval between two checks of the Node object. The kubelet renews a token more often, and a renewed token may be bound to another Node
/// object.
const RENEWED: Duration = Duration::from_hours(1);
/// Interval while the credentials are not bound to the existing Node object.
const OUTDATED: Duration = Duration::from_mins(5);
/// Interval while no Node object exists.
const GONE: Duration = Duration::from_secs(10);

/// Writer of the node's report.
pub struct KubeReport {
    client: Client,
    given: Option<String>,
    /// Time of the next check of the Node object.
    ask_again: Instant,
    /// Last report of the agent.
    report: Arc<NodeReport>,
    reconciler: Reconciler<Owner>,
}

impl KubeReport {
    /// Creates a writer for the node with this uid; `given` is the operator's node name. The client must not retry requests by itself.
    pub fn new(client: Client, node: &str, node_uid: &str, given: Option<&str>) -> Self {
        let owner = Owner {
            node: node.to_owned(),
            uid: Some(node_uid.to_owned()),
        };
        let api = Api::all(client.clone());
        let label = format!("{NODE_LABEL}={}", label_value(node));
        let watch = Watch::new(api.clone()).labels(&label);
        Self {
            client,
            given: given.map(str::to_owned),
            ask_again: Instant::now() + RENEWED,
            report: Arc::default(),
            reconciler: Reconciler::new(owner, api, watch),
        }
    }

    /// Publishes the newest report in place of earlier ones until the sender is dropped. Keeps the reason in `problem` while publishing fails.
    pub async fn keep(
        mut self,
        mut reports: watch::Receiver<Arc<NodeReport>>,
        problem: watch::Sender<Option<String>>,
    ) {
        // Before the first report, no object is known to be superfluous.
        if reports.wait_for(|report| report.complete).await.is_err() {
            return;
        }
        reports.mark_changed();
        loop {
            crate::publish(&problem, self.reconciler.problem());
            tokio::select! {
                changed = reports.changed() => {
                    if changed.is_err() {
                        return;
                    }
                    self.report = Arc::clone(&reports.borrow_and_update());
                    self.want();
                }
                due = self.reconciler.due(true) => if let Some((name, write)) = due {
                    if std::mem::take(&mut self.reconciler.is_stale) {
                        self.ask().await;
                    } else {
                        self.reconciler.write(name, write).await;
                    }
                },
                () = sleep_until(self.ask_again) => self.ask().await,
            }
        }
    }

    fn want(&mut self) {
        let wanted = self.reconciler.rules.objects(&self.report);
        self.reconciler.want(wanted);
    }

    /// Checks the Node object and makes it the owner of the reports.
    async fn ask(&mut self) {
        self.ask_again = Instant::now() + RENEWED;
        let uid = match identity::node_object(&self.client, self.given.as_deref()).await {
            Ok(NodeObject::Bound(uid)) => Some(uid),
            Ok(NodeObject::Newer) => {
                self.ask_again = Instant::now() + OUTDATED;
                None
            }
            // Reports are deleted together with their Node.
            Ok(NodeObject::Gone) => {
                self.reconciler.is_stale = true;
                self.reconciler
                    .pause(Instant::now() + GONE, "its Node is gone");
                return;
            }
            Err(error) => {
                let error = error.to_string();
                tracing::warn!(
                    error,
                    "cannot determine which Node object the reports of this node belong to"
                );
                return;
            }
        };
        if uid != self.reconciler.rules.uid {
            tracing::info!(uid, "another Node object has the name of this node");
            self.reconciler.rules.uid = uid;
            self.want();
            self.reconciler.resume();
        }
    }
}

#[cfg(test)]
mod tests;

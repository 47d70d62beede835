//! The report of this node: one `discoveryhandlers.leafhost.dev` for each handler, written only when it differs.
//!
//! One task compares what the agent reports with what the API server has, so that an object that somebody edits or deletes is put right.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use kube::{Api, Client};
use leafhost_core::names::label_value;
use leafhost_core::node_report::NodeReport;
use leafhost_core::ports::ReportSink;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

mod object;

use object::Owner;

use crate::agent::identity::{self, NodeObject};
use crate::keeper::Keeper;
use crate::reports::NODE_LABEL;
use crate::watch::Watch;

/// How often it is asked which Node object this is: the kubelet renews a token in less, and another token may say something else.
const RENEWED: Duration = Duration::from_hours(1);
/// The same while the credentials are not those of the Node object that is there.
const OUTDATED: Duration = Duration::from_mins(5);
/// The same while no Node object is there.
const GONE: Duration = Duration::from_secs(10);

/// Where the node's report goes.
pub struct KubeReport {
    client: Client,
    owner: Owner,
    given: Option<String>,
}

impl KubeReport {
    /// Of the node with that uid; `given` is the name that the operator says. The client must not repeat requests by itself.
    pub fn new(client: Client, node: &str, node_uid: &str, given: Option<&str>) -> Self {
        let owner = Owner {
            node: node.to_owned(),
            uid: Some(node_uid.to_owned()),
        };
        let given = given.map(str::to_owned);
        Self {
            client,
            owner,
            given,
        }
    }
}

#[async_trait]
impl ReportSink for KubeReport {
    async fn keep(
        &self,
        mut reports: watch::Receiver<Arc<NodeReport>>,
        problem: watch::Sender<Option<String>>,
    ) {
        // Nothing is known to be superfluous before the first report.
        if reports.wait_for(|report| report.complete).await.is_err() {
            return;
        }
        let (client, given) = (self.client.clone(), self.given.clone());
        let mut task = Task::new(self.owner.clone(), client, given);
        task.run(reports, problem).await;
    }
}

struct Task {
    client: Client,
    given: Option<String>,
    /// Sets the next question which Node object there is.
    ask_again: Instant,
    /// Holds what the agent reports.
    report: Arc<NodeReport>,
    keeper: Keeper<Owner>,
}

impl Task {
    fn new(owner: Owner, client: Client, given: Option<String>) -> Self {
        let label = format!("{NODE_LABEL}={}", label_value(&owner.node));
        Self {
            keeper: {
                let api = Api::all(client.clone());
                let watch = Watch::new(api.clone()).labels(&label);
                Keeper::new(owner, api, watch)
            },
            client,
            given,
            ask_again: Instant::now() + RENEWED,
            report: Arc::default(),
        }
    }

    async fn run(
        &mut self,
        mut reports: watch::Receiver<Arc<NodeReport>>,
        problem: watch::Sender<Option<String>>,
    ) {
        reports.mark_changed();
        loop {
            let now = self.keeper.problem();
            problem.send_if_modified(|told| {
                let differs = *told != now;
                *told = now;
                differs
            });
            tokio::select! {
                changed = reports.changed() => {
                    if changed.is_err() {
                        return;
                    }
                    self.report = Arc::clone(&reports.borrow_and_update());
                    self.want();
                }
                due = self.keeper.due(true) => if let Some((name, write)) = due {
                    if std::mem::take(&mut self.keeper.is_doubtful) {
                        self.ask().await;
                    } else {
                        self.keeper.write(name, write).await;
                    }
                },
                () = sleep_until(self.ask_again) => self.ask().await,
            }
        }
    }

    fn want(&mut self) {
        let wanted = self.keeper.keep.objects(&self.report);
        self.keeper.want(wanted);
    }

    /// Asks which Node object there is, and makes the reports its.
    async fn ask(&mut self) {
        self.ask_again = Instant::now() + RENEWED;
        let uid = match identity::node_object(&self.client, self.given.as_deref()).await {
            Ok(NodeObject::Bound(uid)) => Some(uid),
            Ok(NodeObject::Newer) => {
                self.ask_again = Instant::now() + OUTDATED;
                None
            }
            // Reports go with their Node.
            Ok(NodeObject::Gone) => {
                self.keeper.is_doubtful = true;
                self.keeper.pause(Instant::now() + GONE, "its Node is gone");
                return;
            }
            Err(error) => {
                let error = error.to_string();
                tracing::warn!(
                    error,
                    "cannot tell which Node object the reports of this node belong to"
                );
                return;
            }
        };
        if uid != self.keeper.keep.uid {
            tracing::info!(uid, "another Node object has the name of this node");
            self.keeper.keep.uid = uid;
            self.want();
            self.keeper.resume();
        }
    }
}

#[cfg(test)]
mod tests;

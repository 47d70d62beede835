//! Asks the kubelet who has the units of an allocation that a pod was seen to have. The questions run beside the task, which meanwhile
//! decides all other allocations.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use leafhost_core::unit::Unit;
use tokio::task::{JoinError, JoinSet};
use tokio::time::timeout;

use super::SlotTask;
use super::model::snapshot::{Pod, Snapshot};
use super::queue::Request;

/// Time limit of a request to PodResources while an allocation waits.
const ASK: Duration = Duration::from_secs(2);

/// Answer of the kubelet for one request.
pub(super) struct Answer {
    pub request: Request,
    /// Snapshot, taken if a kubelet other than the current one was seen to have one of the units.
    pub snapshot: Option<Snapshot>,
    /// Units that PodResources lists now; `None` if it did not answer.
    pub listed: Option<BTreeMap<Unit, BTreeSet<Pod>>>,
}

/// Questions that run.
#[derive(Default)]
pub(super) struct Questions {
    running: JoinSet<Answer>,
    units: BTreeSet<Unit>,
}

impl Questions {
    /// Returns true if a question about this unit runs.
    pub fn has_unit(&self, unit: &Unit) -> bool {
        self.units.contains(unit)
    }

    /// Returns the next answer.
    pub async fn next(&mut self) -> Option<Result<Answer, JoinError>> {
        let answer = self.running.join_next().await?;
        if let Ok(answer) = &answer {
            for unit in answer.request.units() {
                self.units.remove(&unit);
            }
        }
        Some(answer)
    }
}

impl SlotTask {
    /// Begins to ask who has the units of a request.
    pub(super) fn ask(&mut self, request: Request) {
        let units: Vec<Unit> = request.units().collect();
        let is_older = units.iter().any(|unit| self.is_of_older_kubelet(unit));
        let uids = is_older.then(|| self.uids(units.iter()));
        self.questions.units.extend(units);
        let records = Arc::clone(&self.looks.records);
        self.questions.running.spawn(async move {
            let snapshot = match uids {
                Some(uids) => timeout(ASK, records.read(uids, BTreeSet::new())).await.ok(),
                None => None,
            };
            let listed = timeout(ASK, records.listed()).await.ok().flatten();
            Answer {
                request,
                snapshot,
                listed,
            }
        });
    }
}

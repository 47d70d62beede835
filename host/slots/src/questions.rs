//! The slot task's questions to the kubelet about ids that somebody was seen to have, each for one allocation. They run beside the task, which
//! decides all others meanwhile.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use leafhost_core::unit::Unit;
use tokio::task::{JoinError, JoinSet};
use tokio::time::timeout;

use super::SlotTask;
use super::model::snapshot::{Pod, Snapshot};
use super::queue::Request;

/// Time limit for a request to PodResources while an allocation waits.
const ASK: Duration = Duration::from_secs(2);

/// Holds what the kubelet says to one question.
pub(super) struct Answer {
    pub request: Request,
    /// A snapshot, where another kubelet than that of now was seen to have one of the ids.
    pub snapshot: Option<Snapshot>,
    /// Holds what PodResources says just now; nothing if it says nothing.
    pub listed: Option<BTreeMap<Unit, BTreeSet<Pod>>>,
}

/// The questions that were asked.
#[derive(Default)]
pub(super) struct Questions {
    running: JoinSet<Answer>,
    units: BTreeSet<Unit>,
}

impl Questions {
    /// Tells that one is about that unit.
    pub fn has_unit(&self, unit: &Unit) -> bool {
        self.units.contains(unit)
    }

    /// The next answer.
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
    /// Asks who has the ids of a request.
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

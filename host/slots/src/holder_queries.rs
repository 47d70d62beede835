//! Asks the kubelet which pods have the device ids of an allocation, if a pod was seen to have any of them. The queries run concurrently
//! with the task, which continues to decide all other allocations.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use leafhost_core::device_id::DeviceId;
use tokio::task::{JoinError, JoinSet};
use tokio::time::timeout;

use super::SlotTask;
use super::model::snapshot::{Pod, Snapshot};
use super::queue::Request;

/// Time limit of a request to PodResources while an allocation waits.
const QUERY_TIMEOUT: Duration = Duration::from_secs(2);

/// Answer of the kubelet for one request.
pub(super) struct HolderAnswer {
    pub request: Request,
    /// Snapshot of the records, taken only if a kubelet other than the current one reported one of the device ids for a pod.
    pub snapshot: Option<Snapshot>,
    /// Device ids that PodResources lists now; `None` if it did not answer.
    pub listed: Option<BTreeMap<DeviceId, BTreeSet<Pod>>>,
}

/// Running queries.
#[derive(Default)]
pub(super) struct HolderQueries {
    running: JoinSet<HolderAnswer>,
    device_ids: BTreeSet<DeviceId>,
}

impl HolderQueries {
    /// Returns true if a query about this device id is running.
    pub fn has_device_id(&self, device_id: &DeviceId) -> bool {
        self.device_ids.contains(device_id)
    }

    /// Returns the next answer; `None` if no query is running.
    pub async fn next(&mut self) -> Option<Result<HolderAnswer, JoinError>> {
        let answer = self.running.join_next().await?;
        if let Ok(answer) = &answer {
            for device_id in answer.request.device_ids() {
                self.device_ids.remove(&device_id);
            }
        }
        Some(answer)
    }
}

impl SlotTask {
    /// Begins to ask the kubelet which pods have the device ids of a request.
    pub(super) fn query_holders(&mut self, request: Request) {
        let device_ids: Vec<DeviceId> = request.device_ids().collect();
        let is_older = device_ids
            .iter()
            .any(|device_id| self.is_of_older_kubelet(device_id));
        let by_device_id = &self.slot_table.by_device_id;
        let states = device_ids.iter().filter_map(|id| by_device_id.get(id));
        let uids = states.flat_map(|state| state.holder.uids());
        let uids = is_older.then(|| uids.collect::<BTreeSet<String>>());
        self.holder_queries.device_ids.extend(device_ids);
        let records = Arc::clone(&self.record_reads.records);
        self.holder_queries.running.spawn(async move {
            let snapshot = match uids {
                Some(uids) => timeout(QUERY_TIMEOUT, records.read(uids, BTreeSet::new()))
                    .await
                    .ok(),
                None => None,
            };
            let listed = timeout(QUERY_TIMEOUT, records.listed())
                .await
                .ok()
                .flatten();
            HolderAnswer {
                request,
                snapshot,
                listed,
            }
        });
    }
}

//! Gives running pods their slots back after an Instance was deleted and created again, for example because a handler was away for long. The pods'
//! annotations, which only the scheduler writes, name the devices of each pod.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use leafhost_core::allocation::reserve;
use leafhost_core::instance::{Edit, Instance, Reserved, Use};
use leafhost_core::scheduling::Pod;
use leafhost_core::slot::DeviceUsage;
use leafhost_core::text::chain;
use tokio::time::Instant;

use crate::scheduler::Scheduler;

/// Pause before a failed attempt is repeated.
const AGAIN: Duration = Duration::from_secs(5);

/// Slot to reserve again for a running pod.
struct LostReservation {
    instance: Arc<Instance>,
    pod: String,
    edit: Edit,
    uids: Uids,
}

/// Uid of a pod and uid of an Instance.
type Uids = (String, String);

impl Scheduler {
    /// Reserves the slots that running pods have lost; returns the time of the next attempt, if one failed.
    pub(crate) async fn restore(&self) -> Option<Instant> {
        let mut failed = BTreeSet::new();
        while let Some(lost) = self.lost(&failed) {
            let name = lost.instance.metadata.name.clone();
            let edits = vec![(lost.instance, vec![lost.edit])];
            let written = self.cluster.edit(edits).await.pop();
            let error = match written {
                Some(Ok(Some(instance))) => {
                    let pod = lost.pod;
                    tracing::info!(instance = name, pod, "a pod that runs has its slot again");
                    self.state().world.restored.insert(lost.uids);
                    self.update_instance(instance);
                    continue;
                }
                Some(Err(error)) => chain(&error),
                Some(Ok(None)) | None => "the Instance is gone".to_owned(),
            };
            let pod = lost.pod;
            tracing::warn!(
                instance = name,
                pod,
                error,
                "cannot restore the slot of a running pod; retrying"
            );
            failed.insert(lost.uids);
        }
        (!failed.is_empty()).then(|| Instant::now() + AGAIN)
    }

    /// Returns a slot to reserve again, except for the pairs in `tried`.
    fn lost(&self, tried: &BTreeSet<Uids>) -> Option<LostReservation> {
        let state = self.state();
        if !state.world.is_read() {
            return None;
        }
        let mut all = state.world.short().filter_map(|(instance, pod, slot)| {
            let uids = (pod.uid.clone(), instance.metadata.uid.clone());
            let usage = DeviceUsage::of_pod(&pod.uid, &pod.node);
            let edit = reserve(&slot?, usage, reserved(pod, &instance.metadata.name));
            (!tried.contains(&uids)).then(|| LostReservation {
                instance: Arc::clone(instance),
                pod: pod.key.to_string(),
                edit,
                uids,
            })
        });
        all.next()
    }
}

/// Rebuilds the [`Reserved`] entry of a slot from the pod's annotation. The requests are not known any more and stay empty.
fn reserved(pod: &Pod, instance: &str) -> Reserved {
    let places = pod.containers.iter().zip(0..);
    let places: BTreeMap<&str, u32> = places.map(|(one, place)| (&*one.name, place)).collect();
    let given = pod.allocated.iter();
    let given = given.filter_map(|(name, all)| Some((name, *places.get(&**name)?, all)));
    let uses = given.clone().flat_map(|(name, place, all)| {
        let own = all.iter().zip(0..).filter(|(one, _)| *one == instance);
        own.map(move |(_, number)| Use {
            container: name.clone(),
            place,
            number,
            of: u32::try_from(all.len()).unwrap_or(u32::MAX),
            request: String::new(),
        })
    });
    let uses = uses.collect();
    let mut places: Vec<u32> = given.map(|(_, place, _)| place).collect();
    places.sort_unstable();
    Reserved {
        pod: pod.key.to_string(),
        places,
        uses,
    }
}

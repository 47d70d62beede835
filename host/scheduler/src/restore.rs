//! Gives pods that run their slots again after an Instance was deleted and made anew, as when a handler was away for long: what they were given is
//! said in their annotations, which the scheduler alone writes.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use leafhost_core::instance::{Edit, Instance, Reserved, Use};
use leafhost_core::scheduling::Pod;
use leafhost_core::text::chain;
use tokio::time::Instant;

use crate::scheduler::Scheduler;

/// Separates two tries.
const AGAIN: Duration = Duration::from_secs(5);

/// Is a slot that a pod gets again.
struct Lost {
    instance: Arc<Instance>,
    pod: String,
    edit: Edit,
    uids: Uids,
}

/// The uid of a pod, and that of an Instance.
type Uids = (String, String);

impl Scheduler {
    /// Reserves what pods that run have no more; returns when to look again.
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
                    self.saw(instance);
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
                "a pod that runs does not get its slot again; it is tried again"
            );
            failed.insert(lost.uids);
        }
        (!failed.is_empty()).then(|| Instant::now() + AGAIN)
    }

    /// Returns a slot that a pod gets again, but for those that were tried.
    fn lost(&self, tried: &BTreeSet<Uids>) -> Option<Lost> {
        let state = self.state();
        if !state.world.is_read() {
            return None;
        }
        let mut all = state.world.short().filter_map(|(instance, pod, slot)| {
            let uids = (pod.uid.clone(), instance.metadata.uid.clone());
            let edit = Edit::Reserve {
                id: slot?,
                uid: pod.uid.clone(),
                node: pod.node.clone(),
                reserved: reserved(pod, &instance.metadata.name),
            };
            (!tried.contains(&uids)).then(|| Lost {
                instance: Arc::clone(instance),
                pod: pod.key.to_string(),
                edit,
                uids,
            })
        });
        all.next()
    }
}

/// Returns what was said of the slot when it was reserved, but for the requests.
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

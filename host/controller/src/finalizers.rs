//! Removes what agents of Akri left on objects that are being deleted.
//!
//! Such an agent puts the name of its node, without a domain, among the finalizers of each Configuration and of each Instance that its node
//! sees, and removes it when the object is deleted. Where no such agent runs any more the object would wait for ever. So an object that
//! has been waiting for [`WAIT`] loses each finalizer without a domain; those of Kubernetes itself stay. An object that is not being deleted
//! keeps all of them, so that one can go back to Akri.

use std::collections::BTreeMap;
use std::time::Duration;

use leafhost_core::cluster::{Cluster, Deleting, is_of_akri};
use leafhost_core::status_store::WriteError;
use tokio::time::{Instant, sleep_until};

use crate::releasing::{Earliest, WRITE_AGAIN};
use crate::task::Error;

/// How long an agent of Akri has for it.
const WAIT: Duration = Duration::from_secs(10);

/// Runs without end.
pub async fn run(cluster: &dyn Cluster) -> Result<(), Error> {
    let (mut leads, mut deleting) = (cluster.leads(), cluster.deleting());
    // When each object may be written, by uid.
    let mut due: BTreeMap<String, Instant> = BTreeMap::new();
    let mut rests = Instant::now();
    loop {
        let objects = deleting.borrow_and_update().clone();
        due.retain(|uid, _| objects.iter().any(|object| object.uid == *uid));
        let mut next = Earliest::default();
        if *leads.borrow_and_update() {
            for object in objects.iter().filter(|object| others(object).is_some()) {
                let first = Instant::now() + WAIT;
                next.by(*due.entry(object.uid.clone()).or_insert(first));
            }
        }
        tokio::select! {
            changed = leads.changed() => changed.map_err(|_| Error("the lease"))?,
            changed = deleting.changed() => changed.map_err(|_| Error("objects that are being deleted"))?,
            () = sleep_until(next.0.map_or(rests, |next| next.max(rests))), if next.0.is_some() => {
                for object in &objects {
                    let is_due = due.get(&object.uid).is_some_and(|due| *due <= Instant::now());
                    let Some(others) = others(object).filter(|_| is_due) else {
                        continue;
                    };
                    due.insert(object.uid.clone(), Instant::now() + WRITE_AGAIN);
                    let outcome = cluster.set_finalizers(object, &others).await;
                    match &outcome {
                        Ok(()) => tracing::info!(object = %object, "removed the finalizers of agents of Akri"),
                        // Its next version shows what is there.
                        Err(WriteError::Outdated) => drop(due.insert(object.uid.clone(), Instant::now() + WAIT)),
                        Err(error) => tracing::warn!(object = %object, %error, "cannot remove the finalizers of agents of Akri"),
                    }
                    if matches!(outcome, Err(WriteError::NoAnswer(_))) {
                        rests = Instant::now() + WRITE_AGAIN;
                        break;
                    }
                }
            }
        }
    }
}

/// The other finalizers of an object, if it has some of agents of Akri.
fn others(object: &Deleting) -> Option<Vec<String>> {
    let is_other = |name: &&String| !is_of_akri(name);
    let others: Vec<String> = object.finalizers.iter().filter(is_other).cloned().collect();
    (others.len() < object.finalizers.len()).then_some(others)
}

#[cfg(test)]
mod tests;

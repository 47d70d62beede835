//! Ends claims that the kubelet will never unprepare, because it has lost its own record of them, as after a new setup of the node.

use std::collections::HashMap;
use std::time::Duration;

use leafhost_core::claim::Allocated;
use tokio::time::Instant;

use crate::Shared;
use crate::give_back::named;

/// Delay between the first check that finds a claim ended and the release of its slots: a container of a pod that was deleted by force may
/// still be ending.
const GRACE: Duration = Duration::from_mins(5);

/// Uids of claims that have ended and that no container uses, each with the time of the first check that found this.
pub type Abandoned = HashMap<String, Instant>;

impl Shared {
    /// Ends the claims that no container uses and that have been gone, or have had other devices, for [`GRACE`]. Asks the API server only
    /// for claims that no container uses, and stops after a failed request.
    pub async fn end_abandoned(&self, abandoned: &mut Abandoned) {
        let report = self.report();
        let prepared = report.claims.iter().filter(|(_, record)| !record.is_over);
        let prepared: Vec<_> = prepared.collect();
        abandoned.retain(|uid, _| prepared.iter().any(|(prepared, _)| *prepared == uid));
        if prepared.is_empty() {
            return;
        }
        let Some(used) = self.ports.users.used().await else {
            return;
        };
        for (uid, record) in prepared {
            let name = (record.namespace.clone(), record.name.clone());
            let claim = named(uid, record);
            let is_over = if used.contains(&name) {
                Some(false)
            } else {
                let is_own = |one: &Allocated| {
                    let mut devices = record.devices.iter();
                    devices.any(|own| (&own.pool, &own.device) == (&one.pool, &one.device))
                };
                self.lacks(&claim, is_own).await
            };
            let Some(is_over) = is_over else {
                return;
            };
            if !is_over {
                abandoned.remove(uid);
                continue;
            }
            let since = abandoned.entry(uid.clone()).or_insert_with(Instant::now);
            if since.elapsed() >= GRACE
                && let Ok(_turn) = self.turn(uid).try_lock_owned()
            {
                tracing::info!(claim = %format_args!("{}/{}", claim.namespace, claim.name), "a claim has ended, and the kubelet has not reported it");
                if let Err(error) = self.unprepare(&claim).await {
                    tracing::warn!(error, claim = uid, "cannot release a claim that has ended");
                }
            }
        }
    }
}

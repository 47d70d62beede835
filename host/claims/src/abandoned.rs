//! Ends claims whose end the kubelet will never tell: it has lost its own record of them, as a node does that is set up anew.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use leafhost_core::claim::record::Record;
use tokio::time::Instant;

use crate::Shared;
use crate::give_back::named;

/// Separates the first look at which a claim is over from its end: a container of a pod that was deleted by force may still be ending.
const GRACE: Duration = Duration::from_mins(5);

impl Shared {
    /// Ends the claims that no container uses and that are gone, or have other devices, since [`GRACE`]. The API server is asked only for those
    /// that no container uses.
    pub async fn end_abandoned(&self) {
        let claims = self.state().report.claims.clone();
        let prepared = claims.iter().filter(|(_, record)| !record.is_over);
        let prepared: Vec<_> = prepared.collect();
        if prepared.is_empty() {
            return;
        }
        let Some(used) = self.ports.users.used().await else {
            return;
        };
        let mut abandoned = HashMap::new();
        for (uid, record) in prepared {
            let name = (record.namespace.clone(), record.name.clone());
            if !used.contains(&name) && self.is_abandoned(uid, record).await {
                let since = self.state().abandoned.get(uid).copied();
                abandoned.insert(uid.clone(), since.unwrap_or_else(Instant::now));
            }
        }
        for (uid, since) in &abandoned {
            let Some(record) = claims.get(uid).filter(|_| since.elapsed() >= GRACE) else {
                continue;
            };
            let turn = self.turn(uid);
            let Ok(_turn) = turn.try_lock() else {
                continue;
            };
            let claim = named(uid, record);
            tracing::info!(claim = %format_args!("{}/{}", claim.namespace, claim.name), "a claim is over, and the kubelet has not said so");
            if let Err(error) = self.unprepare(&claim).await {
                tracing::warn!(
                    error,
                    claim = uid,
                    "a claim that is over cannot be given back"
                );
            }
        }
        self.state().abandoned = abandoned;
    }

    /// Tells that a claim is gone, or has none of the devices of its record.
    async fn is_abandoned(&self, uid: &str, record: &Arc<Record>) -> bool {
        match self
            .ports
            .reader
            .read(&record.namespace, &record.name)
            .await
        {
            Ok(Some(found)) if found.uid == uid => {
                let has = |pool: &str, device: &str| {
                    let mut results = found.results.iter();
                    results.any(|one| one.pool == pool && one.device == device)
                };
                let mut devices = record.devices.iter();
                !devices.any(|device| has(&device.pool, &device.device))
            }
            Ok(_) => true,
            Err(_) => false,
        }
    }
}

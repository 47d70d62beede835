//! Prepares the resource claims of this node: takes slots of Instances for the devices that the scheduler has allocated, makes them usable
//! as CDI devices, and releases them.
//!
//! The kubelet prepares a claim before the first pod that uses it starts, and unprepares it after the last one. A slot is taken with the
//! same compare-and-swap as in an allocation of a device plugin, so that no slot is given twice. The record of a claim is on disk before
//! the kubelet gets its answer, so that the claim can end while the API server is unreachable.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use leafhost_core::device_view::DeviceSnapshot;
use leafhost_core::instance::InstanceKey;
use leafhost_core::ports::InstanceStore;
use leafhost_kubelet::dra::{ClaimPreparer, ClaimRef, PreparedDevice};
use leafhost_kubelet::records::PodResources;
use tokio::sync::{Notify, OnceCell, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

mod abandoned;
mod give_back;
mod health;
mod metrics;
mod model;
mod prepare;
mod settle;
mod take;

pub use metrics::Metrics;

use leafhost_core::claim::ports::{ClaimReader, ClaimRecords, ClaimSpecs};
use leafhost_core::claim::record::Record;

/// Time limit of a Prepare. The kubelet waits for 45 seconds, and does not ask again for a minute or more.
const LIMIT: Duration = Duration::from_secs(40);

/// Ports of [`Claims`].
pub struct ClaimPorts {
    /// Reads claims with the devices that the scheduler has allocated to them.
    pub reader: Arc<dyn ClaimReader>,
    /// Store of Instances, in which slots are taken.
    pub store: Arc<dyn InstanceStore>,
    /// Devices as discovery sees them.
    pub devices: watch::Receiver<Arc<DeviceSnapshot>>,
    /// Writes CDI specs.
    pub specs: Arc<dyn ClaimSpecs>,
    /// Stores records of claims.
    pub records: Arc<dyn ClaimRecords>,
    /// Finds the claims that containers use.
    pub users: Arc<dyn ClaimUsers>,
}

/// Source of the claims that are in use.
#[async_trait]
pub trait ClaimUsers: Send + Sync {
    /// Returns the claims that containers of this node use, as (namespace, name), or `None` while they are unknown.
    async fn used(&self) -> Option<BTreeSet<(String, String)>>;
}

#[async_trait]
impl ClaimUsers for PodResources {
    async fn used(&self) -> Option<BTreeSet<(String, String)>> {
        self.list().await.ok().map(|listed| listed.claims)
    }
}

/// Report on the claims of this node.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ClaimReport {
    /// Records of claims by uid.
    pub claims: BTreeMap<String, Arc<Record>>,
    /// Errors of unreadable records by uid of the claim.
    pub unreadable: BTreeMap<String, String>,
}

/// Prepares and releases the claims of a node.
#[derive(Clone)]
pub struct Claims(Arc<Shared>);

struct Shared {
    node: Arc<str>,
    ports: ClaimPorts,
    metrics: Arc<Metrics>,
    state: Mutex<State>,
    report: watch::Sender<Arc<ClaimReport>>,
    /// Set once the records have been read.
    loaded: OnceCell<()>,
    /// Notified when there may be slots to release or to correct.
    work: Notify,
}

#[derive(Default)]
struct State {
    /// Slots that are being taken now.
    reserved: BTreeSet<(InstanceKey, String)>,
    /// Locks of claims by uid, which serialise all work on a claim.
    turns: HashMap<String, Arc<tokio::sync::Mutex<()>>>,
}

impl Claims {
    /// Returns a [`Claims`] and the receiver of its reports. It reads the records of an earlier run before any other work.
    pub fn new(
        node: &str,
        ports: ClaimPorts,
        metrics: Arc<Metrics>,
    ) -> (Self, watch::Receiver<Arc<ClaimReport>>) {
        let (report, seen) = watch::channel(Arc::default());
        let shared = Shared {
            node: node.into(),
            ports,
            metrics,
            state: Mutex::default(),
            report,
            loaded: OnceCell::new(),
            work: Notify::new(),
        };
        (Self(Arc::new(shared)), seen)
    }

    /// Releases the slots of claims that have ended and restores missing CDI specs until `stop` is cancelled.
    pub async fn run(&self, stop: CancellationToken) {
        stop.run_until_cancelled(self.0.keep()).await;
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads the records of an earlier run, once. Nothing else works without them, since the slots of claims would be unknown.
    async fn load(&self) -> Result<(), String> {
        let load = async {
            let (claims, unreadable) = self.ports.records.all().await?;
            let claims = claims
                .into_iter()
                .map(|(uid, record)| (uid, Arc::new(record)));
            let claims = claims.collect();
            self.edit(|report| *report = ClaimReport { claims, unreadable });
            Ok(())
        };
        self.loaded.get_or_try_init(|| load).await.copied()
    }

    /// Returns the current report.
    fn report(&self) -> Arc<ClaimReport> {
        Arc::clone(&self.report.borrow())
    }

    /// Edits the report and publishes it if it differs.
    fn edit(&self, edit: impl FnOnce(&mut ClaimReport)) {
        self.report.send_if_modified(|report| {
            let before = Arc::clone(report);
            let now = Arc::make_mut(report);
            edit(now);
            self.metrics.prepared(now.claims.len());
            *before != *now
        });
    }

    /// Saves the record of a claim, and publishes it.
    async fn save(&self, uid: &str, record: Record) -> Result<Arc<Record>, String> {
        self.ports.records.save(uid, &record).await?;
        let record = Arc::new(record);
        self.edit(|report| drop(report.claims.insert(uid.to_owned(), Arc::clone(&record))));
        Ok(record)
    }

    /// Returns the lock of a claim.
    fn turn(&self, uid: &str) -> Arc<tokio::sync::Mutex<()>> {
        let mut state = self.state();
        // Drops the locks that no task uses.
        state.turns.retain(|_, turn| Arc::strong_count(turn) > 1);
        Arc::clone(state.turns.entry(uid.to_owned()).or_default())
    }
}

#[async_trait]
impl ClaimPreparer for Claims {
    async fn prepare(&self, claim: ClaimRef) -> Result<Vec<PreparedDevice>, String> {
        let begun = Instant::now();
        self.0.load().await?;
        let _turn = self.0.turn(&claim.uid).lock_owned().await;
        let prepared = self.0.prepare(&claim, begun + LIMIT).await;
        let result = if prepared.is_ok() { "ok" } else { "error" };
        self.0.metrics.prepare(result, begun.elapsed());
        if let Err(error) = &prepared {
            let ClaimRef {
                namespace, name, ..
            } = &claim;
            tracing::warn!(claim = %format_args!("{namespace}/{name}"), error, "cannot prepare a claim");
        }
        prepared
    }

    async fn unprepare(&self, claim: ClaimRef) -> Result<(), String> {
        self.0.load().await?;
        let _turn = self.0.turn(&claim.uid).lock_owned().await;
        self.0.unprepare(&claim).await
    }
}

#[cfg(test)]
mod tests;

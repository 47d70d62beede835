//! The offer task: Instances and devices → one CDI spec for each Configuration, for container runtimes without a kubelet.
//!
//! Every pass starts from the files in the folder. So entries of devices that were not reported since the agent's start stay, and a file
//! that was removed is written again. The files stay when the agent stops. Only one agent may use a folder at a time: it would take the
//! specs of another agent for those of deleted Configurations.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use leafhost_cdi::{Error, SpecDir, SpecLock};
use leafhost_core::backoff;
use leafhost_core::device_view::DeviceSnapshot;
use leafhost_core::names::ConfigurationKey;
use leafhost_core::ports::InstanceSet;
use leafhost_core::presence::Absent;
use leafhost_core::problem::Problem;
use leafhost_core::text::chain;
use leafhost_core::wait::{SourceEnded, publish, until};
use tokio::sync::watch;
use tokio::task::spawn_blocking;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

pub mod spec;

/// Interval at which the folder is read even if nothing changed, because other programs write there, too.
const BACKSTOP: Duration = Duration::from_mins(1);
/// Time after a pass within which changes are written together: a change of one device writes the whole spec of its Configuration.
const SPACING: Duration = Duration::from_millis(250);

/// Report of the offer task.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CdiReport {
    /// CDI kinds with a written spec, by Configuration.
    pub kinds: BTreeMap<ConfigurationKey, String>,
    /// Problems that keep devices from being offered.
    pub problems: Vec<Problem>,
}

/// Task that writes CDI specs.
pub struct CdiTask {
    node: String,
    folder: SpecDir,
    /// Lock of the folder; `None` until it could be locked.
    lock: Option<SpecLock>,
    devices: watch::Receiver<Arc<DeviceSnapshot>>,
    instances: watch::Receiver<Arc<InstanceSet>>,
    report: watch::Sender<Arc<CdiReport>>,
    failures: u32,
    next: Instant,
}

impl CdiTask {
    /// Creates the task, with the lock of its folder if it could be locked; returns it with the receiver of its reports.
    pub fn new(
        node: String,
        (folder, lock): (SpecDir, Option<SpecLock>),
        devices: watch::Receiver<Arc<DeviceSnapshot>>,
        instances: watch::Receiver<Arc<InstanceSet>>,
    ) -> (Self, watch::Receiver<Arc<CdiReport>>) {
        let (report, seen) = watch::channel(Arc::default());
        let task = Self {
            node,
            folder,
            lock,
            devices,
            instances,
            report,
            failures: 0,
            next: Instant::now(),
        };
        (task, seen)
    }

    /// Runs until `shutdown`. A file that is being written is finished first.
    pub async fn run(mut self, shutdown: CancellationToken) -> Result<(), SourceEnded> {
        loop {
            tokio::select! {
                () = shutdown.cancelled() => return Ok(()),
                changed = self.devices.changed() => changed.map_err(|_| SourceEnded("devices"))?,
                changed = self.instances.changed() => changed.map_err(|_| SourceEnded("Instances"))?,
                () = until(Some(self.next)) => {}
            }
            self.pass(&shutdown).await;
            tokio::select! {
                () = shutdown.cancelled() => return Ok(()),
                () = sleep(SPACING) => {}
            }
        }
    }

    async fn pass(&mut self, shutdown: &CancellationToken) {
        let devices = Arc::clone(&self.devices.borrow_and_update());
        let instances = Arc::clone(&self.instances.borrow_and_update());
        if !instances.is_known() {
            self.next = Instant::now() + BACKSTOP;
            return;
        }
        let (node, folder) = (self.node.clone(), self.folder.clone());
        let stop = shutdown.clone();
        let held = self.lock.take();
        let work = spawn_blocking(move || {
            let lock = match held.map_or_else(|| folder.lock(), Ok) {
                Ok(lock) => Some(lock),
                Err(error @ Error::InUse { .. }) => {
                    let mut report = CdiReport::default();
                    report.problems.push(unwritten(None, &error));
                    return (report, true, None);
                }
                // If no lock can be created, nothing can be written either, and the pass reports that.
                Err(_) => None,
            };
            let (report, is_failed) = pass(&node, &folder, &devices, &instances, &stop);
            (report, is_failed, lock)
        });
        let Ok((report, is_failed, lock)) = work.await else {
            tracing::error!("writing CDI specs panicked; this is a bug");
            self.next = Instant::now() + BACKSTOP;
            return;
        };
        self.lock = lock;
        if shutdown.is_cancelled() {
            return;
        }
        let wait = if is_failed {
            self.failures = self.failures.saturating_add(1);
            backoff::wait(self.failures)
        } else {
            self.failures = 0;
            BACKSTOP
        };
        self.next = Instant::now() + wait;
        publish(&self.report, Arc::new(report));
    }
}

/// Runs one pass; returns its report, and true if another attempt may succeed.
fn pass(
    node: &str,
    folder: &SpecDir,
    devices: &DeviceSnapshot,
    instances: &InstanceSet,
    stop: &CancellationToken,
) -> (CdiReport, bool) {
    let mut report = CdiReport::default();
    let mut is_failed = false;
    let wanted = spec::wanted(node, devices, instances);
    report.problems = wanted.problems;
    let classes = match folder.classes() {
        Ok(classes) => classes,
        Err(error) => {
            let offers = wanted.offers.values().filter(|offer| !offer.is_empty());
            let keys = offers.map(|offer| Some(offer.key)).chain([None]);
            report
                .problems
                .extend(keys.map(|key| unwritten(key, &error)));
            return (report, true);
        }
    };
    // One after the other, so that only one spec is in memory.
    for (class, offer) in &wanted.offers {
        if stop.is_cancelled() {
            return (report, is_failed);
        }
        match written(folder, class, offer) {
            Ok((is_there, over)) => {
                if is_there {
                    let kind = spec::kind(class);
                    report.kinds.insert(offer.key.clone(), kind);
                }
                report.problems.extend(over);
            }
            Err(error) => {
                report.problems.push(unwritten(Some(offer.key), &error));
                is_failed = true;
            }
        }
    }
    if let Absent::Gone { unknown } = &devices.absent {
        let unwanted = |class: &&String| !wanted.offers.contains_key(*class);
        for class in classes.iter().filter(unwanted) {
            let spared = unknown.iter().any(|key| key.name() == class);
            if !spared && let Err(error) = folder.remove(class) {
                report.problems.push(unwritten(None, &error));
                is_failed = true;
            }
        }
    }
    (report, is_failed)
}

/// Writes or removes the spec of a Configuration. Returns true if there is one, and the problem if it lacks devices.
fn written(
    folder: &SpecDir,
    class: &str,
    offer: &spec::Offer<'_>,
) -> Result<(bool, Option<Problem>), Error> {
    let published = if offer.needs_published() {
        folder.read(class)?
    } else {
        None
    };
    let (spec, over) = offer.spec(class, published.as_ref());
    drop(published);
    match &spec {
        Some(spec) => folder.write(spec).map(drop)?,
        None => folder.remove(class).map(drop)?,
    }
    Ok((spec.is_some(), over))
}

fn unwritten(configuration: Option<&ConfigurationKey>, error: &Error) -> Problem {
    Problem::CdiSpecNotWritten {
        configuration: configuration.cloned(),
        error: chain(error),
    }
}

#[cfg(test)]
mod tests;

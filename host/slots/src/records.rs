//! Takes snapshots of the kubelet's records: PodResources, the checkpoint, and the folders of its pods.

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::FileTypeExt as _;
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use leafhost_core::device_id::{DeviceId, resource_name};
use leafhost_core::problem::Problem;
use leafhost_core::scheduling::DEVICES;
use leafhost_core::text::chain;
use leafhost_kubelet::records::{
    self, Checkpoint, Listed, PodResources, pod_exists, pod_has_volumes, read_checkpoint,
};
use leafhost_kubelet::{DevicePlugins, KubeletRun};
use tokio::sync::watch;
use tokio::task::spawn_blocking;
use tokio::time::{Instant, timeout};

use super::model::snapshot::{Admission, Checked, Pod, SLOTS_ANNOTATION, Snapshot};

/// Registration socket of the kubelet, relative to its folder.
const SOCKET: &str = "device-plugins/kubelet.sock";
/// Time within which the kubelet rewrites its checkpoint after a list was sent again.
const REWRITE: Duration = Duration::from_secs(1);
/// Time for which a checkpoint that alone names a device is believed. It doubles each time the checkpoint says the same, up to
/// [`TRUST_MAX`]: an init container may run for hours, but a kubelet that has just started does not yet leave out pods that have ended.
const TRUST_FIRST: Duration = Duration::from_secs(5);
/// Longest time for which such a checkpoint is believed.
const TRUST_MAX: Duration = Duration::from_mins(1);
/// Time during which PodResources is asked again, after pauses of `AGAIN`, while it rejects requests as too frequent.
const LIMITED: Duration = Duration::from_secs(2);
const AGAIN: Duration = Duration::from_millis(10);

/// Source of snapshots of the kubelet's records.
#[async_trait]
pub trait Records: Send + Sync {
    /// Takes a snapshot. `uids` are pods whose presence is to be checked; `open` are device ids for which the snapshot must show whether a pod
    /// got them.
    async fn read(&self, uids: BTreeSet<String>, open: BTreeSet<DeviceId>) -> Snapshot;
    /// Returns the device ids that PodResources lists now; `None` if it cannot be read.
    async fn listed(&self) -> Option<BTreeMap<DeviceId, BTreeSet<Pod>>>;
    /// Returns the kubelet that runs now.
    fn kubelet_run(&self) -> Option<KubeletRun>;
    /// Returns a receiver that changes when a snapshot may show something new.
    fn changes(&self) -> watch::Receiver<u64>;
}

/// Source of the kubelet's state during admission.
#[async_trait]
pub trait Admissions: Send + Sync {
    /// Returns the current state.
    async fn admission(&self) -> Result<Admission, String>;
}

/// Predicate that selects resources by name.
pub type Wanted = fn(&str) -> bool;

/// Returns true for the resources of Configurations and Instances.
pub fn is_of_slots(resource: &str) -> bool {
    resource_name(resource).is_some()
}

/// Returns true for the resource of tickets.
pub fn is_of_tickets(resource: &str) -> bool {
    resource == DEVICES
}

/// Records of this machine's kubelet.
pub struct KubeletRecords {
    root: PathBuf,
    wanted: Wanted,
    pods: PodResources,
    plugins: DevicePlugins,
    changes: watch::Receiver<u64>,
    checkpoint_only: Mutex<Option<CheckpointOnly>>,
}

/// Device ids that only a newly written checkpoint named, and how long they are believed.
struct CheckpointOnly {
    until: Instant,
    wait: Duration,
    entries: BTreeMap<DeviceId, BTreeSet<Pod>>,
}

impl KubeletRecords {
    /// Creates the reader for the `wanted` resources. `root` is the kubelet's folder, usually `/var/lib/kubelet`; `changes` changes when a
    /// snapshot may show something new.
    pub fn new(
        wanted: Wanted,
        root: PathBuf,
        plugins: DevicePlugins,
        changes: watch::Receiver<u64>,
    ) -> Self {
        Self {
            wanted,
            pods: PodResources::new(root.join("pod-resources/kubelet.sock")),
            root,
            plugins,
            changes,
            checkpoint_only: Mutex::default(),
        }
    }

    /// Lists PodResources; tries again while it rejects requests as too frequent.
    async fn list(&self) -> Result<Listed, records::Error> {
        let begun = Instant::now();
        loop {
            match self.pods.list().await {
                Err(records::Error::Limited { .. }) if begun.elapsed() < LIMITED => {
                    tokio::time::sleep(AGAIN).await;
                }
                listed => return listed,
            }
        }
    }

    async fn checkpoint(&self) -> Result<Option<Checkpoint>, String> {
        let path = self.root.join("device-plugins/kubelet_internal_checkpoint");
        match spawn_blocking(move || read_checkpoint(&path)).await {
            Ok(Ok(checkpoint)) => Ok(checkpoint),
            Ok(Err(error)) => Err(chain(&error)),
            Err(_) => Err(
                "reading the kubelet's checkpoint panicked; this is a bug, see the log".to_owned(),
            ),
        }
    }

    fn checkpoint_only(&self) -> MutexGuard<'_, Option<CheckpointOnly>> {
        self.checkpoint_only
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes the kubelet write its checkpoint and reads it; `None` if the kubelet did not write.
    async fn rewritten(&self, before: &Checkpoint) -> Option<Checkpoint> {
        let mut changes = self.plugins.checkpoint_changes();
        changes.mark_unchanged();
        if !self.plugins.resend() {
            return None;
        }
        let wait = async {
            loop {
                changes.changed().await.ok()?;
                if let Ok(Some(read)) = self.checkpoint().await
                    && read.stamp != before.stamp
                {
                    return Some(read);
                }
            }
        };
        timeout(REWRITE, wait).await.ok().flatten()
    }

    /// Returns true unless one of these pods is known to have lost its folder, which means that it has ended.
    async fn are_there(&self, entries: &BTreeMap<DeviceId, BTreeSet<Pod>>) -> bool {
        let pods = entries.values().flatten();
        let uids: BTreeSet<String> = pods.filter_map(|pod| pod.uid.clone()).collect();
        let root = self.root.clone();
        let snapshot = move || uids.iter().all(|uid| pod_exists(&root, uid) != Some(false));
        spawn_blocking(snapshot).await.unwrap_or_default()
    }

    /// Reads the checkpoint. Makes the kubelet rewrite it if it names more device ids than `listed`, or if neither names one of `open`.
    async fn check(
        &self,
        listed: Option<&BTreeMap<DeviceId, BTreeSet<Pod>>>,
        open: &BTreeSet<DeviceId>,
    ) -> Result<Option<Checked>, String> {
        let Some(read) = self.checkpoint().await? else {
            // The kubelet has never allocated a device, or the file was removed.
            return Ok(None);
        };
        let checked = digest(&read, self.wanted);
        let Some(listed) = listed else {
            return Ok(Some(checked));
        };
        let more = |checked: &Checked| -> BTreeMap<DeviceId, BTreeSet<Pod>> {
            let entries = checked.entries.iter();
            entries
                .filter(|(device_id, _)| !listed.contains_key(device_id))
                .map(|(device_id, pods)| (device_id.clone(), pods.clone()))
                .collect()
        };
        let alone = more(&checked);
        let known = self.checkpoint_only().take();
        let is_named =
            |device_id| listed.contains_key(device_id) || checked.entries.contains_key(device_id);
        let is_complete = open.iter().all(is_named);
        if alone.is_empty() && is_complete {
            return Ok(Some(checked));
        }
        let known = known.filter(|known| known.entries == alone);
        let wait = known.as_ref().map_or(TRUST_FIRST, |known| {
            known.wait.saturating_mul(2).min(TRUST_MAX)
        });
        if let Some(known) = known
            && is_complete
            && known.until > Instant::now()
            && self.are_there(&known.entries).await
        {
            *self.checkpoint_only() = Some(known);
            return Ok(Some(Checked {
                fresh: true,
                ..checked
            }));
        }
        let Some(read) = self.rewritten(&read).await else {
            return Ok(Some(checked));
        };
        let checked = Checked {
            fresh: true,
            rewritten: true,
            ..digest(&read, self.wanted)
        };
        *self.checkpoint_only() = Some(CheckpointOnly {
            until: Instant::now() + wait,
            wait,
            entries: more(&checked),
        });
        Ok(Some(checked))
    }
}

fn unavailable(error: String) -> Problem {
    Problem::KubeletUnavailable { error }
}

#[async_trait]
impl Records for KubeletRecords {
    async fn read(&self, uids: BTreeSet<String>, open: BTreeSet<DeviceId>) -> Snapshot {
        let begun = Instant::now();
        let kubelet_run = self.kubelet_run();
        let mut problems = Vec::new();
        let (listed, active) = match self.list().await {
            Ok(listed) => {
                let active = active(&listed);
                (Some(device_ids(listed, self.wanted)), active)
            }
            Err(error) => {
                if kubelet_run.is_some() {
                    problems.push(unavailable(chain(&error)));
                }
                (None, BTreeSet::new())
            }
        };
        let checkpoint = match self.check(listed.as_ref(), &open).await {
            Ok(checkpoint) => checkpoint,
            Err(error) => {
                problems.push(unavailable(error));
                None
            }
        };
        let root = self.root.clone();
        let booked = checkpoint
            .iter()
            .flat_map(|checked| checked.entries.values());
        let uids: BTreeSet<String> = booked
            .flatten()
            .filter_map(|pod| pod.uid.clone())
            .chain(uids)
            .collect();
        let pods = spawn_blocking(move || {
            let mut alive = BTreeMap::new();
            let mut is_silent = false;
            for uid in uids {
                let Some(is_there) = pod_exists(&root, &uid) else {
                    continue;
                };
                is_silent |= is_there && !pod_has_volumes(&root, &uid);
                alive.insert(uid, is_there);
            }
            (alive, is_silent)
        });
        let (alive, is_silent) = pods.await.unwrap_or_default();
        let mut snapshot = Snapshot {
            begun,
            // Dropped if the kubelet has been replaced since.
            listed: listed.filter(|_| self.kubelet_run() == kubelet_run),
            kubelet_run,
            active,
            checkpoint,
            alive,
            is_silent,
            problems,
        };
        if snapshot.is_socket_missing() {
            snapshot.problems.push(Problem::KubeletSocketMissing {
                socket: self.root.join(SOCKET),
            });
        }
        snapshot
    }

    async fn listed(&self) -> Option<BTreeMap<DeviceId, BTreeSet<Pod>>> {
        let listed = self.list().await.ok();
        listed.map(|listed| device_ids(listed, self.wanted))
    }

    fn kubelet_run(&self) -> Option<KubeletRun> {
        // Read from the file system: the first snapshot comes before any report of the device plugins.
        let found = std::fs::metadata(self.root.join(SOCKET)).ok()?;
        found
            .file_type()
            .is_socket()
            .then(|| KubeletRun::of(&found))
    }

    fn changes(&self) -> watch::Receiver<u64> {
        self.changes.clone()
    }
}

#[async_trait]
impl Admissions for KubeletRecords {
    async fn admission(&self) -> Result<Admission, String> {
        let listed = self.list().await.map_err(|error| chain(&error))?;
        let read = self.checkpoint().await?;
        let entries = read.into_iter().flat_map(|read| read.entries);
        let entries = entries.filter(|entry| (self.wanted)(&entry.resource));
        Ok(Admission {
            active: active(&listed),
            served: entries
                .map(|entry| (entry.pod_uid, entry.container))
                .collect(),
        })
    }
}

/// Returns the pods that PodResources lists, as `namespace/name`.
fn active(listed: &Listed) -> BTreeSet<String> {
    let pods = listed.pods.iter();
    pods.map(|(namespace, name)| format!("{namespace}/{name}"))
        .collect()
}

fn device_ids(listed: Listed, wanted: Wanted) -> BTreeMap<DeviceId, BTreeSet<Pod>> {
    listed
        .holders
        .into_iter()
        .filter(|((resource, _), _)| wanted(resource))
        .map(|((resource, id), holders)| {
            let pods = holders
                .into_iter()
                .map(|holder| Pod {
                    name: Some(format!("{}/{}", holder.namespace, holder.pod)),
                    uid: None,
                    container: holder.container,
                })
                .collect();
            (DeviceId { resource, id }, pods)
        })
        .collect()
}

fn digest(checkpoint: &Checkpoint, wanted: Wanted) -> Checked {
    let mut checked = Checked::default();
    // Device ids for which two answers name different slots: one of the answers is outdated.
    let mut unclear = BTreeSet::new();
    for entry in &checkpoint.entries {
        if !wanted(&entry.resource) {
            continue;
        }
        let name = resource_name(&entry.resource).unwrap_or_default();
        let pairs = entry.annotations.get(&format!("{SLOTS_ANNOTATION}/{name}"));
        let slots: BTreeMap<&str, &str> = pairs
            .into_iter()
            .flat_map(|pairs| pairs.split(' '))
            .filter_map(|pair| pair.split_once('='))
            .collect();
        for id in &entry.ids {
            let device_id = DeviceId::new(&entry.resource, id);
            if let Some(slot) = slots.get(id.as_str()) {
                let before = checked.slots.insert(device_id.clone(), (*slot).to_owned());
                if before.is_some_and(|before| before != **slot) {
                    unclear.insert(device_id.clone());
                }
            }
            checked.entries.entry(device_id).or_default().insert(Pod {
                name: None,
                uid: Some(entry.pod_uid.clone()),
                container: entry.container.clone(),
            });
        }
    }
    checked
        .slots
        .retain(|device_id, _| !unclear.contains(device_id));
    checked
}

#[cfg(test)]
mod tests;

//! State that outlives the stand-in's restarts: its folders, the pods, the faults, and the record of calls.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result};
use leafhost_kubelet::proto::device_plugin::Device;
use tokio::sync::watch;
use tokio::time::Instant;
use tonic::Code;

use super::Plugins;
use super::faults::Faults;
use super::model::Refusal;
use super::pods::{Phase, Pod};

/// Register call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Registration {
    /// Name of the resource.
    pub resource: String,
    /// File name of the plugin's socket.
    pub endpoint: String,
    /// Code and message of the refusal, if it was refused.
    pub refused: Option<(Code, String)>,
    /// Number of the kubelet's starts before this call.
    pub life: usize,
}

/// Message of ListAndWatch.
#[derive(Debug, Clone, PartialEq)]
pub struct Listing {
    /// Name of the resource.
    pub resource: String,
    /// Devices in the message.
    pub devices: Vec<Device>,
    /// Number of the kubelet's starts before this message.
    pub life: usize,
}

/// Answer to Allocate as it arrived; a fault may delay its processing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answered {
    /// UID of the pod.
    pub uid: String,
    /// Name of the container.
    pub container: String,
    /// Name of the resource.
    pub resource: String,
    /// IDs in the request.
    pub ids: BTreeSet<String>,
    /// Reason of the refusal, if the plugin refused.
    pub refused: Option<Refusal>,
}

/// Record of calls, in order.
#[derive(Debug, Clone, Default)]
pub struct Record {
    /// All Register calls.
    pub registrations: Vec<Registration>,
    /// All lists.
    pub lists: Vec<Listing>,
    /// All answers to Allocate.
    pub answers: Vec<Answered>,
    /// Reasons of the kubelet's crashes. If there is one, a real kubelet would have ended.
    pub crashes: Vec<String>,
    /// Number of starts.
    pub starts: usize,
}

#[derive(Debug)]
pub(super) struct World {
    pub root: PathBuf,
    pub faults: Faults,
    pods: Mutex<BTreeMap<String, Pod>>,
    record: Mutex<Record>,
    changed: watch::Sender<u64>,
    passed: Mutex<Duration>,
    /// Seed of the order in which IDs are picked.
    pub seed: Mutex<u64>,
    pub plugins: Mutex<Plugins>,
}

pub(super) fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl World {
    pub fn new(root: PathBuf) -> Self {
        Self {
            root,
            faults: Faults::default(),
            pods: Mutex::default(),
            record: Mutex::default(),
            changed: watch::Sender::new(0),
            passed: Mutex::default(),
            seed: Mutex::new(0),
            plugins: Mutex::default(),
        }
    }

    pub fn device_plugins(&self) -> PathBuf {
        self.root.join("device-plugins")
    }

    pub fn pod_resources(&self) -> PathBuf {
        self.root.join("pod-resources/kubelet.sock")
    }

    pub fn folder_of(&self, uid: &str) -> PathBuf {
        self.root.join("pods").join(uid)
    }

    /// Returns the current time plus the time that was skipped.
    pub fn now(&self) -> Instant {
        Instant::now() + *locked(&self.passed)
    }

    pub fn pass(&self, time: Duration) {
        *locked(&self.passed) += time;
        self.notify();
    }

    pub fn pods(&self) -> MutexGuard<'_, BTreeMap<String, Pod>> {
        locked(&self.pods)
    }

    pub fn active(&self) -> BTreeSet<String> {
        self.pods()
            .iter()
            .filter(|(_, pod)| pod.phase == Phase::Active)
            .map(|(uid, _)| uid.clone())
            .collect()
    }

    pub fn record(&self, change: impl FnOnce(&mut Record)) {
        change(&mut locked(&self.record));
        self.notify();
    }

    pub fn recorded(&self) -> Record {
        locked(&self.record).clone()
    }

    pub fn life(&self) -> usize {
        locked(&self.record).starts
    }

    /// Wakes all that wait for a condition.
    pub fn notify(&self) {
        self.changed
            .send_modify(|count| *count = count.wrapping_add(1));
    }

    pub fn changes(&self) -> watch::Receiver<u64> {
        self.changed.subscribe()
    }

    pub fn make_folder(&self, uid: &str) -> Result<()> {
        let folder = self.folder_of(uid);
        fs::create_dir_all(&folder).with_context(|| format!("cannot create {}", folder.display()))
    }

    pub fn remove_folder(&self, uid: &str) -> Result<()> {
        let folder = self.folder_of(uid);
        match fs::remove_dir_all(&folder) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(error).with_context(|| format!("cannot remove {}", folder.display()))
            }
            _ => Ok(()),
        }
    }
}

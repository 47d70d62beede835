//! What outlives the stand-in's restarts: its folders, the pods, what is to go wrong, and the record of what happened.

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

/// One Register.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Registration {
    /// The resource.
    pub resource: String,
    /// The file name of the plugin's socket.
    pub endpoint: String,
    /// How it was refused, if it was.
    pub refused: Option<(Code, String)>,
    /// How many starts of the kubelet were before it.
    pub life: usize,
}

/// One message of ListAndWatch.
#[derive(Debug, Clone, PartialEq)]
pub struct Listing {
    /// The resource.
    pub resource: String,
    /// The devices.
    pub devices: Vec<Device>,
    /// How many starts of the kubelet were before it.
    pub life: usize,
}

/// One answer to Allocate, as it came: it may be held back after that.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answered {
    /// The pod.
    pub uid: String,
    /// The container.
    pub container: String,
    /// The resource.
    pub resource: String,
    /// What was asked for.
    pub ids: BTreeSet<String>,
    /// Why it was refused, if it was.
    pub refused: Option<Refusal>,
}

/// What happened, in order.
#[derive(Debug, Clone, Default)]
pub struct Record {
    /// All Registers.
    pub registrations: Vec<Registration>,
    /// All lists.
    pub lists: Vec<Listing>,
    /// All answers to Allocate.
    pub answers: Vec<Answered>,
    /// Why the kubelet crashed, each time it did. Not empty means that a real one would be gone.
    pub crashes: Vec<String>,
    /// How often it was started.
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
    /// Ids are picked by it.
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

    /// The time, with what was let pass.
    pub fn now(&self) -> Instant {
        Instant::now() + *locked(&self.passed)
    }

    pub fn pass(&self, time: Duration) {
        *locked(&self.passed) += time;
        self.tell();
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
        self.tell();
    }

    pub fn recorded(&self) -> Record {
        locked(&self.record).clone()
    }

    pub fn life(&self) -> usize {
        locked(&self.record).starts
    }

    /// Wakes whoever waits for a condition.
    pub fn tell(&self) {
        self.changed
            .send_modify(|count| *count = count.wrapping_add(1));
    }

    pub fn changes(&self) -> watch::Receiver<u64> {
        self.changed.subscribe()
    }

    pub fn make_folder(&self, uid: &str) -> Result<()> {
        let folder = self.folder_of(uid);
        fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))
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

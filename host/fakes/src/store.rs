//! Remote store with injectable errors: a server with the objects, and the view that this agent has of them.
//!
//! Answers and events pass through [`InstanceView`], as those of a real API server do. After each change there may be
//! events that are late, repeated, or part of a whole list; none of them may ever become visible.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use async_trait::async_trait;
use leafhost_core::instance::{Instance, InstanceKey};
use leafhost_core::instance_view::{InstanceView, Scope};
use leafhost_core::ports::{Change, InstanceSet, InstanceStore, StoreError, Written};
use leafhost_core::wait::publish;
use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};
use tokio::sync::watch;

use crate::takes;

type Instances = BTreeMap<InstanceKey, Arc<Instance>>;

/// Delay of each answer about an Instance in `hanging`.
pub const HANGS: Duration = Duration::from_secs(4);

#[derive(Debug)]
pub struct Store {
    set: watch::Sender<Arc<InstanceSet>>,
    state: Mutex<State>,
    writes: Mutex<Vec<String>>,
    calls: Mutex<usize>,
    pub broken: Mutex<bool>,
    /// Names of Instances whose writes are denied.
    pub denied: Mutex<BTreeSet<String>>,
    /// Names of Instances whose answers are delayed by [`HANGS`].
    pub hanging: Mutex<BTreeSet<String>>,
    /// Number of the next changes that fail with `Unavailable`.
    pub failures: Mutex<usize>,
    /// Number of the next changes that end in a conflict.
    pub conflicts: Mutex<usize>,
    /// Instance that has the name if a creation ends in such a conflict.
    pub foreign: Mutex<Option<Arc<Instance>>>,
    /// Number of the next changes that are applied without an answer.
    pub unknown: Mutex<usize>,
    /// Duration of a call of `apply`, before its changes are applied.
    pub slow: Mutex<Duration>,
    /// True while writes are not published, as by a server whose watch lags.
    pub is_hidden: Mutex<bool>,
    /// True if the store deletes the Instances of deleted Configurations.
    pub collects: bool,
    /// True if agents of other nodes write to the store.
    pub has_other_nodes: bool,
    /// Number of nodes, if the store knows it.
    pub nodes: Mutex<Option<usize>>,
    /// Rates of random errors.
    pub trouble: Mutex<Trouble>,
}

/// Rates of random errors, in percent of changes.
#[derive(Debug, Clone, Copy, Default)]
pub struct Trouble {
    /// Changes without an answer, whether or not they were applied.
    pub lost: u32,
    /// Changes that the server rejects as busy.
    pub busy: u32,
    /// Changes whose answer takes up to three seconds.
    pub slow: u32,
}

#[derive(Debug)]
struct State {
    random: StdRng,
    version: u64,
    server: Instances,
    /// Earlier objects of the server, for late events.
    history: Vec<Arc<Instance>>,
    view: InstanceView,
}

impl Default for Store {
    fn default() -> Self {
        Self::seeded(1)
    }
}

impl Store {
    /// Creates an empty store whose random events depend on `seed`.
    pub fn seeded(seed: u64) -> Self {
        Self {
            set: watch::Sender::new(Arc::new(InstanceSet::read(BTreeMap::new()))),
            state: Mutex::new(State {
                random: StdRng::seed_from_u64(seed),
                version: 0,
                server: BTreeMap::new(),
                history: Vec::new(),
                view: InstanceView::default(),
            }),
            writes: Mutex::default(),
            calls: Mutex::default(),
            broken: Mutex::default(),
            denied: Mutex::default(),
            hanging: Mutex::default(),
            failures: Mutex::default(),
            conflicts: Mutex::default(),
            foreign: Mutex::default(),
            unknown: Mutex::default(),
            slow: Mutex::default(),
            is_hidden: Mutex::default(),
            collects: false,
            has_other_nodes: false,
            nodes: Mutex::default(),
            trouble: Mutex::default(),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    pub fn set(&self) -> Arc<InstanceSet> {
        Arc::clone(&self.set.borrow())
    }

    pub fn server(&self) -> Instances {
        self.state().server.clone()
    }

    /// Changes the stored objects, as another node or a person would.
    pub fn edit(&self, change: impl FnOnce(&mut InstanceSet)) {
        let mut set = InstanceSet {
            instances: self.server(),
            ..InstanceSet::clone(&self.set())
        };
        change(&mut set);
        let mut state = self.state();
        let gone: Vec<Arc<Instance>> = state.server.values().cloned().collect();
        for instance in gone {
            if !set.instances.contains_key(&instance.key()) {
                state.remove(&instance.key());
            }
        }
        for (key, instance) in set.instances {
            if state.server.get(&key) != Some(&instance) {
                state.put(Instance::clone(&instance));
            }
        }
        drop(state);
        self.publish(set.complete, set.remembered);
    }

    /// Resets `is_hidden` and publishes the hidden writes.
    pub fn show(&self) {
        *self.is_hidden.lock().unwrap() = false;
        let set = self.set();
        self.publish(set.complete, set.remembered);
    }

    /// Publishes the current view, unless it is hidden.
    fn publish(&self, complete: bool, remembered: bool) {
        if *self.is_hidden.lock().unwrap() {
            return;
        }
        let mut state = self.state();
        state.repeat();
        let instances = state.view.instances().clone();
        assert_eq!(instances, state.server, "the view has lost its way");
        let shown = InstanceSet {
            complete,
            remembered,
            instances,
            ..InstanceSet::default()
        };
        drop(state);
        publish(&self.set, Arc::new(shown));
    }

    pub fn subscribe(&self) -> watch::Receiver<Arc<InstanceSet>> {
        self.set.subscribe()
    }

    pub fn names(&self) -> Vec<String> {
        let set = self.set();
        set.instances.keys().map(|key| key.name.clone()).collect()
    }

    /// Returns the writes since the last call.
    pub fn take_writes(&self) -> Vec<String> {
        std::mem::take(&mut self.writes.lock().unwrap())
    }

    pub fn calls(&self) -> usize {
        *self.calls.lock().unwrap()
    }

    fn wrote(&self, what: &str, key: &InstanceKey) {
        let mut writes = self.writes.lock().unwrap();
        writes.push(format!("{what} {}", key.name));
    }

    /// Returns the error that is due before the change is applied, if any.
    fn refusal(&self, change: &Change) -> Option<StoreError> {
        let key = change.key();
        if self.denied.lock().unwrap().contains(&key.name) {
            let message = "a policy forbids it; correct the policy".to_owned();
            return Some(StoreError::Denied { key, message });
        }
        if takes(&self.failures) || *self.broken.lock().unwrap() {
            return Some(StoreError::Unavailable {
                key,
                message: "the folder is read-only; make it writable".to_owned(),
                retry_after: None,
            });
        }
        if takes(&self.conflicts) {
            let found = self.foreign.lock().unwrap().clone();
            return Some(match change {
                Change::Create(_) => StoreError::AlreadyExists { key, found },
                Change::Update { .. } | Change::Delete { .. } => StoreError::Conflict { key },
            });
        }
        None
    }

    fn apply_one(&self, change: Change) -> Written {
        if let Some(error) = self.refusal(&change) {
            return Err(error);
        }
        let key = change.key();
        let mut state = self.state();
        let found = state.server.get(&key).cloned();
        match (change, found) {
            (Change::Create(_), Some(found)) => Err(StoreError::AlreadyExists {
                key,
                found: Some(found),
            }),
            (Change::Create(mut instance), None) => {
                instance.metadata.uid = format!("uid-{}", state.version);
                self.wrote("create", &key);
                Ok(Some(state.put(*instance)))
            }
            (Change::Update { uid, edits, .. }, Some(found)) if found.metadata.uid == uid => {
                let mut instance = Instance::clone(&found);
                if edits.iter().any(|edit| edit.apply(&mut instance).is_err()) {
                    return Err(StoreError::Conflict { key });
                }
                self.wrote("update", &key);
                if instance == *found {
                    return Ok(Some(found));
                }
                Ok(Some(state.put(instance)))
            }
            (
                Change::Delete {
                    uid,
                    resource_version,
                    ..
                },
                Some(found),
            ) if found.metadata.uid == uid => {
                if found.metadata.resource_version != resource_version {
                    return Err(StoreError::Conflict { key });
                }
                self.wrote("delete", &key);
                state.remove(&key);
                Ok(None)
            }
            _ => Err(StoreError::Gone { key }),
        }
    }

    /// Applies a change, with random errors before and after it.
    async fn send(&self, change: Change) -> Written {
        let key = change.key();
        if self.hanging.lock().unwrap().contains(&key.name) {
            tokio::time::sleep(HANGS).await;
        }
        let trouble = *self.trouble.lock().unwrap();
        let (fate, is_made, wait) = {
            let random = &mut self.state().random;
            let wait = Duration::from_millis(random.random_range(0..3000));
            (random.random_range(0..100), random.random_bool(0.5), wait)
        };
        let lost = |key| StoreError::Unknown {
            key,
            message: "no answer came".to_owned(),
        };
        if fate < trouble.lost {
            if is_made {
                drop(self.apply_one(change));
            }
            return Err(lost(key));
        }
        if fate < trouble.lost + trouble.busy {
            return Err(StoreError::Unavailable {
                key,
                message: "the server is busy".to_owned(),
                retry_after: Some(Duration::from_secs(1)),
            });
        }
        if fate < trouble.lost + trouble.busy + trouble.slow {
            tokio::time::sleep(wait).await;
        }
        let written = self.apply_one(change)?;
        if takes(&self.unknown) {
            return Err(lost(key));
        }
        Ok(written)
    }
}

impl State {
    fn put(&mut self, mut instance: Instance) -> Arc<Instance> {
        self.version += 1;
        instance.metadata.resource_version = self.version.to_string();
        let key = instance.key();
        if let Some(other) = self.server.get(&key)
            && other.metadata.uid != instance.metadata.uid
        {
            self.remove(&key);
        }
        let instance = Arc::new(instance);
        self.history.push(Arc::clone(&instance));
        self.server.insert(key, Arc::clone(&instance));
        self.view.observe(Instance::clone(&instance));
        instance
    }

    fn remove(&mut self, key: &InstanceKey) {
        if let Some(instance) = self.server.remove(key) {
            self.view.observe_deletion(key, &instance.metadata.uid);
        }
    }

    /// Delivers events without news: older versions, deleted objects, and whole lists.
    fn repeat(&mut self) {
        for _ in 0..self.random.random_range(0..4) {
            if !self.history.is_empty() {
                let which = self.random.random_range(0..self.history.len());
                let late = Instance::clone(&self.history[which]);
                self.view.observe(late);
            }
        }
        if self.random.random_bool(0.2) {
            for scope in [Scope::Local, Scope::Shared] {
                self.view.list_begins(scope);
                for instance in self.server.values() {
                    if Scope::of(instance) == Some(scope) {
                        self.view.observe(Instance::clone(instance));
                    }
                }
                self.view.list_ended(scope, self.version);
            }
        }
    }
}

#[async_trait]
impl InstanceStore for Store {
    fn instances(&self) -> watch::Receiver<Arc<InstanceSet>> {
        self.set.subscribe()
    }

    async fn apply(&self, changes: Vec<Change>) -> Vec<Written> {
        *self.calls.lock().unwrap() += 1;
        let slow = *self.slow.lock().unwrap();
        if !slow.is_zero() {
            tokio::time::sleep(slow).await;
        }
        let mut results = Vec::new();
        for change in changes {
            results.push(self.send(change).await);
        }
        let set = self.set();
        self.publish(set.complete, set.remembered);
        // The caller may be dropped before it gets the result.
        tokio::task::yield_now().await;
        results
    }

    async fn refresh(&self) -> Result<(), String> {
        if *self.broken.lock().unwrap() {
            return Err("the server is busy".to_owned());
        }
        self.show();
        Ok(())
    }

    fn collects_garbage(&self) -> bool {
        self.collects
    }

    fn has_other_nodes(&self) -> bool {
        self.has_other_nodes
    }

    async fn count_nodes(&self) -> Option<usize> {
        *self.nodes.lock().unwrap()
    }
}

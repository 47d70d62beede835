//! Instances in memory, with what goes wrong on demand.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use leafhost_core::instance::Instance;
use leafhost_core::ports::{Change, InstanceSet, InstanceStore, StoreError};
use tokio::sync::watch;

/// A store in memory.
#[derive(Debug)]
pub(crate) struct Store {
    set: watch::Sender<Arc<InstanceSet>>,
    writes: Mutex<Vec<String>>,
    calls: Mutex<usize>,
    pub broken: Mutex<bool>,
    /// So many changes cannot be written.
    pub failures: Mutex<usize>,
    /// So many changes end in a conflict.
    pub conflicts: Mutex<usize>,
    /// What then has the name.
    pub foreign: Mutex<Option<Arc<Instance>>>,
    /// So many changes are made and answered as if they were not.
    pub unknown: Mutex<usize>,
    /// How long a write takes; it is made at the end.
    pub slow: Mutex<Duration>,
    /// While there is one, writes are made here and not shown, as by a server whose watch lags.
    pub unshown: Mutex<Option<InstanceSet>>,
}

impl Default for Store {
    fn default() -> Self {
        Self {
            set: watch::Sender::new(Arc::new(InstanceSet::read(BTreeMap::new()))),
            writes: Mutex::default(),
            calls: Mutex::default(),
            broken: Mutex::default(),
            failures: Mutex::default(),
            conflicts: Mutex::default(),
            foreign: Mutex::default(),
            unknown: Mutex::default(),
            slow: Mutex::default(),
            unshown: Mutex::default(),
        }
    }
}

impl Store {
    pub fn set(&self) -> Arc<InstanceSet> {
        Arc::clone(&self.set.borrow())
    }

    /// Changes what is stored, as another node or a person does.
    pub fn edit(&self, change: impl FnOnce(&mut InstanceSet)) {
        self.set.send_modify(|set| change(Arc::make_mut(set)));
    }

    /// Shows what was written unshown.
    pub fn show(&self) {
        if let Some(set) = self.unshown.lock().unwrap().take() {
            self.set.send_replace(Arc::new(set));
        }
    }

    pub fn subscribe(&self) -> watch::Receiver<Arc<InstanceSet>> {
        self.set.subscribe()
    }

    pub fn names(&self) -> Vec<String> {
        let set = self.set();
        set.instances.keys().map(|key| key.name.clone()).collect()
    }

    /// What was written since the last look.
    pub fn take_writes(&self) -> Vec<String> {
        std::mem::take(&mut self.writes.lock().unwrap())
    }

    pub fn calls(&self) -> usize {
        *self.calls.lock().unwrap()
    }

    fn apply_one(&self, set: &mut InstanceSet, change: Change) -> Result<(), StoreError> {
        let key = change.key();
        let mut failures = self.failures.lock().unwrap();
        let fails = *failures > 0;
        *failures = failures.saturating_sub(1);
        if fails || *self.broken.lock().unwrap() {
            return Err(StoreError::Unavailable {
                key,
                message: "the folder is read-only; make it writable".to_owned(),
                source: None,
            });
        }
        let mut conflicts = self.conflicts.lock().unwrap();
        if *conflicts > 0 {
            *conflicts -= 1;
            return Err(StoreError::Conflict {
                found: self.foreign.lock().unwrap().clone(),
                key,
            });
        }
        let mut writes = self.writes.lock().unwrap();
        match change {
            Change::Create(mut instance) => {
                if let Some(found) = set.instances.get(&key) {
                    let found = Some(Arc::clone(found));
                    return Err(StoreError::Conflict { key, found });
                }
                writes.push(format!("create {}", key.name));
                instance.metadata.uid = format!("uid-{}", writes.len());
                set.instances.insert(key, Arc::new(*instance));
            }
            Change::Update { uid, edits, .. } => {
                let Some(held) = set
                    .instances
                    .get_mut(&key)
                    .filter(|held| held.metadata.uid == uid)
                else {
                    return Err(StoreError::Conflict { key, found: None });
                };
                writes.push(format!("update {}", key.name));
                let mut instance = Instance::clone(held);
                if edits.iter().any(|edit| edit.apply(&mut instance).is_err()) {
                    return Err(StoreError::Conflict { key, found: None });
                }
                *held = Arc::new(instance);
            }
            Change::Delete { uid, .. } => {
                if set
                    .instances
                    .get(&key)
                    .is_none_or(|held| held.metadata.uid != uid)
                {
                    return Err(StoreError::Conflict { key, found: None });
                }
                writes.push(format!("delete {}", key.name));
                set.instances.remove(&key);
            }
        }
        Ok(())
    }
}

#[async_trait]
impl InstanceStore for Store {
    fn instances(&self) -> watch::Receiver<Arc<InstanceSet>> {
        self.set.subscribe()
    }

    async fn apply(&self, changes: Vec<Change>) -> Vec<Result<(), StoreError>> {
        *self.calls.lock().unwrap() += 1;
        let slow = *self.slow.lock().unwrap();
        if !slow.is_zero() {
            tokio::time::sleep(slow).await;
        }
        let unshown = self.unshown.lock().unwrap().clone();
        let mut set = unshown.unwrap_or_else(|| InstanceSet::clone(&self.set()));
        let results = changes
            .into_iter()
            .map(|change| {
                let key = change.key();
                self.apply_one(&mut set, change)?;
                let mut unknown = self.unknown.lock().unwrap();
                if *unknown > 0 {
                    *unknown -= 1;
                    return Err(StoreError::Unavailable {
                        key,
                        message: "no answer came".to_owned(),
                        source: None,
                    });
                }
                Ok(())
            })
            .collect();
        if let Some(unshown) = &mut *self.unshown.lock().unwrap() {
            *unshown = set;
        } else {
            self.set.send_if_modified(|held| {
                let differs = **held != set;
                if differs {
                    *held = Arc::new(set);
                }
                differs
            });
        }
        // Whoever asked may be gone before it is told.
        tokio::task::yield_now().await;
        results
    }
}

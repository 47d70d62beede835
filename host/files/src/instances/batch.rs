//! Computes the result of a batch of changes. Pure.

use std::collections::BTreeMap;
use std::sync::Arc;

use leafhost_core::instance::{Instance, InstanceKey};
use leafhost_core::ports::{Change, InstanceSet, StoreError, Written};

/// Objects to write, and those to remove.
pub type Writes = BTreeMap<InstanceKey, Option<Arc<Instance>>>;

/// Result of one change, provided that the disk accepts it.
pub struct Outcome {
    pub key: InstanceKey,
    pub result: Written,
}

/// Changes on top of the stored Instances.
pub struct Batch<'a> {
    stored: &'a InstanceSet,
    version: u64,
    writes: Writes,
}

impl<'a> Batch<'a> {
    pub fn new(stored: &'a InstanceSet, version: u64) -> Self {
        Self {
            stored,
            version,
            writes: Writes::new(),
        }
    }

    /// Adds a change, which sees the earlier ones.
    pub fn add(&mut self, change: Change) -> Outcome {
        let key = change.key();
        let newest = match self.writes.get(&key) {
            Some(newest) => newest.clone(),
            None => self.stored.instances.get(&key).cloned(),
        };
        let newest = newest.as_ref();
        let gone = || Err(StoreError::Gone { key: key.clone() });
        let conflict = || Err(StoreError::Conflict { key: key.clone() });
        let result = match (change, newest) {
            (Change::Create(mut instance), None) => {
                instance.metadata.uid = uuid::Uuid::new_v4().to_string();
                instance.metadata.creation_timestamp = Some(now());
                Ok(Some(self.put(key.clone(), *instance)))
            }
            (Change::Create(_), Some(found)) => Err(StoreError::AlreadyExists {
                key: key.clone(),
                found: Some(Arc::clone(found)),
            }),
            // Already deleted.
            (Change::Delete { .. }, None) => Ok(None),
            (Change::Update { .. }, None) => gone(),
            (Change::Update { uid, .. } | Change::Delete { uid, .. }, Some(newest))
                if newest.metadata.uid != uid =>
            {
                gone()
            }
            (Change::Update { edits, .. }, Some(newest)) => {
                let mut instance = Instance::clone(newest);
                let is_trial = edits.is_empty();
                match edits.iter().try_for_each(|edit| edit.apply(&mut instance)) {
                    Ok(()) if is_trial || instance != **newest => {
                        Ok(Some(self.put(key.clone(), instance)))
                    }
                    Ok(()) => Ok(Some(Arc::clone(newest))),
                    Err(_) => conflict(),
                }
            }
            (
                Change::Delete {
                    resource_version, ..
                },
                Some(newest),
            ) if newest.metadata.resource_version != resource_version => conflict(),
            (Change::Delete { .. }, Some(_)) => {
                self.writes.insert(key.clone(), None);
                Ok(None)
            }
        };
        Outcome { key, result }
    }

    /// Returns the writes, and the last resource version assigned.
    pub fn finish(mut self) -> (Writes, u64) {
        let stored = &self.stored.instances;
        // Created and deleted in one batch.
        self.writes
            .retain(|key, write| write.is_some() || stored.contains_key(key));
        (self.writes, self.version)
    }

    fn put(&mut self, key: InstanceKey, mut instance: Instance) -> Arc<Instance> {
        self.version += 1;
        instance.metadata.resource_version = self.version.to_string();
        let instance = Arc::new(instance);
        self.writes.insert(key, Some(Arc::clone(&instance)));
        instance
    }
}

/// Returns the resource version as a number.
pub fn version(instance: &Instance) -> u64 {
    instance
        .metadata
        .resource_version
        .parse()
        .unwrap_or_default()
}

fn now() -> String {
    let now = jiff::Timestamp::now();
    jiff::Timestamp::from_second(now.as_second())
        .unwrap_or(now)
        .to_string()
}

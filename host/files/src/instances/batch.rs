//! What a batch of changes comes to. Pure.

use std::collections::BTreeMap;
use std::sync::Arc;

use leafhost_core::instance::{Instance, InstanceKey};
use leafhost_core::ports::{Change, InstanceSet, StoreError};

/// The objects to write, and those to remove.
pub type Writes = BTreeMap<InstanceKey, Option<Arc<Instance>>>;

/// What came of one change, if the disk does its part.
pub struct Outcome {
    pub key: InstanceKey,
    pub result: Result<(), StoreError>,
}

/// Changes on top of what is stored.
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

    /// Adds a change: it sees those before it.
    pub fn add(&mut self, change: Change) -> Outcome {
        let key = change.key();
        let newest = match self.writes.get(&key) {
            Some(newest) => newest.as_ref(),
            None => self.stored.instances.get(&key),
        };
        let conflict = Err(StoreError::Conflict {
            key: key.clone(),
            found: newest.cloned(),
        });
        let result = match (change, newest) {
            (Change::Create(mut instance), None) => {
                instance.metadata.uid = uuid::Uuid::new_v4().to_string();
                instance.metadata.creation_timestamp = Some(now());
                self.put(key.clone(), *instance);
                Ok(())
            }
            // What should be gone is gone.
            (Change::Delete { .. }, None) => Ok(()),
            (Change::Create(_), Some(_)) | (Change::Update { .. }, None) => conflict,
            (Change::Update { uid, .. } | Change::Delete { uid, .. }, Some(newest))
                if newest.metadata.uid != uid =>
            {
                conflict
            }
            (Change::Update { edits, .. }, Some(newest)) => {
                let mut instance = Instance::clone(newest);
                let is_trial = edits.is_empty();
                match edits.iter().try_for_each(|edit| edit.apply(&mut instance)) {
                    Ok(()) => {
                        if is_trial || instance != **newest {
                            self.put(key.clone(), instance);
                        }
                        Ok(())
                    }
                    Err(_) => conflict,
                }
            }
            (Change::Delete { .. }, Some(_)) => {
                self.writes.insert(key.clone(), None);
                Ok(())
            }
        };
        Outcome { key, result }
    }

    /// What is to be written, and the last resource version given.
    pub fn finish(mut self) -> (Writes, u64) {
        let stored = &self.stored.instances;
        // Made and removed in one batch.
        self.writes
            .retain(|key, write| write.is_some() || stored.contains_key(key));
        (self.writes, self.version)
    }

    fn put(&mut self, key: InstanceKey, mut instance: Instance) {
        self.version += 1;
        instance.metadata.resource_version = self.version.to_string();
        self.writes.insert(key, Some(Arc::new(instance)));
    }
}

/// The resource version as the number it is.
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

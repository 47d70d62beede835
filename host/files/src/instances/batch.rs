//! Computes the result of a batch of changes. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use leafhost_core::instance::{Instance, InstanceKey};
use leafhost_core::ports::{Change, StoreError, Written};

/// Instances with the changes of a batch.
pub struct Batch {
    pub instances: BTreeMap<InstanceKey, Arc<Instance>>,
    /// Last resource version assigned.
    pub version: u64,
    /// Instances that were written or deleted.
    pub changed: BTreeSet<InstanceKey>,
}

impl Batch {
    /// Applies a change on top of the earlier ones. The result is valid only if writing it to the disk succeeds.
    pub fn make(&mut self, change: Change) -> Written {
        let key = change.key();
        let newest = self.instances.get(&key).cloned();
        let gone = || Err(StoreError::Gone { key: key.clone() });
        let conflict = || Err(StoreError::Conflict { key: key.clone() });
        match (change, newest) {
            (Change::Create(mut instance), None) => {
                instance.metadata.uid = uuid::Uuid::new_v4().to_string();
                instance.metadata.creation_timestamp = Some(now());
                Ok(Some(self.put(key, *instance)))
            }
            (Change::Create(_), Some(found)) => Err(StoreError::AlreadyExists {
                key,
                found: Some(found),
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
                let mut instance = Instance::clone(&newest);
                let is_trial = edits.is_empty();
                match edits.iter().try_for_each(|edit| edit.apply(&mut instance)) {
                    Ok(()) if is_trial || instance != *newest => Ok(Some(self.put(key, instance))),
                    Ok(()) => Ok(Some(newest)),
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
                self.instances.remove(&key);
                self.changed.insert(key);
                Ok(None)
            }
        }
    }

    fn put(&mut self, key: InstanceKey, mut instance: Instance) -> Arc<Instance> {
        self.version += 1;
        instance.metadata.resource_version = self.version.to_string();
        let instance = Arc::new(instance);
        self.instances.insert(key.clone(), Arc::clone(&instance));
        self.changed.insert(key);
        instance
    }
}

fn now() -> String {
    let now = jiff::Timestamp::now();
    jiff::Timestamp::from_second(now.as_second())
        .unwrap_or(now)
        .to_string()
}

//! Instances as files: one YAML file each, in a folder per namespace.
//!
//! Batches are written one after the other; a published set is already on the disk.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;

use async_trait::async_trait;
use leafhost_core::instance::InstanceKey;
use leafhost_core::instance_view::version;
use leafhost_core::ports::{
    Change, InstanceSet, InstanceStore, SourceProblem, StoreError, Written,
};
use tokio::sync::{Mutex, watch};

use crate::blocking::blocking;
use crate::state::Error;

mod batch;
mod disk;
use batch::Batch;
use disk::Writes;

/// Writes one batch after the other.
struct Writer {
    folder: PathBuf,
    /// Last resource version.
    version: u64,
    set: watch::Sender<Arc<InstanceSet>>,
}

/// Store of Instances. A batch that is being written when the store is dropped is completed.
pub struct FileInstances {
    set: watch::Receiver<Arc<InstanceSet>>,
    writer: Arc<Mutex<Writer>>,
    /// Problems of files that could not be read when the store was opened.
    pub problems: Vec<SourceProblem>,
}

impl FileInstances {
    /// Reads the stored Instances. Renames a file that is not an Instance and reports it in `problems`.
    pub async fn open(folder: PathBuf) -> Result<Self, Error> {
        let (folder, stored) = blocking(move || {
            let stored = disk::read(&folder);
            (folder, stored)
        })
        .await;
        let (set, problems) = stored?;
        let versions = set.instances.values();
        let version = versions.map(|instance| version(instance)).max();
        let (sender, set) = watch::channel(Arc::new(set));
        let writer = Writer {
            folder,
            version: version.unwrap_or_default(),
            set: sender,
        };
        Ok(Self {
            set,
            writer: Arc::new(Mutex::new(writer)),
            problems,
        })
    }
}

#[async_trait]
impl InstanceStore for FileInstances {
    fn instances(&self) -> watch::Receiver<Arc<InstanceSet>> {
        self.set.clone()
    }

    async fn apply(&self, changes: Vec<Change>) -> Vec<Written> {
        let mut writer = Arc::clone(&self.writer).lock_owned().await;
        // Runs to its end even if the caller no longer waits.
        blocking(move || writer.apply(changes)).await
    }
}

impl Writer {
    fn apply(&mut self, changes: Vec<Change>) -> Vec<Written> {
        let current = Arc::clone(&self.set.borrow());
        let mut batch = Batch {
            instances: current.instances.clone(),
            version: self.version,
            changed: BTreeSet::new(),
        };
        let applied = changes
            .into_iter()
            .map(|change| (change.key(), batch.make(change)));
        let mut results: Vec<_> = applied.collect();
        self.version = batch.version;
        let mut instances = batch.instances;
        // An Instance that was created and deleted in one batch has no file.
        let is_stored = |key: &InstanceKey| current.instances.contains_key(key);
        let writes = batch.changed.into_iter().filter_map(|key| {
            let instance = instances.get(&key).cloned();
            (instance.is_some() || is_stored(&key)).then_some((key, instance))
        });
        let writes: Writes = writes.collect();
        let failed = disk::write(&self.folder, &writes);
        for key in failed.keys() {
            match current.instances.get(key) {
                Some(before) => drop(instances.insert(key.clone(), Arc::clone(before))),
                None => drop(instances.remove(key)),
            }
        }
        if writes.len() > failed.len() {
            self.set
                .send_replace(Arc::new(InstanceSet::read(instances)));
        }
        for (key, result) in &mut results {
            if let (Ok(_), Some(message)) = (&result, failed.get(key)) {
                *result = Err(StoreError::Unavailable {
                    key: key.clone(),
                    message: message.clone(),
                    retry_after: None,
                });
            }
        }
        results.into_iter().map(|(_, result)| result).collect()
    }
}

#[cfg(test)]
mod tests;

//! Instances as files: one YAML file each, in a folder per namespace.
//!
//! Batches are written one after the other; a published set is already on the disk.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use async_trait::async_trait;
use leafhost_core::ports::{Change, InstanceSet, InstanceStore, SourceProblem, Written};
use tokio::sync::{Mutex, watch};

use crate::blocking::blocking;
use crate::state::Error;

mod batch;
mod disk;
use batch::Batch;

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
    problems: Vec<SourceProblem>,
}

impl FileInstances {
    /// Reads the stored Instances. Renames a file that is not an Instance and reports it in [`FileInstances::problems`].
    pub async fn open(folder: PathBuf) -> Result<Self, Error> {
        let (folder, stored) = blocking(move || {
            let stored = disk::read(&folder);
            (folder, stored)
        })
        .await;
        let disk::Stored { set, problems } = stored?;
        let versions = set.instances.values();
        let version = versions.map(|instance| batch::version(instance)).max();
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

    /// Returns the problems of files that could not be read when the store was opened.
    pub fn problems(&self) -> &[SourceProblem] {
        &self.problems
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
        let mut batch = Batch::new(&current, self.version);
        let outcomes: Vec<_> = changes
            .into_iter()
            .map(|change| batch.add(change))
            .collect();
        let (mut writes, version) = batch.finish();
        self.version = version;
        let failed = disk::write(&self.folder, &writes);
        writes.retain(|key, _| !failed.contains_key(key));
        if let Some(next) = merge(&current, writes) {
            self.set.send_replace(Arc::new(next));
        }
        let results = outcomes
            .into_iter()
            .map(|outcome| match failed.get(&outcome.key) {
                Some(failure) if outcome.result.is_ok() => Err(failure.for_key(&outcome.key)),
                _ => outcome.result,
            });
        results.collect()
    }
}

fn merge(current: &InstanceSet, done: batch::Writes) -> Option<InstanceSet> {
    if done.is_empty() {
        return None;
    }
    let mut instances: BTreeMap<_, _> = current.instances.clone();
    for (key, instance) in done {
        match instance {
            Some(instance) => drop(instances.insert(key, instance)),
            None => drop(instances.remove(&key)),
        }
    }
    Some(InstanceSet::read(instances))
}

#[cfg(test)]
mod tests;

//! Instances as files: one YAML file each, in a folder per namespace.
//!
//! Batches are written one after the other; what is published is on the disk.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use async_trait::async_trait;
use leafhost_core::ports::{Change, InstanceSet, InstanceStore, SourceProblem, Written};
use tokio::sync::{Mutex, watch};

use crate::blocking::blocking;

mod batch;
mod disk;
use batch::Batch;

/// Why the Instances cannot be read.
#[derive(Debug, thiserror::Error)]
#[error("cannot {action} {}: {}", path.display(), crate::atomic::remedy(source))]
pub struct Error {
    action: &'static str,
    path: PathBuf,
    #[source]
    source: std::io::Error,
}

/// What writes, one batch after the other.
struct Writer {
    folder: PathBuf,
    /// The last resource version.
    version: u64,
    set: watch::Sender<Arc<InstanceSet>>,
}

/// The store. A batch that is being written when it is dropped is finished.
pub struct FileInstances {
    set: watch::Receiver<Arc<InstanceSet>>,
    writer: Arc<Mutex<Writer>>,
    problems: Vec<SourceProblem>,
}

impl FileInstances {
    /// Reads what is there. A file that is no Instance is renamed and reported in [`FileInstances::problems`].
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

    /// Files that could not be read when the store was opened.
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
        // This runs to its end even if nobody waits for it any more.
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

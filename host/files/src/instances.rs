//! Instances as files: one YAML file each, in a folder per namespace.
//!
//! One task writes, batch after batch; what it publishes is on the disk.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use async_trait::async_trait;
use leafhost_core::instance::InstanceKey;
use leafhost_core::ports::{Change, InstanceSet, InstanceStore, SourceProblem, StoreError};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinSet;

use crate::blocking::blocking;

mod batch;
mod disk;
use batch::Batch;

/// Batches that wait for the disk; further writers wait for one of them.
const QUEUE: usize = 16;

/// Why the Instances cannot be read.
#[derive(Debug, thiserror::Error)]
#[error("cannot {action} {}: {}", path.display(), crate::atomic::remedy(source))]
pub struct Error {
    action: &'static str,
    path: PathBuf,
    #[source]
    source: std::io::Error,
}

type Results = Vec<Result<(), StoreError>>;

struct Request {
    changes: Vec<Change>,
    answer: oneshot::Sender<Results>,
}

/// The store. Dropping it ends its task; a batch that is being written is finished.
pub struct FileInstances {
    set: watch::Receiver<Arc<InstanceSet>>,
    requests: mpsc::Sender<Request>,
    problems: Vec<SourceProblem>,
    _writer: JoinSet<()>,
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
        let version = set
            .instances
            .values()
            .map(|instance| batch::version(instance));
        let version = version.max().unwrap_or_default();
        let (sender, set) = watch::channel(Arc::new(set));
        let (requests, queue) = mpsc::channel(QUEUE);
        let mut writer = JoinSet::new();
        writer.spawn(write(folder, version, sender, queue));
        Ok(Self {
            set,
            requests,
            problems,
            _writer: writer,
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

    async fn apply(&self, changes: Vec<Change>) -> Results {
        let keys: Vec<InstanceKey> = changes.iter().map(Change::key).collect();
        let (answer, answered) = oneshot::channel();
        let sent = self.requests.send(Request { changes, answer }).await;
        match (sent, answered.await) {
            (Ok(()), Ok(results)) => results,
            _ => keys
                .into_iter()
                .map(|key| {
                    Err(StoreError::Unavailable {
                        key,
                        message: "the agent is stopping".to_owned(),
                        source: None,
                    })
                })
                .collect(),
        }
    }
}

async fn write(
    folder: PathBuf,
    mut version: u64,
    set: watch::Sender<Arc<InstanceSet>>,
    mut queue: mpsc::Receiver<Request>,
) {
    while let Some(Request { changes, answer }) = queue.recv().await {
        let current = Arc::clone(&set.borrow());
        let folder = folder.clone();
        let (next, last, results) = blocking(move || {
            let mut batch = Batch::new(&current, version);
            let outcomes: Vec<_> = changes
                .into_iter()
                .map(|change| batch.add(change))
                .collect();
            let (writes, last) = batch.finish();
            let failed = disk::write(&folder, &writes);
            let results = outcomes
                .into_iter()
                .map(|outcome| match failed.get(&outcome.key) {
                    Some(failure) if outcome.result.is_ok() => Err(failure.for_key(&outcome.key)),
                    _ => outcome.result,
                })
                .collect();
            let mut done = writes;
            done.retain(|key, _| !failed.contains_key(key));
            (merge(&current, done), last, results)
        })
        .await;
        version = last;
        if let Some(next) = next {
            set.send_replace(Arc::new(next));
        }
        // Whoever asked may have given up; what was written stays written.
        drop(answer.send(results));
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

//! The whole standalone home: one folder that an operator writes, and one that belongs to the agent.

use leafhost_core::tasks::Tasks;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use leafhost_core::ports::SourceProblem;
use leafhost_disk::atomic;

use crate::blocking::blocking;
use crate::{
    FileConfigurations, FileHandlers, FileInstances, FileLedger, FileLoaderStore, StateDir,
    instances, state,
};

/// Reason why the home cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The state folder cannot be used.
    #[error(transparent)]
    State(#[from] state::Error),
    /// The Instances cannot be read.
    #[error(transparent)]
    Instances(#[from] instances::Error),
    /// The stored state of an earlier run cannot be read.
    #[error("cannot read {}: {}", path.display(), atomic::remedy(source))]
    Accepted {
        /// Path of the folder.
        path: PathBuf,
        /// Error of the system.
        #[source]
        source: std::io::Error,
    },
}

/// Folders of a home.
#[derive(Debug, Clone)]
pub struct Folders {
    /// The operator's folder, with `configurations`, `handlers`, `secrets` and `configmaps`.
    pub folder: PathBuf,
    /// The agent's own folder.
    pub state_dir: PathBuf,
    /// Additional folders with handlers; those of `folder` take precedence.
    pub handlers: Vec<PathBuf>,
}

/// State that an agent keeps on its node in either mode. Dropping it releases the state folder, so it must outlive all users of its parts.
pub struct NodeState {
    /// Accepted versions of handlers, and those that are being loaded.
    pub accepted: Arc<FileLoaderStore>,
    /// Names of resources that were ever offered.
    pub ledger: Arc<FileLedger>,
    // Dropped last, when nothing writes to the folder any more.
    dir: StateDir,
}

impl NodeState {
    /// Opens the state folder for the node of that name.
    pub async fn open(state_dir: PathBuf, node_name: &str) -> Result<Self, Error> {
        let node_name = node_name.to_owned();
        let dir = blocking(move || StateDir::open(state_dir, &node_name)).await?;
        let failed = |path: PathBuf| move |source| Error::Accepted { path, source };
        let path = dir.path().to_owned();
        let ledger = FileLedger::open(path.clone())
            .await
            .map_err(failed(path.clone()))?;
        let kept = path.join("accepted/handlers");
        let accepted = FileLoaderStore::open(kept.clone(), path)
            .await
            .map_err(failed(kept))?;
        Ok(Self {
            accepted: Arc::new(accepted),
            ledger: Arc::new(ledger),
            dir,
        })
    }

    /// Returns the path of the state folder.
    pub fn path(&self) -> &Path {
        self.dir.path()
    }

    /// Returns the problem found when the folder was opened.
    pub fn problem(&self) -> Option<&SourceProblem> {
        self.dir.problem()
    }
}

/// An open home. Dropping it releases the state folder, so it must outlive all users of its parts; dropping those ends their tasks.
pub struct Standalone {
    /// Source of the Configurations.
    pub configurations: Arc<FileConfigurations>,
    /// Source of the handlers.
    pub handlers: Arc<FileHandlers>,
    /// Store of the Instances.
    pub instances: Arc<FileInstances>,
    problems: Vec<SourceProblem>,
    // Dropped last, when nothing writes to the folder any more.
    /// State that the agent keeps on its node.
    pub state: NodeState,
}

impl Standalone {
    /// Opens the home for the node of that name.
    pub async fn open(folders: Folders, node_name: &str, tasks: &mut Tasks) -> Result<Self, Error> {
        let Folders {
            folder,
            state_dir,
            handlers,
        } = folders;
        let state = NodeState::open(state_dir, node_name).await?;
        let instances = FileInstances::open(state.path().join("instances")).await?;
        let kept = state.path().join("accepted/configurations");
        let configurations = FileConfigurations::open(folder.clone(), kept.clone(), tasks)
            .await
            .map_err(|source| Error::Accepted { path: kept, source })?;
        let mut folders = vec![folder.join("handlers")];
        folders.extend(handlers);
        let problems = instances.problems().iter().chain(configurations.problems());
        let problems = problems.chain(state.problem());
        Ok(Self {
            problems: problems.cloned().collect(),
            configurations: Arc::new(configurations),
            handlers: Arc::new(FileHandlers::open(folders, tasks)),
            instances: Arc::new(instances),
            state,
        })
    }

    /// Returns the problems found when the home was opened.
    pub fn problems(&self) -> &[SourceProblem] {
        &self.problems
    }

    /// Returns the path of the state folder.
    pub fn state_dir(&self) -> &Path {
        self.state.path()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use leafhost_core::ports::{ConfigurationSource as _, HandlerSource as _};
    use std::time::Duration;

    #[tokio::test]
    async fn an_empty_home_is_complete_and_held_by_one_agent() {
        let folder = tempfile::tempdir().unwrap();
        let folders = Folders {
            folder: folder.path().join("etc"),
            state_dir: folder.path().join("state"),
            handlers: Vec::new(),
        };
        let mut tasks = Tasks::default();
        let home = Standalone::open(folders.clone(), "edge-1", &mut tasks)
            .await
            .unwrap();
        let second = Standalone::open(folders.clone(), "edge-1", &mut tasks).await;
        assert!(matches!(
            second.err(),
            Some(Error::State(state::Error::InUse { .. }))
        ));
        let (mut configurations, mut handlers) = (
            home.configurations.configurations(),
            home.handlers.handlers(),
        );
        let wait = async {
            let missing = configurations
                .wait_for(|set| set.complete)
                .await
                .unwrap()
                .problems[0]
                .to_string();
            let words = "etc/configurations: is missing; make it and put Configurations there";
            assert!(missing.contains(words), "{missing}");
            assert!(
                handlers
                    .wait_for(|set| set.complete)
                    .await
                    .unwrap()
                    .files
                    .is_empty()
            );
        };
        assert!(
            tokio::time::timeout(Duration::from_secs(20), wait)
                .await
                .is_ok()
        );
        assert!(home.problems().is_empty());
        drop(home);
        Standalone::open(folders, "edge-1", &mut tasks)
            .await
            .unwrap();
    }
}

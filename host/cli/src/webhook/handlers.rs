//! The handlers that can validate details: those that the agents of the cluster load, too.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use leafhost_core::ports::{Handler, HandlerSource, LoadError, Loader, SourceSet, SourceVersion};
use tokio::sync::watch;
use tokio::task::{JoinSet, spawn_blocking};
use tokio::time::{Instant, sleep_until};

/// When to try again what cannot be loaded now.
const AGAIN: Duration = Duration::from_secs(10);

type ByName = BTreeMap<String, Arc<dyn Handler>>;

/// What serves under each name at the moment. Dropping it ends its task.
pub struct Handlers {
    by_name: watch::Receiver<Arc<ByName>>,
    _task: JoinSet<()>,
}

impl Handlers {
    /// Loads the handlers of a source, and follows its changes.
    pub fn follow(source: Arc<dyn HandlerSource>, loader: Arc<dyn Loader>) -> Self {
        let (sender, by_name) = watch::channel(Arc::default());
        let mut task = JoinSet::new();
        task.spawn(run(source, loader, sender));
        Self {
            by_name,
            _task: task,
        }
    }

    /// All that are loaded.
    pub fn all(&self) -> Arc<ByName> {
        Arc::clone(&self.by_name.borrow())
    }
}

/// A file and what was loaded of it last.
struct Loaded {
    version: SourceVersion,
    handler: Option<Arc<dyn Handler>>,
}

async fn run(
    source: Arc<dyn HandlerSource>,
    loader: Arc<dyn Loader>,
    sender: watch::Sender<Arc<ByName>>,
) {
    let mut sets = source.handlers();
    let mut files: BTreeMap<String, Loaded> = BTreeMap::new();
    loop {
        let set = Arc::clone(&sets.borrow_and_update());
        let is_whole = follow(&set, &source, loader.as_ref(), &mut files).await;
        let mut by_name = ByName::new();
        for loaded in files.values() {
            if let Some(handler) = &loaded.handler {
                let name = handler.description().name.clone();
                by_name.entry(name).or_insert_with(|| Arc::clone(handler));
            }
        }
        sender.send_replace(Arc::new(by_name));
        let again = Instant::now() + AGAIN;
        tokio::select! {
            changed = sets.changed() => if changed.is_err() {
                return;
            },
            () = sleep_until(again), if !is_whole => {}
        }
    }
}

/// Loads what is new; whether nothing is to be tried again.
async fn follow(
    set: &SourceSet,
    source: &Arc<dyn HandlerSource>,
    loader: &dyn Loader,
    files: &mut BTreeMap<String, Loaded>,
) -> bool {
    if set.complete {
        files.retain(|file, _| {
            set.files.contains_key(file) || (set.partial && !set.gone.contains(file))
        });
    }
    let mut is_whole = true;
    for (file, version) in &set.files {
        let Some(version) = version else {
            continue;
        };
        if files
            .get(file)
            .is_some_and(|loaded| loaded.version == *version)
        {
            continue;
        }
        let before = files.get(file).and_then(|loaded| loaded.handler.clone());
        let handler = match load(source, loader, file, version).await {
            Ok(handler) => {
                tracing::info!(
                    source = file,
                    handler = handler.description().name,
                    "handler loaded"
                );
                Some(handler)
            }
            Err(error) if error.transient => {
                is_whole = false;
                continue;
            }
            // As with agents, the version before serves on. The agents report the reason.
            Err(error) => {
                tracing::warn!(
                    source = file,
                    error = error.message,
                    "a handler cannot be loaded"
                );
                before
            }
        };
        let version = version.clone();
        files.insert(file.clone(), Loaded { version, handler });
    }
    is_whole
}

async fn load(
    source: &Arc<dyn HandlerSource>,
    loader: &dyn Loader,
    file: &str,
    version: &SourceVersion,
) -> Result<Arc<dyn Handler>, LoadError> {
    let (from, name, wanted) = (Arc::clone(source), file.to_owned(), version.clone());
    let bytes = spawn_blocking(move || from.read(&name, &wanted)).await;
    let bytes = bytes.map_err(|_| LoadError {
        source_name: file.to_owned(),
        message: "reading it was interrupted".to_owned(),
        missing_grants: Vec::new(),
        transient: true,
    })??;
    loader.load(&bytes).await
}

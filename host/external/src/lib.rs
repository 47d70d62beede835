//! Discovery handlers that run elsewhere, in pods or as services, and register as they do with the Akri agent: `v0.Registration` on
//! `agent-registration.sock` in a folder, `v0.DiscoveryHandler` on the handler's own endpoint.
//!
//! The agent sees such a handler as one more source behind the ports that components use, so registry, sessions and devices need not know
//! it: [`External`] wraps the source and the loader of components. A registration acts as a file of its source: its bytes are the
//! registration, and its grants are `<handler>.grants.yaml`. Loading it creates a handler whose sessions are gRPC streams.
//!
//! ```text
//! handler ─► registration ─► registrations ─► sources, with those of components ─► the agent's loader ─► handler ─► session ─► sets checked
//!                             ▲ kept in the state folder; a handler that is gone is probed │
//!                             └────────────────────── state of sessions ──────────────────┘
//! ```

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use leafhost_core::ports::{
    Handler, HandlerSource, LoadError, Loader, SourceFile, SourceSet, SourceVersion,
};
use leafhost_core::tasks::Tasks;
use leafhost_core::wait;
use leafhost_grants::Grants;
use leafhost_net::Policy;
use leafhost_uds::RemovedOnDrop;
use tokio::sync::{Notify, watch};
use tokio::time::Instant;

mod answer;
mod endpoint;
mod folder;
mod follow;
mod handler;
mod keep;
mod paced;
pub mod proto;
mod registration;
mod registrations;
pub mod serve;
mod session;
#[cfg(test)]
mod tests;
mod threads;
mod timeouts;
mod wire;

use folder::Folder;
use handler::ExternalHandler;
use registrations::{Registrations, Source};
use threads::Threads;

/// Name of the agent's socket in the folder.
const SOCKET: &str = "agent-registration.sock";
/// Alternative remedy for a socket that cannot be created.
const OTHER_FOLDER: &str = ", or choose another folder with --external-handlers-dir";
/// Name of the file with the registrations in the state folder.
const KEPT: &str = "external.json";

/// Configuration of [`External`].
#[derive(Debug)]
pub struct Config {
    /// Folder of the registration socket and of the handlers' sockets; created if it is missing.
    pub folder: PathBuf,
    /// Folder in which registrations are stored.
    pub state_dir: PathBuf,
    /// Folders that no device may bring into a container, whatever is granted: the agent's own and the kubelet's.
    pub own_folders: Vec<PathBuf>,
    /// Interfaces of this node, for endpoints in the network. On `Err`, with the reason, no such endpoint is allowed.
    pub network: Result<leafhost_net::Network, String>,
}

#[derive(Debug)]
struct Shared {
    folder: Folder,
    /// File with the registrations.
    kept: PathBuf,
    /// Folders that no device may bring into a container.
    never: Arc<[String]>,
    network: Result<leafhost_net::Network, String>,
    /// Threads for blocking work of handlers.
    threads: Threads,
    registrations: Mutex<Registrations>,
    /// Wakes the task that follows changes of the registrations.
    changed: Notify,
    socket_problem: watch::Sender<Option<String>>,
    /// Registration socket while it is served.
    made: Mutex<Option<RemovedOnDrop>>,
}

impl Shared {
    fn socket(&self) -> PathBuf {
        self.folder.path().join(SOCKET)
    }

    /// Returns the network policy of a handler with these grants; `None` if it may not serve in the network.
    fn policy(&self, grants: &Grants) -> Option<Policy> {
        let network = self.network.as_ref().ok()?.clone();
        let granted = grants.network.clone()?;
        Some(Policy::new(Arc::new(granted), network))
    }

    /// Locks the registrations for `open`, which must not wait.
    fn registrations<T>(&self, open: impl FnOnce(&mut Registrations, Instant) -> T) -> T {
        let mut registrations = self
            .registrations
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        open(&mut registrations, Instant::now())
    }

    /// Locks the registrations for `edit`, then announces the change.
    fn edit<T>(&self, edit: impl FnOnce(&mut Registrations, Instant) -> T) -> T {
        let edited = self.registrations(edit);
        self.changed.notify_one();
        edited
    }

    fn source(&self, name: &str) -> Option<Source> {
        self.registrations(|registrations, now| registrations.sources(now).remove(name))
    }

    /// Keeps the socket that is served, and removes the one before.
    fn served(&self, made: Option<RemovedOnDrop>) {
        let before = self
            .made
            .lock()
            .map(|mut kept| std::mem::replace(&mut *kept, made));
        drop(before);
    }

    fn socket_problem(&self, problem: Option<String>) {
        wait::publish(&self.socket_problem, problem);
    }
}

/// Components and external handlers as one source, together with their loader.
pub struct External {
    shared: Arc<Shared>,
    components: Arc<dyn HandlerSource>,
    loader: Arc<dyn Loader>,
    set: watch::Receiver<Arc<SourceSet>>,
}

impl External {
    /// Creates the folder, reads the stored registrations and lets handlers register. `components` and `loader` serve the components. Blocks
    /// for a moment.
    pub fn start(
        config: Config,
        components: Arc<dyn HandlerSource>,
        loader: Arc<dyn Loader>,
        tasks: &mut Tasks,
    ) -> Arc<Self> {
        let folder = Folder::new(config.folder);
        let file = config.state_dir.join(KEPT);
        let kept = keep::read(&file).unwrap_or_else(|error| {
            tracing::warn!(%error, file = %file.display(),
                "cannot read the registrations of external handlers; restart the running handlers, so that they register again");
            Vec::new()
        });
        let registrations = Registrations::of_earlier_run(kept, folder.path(), Instant::now());
        let shared = Arc::new(Shared {
            folder,
            kept: file,
            never: leafhost_grants::never(&config.own_folders),
            network: config.network,
            threads: Threads::default(),
            registrations: Mutex::new(registrations),
            changed: Notify::new(),
            socket_problem: watch::Sender::new(None),
            made: Mutex::new(None),
        });
        let (sender, set) = watch::channel(Arc::default());
        tasks.add_loop(
            "registration of external handlers",
            registration::serve(Arc::clone(&shared)),
        );
        let following = follow::run(Arc::clone(&shared), components.handlers(), sender);
        tasks.add_loop("external handlers", following);
        Arc::new(Self {
            shared,
            components,
            loader,
            set,
        })
    }
}

impl Drop for External {
    fn drop(&mut self) {
        // The process may end before the serving task does.
        self.shared.served(None);
    }
}

impl HandlerSource for External {
    fn handlers(&self) -> watch::Receiver<Arc<SourceSet>> {
        self.set.clone()
    }

    fn read(&self, name: &str, version: &SourceVersion) -> Result<SourceFile, LoadError> {
        match self.shared.source(name) {
            Some(source) if source.digest() == version.digest => Ok(SourceFile {
                name: name.to_owned(),
                bytes: source.bytes.into(),
                grants: version.grants.clone(),
            }),
            Some(_) => Err(changed(name)),
            None => self.components.read(name, version),
        }
    }
}

#[async_trait]
impl Loader for External {
    async fn load(&self, file: &SourceFile) -> Result<Arc<dyn Handler>, LoadError> {
        let Some(source) = self.shared.source(&file.name) else {
            return self.loader.load(file).await;
        };
        if *source.bytes != *file.bytes {
            return Err(changed(&file.name));
        }
        let (shared, file) = (Arc::clone(&self.shared), file.clone());
        let name = file.name.clone();
        let loaded =
            tokio::task::spawn_blocking(move || ExternalHandler::load(shared, &source, &file));
        let loaded = loaded.await.unwrap_or_else(|_| Err(changed(&name)))?;
        Ok(Arc::new(loaded))
    }
}

fn changed(name: &str) -> LoadError {
    let why = "its registration has changed since it was found; retrying";
    LoadError::new(name, why, true)
}

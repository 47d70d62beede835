//! Loads and calls discovery handlers: sandboxed WebAssembly components (`wit/` is the contract).
//!
//! The only crate that knows wasmtime. Implements the ports `Loader`, `Handler` and `Session` of `leafhost-core`; does not know watched
//! files, Instances or the kubelet.
//!
//! ```text
//! bytes ─► component ─► grants ─► cache / compiler ─► linked ─► described ─► handler     (load)
//! wake ─► session ─► call: fresh store, limits, capabilities ─► output checked ─► report (session)
//! ```

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use wasmtime::component::Linker;

mod admission;
mod backtrace;
mod bindings;
mod cache;
mod call;
mod capabilities;
mod compiler;
mod component;
mod cpu;
mod cursor;
mod engine;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
mod handler;
mod limits;
mod load;
mod output;
mod record;
mod refusal;
mod session;
mod suggest;
mod threads;
mod ticker;
mod timeouts;

pub use compiler::{EXIT_INVALID, EXIT_LIMITS, EXIT_PANIC};
pub use component::{CONTRACT_VERSIONS, ComponentError, Inspection, inspect};
pub use engine::{ENGINE, engine_config};
pub use suggest::suggest;
pub use threads::MORE_THREADS;

/// Configuration of a [`Runtime`].
#[derive(Debug)]
pub struct RuntimeConfig {
    /// Folder for native code; created if it is missing, for this user alone.
    pub cache_dir: PathBuf,
    /// Path of the compiler program; if `None`, it is looked for next to the agent's executable and in `../libexec/leafhost`.
    pub compiler: Option<PathBuf>,
    /// Timeout of the compilation of one component.
    pub compile_timeout: Duration,
    /// Folders that no device may bring into a container, whatever is granted: the agent's own and the kubelet's.
    pub own_folders: Vec<PathBuf>,
    /// Source of device events. On `Err`, with the reason, handlers that want events are called every minute.
    pub events: Result<leafhost_udev::Monitor, String>,
    /// Interfaces and groups of this node. On `Err`, with the reason, every use of the network is denied.
    pub network: Result<leafhost_net::Network, String>,
}

/// Reason why there is no runtime.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The engine could not be created, or the capabilities could not be linked.
    #[error("cannot set up the WebAssembly engine")]
    Engine(#[from] wasmtime::Error),
    /// This folder cannot be used as the cache.
    #[error("cannot use {path} for native code: {1}; make it this user's own or choose another folder", path = .0.display())]
    Cache(PathBuf, #[source] std::io::Error),
    /// The threads of the guests could not be started.
    #[error("cannot start the threads that guests run on ({0}); {MORE_THREADS}")]
    Threads(std::io::Error),
}

/// Loads handlers, see [`leafhost_core::ports::Loader`].
pub struct Runtime {
    host: Arc<call::Host>,
    linker: Linker<capabilities::CallState>,
    cache: Arc<cache::Cache>,
    compiler: compiler::Compiler,
    events: Arc<handler::Events>,
    network: Result<leafhost_net::Network, String>,
    names: leafhost_net::http::Names,
    own_folders: Arc<[String]>,
}

impl Runtime {
    /// Starts the runtime of the guests and opens the cache. Blocks for a moment.
    ///
    /// # Errors
    /// Returns an error, with the remedy, if the cache folder cannot be used or threads cannot be started.
    pub fn new(config: RuntimeConfig) -> Result<Arc<Self>, Error> {
        let engine = engine::engine()?;
        let linker = capabilities::link(&engine)?;
        let path = config.cache_dir;
        let cache = cache::Cache::open(&path, engine::fingerprint()?)
            .map_err(|error| Error::Cache(path, error))?;
        let host = call::Host::start(engine).map_err(Error::Threads)?;
        Ok(Arc::new(Self {
            host: Arc::new(host),
            linker,
            cache: Arc::new(cache),
            compiler: compiler::Compiler::new(config.compiler, config.compile_timeout),
            events: Arc::new(config.events),
            network: config.network,
            names: leafhost_net::http::Names::default(),
            own_folders: leafhost_grants::never(&config.own_folders),
        }))
    }

    /// Returns the reason why native code is not cached, if nothing can be written to its folder.
    pub fn unkept(&self) -> Option<&leafhost_core::ports::SourceProblem> {
        self.cache.unkept.as_ref()
    }
}

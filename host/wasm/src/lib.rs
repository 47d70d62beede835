//! Loads and calls discovery handlers: sandboxed WebAssembly components (`wit/` is the contract).
//!
//! The only crate that knows wasmtime. It implements the ports `Loader`, `Handler` and `Session` of `leafhost-core`; knows
//! nothing of files being watched, of Instances or of the kubelet.
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
mod session;
mod suggest;
mod threads;
mod ticker;
mod timeouts;

pub use cache::CacheError;
pub use compiler::{CompileError, EXIT_INVALID, EXIT_LIMITS, EXIT_PANIC};
pub use component::{CONTRACT_VERSIONS, ComponentError, Inspection, MAX_BYTES, inspect};
pub use engine::{EngineError, engine_config};
pub use suggest::suggest;
pub use threads::MORE_THREADS;

/// What a [`Runtime`] needs.
#[derive(Debug)]
pub struct RuntimeConfig {
    /// Where native code is kept; made if it is not there, for this user alone.
    pub cache_dir: PathBuf,
    /// The compiler program; absent: where it is installed next to the agent.
    pub compiler: Option<PathBuf>,
    /// How long compiling one component may take.
    pub compile_timeout: Duration,
    /// Folders that no device brings into a container, whatever is granted: the agent's own and the kubelet's.
    pub own_folders: Vec<PathBuf>,
    /// Where device events come from; or why there are none, then handlers that want them are called every minute.
    pub events: Result<leafhost_udev::Monitor, String>,
    /// The interfaces and groups of this node; or why they cannot be seen, then every use of the network is denied.
    pub network: Result<leafhost_net::Network, String>,
}

/// Why there is no runtime.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The engine.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// The capabilities.
    #[error("cannot link the capabilities")]
    Link(#[source] wasmtime::Error),
    /// The cache.
    #[error(transparent)]
    Cache(#[from] CacheError),
    /// Threads.
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

impl std::fmt::Debug for Runtime {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Runtime")
            .field("cache", &self.cache)
            .field("compiler", &self.compiler)
            .finish_non_exhaustive()
    }
}

impl Runtime {
    /// Starts the runtime of the guests and opens the cache. Blocks for a moment.
    ///
    /// # Errors
    /// The cache folder cannot be used, or threads cannot be started; the text has the remedy.
    pub fn new(config: RuntimeConfig) -> Result<Arc<Self>, Error> {
        let engine = engine::engine()?;
        let linker = capabilities::link(&engine).map_err(Error::Link)?;
        let cache = cache::Cache::open(&config.cache_dir, engine::fingerprint()?)?;
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

    /// Returns why native code is not kept, if nothing can be written in the folder for it.
    pub fn unkept(&self) -> Option<&leafhost_core::ports::SourceProblem> {
        self.cache.unkept()
    }
}

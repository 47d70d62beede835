//! What a guest may call, one file each, all in the same order: what they need to know, the state of a call, how
//! they are linked, and the calls.
//!
//! A new capability is a file here, a line in [`link`], a field in [`CallState`], and a line in `component` that names its grant.

use std::sync::Arc;

use wasmtime::Engine;
use wasmtime::component::{Linker, ResourceTable};
use wasmtime_wasi::{WasiCtx, WasiCtxView, WasiView};

use crate::limits::{HANDLES, Limiter};
use crate::record::Record;

pub(crate) mod explain;
pub(crate) mod log;
mod sockets;
pub(crate) mod udev;
mod wasi;

/// What a store knows: one call.
pub(crate) struct CallState {
    /// Says yes or no to memory.
    pub(crate) limiter: Limiter,
    table: ResourceTable,
    wasi: WasiCtx,
    log: log::LogState,
    explain: explain::ExplainState,
    sockets: sockets::SocketState,
    udev: udev::UdevState,
}

/// Which capabilities a call has. `log` it always has.
#[derive(Debug, Clone)]
pub(crate) struct Capabilities {
    /// Whether it looks for devices: `describe` and `validate` have nothing but `log`.
    pub(crate) discovers: bool,
    /// The devices it may see; absent: not granted.
    pub(crate) udev: Option<Arc<leafhost_udev::Subsystems>>,
}

impl CallState {
    /// For one call.
    pub(crate) fn new(
        capabilities: &Capabilities,
        memory: u64,
        log: &Arc<log::LogSink>,
        record: &Arc<Record>,
    ) -> Self {
        let mut table = ResourceTable::new();
        table.set_max_capacity(HANDLES);
        let explain = explain::ExplainState {
            record: capabilities.discovers.then(|| record.clone()),
        };
        let udev = udev::UdevState::new(capabilities, record.clone());
        Self {
            limiter: Limiter::new(memory, record.memory.clone()),
            table,
            wasi: wasi::context(log, record),
            log: log::LogState {
                sink: log.clone(),
                record: record.clone(),
            },
            explain,
            sockets: sockets::SocketState {
                record: record.clone(),
            },
            udev,
        }
    }
}

impl WasiView for CallState {
    fn ctx(&mut self) -> WasiCtxView<'_> {
        WasiCtxView {
            ctx: &mut self.wasi,
            table: &mut self.table,
        }
    }
}

/// Links everything there is: what a component imports of it was looked at before.
pub(crate) fn link(engine: &Engine) -> wasmtime::Result<Linker<CallState>> {
    let mut linker = Linker::new(engine);
    wasi::add_to_linker(&mut linker)?;
    sockets::add_to_linker(&mut linker, |state| &mut state.sockets)?;
    log::add_to_linker(&mut linker, |state| &mut state.log)?;
    explain::add_to_linker(&mut linker, |state| &mut state.explain)?;
    udev::add_to_linker(&mut linker, |state| &mut state.udev)?;
    Ok(linker)
}

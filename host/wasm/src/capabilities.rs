//! The functions that a guest may call, one file per capability.
//!
//! To add a capability, add a file here that implements its bindings for [`CallState`], and a line in `component` that names its grant.

use std::sync::Arc;

use leafhost_grants::Limits;
use leafhost_net::Policy;
use leafhost_net::http::Names;
use wasmtime::Engine;
use wasmtime::component::{HasSelf, Linker, ResourceTable};
use wasmtime_wasi::{WasiCtx, WasiCtxView, WasiView};

use crate::bindings::DiscoveryHandler;
use crate::bindings::leafhost::discovery::types;
use crate::limits::{HANDLES, Limiter};
use crate::record::Record;
use crate::threads::BlockingQuota;

pub(crate) mod explain;
mod held;
mod http;
pub(crate) mod log;
mod net;
mod reach;
mod sockets;
pub(crate) mod udev;
mod wasi;

/// Data of a store, for one call.
pub(crate) struct CallState {
    /// Limiter of the guest's memory and of the memory that the host holds for it.
    limiter: Limiter,
    table: ResourceTable,
    wasi: WasiCtx,
    record: Arc<Record>,
    log: Arc<log::LogSink>,
    udev: udev::UdevState,
    reach: Arc<reach::NetworkAccess>,
    http: http::HttpState,
}

/// Capabilities of a call, besides `log`, which every call has.
#[derive(Clone)]
pub(crate) struct Capabilities {
    /// Subsystems whose devices the call may see, or the reason why it may see none.
    pub(crate) udev: Result<Arc<leafhost_udev::Subsystems>, &'static str>,
    /// Quota for reads of sysfs, shared by all calls of a handler.
    pub(crate) blocking: BlockingQuota,
    /// Network policy of the call, or the reason why it may reach nothing.
    pub(crate) network: Result<Policy, String>,
    pub(crate) names: Names,
}

impl CallState {
    pub(crate) fn new(
        capabilities: &Capabilities,
        limits: &Limits,
        log: &Arc<log::LogSink>,
        record: &Arc<Record>,
    ) -> Self {
        let mut table = ResourceTable::new();
        // Leaves room for entries that the host keeps without a handle: a guest must not fail because of them.
        table.set_max_capacity(2 * HANDLES);
        let udev = udev::UdevState::new(capabilities, record.clone());
        let reach = Arc::new(reach::NetworkAccess::new(
            capabilities.network.clone(),
            capabilities.names.clone(),
            record.clone(),
        ));
        Self {
            limiter: Limiter::new(limits.memory, record.memory.clone()),
            table,
            wasi: wasi::context(log, record, &reach),
            record: record.clone(),
            log: log.clone(),
            udev,
            http: http::HttpState::new(reach.clone(), limits.wall),
            reach,
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

impl types::Host for CallState {}

/// Links all capabilities. The imports of each component are checked before it is linked.
pub(crate) fn link(engine: &Engine) -> wasmtime::Result<Linker<CallState>> {
    let mut linker = Linker::new(engine);
    wasmtime_wasi::p2::add_to_linker_async(&mut linker)?;
    sockets::add_to_linker(&mut linker)?;
    http::add_to_linker(&mut linker)?;
    DiscoveryHandler::add_to_linker::<_, HasSelf<CallState>>(&mut linker, |state| state)?;
    Ok(linker)
}

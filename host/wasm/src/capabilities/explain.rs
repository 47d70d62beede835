//! `leafhost:explain`: why something seen is not a device. Needs no grant.

use std::sync::Arc;

use wasmtime::component::{HasSelf, Linker};

use super::CallState;
use crate::bindings::leafhost::explain::explain;
use crate::record::Record;

/// Where explanations go.
pub(crate) struct ExplainState {
    pub(crate) record: Arc<Record>,
}

/// Links it.
pub(super) fn add_to_linker(
    linker: &mut Linker<CallState>,
    state: fn(&mut CallState) -> &mut ExplainState,
) -> wasmtime::Result<()> {
    explain::add_to_linker::<_, HasSelf<ExplainState>>(linker, state)
}

impl explain::Host for ExplainState {
    async fn skipped(
        &mut self,
        subject: String,
        rule: String,
        reason: String,
    ) -> wasmtime::Result<()> {
        self.record.explain(&subject, &rule, &reason);
        Ok(())
    }
}

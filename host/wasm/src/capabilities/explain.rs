//! `leafhost:explain`: why something seen is not a device. Needs no grant.

use std::sync::Arc;

use wasmtime::component::{HasSelf, Linker};

use super::CallState;
use crate::bindings::leafhost::explain::explain;
use crate::record::Record;

/// Where explanations go; nowhere outside of `discover`.
pub(crate) struct ExplainState {
    pub(crate) record: Option<Arc<Record>>,
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
        if let Some(record) = &self.record {
            record.explain(&subject, &rule, &reason);
        }
        Ok(())
    }
}

//! `leafhost:explain`: reasons why something that was seen is not a device. Needs no grant.

use super::CallState;
use crate::bindings::leafhost::explain::explain;

impl explain::Host for CallState {
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

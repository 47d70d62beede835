//! The kubelet's side of a call for tickets.

use std::collections::BTreeSet;

use leafhost_kubelet::{Allocation, Allocator as _, Refusal, ResourceName};

use crate::SlotHandle;
use leafhost_core::scheduling::DEVICES;

/// Sends the kubelet's calls for tickets.
#[derive(Clone)]
pub struct TicketHandle(pub SlotHandle);

impl TicketHandle {
    /// Sends a call for these tickets.
    pub async fn allocate(&self, ids: BTreeSet<String>) -> Result<Allocation, Refusal> {
        let resource = ResourceName::new(DEVICES).unwrap();
        self.0.allocate(&resource, ids).await
    }
}

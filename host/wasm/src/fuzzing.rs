//! What a fuzzer throws bytes at: the conversion of an answer and the seal of cached code, as a call and a load use them.
//!
//! Only with the feature `fuzzing`. Adds no behaviour: whatever is found here can happen in the agent.

use std::collections::BTreeSet;
use std::io;

use leafhost_core::fault::Fault;
use leafhost_core::session::{Discovery, Property};
use leafhost_grants::{Grants, Resolved, Secrets};

use crate::output::Bounds;

pub use crate::bindings::leafhost::discovery::types;
pub use crate::cache::Seal;

/// What an answer is measured by.
pub struct Call<'a> {
    /// What may be handed out, and how much may be said.
    pub grants: &'a Grants,
    /// Whether a device that does not say is shared.
    pub shared: bool,
    /// What the handler was told; the secret ones must not be seen.
    pub properties: &'a [Property],
    /// Nodes of devices that udev gave to this call.
    pub udev_nodes: &'a BTreeSet<String>,
    /// Follows links.
    pub resolve: &'a (dyn Fn(&str) -> io::Result<Resolved> + Sync),
}

impl Call<'_> {
    /// The devices of an answer.
    ///
    /// # Errors
    /// The answer is over a limit.
    pub fn discovery(&self, answer: types::Discovery) -> Result<Discovery, Fault> {
        let bounds = Bounds {
            grants: self.grants,
            shared: self.shared,
            secrets: &Secrets::new(self.properties),
            udev_nodes: self.udev_nodes,
            resolve: self.resolve,
        };
        bounds.weigh(&answer)?;
        Ok(bounds.discovery(answer.devices, answer.departed))
    }
}

//! Entry points for fuzzers: the conversion of an answer and the seal of cached code, as a call and a load use them.
//!
//! Present only with the feature `fuzzing`. Adds no behaviour: everything found here can happen in the agent.

use std::collections::BTreeSet;
use std::io;

use leafhost_core::fault::Fault;
use leafhost_core::session::{Discovery, Property};
use leafhost_grants::{Grants, Resolved, Secrets};

use crate::output::Bounds;

pub use crate::bindings::leafhost::discovery::types;
pub use crate::cache::Seal;

/// Rules that an answer is checked against.
pub struct Call<'a> {
    /// Grants with the paths that may be handed out and the limits of the answer.
    pub grants: &'a Grants,
    /// Default for devices that do not set `shared`.
    pub shared: bool,
    /// Properties that the handler got; the values of secret ones must not be shown.
    pub properties: &'a [Property],
    /// Device nodes that udev returned to this call.
    pub udev_nodes: &'a BTreeSet<String>,
    /// Resolves links in a path.
    pub resolve: &'a (dyn Fn(&str) -> io::Result<Resolved> + Sync),
}

impl Call<'_> {
    /// Returns the devices of an answer.
    ///
    /// # Errors
    /// Returns a [`Fault`] if the answer exceeds a limit.
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

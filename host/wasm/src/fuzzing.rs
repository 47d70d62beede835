//! Entry points for fuzzers: the conversion of an answer and the seal of cached code, as a call and a load use them.
//!
//! Present only with the feature `fuzzing`. Adds no behaviour: everything found here can happen in the agent.

use leafhost_core::fault::Fault;
use leafhost_core::session::Discovery;
use leafhost_grants::Bounds;

use crate::output;

pub use crate::bindings::leafhost::discovery::types;
pub use crate::cache::Seal;

/// Returns the devices of an answer.
///
/// # Errors
/// Returns a [`Fault`] if the answer exceeds a limit.
pub fn discovery(answer: types::Discovery, bounds: &Bounds<'_>) -> Result<Discovery, Fault> {
    output::weigh(&answer, &bounds.grants.limits)?;
    output::discovery(answer.devices, answer.departed, bounds)
}

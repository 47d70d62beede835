//! Dispatches an action to the module that implements it.

use crate::{denied_access, devices, host_memory, output, resource_limits};

/// Runs the action; returns if nothing stopped it.
pub fn run(action: &str, argument: &str) {
    let known = resource_limits::run(action)
        || output::run(action)
        || host_memory::run(action)
        || devices::run(action)
        || denied_access::run(action, argument);
    assert!(known, "no such action: {action}");
}

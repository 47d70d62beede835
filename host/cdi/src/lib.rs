//! Writes CDI specs: the files that define `--device vendor/class=name` for container runtimes.
//!
//! Writes each spec in the lowest version that expresses it, because a runtime rejects versions it does not know, and
//! replaces files atomically, so that a reader never sees a partial one. Knows neither the meaning nor the origin of
//! the devices.
//!
//! Source of the format: the Container Device Interface specification 1.1.0, `SPEC.md`.

pub mod directory;
mod json;
pub mod names;
pub mod spec;

pub use directory::{Error, Readers, SpecDir, SpecLock};
pub use json::minimum_version;
pub use names::{class_problem, device_name_problem, vendor_problem};
pub use spec::{ContainerEdits, Device, DeviceNode, InvalidSpec, Mount, Spec};

/// Compiles the example of the README with the tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

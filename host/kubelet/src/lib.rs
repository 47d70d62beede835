//! The plugin's side of the kubelet's device-plugin API and of Dynamic Resource Allocation: sockets and registration that survive restarts
//! of either side, a PodResources client, and a reader of the kubelet's checkpoint.
//!
//! The API prevents mistakes from which a kubelet does not recover: a device id cannot leave a list while an allocation of it may be in
//! flight, an empty list cannot be sent, and a resource is registered once with each kubelet. The crate knows nothing about devices, and
//! depends on no other crate of this workspace but `leafhost-uds`.

pub mod allocator;
mod causes;
pub mod config;
pub mod device;
pub mod dra;
mod endpoint;
mod folder;
pub mod listing;
mod offered;
pub mod plugins;
pub mod proto;
pub mod records;
mod registration;
pub mod report;
pub mod resource;
mod service;
mod serving;
mod session;
mod sockets;

pub use allocator::{Allocation, Allocator, DeviceSpec, Mount, Refusal};
pub use config::{PluginConfig, Times};
pub use device::{Device, Devices, Health, Offers};
pub use plugins::{DevicePlugins, DevicePluginsTask};
pub use report::{KubeletRun, Report, ResourceReport, State};
pub use resource::{InvalidResource, ResourceName};

/// Compiles the example of the README with the tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

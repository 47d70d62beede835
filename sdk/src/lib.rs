#![doc = include_str!("../README.md")]
#![allow(
    clippy::test_attr_in_doctest,
    reason = "the guide shows a handler with its tests"
)]

#[doc(hidden)]
#[allow(
    missing_docs,
    unsafe_code,
    clippy::all,
    clippy::pedantic,
    clippy::allow_attributes_without_reason,
    reason = "generated from the contract"
)]
pub mod bindings;
pub mod check;
mod details;
mod device;
mod discovery;
mod error;
#[doc(hidden)]
pub mod glue;
mod handler;
mod host;
pub mod http;
pub mod net;
mod request;
pub mod tcp;
#[cfg(not(target_family = "wasm"))]
pub mod testing;
pub mod udev;
pub mod udp;

#[doc(inline)]
pub use bindings::leafhost::discovery::types::{
    Attribute, AttributeValue, Budget, Datagram, Device, DeviceNode, Devices, Event, Health, Mount,
    MulticastFilter, Problem, Property, Wake,
};
#[doc(inline)]
pub use bindings::leafhost::log::log::Level;
pub use discovery::Discovery;
pub use error::{Error, Result};
pub use handler::{Description, Handler};
pub use host::Host;
pub use request::Request;
/// The crate `serde`, so that a handler needs no dependency but this one: put `#[serde(crate = "leafhost_sdk::serde")]` on
/// your `Details`.
pub use serde;
pub use serde::Deserialize;

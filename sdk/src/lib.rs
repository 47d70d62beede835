//! [Device::attribute]: Device::attribute()
//! [Device::capacity]: Device::capacity()
//! [Device::health]: Device::health()
//! [Device::mount]: Device::mount()
//! [Device::new]: Device::new()
//! [Device::node]: Device::node()
//! [Device::property]: Device::property()
//! [Discovery::complete]: Discovery::complete()
//! [Discovery::cursor]: Discovery::cursor()
//! [Discovery::partial]: Discovery::partial()
//! [Discovery::unchanged]: Discovery::unchanged()
//! [Discovery::wake_after]: Discovery::wake_after()
//! [Discovery::wake_on_multicast]: Discovery::wake_on_multicast()
//! [Discovery::wake_on_network]: Discovery::wake_on_network()
//! [Discovery::wake_on_udev]: Discovery::wake_on_udev()
//! [`details`]: macro@details
//! [`Error::InvalidDetails`]: Error::InvalidDetails
//! [`Handler`]: Handler
//! [`Handler::validate`]: Handler::validate()
//! [Host::all]: Host::all()
//! [`Host::block_on`]: Host::block_on()
//! [Host::connect]: Host::connect()
//! [`Host::has_time`]: Host::has_time()
//! [Host::http]: Host::http()
//! [Host::probe]: Host::probe()
//! [`Host::skipped`]: Host::skipped()
//! [`Host::time_left`]: Host::time_left()
//! [Host::retry]: Host::retry()
//! [Host::udp]: Host::udp()
//! [Host::within]: Host::within()
//! [`net::Error::Denied`]: net::Error::Denied
//! [`Problem`]: Problem
//! [testing::FakeHost]: testing::FakeHost

// The first definition of a label counts: here the links of the README lead to documentation, elsewhere to the source.
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

/// The crate `base64`: `BASE64_STANDARD.encode(…)` with `use leafhost_sdk::base64::prelude::*`.
pub use base64;
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
/// Makes a type readable from `discoveryDetails`. Put it on the [`Details`](Handler::Details) and on the types of their
/// fields.
///
/// The macro derives [`Deserialize`] without a dependency on `serde`. Fields of a struct are read in camelCase, variants of
/// an enum as written. Fields and types accept `#[serde(…)]` for exceptions:
///
/// ```
/// #[leafhost_sdk::details]
/// struct Details {
///     ip_addresses: Vec<String>, // ipAddresses
///     #[serde(default)]
///     action: Action,
/// }
///
/// #[leafhost_sdk::details]
/// #[derive(Default)]
/// enum Action {
///     #[default]
///     Include,
///     Exclude,
/// }
/// ```
pub use leafhost_sdk_macros::details;
pub use request::Request;
/// Crate `serde`, for types that implement its traits by hand.
pub use serde;
pub use serde::Deserialize;
/// The crate `serde_json`. [`Response::json`](http::Response::json) reads a response.
pub use serde_json;

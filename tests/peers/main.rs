//! Our handlers among cameras and OPC UA servers of other makes, each in a network namespace of its own.
#![allow(missing_docs, reason = "a test binary")]

mod capture;
mod comings;
mod found;
mod hostile;
mod networks;
mod onvif;
mod opcua;
mod servers;

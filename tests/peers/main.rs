//! Our handlers among cameras and OPC UA servers of other makes, each in a network namespace of its own.
#![allow(missing_docs, reason = "a test binary")]

mod arrivals;
mod capture;
mod discovery;
mod harness;
mod hostile;
mod onvif;
mod opcua;
mod opcua_instances;

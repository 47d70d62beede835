//! Tests of our handlers with cameras and OPC UA servers of other implementations, each in its own network namespace.
#![allow(missing_docs, reason = "a test binary")]

mod arrivals;
mod capture;
mod discovery;
mod harness;
mod hostile;
mod onvif;
mod opcua;
mod opcua_instances;

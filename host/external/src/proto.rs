//! Generated code of Akri's discovery protocol, both sides of each service.
#![allow(
    missing_docs,
    clippy::pedantic,
    clippy::allow_attributes_without_reason,
    reason = "generated code"
)]

tonic::include_proto!("v0");

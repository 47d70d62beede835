//! Handlers that misbehave in a running agent: the agent stops each one, names the fault, and nothing else is
//! affected.
//!
//! Each test uses [`fixture::Fixture::misbehave`]: the handler answers well once, so that it has a device, and then
//! misbehaves. The agent must name the fault, keep the device, keep serving, and call the neighbour in time.
#![allow(missing_docs, reason = "a test binary")]

mod answers;
mod denied_access;
mod environment;
mod fixture;
mod host_memory;
mod loading;
mod resource_limits;

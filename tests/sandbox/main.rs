//! Handlers that misbehave in a running agent: each is held, named, and hurts nobody else.
//!
//! Every deed goes the same way ([`yard::Yard::suffer`]): the handler answers well once, so that it has a device; then it misbehaves. Its fault is
//! named, its device stays, the agent serves on, and the
//! neighbour is called in time.
#![allow(missing_docs, reason = "a test binary")]

mod answers;
mod computing;
mod hoarding;
mod loading;
mod reaching;
mod surroundings;
mod yard;

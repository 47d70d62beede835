//! The agent in standalone mode as a user meets it: real binary, real handlers, real files.
#![allow(missing_docs, reason = "a test binary")]

mod bad_input;
mod components;
mod endpoint;
mod five_minutes;
mod handlers;
mod instances;
mod readme;
mod soak;
mod verbs;
mod webhook;

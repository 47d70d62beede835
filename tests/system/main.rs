//! Tests that need root, podman or real hardware events. If something is missing, the test names the command that
//! installs it.
#![allow(missing_docs, reason = "a test binary")]

mod external;
mod hotplug;
mod obstacles;
mod podman;
mod reenumerated;
mod release;
mod samples;
mod terminal;
mod wire;

//! What needs root, podman or real hardware events. A missing peer is named with the command that brings it.
#![allow(missing_docs, reason = "a test binary")]

mod hotplug;
mod obstacles;
mod podman;
mod wire;

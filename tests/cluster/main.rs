//! A real Kubernetes with real pods. What is missing for it is named with the command that brings it.
#![allow(missing_docs, reason = "a test binary")]

mod allocation;
mod device;
mod pods;

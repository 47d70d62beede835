//! Chooses devices for the containers of a pod: parses the pod's requests, judges devices by them, and searches for a choice that meets all of them.
//!
//! The requests use the syntax of resource claims (`resource.k8s.io/v1`, the field `devices`). The crate is pure: it knows no nodes, no cluster and
//! no clock.

mod choose;
mod device_attributes;
mod expression;
mod request;
mod values;
mod verdicts;

pub use choose::{Candidate, Choice, NoChoice, STEPS, choose};
pub use device_attributes::DeviceAttributes;
pub use expression::{Expression, Verdict};
pub use request::{
    Alternative, Constraint, ContainerRequest, InvalidRequest, MAX_DEVICES, MAX_TEXT, Request, read,
};
pub use verdicts::Verdicts;

//! What a webhook says of objects before they are stored, what it asks the API server about them, and its certificate.
//!
//! Knows nothing of agents, the controller and the take-over from Akri.

pub mod admission;
pub mod origins;
pub mod serving;

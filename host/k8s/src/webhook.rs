//! Review of objects before they are stored, the lookups it needs, and the certificate of the webhook.
//!
//! Knows nothing of agents, the controller and the migration from Akri.

pub mod admission;
pub mod origins;
pub mod serving;

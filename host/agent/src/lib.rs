//! The node agent as a library: discovery, plan, reconcile, offers, slots, admin endpoint. It joins the adapters, none of which knows it.
//!
//! ```text
//!  handler files ─► loader ─► handlers ─┐
//!                                       ├─► discovery ─► devices ─┬─► reconcile ─► Instances ─┐
//!  Configurations ──────────────────────┘                         │                           │
//!                                                                 └─► offer ◄─────────────────┘
//!                                                                       └─► CDI specs
//! ```
//! Each box is one task, which owns its state; each arrow between them is a `watch` channel. [`document`] reads their other published
//! state, and [`admin`] serves it.

pub mod admin;
pub mod agent;
pub mod cdi;
pub mod claims;
pub mod document;
pub mod metrics;
mod node_report;
pub mod plan;
mod problems;
pub mod reconcile;
pub mod status;
mod system_clock;

pub use agent::{Agent, AgentConfig, ClaimHome, Error, KubeletConfig, Ports};
pub use document::{AgentState, Identity};
pub use leafhost_cdi::Readers as CdiReaders;
pub use leafhost_slots::SlotConfig;
pub use leafhost_slots::tickets::MAX_TICKETS;

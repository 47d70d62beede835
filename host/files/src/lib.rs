//! The standalone home: Configurations, handlers and Instances as files of one machine.
//!
//! Implements the ports of `leafhost-core` on two folders: one that an operator writes and this crate only reads, and
//! the state folder, which is the agent's own. Knows no handler, no Wasm and no kubelet.

mod atomic;
mod blocking;
pub mod folder;
pub mod instances;
mod listen;
pub mod properties;
mod settle;
pub mod state;

pub use instances::FileInstances;
pub use state::StateDir;

//! Standalone mode: Configurations, handlers and Instances as files of one machine.
//!
//! Implements the ports of `leafhost-core` on two folders: one that an operator writes and this crate only reads, and the state folder,
//! which belongs to the agent. Does not know handlers, Wasm or the kubelet.

mod blocking;
mod claims;
mod configurations;
mod damaged;
mod events;
mod folder;
mod handlers;
mod instances;
mod ledger;
mod loader_store;
mod own_yaml;
pub mod properties;
mod regular;
mod settle;
mod state;

pub use claims::FileClaimRecords;
pub use configurations::{
    Document, Reading, check_file, check_folder, watch as watch_configurations,
};
pub use handlers::FileHandlers;
pub use instances::FileInstances;
pub use ledger::FileLedger;
pub use loader_store::FileLoaderStore;
pub use state::{Error, NodeState};

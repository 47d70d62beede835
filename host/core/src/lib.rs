//! Floor 0 (see ARCHITECTURE.md): the vocabulary shared by the rest of Leafhost.
//!
//! Defines names, devices, Configurations, Instances, slots, handler status, faults, and the ports through which the
//! agent, the controller and the scheduler reach the outside. Knows no file, socket, cluster or Wasm runtime, and no
//! clock except tokio's. Nearly everything here is plain data and rules on that data.

pub mod allocation;
pub mod attribute;
pub mod backoff;
pub mod brokers;
pub mod claim;
pub mod clock;
pub mod cluster;
pub mod configuration;
pub mod device;
pub mod device_id;
pub mod device_view;
pub mod edits;
pub mod fair;
pub mod fault;
pub mod free_slots;
pub mod grants_file;
pub mod handler;
pub mod instance;
pub mod instance_view;
pub mod left_out;
pub mod lenient;
pub mod mounts;
pub mod names;
pub mod node_order;
pub mod node_report;
pub mod pools;
pub mod ports;
pub mod presence;
pub mod problem;
pub mod properties;
pub mod resource_names;
pub mod scheduling;
pub mod session;
pub mod slice_device;
pub mod slices;
pub mod slot;
pub mod status_store;
pub mod tasks;
pub mod text;
pub mod timeouts;
pub mod usable;
pub mod variables;
pub mod wait;
pub mod write_limiter;
pub mod yaml;
mod yaml_cost;

//! Tests with a real Kubernetes and real pods. If something is missing, the test names the command that installs it.
#![allow(
    missing_docs,
    clippy::indexing_slicing,
    reason = "a test binary; JSON without a field has null there"
)]

mod agents;
mod akri_e2e;
mod allocation;
mod attacks;
mod away;
mod bad_handlers;
mod bad_objects;
mod brokers;
mod chaos;
mod chart;
mod claim_cases;
mod claim_examples;
mod claim_kills;
mod claim_troubles;
mod claims;
mod containers;
mod contested;
mod controller;
mod crowd;
mod device;
mod diagnosis;
mod disturbances;
mod edits;
mod external;
mod fairness;
mod found;
mod gate;
mod handler_pods;
mod health;
mod installed;
mod kill_points;
mod kills;
mod kubectl_reads;
mod many_pods;
mod migrate;
mod names;
mod node_labels;
mod nodes;
mod non_root;
mod objects;
mod older;
mod pair;
mod partition;
mod paused;
mod pods;
mod races;
mod reboot;
mod refused;
mod replaced;
mod requests;
mod restarted;
mod restarts;
mod scheduled;
mod scheduled_crowd;
mod scheduled_field;
mod scheduled_kills;
mod scheduled_lock;
mod scheduled_said;
mod scheduled_shared;
mod scheduled_tls;
mod scheduled_twin;
mod swapped;
mod ten_nodes;
mod turnover;
mod two_nodes;
mod unreachable;
mod unreadable;
mod upgraded;
mod webhook;

//! Permissions of a discovery handler, whether component or external: its grants file, and the checks of its devices
//! against that file.
//!
//! Calls no handler. Accesses the file system only on request.

mod bounds;
mod grants;
mod hand_out;
mod limits;
mod secrets;

pub use bounds::{Bounds, Reported};
pub use grants::{
    DeviceGrants, Grants, HostPorts, MAX_TEXT, MountGrant, NetPorts, NetworkGrants, Ports, Tls,
    never,
};
pub use hand_out::{Resolved, resolve};
pub use limits::Limits;
pub use secrets::{LONGEST_PIECE, Secrets, cut};

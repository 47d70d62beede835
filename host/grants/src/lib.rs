//! What a discovery handler may use and hand out, whether it is a component or runs elsewhere: its grants file, and the checks of
//! its devices against it.
//!
//! Calls no handler. Looks at paths only where it is told to.

mod grants;
mod hand_out;
mod limits;
mod secrets;

pub use grants::{
    DeviceGrants, Grants, HostPorts, MAX_TEXT, MountGrant, NetPorts, NetworkGrants, Ports, Tls,
    never,
};
pub use hand_out::{HandOut, Kind, Resolved, resolve};
pub use limits::Limits;
pub use secrets::{LONGEST_PIECE, Secrets, cut};

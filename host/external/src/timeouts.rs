//! The times of this crate in one place, with the reason for each.

use std::time::Duration;

/// How long connecting may take.
pub const CONNECT: Duration = Duration::from_secs(10);
/// How soon a machine that is gone is noticed: after about ten times that.
pub const KEEPALIVE: Duration = Duration::from_secs(15);
/// How often a handler is looked for that was removed from the registry, or that did not answer and that no Configuration uses.
pub const LOOK: Duration = Duration::from_mins(1);
/// How long a handler that does not answer may have no session before it counts as gone: sessions are closed and opened again when a
/// Configuration changes.
pub const UNUSED: Duration = Duration::from_secs(5);
/// How long a handler that does not answer is looked for. One that starts registers anyway.
pub const FORGET: Duration = Duration::from_hours(1);
/// How long after a registration a handler in the network may be connected to for the first time, and still be who has registered: longer than
/// from one look to the next.
pub const FIRST_CONNECTION: Duration = Duration::from_mins(2);
/// How close registrations of one handler may be to have an effect.
pub const REGISTER_SPACING: Duration = Duration::from_secs(1);
/// How long it is told that a handler was refused: Akri's handlers try again after ten seconds.
pub const REFUSED: Duration = Duration::from_mins(5);
/// How long a connection to the registration socket may last: a registration is one short call.
pub const REGISTRATION: Duration = Duration::from_secs(30);
/// How often the registration socket is tried that another process serves.
pub const SOCKET: Duration = Duration::from_secs(10);
/// How long after a set the next is taken, if there were many one after the other.
pub const FLOOD_SPACING: Duration = Duration::from_secs(1);
/// How long there must be no set for the next to be no part of a flood.
pub const CALM: Duration = Duration::from_secs(5);
/// How soon a handler that is served here tries again to register, as Akri's handlers do.
pub const REGISTER_AGAIN: Duration = Duration::from_secs(10);

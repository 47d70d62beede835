//! The timeouts of this crate in one place, each with its reason.

use std::time::Duration;

/// Timeout of a connection attempt.
pub const CONNECT: Duration = Duration::from_secs(10);
/// TCP keepalive interval; a machine that is gone is noticed after about ten intervals.
pub const KEEPALIVE: Duration = Duration::from_secs(15);
/// Interval between probes of a handler that was removed from the registry, or that does not answer and that no Configuration uses.
pub const LOOK: Duration = Duration::from_mins(1);
/// Time without a session after which a handler that does not answer counts as gone. A change of a Configuration closes and reopens
/// sessions, so a shorter gap is normal.
pub const UNUSED: Duration = Duration::from_secs(5);
/// Time for which a handler that does not answer is probed. A handler that starts registers anyway.
pub const FORGET: Duration = Duration::from_hours(1);
/// Time after a registration within which the first connection to a handler in the network still counts as a connection to the process
/// that registered. Longer than the interval between probes.
pub const FIRST_CONNECTION: Duration = Duration::from_mins(2);
/// Minimum time between registrations of one handler for the later one to have an effect.
pub const REGISTER_SPACING: Duration = Duration::from_secs(1);
/// Time for which a refusal is reported: Akri's handlers try again after ten seconds.
pub const REFUSED: Duration = Duration::from_mins(5);
/// Maximum duration of a connection to the registration socket: a registration is one short call.
pub const REGISTRATION: Duration = Duration::from_secs(30);
/// Interval between attempts to serve a registration socket that another process serves.
pub const SOCKET: Duration = Duration::from_secs(10);
/// Minimum time between two sets during a flood.
pub const FLOOD_SPACING: Duration = Duration::from_secs(1);
/// Time without a set after which a flood has ended.
pub const CALM: Duration = Duration::from_secs(5);
/// Interval between the registration attempts of a handler that is served here, as with Akri's handlers.
pub const REGISTER_AGAIN: Duration = Duration::from_secs(10);

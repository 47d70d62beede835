//! HTTP requests of a handler: the checked address is the one connected to, redirects are not followed, everything is bounded.
//!
//! ```text
//! request ─► target ─► names ─► gate ─► connect ─► tls ─► head, in one write ─► answer's head ─► Body, as it comes
//! ```
//!
//! One connection per request. No proxy, redirect, cookie, decompression or second attempt after a request was written. Does not know
//! guests or grants files: a [`RequestPolicy`] decides what may be reached.

mod body;
mod budget;
mod connect;
mod error;
mod exchange;
mod head;
mod names;
mod target;
mod tls;
mod until;
mod wire;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};

use crate::Denied;
use crate::grants::Tls;

pub use body::Body;
pub use budget::Budget;
pub use error::{HttpError, Stage};
pub use names::Names;

use budget::BudgetGuard;
use target::Target;
use tls::Roots;
use until::Until;
use wire::{AbruptEnd, Meter, Wire};

/// Maximum size of a request's body, in bytes.
pub const MAX_REQUEST_BODY: usize = 1024 * 1024;
/// Maximum size of the head of an answer, in bytes. The caller bounds that of a request.
pub const MAX_HEAD: usize = 64 * 1024;
/// Maximum number of header lines of an answer.
pub const MAX_HEADERS: usize = 256;
/// Maximum number of interim answers (1xx) before the final one.
pub const MAX_INTERIM: u32 = 8;

/// Error of the body of a request.
type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// Decides what requests may reach; asked right before each use.
pub trait RequestPolicy: Sync {
    /// Checks that the name may be looked up. The name is in lower case, without a trailing dot.
    fn look_up(&self, name: &str) -> Result<(), Denied>;

    /// Checks that a request to `host`, which resolved to that address, may be sent. `host` is a name as in [`RequestPolicy::look_up`], or an
    /// IP address without brackets and zone.
    fn request(&self, host: &str, address: SocketAddr) -> Result<(), Denied>;

    /// Returns the handling of certificates.
    fn tls(&self) -> &Tls;
}

/// Time limits of the phases of one request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Limit of look-up, connection and TLS, together.
    pub connect: Duration,
    /// Limit from the connection to the end of the answer's head.
    pub first_byte: Duration,
    /// Limit between any two pieces of the answer's body.
    pub between_bytes: Duration,
    /// Limit from the start to the last byte of the answer, including the time that the caller takes to read it.
    pub total: Duration,
}

/// Sends one request on a connection of its own.
///
/// The URI is absolute, `http` or `https`. `Host`, `Connection: close` and `Content-Length` are written here (a `Host` among the headers is
/// replaced); headers that control connections are refused. The request's body is read to its end before the connection is made: its length
/// precedes it, and head and body are sent in one write. The answer's body is read on demand; its connection and its permit of `budget` are
/// released at its end or when it is dropped.
///
/// # Errors
/// Returns an error if the gate denies the request, a limit is exceeded, or the exchange fails.
pub async fn send(
    gate: &impl RequestPolicy,
    names: &Names,
    budget: &Arc<Budget>,
    request: Request<impl http_body::Body<Data = Bytes, Error: Into<BoxError>> + Send>,
    limits: Limits,
) -> Result<Response<Body>, HttpError> {
    send_trusting(&tls::MACHINE, gate, names, budget, request, limits).await
}

async fn send_trusting(
    roots: &Roots,
    gate: &impl RequestPolicy,
    names: &Names,
    budget: &Arc<Budget>,
    request: Request<impl http_body::Body<Data = Bytes, Error: Into<BoxError>> + Send>,
    limits: Limits,
) -> Result<Response<Body>, HttpError> {
    let permit = budget.enter()?;
    let total = Until::after(limits.total);
    let target = Target::of(request.uri())?;
    let mut kept = BudgetGuard::new(budget);
    let request = head::collect(&target, request, total, &mut kept).await?;
    let connecting = Until::after(limits.connect).or(total);
    let (stream, address) = connect::connect(gate, names, &target, connecting).await?;
    let meter = Meter::new(address, Arc::clone(budget));
    let meter = Arc::new(meter);
    let stream = wire::Metered::new(stream, Arc::clone(&meter));
    let wire: Box<dyn Wire> = if target.tls {
        let handshake = tls::handshake(stream, &meter, &target, gate.tls(), roots);
        let stream = connecting.run(Stage::Tls, handshake).await??;
        if *gate.tls() == Tls::Insecure {
            let (read, write) = tokio::io::split(stream);
            Box::new(tokio::io::join(AbruptEnd(read), write))
        } else {
            Box::new(stream)
        }
    } else {
        Box::new(stream)
    };
    exchange::exchange(wire, request, meter, permit, limits, total).await
}

#[cfg(test)]
mod tests;

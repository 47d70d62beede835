//! Requests of a handler: the address is checked and then connected to, nothing is followed, everything is bounded.
//!
//! ```text
//! request ─► target ─► names ─► gate ─► connect ─► tls ─► head, in one write ─► answer's head ─► Body, as it comes
//! ```
//!
//! One connection a request. No proxy, redirect, cookie, decompression or second attempt after a request was written.
//! Knows neither guests nor grants files: a [`RequestPolicy`] says what may be reached.

mod body;
mod budget;
mod connect;
mod driver;
mod error;
mod exchange;
mod head;
mod names;
mod target;
mod tls;
mod until;
mod wire;

use std::error::Error;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};

use crate::grants::Tls;
use crate::{Denied, Policy};

pub use body::Body;
pub use budget::Budget;
pub use error::{HttpError, Stage};
pub use names::Names;

use budget::Kept;
use target::Target;
use tls::Roots;
use until::Until;
use wire::{Meter, Wire};

/// Bytes of a request's body, at most.
pub const MAX_REQUEST_BODY: usize = 1024 * 1024;
/// Bytes of a head, of the request or of the answer, at most.
pub const MAX_HEAD: usize = 64 * 1024;
/// Header lines of a head, at most.
pub const MAX_HEADERS: usize = 256;
/// Interim answers (1xx) before the final one, at most.
pub const MAX_INTERIM: u32 = 8;
/// Bytes of an answer's body where the caller has no other limit.
pub const MAX_BODY: u64 = 1024 * 1024;

/// What may be reached, asked right before it is.
pub trait RequestPolicy: Sync {
    /// Whether that name may be looked up. It is in lower case, without a dot at its end.
    fn look_up(&self, name: &str) -> Result<(), Denied>;

    /// Whether a request to `host`, which is that address, may be sent. `host` is a name as in [`RequestPolicy::look_up`], or an
    /// IP address without brackets and zone.
    fn request(&self, host: &str, address: SocketAddr) -> Result<(), Denied>;

    /// How certificates are treated.
    fn tls(&self) -> &Tls;
}

impl RequestPolicy for Policy {
    fn look_up(&self, name: &str) -> Result<(), Denied> {
        Policy::look_up(self, name)
    }

    fn request(&self, host: &str, address: SocketAddr) -> Result<(), Denied> {
        Policy::request(self, host, address)
    }

    fn tls(&self) -> &Tls {
        &self.grants().tls
    }
}

/// How long the parts of a request may take; all of it is bounded by `total`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Timeouts {
    /// Looking up, connecting and TLS, together.
    pub connect: Duration,
    /// From the connection made to the end of the answer's head.
    pub first_byte: Duration,
    /// Between any two pieces of the answer's body.
    pub between_bytes: Duration,
    /// From the start to the last byte of the answer, including the time the caller takes to read it.
    pub total: Duration,
}

/// The limits of one request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// In time.
    pub timeouts: Timeouts,
    /// Bytes of the answer's body; more is [`HttpError::TooLarge`], never a shorter body.
    pub max_body: u64,
}

/// Sends one request on a connection of its own.
///
/// The URI is absolute, `http` or `https`. `Host`, `Connection: close` and `Content-Length` are written here (a `Host`
/// among the headers is replaced); headers that rule connections are refused. The body is read to its end before
/// anything is connected to: its length goes ahead of it, and both in one write. The answer's body comes as it is read;
/// its connection and its permit of `budget` are released at its end or when it is dropped.
///
/// # Errors
/// Denied by the gate, over a limit, or anything on the way.
pub async fn send<G, B>(
    gate: &G,
    names: &Names,
    budget: &Arc<Budget>,
    request: Request<B>,
    limits: Limits,
) -> Result<Response<Body>, HttpError>
where
    G: RequestPolicy,
    B: http_body::Body<Data = Bytes> + Send,
    B::Error: Into<Box<dyn Error + Send + Sync>>,
{
    send_trusting(Roots::machine(), gate, names, budget, request, limits).await
}

async fn send_trusting<G, B>(
    roots: &Roots,
    gate: &G,
    names: &Names,
    budget: &Arc<Budget>,
    request: Request<B>,
    limits: Limits,
) -> Result<Response<Body>, HttpError>
where
    G: RequestPolicy,
    B: http_body::Body<Data = Bytes> + Send,
    B::Error: Into<Box<dyn Error + Send + Sync>>,
{
    let permit = budget.enter()?;
    let total = Until::after(limits.timeouts.total);
    let target = Target::of(request.uri())?;
    let mut kept = Kept::new(budget);
    let request = head::collect(&target, request, total, &mut kept).await?;
    let body = http_body::Body::size_hint(request.body()).lower();

    let connecting = Until::after(limits.timeouts.connect).or(total);
    let (stream, address) = connect::connect(gate, names, &target, connecting).await?;
    let meter = Arc::new(Meter::new(address, limits.max_body, Arc::clone(budget)).with_paid(body));
    let stream = wire::Metered::new(stream, Arc::clone(&meter));
    let wire = if target.tls {
        let handshake = tls::handshake(stream, &target, gate.tls(), roots);
        let done = connecting.run(Stage::Tls, handshake).await?;
        let stream = done.map_err(|failure| failure.into_error(&meter))?;
        Wire::tls(stream, *gate.tls() == Tls::Insecure)
    } else {
        Wire::Plain(stream)
    };
    exchange::exchange(wire, request, meter, permit, limits, total).await
}

#[cfg(test)]
mod tests;

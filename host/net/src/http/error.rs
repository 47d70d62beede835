//! Errors of requests, worded for the operator.

use std::error::Error;
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use super::{MAX_HEAD, MAX_HEADERS};
use crate::Denied;

/// Reason why a request failed.
#[derive(Debug, thiserror::Error)]
pub enum HttpError {
    /// The grants deny the name, or every address of it.
    #[error("not granted: {}", list(.0))]
    Denied(Vec<Denied>),
    /// The request is invalid.
    #[error("cannot send the request: {0}")]
    Request(String),
    /// The call already has this number of requests in progress, the maximum.
    #[error("cannot send the request: {0} requests are already in progress")]
    Busy(usize),
    /// The call has used up this number of bytes, the maximum.
    #[error("the requests of this call have used up their {0} bytes")]
    Spent(u64),
    /// The name could not be looked up, or has no address.
    #[error("look up {name:?}")]
    LookUp {
        /// Name that was looked up.
        name: String,
        /// Error of the machine's resolver.
        #[source]
        source: io::Error,
    },
    /// The server refused the connection; with the address that was tried last.
    #[error("connect to {0}: connection refused")]
    Refused(SocketAddr),
    /// The address could not be reached.
    #[error("connect to {address}")]
    Unreachable {
        /// Address that was tried last.
        address: SocketAddr,
        /// Error of the kernel.
        #[source]
        source: io::Error,
    },
    /// A time limit was exceeded.
    #[error("{stage} took longer than {limit:?}")]
    Timeout {
        /// Stage that took too long.
        stage: Stage,
        /// Exceeded limit: that of the stage, or of the whole request.
        limit: Duration,
    },
    /// The grants do not trust the peer's certificate.
    #[error("certificate is not trusted (to trust it: `tls: pin:{sha256}`): {reason}")]
    Untrusted {
        /// Reason of the rejection.
        reason: String,
        /// SHA-256 of the received certificate, in hexadecimal digits.
        sha256: String,
    },
    /// This machine trusts no authority at all.
    #[error(
        "certificate cannot be verified: this machine has no certificate authorities; install the package \
         `ca-certificates`, name a file in SSL_CERT_FILE, or pin the peer's certificate in the grants file \
         with `tls: pin:SHA256`"
    )]
    NoRoots,
    /// The TLS handshake or connection failed.
    #[error("speak TLS with {address}")]
    Tls {
        /// Address of the peer.
        address: SocketAddr,
        /// Error of the TLS library.
        #[source]
        source: io::Error,
    },
    /// The answer is not HTTP/1.
    #[error("the answer breaks HTTP: {0}")]
    Protocol(String),
    /// The peer closed the connection before the answer was complete.
    #[error("the peer closed early: {stage} was not complete")]
    Closed {
        /// Stage that was interrupted.
        stage: Stage,
        /// Error of the connection; `None` for an orderly end.
        #[source]
        source: Option<io::Error>,
    },
}

/// A stage of a request, as it reads in an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// The handler writes the request's body.
    Request,
    /// The name is looked up.
    LookUp,
    /// The connection is made.
    Connect,
    /// The TLS handshake runs.
    Tls,
    /// The request is written, the head of the answer read.
    Head,
    /// The body of the answer is read.
    Body,
}

impl fmt::Display for Stage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Request => "the request's body",
            Self::LookUp => "the look-up",
            Self::Connect => "the connection",
            Self::Tls => "the TLS handshake",
            Self::Head => "the wait for the answer's head",
            Self::Body => "the answer's body",
        })
    }
}

fn list(denied: &[Denied]) -> String {
    let texts: Vec<String> = denied.iter().map(ToString::to_string).collect();
    texts.join("; ")
}

impl HttpError {
    /// Converts an error of hyper during `stage`, on a connection to `address`.
    pub(super) fn of_hyper(error: &hyper::Error, stage: Stage, address: SocketAddr) -> Self {
        if error.is_parse_too_large() {
            return Self::Protocol(format!(
                "its head exceeds {MAX_HEAD} bytes or {MAX_HEADERS} headers, or announces an impossible length"
            ));
        }
        if error.is_parse() {
            return Self::Protocol(error.to_string());
        }
        let Some(cause) = error.source().and_then(|e| e.downcast_ref::<io::Error>()) else {
            return Self::Closed {
                stage,
                source: None,
            };
        };
        let text = cause.to_string();
        let inner = cause.get_ref();
        let of_tls = inner.and_then(|e| e.downcast_ref::<rustls::Error>());
        match cause.kind() {
            kind if of_tls.is_some() => Self::Tls {
                address,
                source: io::Error::new(kind, text),
            },
            io::ErrorKind::InvalidData | io::ErrorKind::InvalidInput | io::ErrorKind::Other => {
                Self::Protocol(text)
            }
            kind => Self::Closed {
                stage,
                source: Some(io::Error::new(kind, text)),
            },
        }
    }
}

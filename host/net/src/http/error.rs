//! Why a request failed, in words for the operator.

use std::error::Error;
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use super::{MAX_HEAD, MAX_HEADERS, MAX_INTERIM, MAX_REQUEST_BODY};
use crate::Denied;

/// Why a request failed.
#[derive(Debug, thiserror::Error)]
pub enum HttpError {
    /// By the grants: the name, or every address it has.
    #[error("not granted: {}", list(.0))]
    Denied(Vec<Denied>),
    /// It is none that could be sent.
    #[error("cannot send the request: {0}")]
    Request(String),
    /// Its body is over [`MAX_REQUEST_BODY`].
    #[error("cannot send the request: its body is over {MAX_REQUEST_BODY} bytes")]
    RequestTooLarge,
    /// More are under way than the call may have.
    #[error("cannot send the request: {at_once} are under way already")]
    Busy {
        /// How many the call may have at once.
        at_once: usize,
    },
    /// The call has sent and received all it may.
    #[error("the requests of this call have moved all of the {bytes} bytes that they may")]
    Spent {
        /// How many those are.
        bytes: u64,
    },
    /// The name has no address.
    #[error("look up {name:?}")]
    LookUp {
        /// The name.
        name: String,
        /// What the machine's resolver says.
        #[source]
        source: io::Error,
    },
    /// No server listens there.
    #[error("connect to {address}: connection refused")]
    Refused {
        /// The address that was tried last.
        address: SocketAddr,
    },
    /// No way there.
    #[error("connect to {address}")]
    Unreachable {
        /// The address that was tried last.
        address: SocketAddr,
        /// What the kernel says.
        #[source]
        source: io::Error,
    },
    /// It took too long.
    #[error("{stage} took longer than {limit:?}")]
    Timeout {
        /// What took too long.
        stage: Stage,
        /// The limit that passed: that of the stage, or of the whole request.
        limit: Duration,
    },
    /// The peer's certificate is none that the grants trust.
    #[error("certificate is not trusted (to trust it: `tls: pin:{sha256}`): {reason}")]
    Untrusted {
        /// What is wrong with it.
        reason: String,
        /// The SHA-256 of the certificate that was seen, in hexadecimal digits.
        sha256: String,
    },
    /// This machine trusts no authority at all.
    #[error(
        "certificate cannot be verified: this machine has no certificate authorities; install the package \
         `ca-certificates`, name a file in SSL_CERT_FILE, or pin the peer's certificate in the grants file \
         with `tls: pin:SHA256`"
    )]
    NoRoots,
    /// No TLS came about, or it broke.
    #[error("speak TLS with {address}")]
    Tls {
        /// The peer.
        address: SocketAddr,
        /// What went wrong.
        #[source]
        source: io::Error,
    },
    /// The answer is not HTTP/1.
    #[error("the answer breaks HTTP: {0}")]
    Protocol(String),
    /// The answer's head, or its trailers, are over [`MAX_HEAD`] or [`MAX_HEADERS`].
    #[error(
        "the answer's head is over {MAX_HEAD} bytes or {MAX_HEADERS} headers, or announces an impossible length"
    )]
    HeadTooLarge,
    /// Interim answers without end.
    #[error("the answer has more than {MAX_INTERIM} interim answers (1xx) before it")]
    Interim,
    /// The answer's body is over the caller's limit, or its encoding over what any such body needs.
    #[error("the answer's body is over {limit} bytes")]
    TooLarge {
        /// The limit.
        limit: u64,
    },
    /// The peer closed the connection before the answer was complete.
    #[error("the peer closed early: {stage} was not over")]
    Closed {
        /// What it interrupted.
        stage: Stage,
        /// What the connection says; absent for an orderly end.
        #[source]
        source: Option<io::Error>,
    },
}

/// A part of a request, as it reads in an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// The handler writes the request's body.
    Request,
    /// The name is looked up.
    LookUp,
    /// The connection is made.
    Connect,
    /// TLS is agreed on.
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
    /// What hyper says while `stage`, on a connection to `address`.
    pub(super) fn of_hyper(error: &hyper::Error, stage: Stage, address: SocketAddr) -> Self {
        if error.is_parse_too_large() {
            return Self::HeadTooLarge;
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
        let text = readable(&cause.to_string());
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

/// A text that may quote the peer: short, one line.
pub(super) fn readable(text: &str) -> String {
    const LONGEST: usize = 300;
    let clean = |c: char| if c.is_control() { ' ' } else { c };
    let mut out: String = text.chars().take(LONGEST).map(clean).collect();
    if text.chars().nth(LONGEST).is_some() {
        out.push('…');
    }
    out
}

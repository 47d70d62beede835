//! `wasi:http`, outgoing: requests under the grants, made by `leafhost_net`. Needs the grant `network`. Linked for every handler, because
//! libraries import it; denied without the grant.

use std::sync::Arc;
use std::time::Duration;

use http_body_util::BodyExt as _;
use leafhost_core::text::chain;
use leafhost_net::http::{Budget, HttpError, Limits, Stage, send};
use wasmtime::component::Linker;
use wasmtime_wasi_http::{
    Error, RequestOptions, WasiBody, WasiHttpCtx, WasiHttpCtxView, WasiHttpHooks, WasiHttpView,
};

use super::CallState;
use super::reach::NetworkAccess;
use crate::timeouts::HTTP_PART;

mod bounds;

pub(super) use bounds::MAX_REQUEST;

/// Maximum size of the headers that a guest writes for one message, in bytes.
pub(super) const MAX_FIELDS: usize = 16 << 10;
/// Maximum number of bytes of a body that are taken from the guest at once.
const CHUNK: usize = 16 << 10;
/// Maximum size of an unsent part of a body that the host holds: two chunks, and the trailers.
pub(super) const MAX_UNSENT: usize = 2 * CHUNK + MAX_FIELDS;

pub(crate) struct HttpState {
    ctx: WasiHttpCtx,
    hooks: Requests,
}

/// Sends the requests of a call.
struct Requests {
    reach: Arc<NetworkAccess>,
    wall: Duration,
    budget: Arc<Budget>,
}

impl HttpState {
    /// Creates the state of one call with the time limit `wall`.
    pub(super) fn new(reach: Arc<NetworkAccess>, wall: Duration) -> Self {
        let mut ctx = WasiHttpCtx::new();
        ctx.set_field_size_limit(MAX_FIELDS);
        Self {
            ctx,
            hooks: Requests {
                reach,
                wall,
                budget: Arc::default(),
            },
        }
    }

    /// Returns the peak of bytes that the host held for the guest's requests since the last query.
    pub(super) fn most_kept(&self) -> u64 {
        self.hooks.budget.most_kept()
    }
}

impl WasiHttpView for CallState {
    fn http(&mut self) -> WasiHttpCtxView<'_> {
        WasiHttpCtxView {
            hooks: &mut self.http.hooks,
            table: &mut self.table,
            ctx: &mut self.http.ctx,
        }
    }
}

/// Links the outgoing part; the interface that a server exports is not linked.
pub(super) fn add_to_linker(linker: &mut Linker<CallState>) -> wasmtime::Result<()> {
    wasmtime_wasi_http::p2::add_only_http_to_linker_async(linker)?;
    bounds::add_to_linker(linker)
}

type Io = Box<dyn Future<Output = Result<(), Error>> + Send>;

impl WasiHttpHooks for Requests {
    fn send_request(
        &mut self,
        request: http::Request<WasiBody>,
        options: Option<RequestOptions>,
        _done: Io,
    ) -> Box<dyn Future<Output = Result<(http::Response<WasiBody>, Io), Error>> + Send> {
        // Without a policy the request is denied at once and not kept.
        let asked = format!(
            "send a request to {}",
            request.uri().host().unwrap_or_default()
        );
        if self.reach.policy(&asked).is_err() {
            return Box::new(async { Err(Error::HttpRequestDenied) });
        }
        let options = options.unwrap_or_default();
        let part = |asked: Option<Duration>| asked.unwrap_or(HTTP_PART).min(self.wall);
        let limits = Limits {
            connect: part(options.connect_timeout),
            first_byte: part(options.first_byte_timeout),
            between_bytes: part(options.between_bytes_timeout),
            total: self.wall,
        };
        let (reach, budget) = (self.reach.clone(), self.budget.clone());
        Box::new(async move {
            let answer = send(&*reach, &reach.names, &budget, request, limits).await;
            let answer = answer.map_err(|error| describe(&reach, error))?;
            let answer = answer.map(|body| {
                body.map_err(move |error| describe(&reach, error))
                    .boxed_unsync()
            });
            Ok((answer, Box::new(async { Ok(()) }) as Io))
        })
    }

    fn p2_outgoing_body_chunk_size(&mut self) -> usize {
        CHUNK
    }
}

/// Converts an error for the guest: to a specific error code of WASI if there is one, else to an internal error with Leafhost's text, which
/// the guest can pass on to the operator. Also records an error that an operator can remedy as a denial.
fn describe(reach: &NetworkAccess, error: HttpError) -> Error {
    let text = chain(&error);
    match error {
        HttpError::Denied(list) => {
            reach.deny_all(&list);
            Error::HttpRequestDenied
        }
        HttpError::Busy(_) => {
            reach.deny(&text);
            Error::ConnectionLimitReached
        }
        HttpError::Spent(_) | HttpError::Untrusted { .. } | HttpError::NoRoots => {
            reach.deny(&text);
            Error::InternalError(Some(text))
        }
        HttpError::Request(_) | HttpError::Tls { .. } | HttpError::Protocol(_) => {
            Error::InternalError(Some(text))
        }
        HttpError::LookUp { .. } => Error::DnsError {
            rcode: Some(text),
            info_code: None,
        },
        HttpError::Refused(_) => Error::ConnectionRefused,
        HttpError::Unreachable { .. } => Error::DestinationUnavailable,
        HttpError::Timeout { stage, .. } => match stage {
            Stage::LookUp => Error::DnsTimeout,
            Stage::Connect | Stage::Tls => Error::ConnectionTimeout,
            Stage::Request => Error::ConnectionWriteTimeout,
            Stage::Head => Error::HttpResponseTimeout,
            Stage::Body => Error::ConnectionReadTimeout,
        },
        HttpError::Closed { stage, .. } => match stage {
            Stage::Head | Stage::Body => Error::HttpResponseIncomplete,
            _ => Error::ConnectionTerminated,
        },
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use leafhost_net::http::Names;

    use super::*;

    fn refused() -> io::Error {
        io::ErrorKind::ConnectionRefused.into()
    }

    #[test]
    fn a_guest_is_told_what_its_operator_has_to_know() {
        let address = "192.168.7.9:443".parse().unwrap();
        let of_kind = |stage| HttpError::Closed {
            stage,
            source: None,
        };
        let record = Arc::default();
        let reach =
            NetworkAccess::new(Err("nothing".into()), Names::default(), Arc::clone(&record));
        let text = |error| match describe(&reach, error) {
            Error::InternalError(Some(text))
            | Error::DnsError {
                rcode: Some(text), ..
            } => text,
            other => format!("{other:?}"),
        };
        let name = "camera".to_owned();
        for (error, words) in [
            (HttpError::Protocol("no status".into()), "no status"),
            (HttpError::Request("no host".into()), "no host"),
            (
                HttpError::Tls {
                    address,
                    source: io::Error::other("peer misbehaved"),
                },
                "speak TLS with 192.168.7.9:443: peer misbehaved",
            ),
            (
                HttpError::LookUp {
                    name,
                    source: io::Error::other("no such host"),
                },
                "look up \"camera\": no such host",
            ),
            (HttpError::Refused(address), "ConnectionRefused"),
            (
                HttpError::Unreachable {
                    address,
                    source: refused(),
                },
                "DestinationUnavailable",
            ),
            (of_kind(Stage::Head), "HttpResponseIncomplete"),
            (of_kind(Stage::Connect), "ConnectionTerminated"),
        ] {
            let text = text(error);
            assert!(text.contains(words), "{text}");
        }
        assert!(record.take().denied.is_empty());
        let pin = "ab".repeat(32);
        let describe = text(HttpError::Untrusted {
            reason: "it is for another name. ".repeat(12),
            sha256: pin.clone(),
        });
        assert!(describe.contains(&pin), "{describe}");
        let denied: Vec<String> = record.take().denied.into_iter().collect();
        assert_eq!(denied.len(), 1);
        // The pin to copy is complete, however long the reason is.
        assert!(denied.iter().all(|text| text.contains(&pin)), "{denied:?}");
    }
}

//! One request and the head of its answer on a fresh connection. The connection works only while it is polled here or
//! by the body: there is no task to join.

use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::Full;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use tokio::sync::OwnedSemaphorePermit;

use super::body::Body;
use super::until::Until;
use super::wire::{Meter, Wire};
use super::{HttpError, Limits, MAX_HEAD, MAX_HEADERS, Stage};

type Connection = http1::Connection<TokioIo<Wire>, Full<Bytes>>;

pub(super) async fn exchange(
    wire: Wire,
    mut request: Request<Full<Bytes>>,
    meter: Arc<Meter>,
    place: OwnedSemaphorePermit,
    limits: Limits,
    total: Until,
) -> Result<Response<Body>, HttpError> {
    let counted = Arc::clone(&meter);
    hyper::ext::on_informational(&mut request, move |_| counted.interim());
    let (mut sender, connection) = http1::Builder::new()
        .title_case_headers(true)
        // Head and body are copied together and leave in one write: some cameras read only once.
        .writev(false)
        .max_headers(MAX_HEADERS)
        .max_header_size(MAX_HEAD)
        .allow_spaces_after_header_name_in_responses(true)
        .allow_obsolete_multiline_headers_in_responses(true)
        .ignore_invalid_headers_in_responses(true)
        .handshake(TokioIo::new(wire))
        .await
        .map_err(|error| meter.explain(&error, Stage::Head))?;
    let mut driver = Driver(Some(connection));

    let answer = async {
        let mut answer = pin!(sender.send_request(request));
        std::future::poll_fn(|cx| {
            if let Poll::Ready(answer) = answer.as_mut().poll(cx) {
                return Poll::Ready(answer);
            }
            driver.drive(cx);
            answer.as_mut().poll(cx)
        })
        .await
    };
    let head = Until::after(limits.timeouts.first_byte).or(total);
    let answer = head.run(Stage::Head, answer).await?;
    if let Some(error) = meter.error(Stage::Head) {
        return Err(error);
    }
    let answer = answer.map_err(|error| meter.explain(&error, Stage::Head))?;
    if answer.status() == StatusCode::SWITCHING_PROTOCOLS {
        return Err(HttpError::Protocol(
            "it switches to another protocol (101)".into(),
        ));
    }
    let (parts, incoming) = answer.into_parts();
    let told = hyper::body::Body::size_hint(&incoming).lower();
    if limits.max_body < told {
        return Err(HttpError::TooLarge {
            limit: limits.max_body,
        });
    }
    let body = Body::new(incoming, driver, meter, place, limits, total);
    Ok(Response::from_parts(parts, body))
}

/// The connection, until it has ended.
pub(super) struct Driver(Option<Connection>);

impl Driver {
    /// Lets it read and write. What it fails with reaches whoever waits for the answer or the body.
    pub(super) fn drive(&mut self, cx: &mut Context<'_>) {
        if let Some(connection) = &mut self.0
            && Pin::new(connection).poll(cx).is_ready()
        {
            self.0 = None;
        }
    }
}

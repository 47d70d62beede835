//! The body of an answer, read as it arrives.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Frame, SizeHint};
use hyper::body::Incoming;
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::{Sleep, sleep_until};

use super::until::Until;
use super::wire::Meter;
use super::{HttpError, Limits, Stage};

/// Holds the connection of a request until it has ended. It makes progress only while a caller polls the answer or its body.
pub(super) struct Driver(pub Option<Pin<Box<dyn Future<Output = hyper::Result<()>> + Send>>>);

impl Driver {
    /// Polls the connection. The caller that awaits the answer or the body gets its errors.
    pub(super) fn drive(&mut self, cx: &mut Context<'_>) {
        if let Some(connection) = &mut self.0
            && connection.as_mut().poll(cx).is_ready()
        {
            self.0 = None;
        }
    }
}

/// Body of an answer, read from the connection on demand. The connection closes at its end, at its first error, and when it is
/// dropped. The bytes are as the peer sent them: nothing is decompressed.
pub struct Body {
    open: Option<Open>,
}

struct Open {
    incoming: Incoming,
    driver: Driver,
    meter: Arc<Meter>,
    limits: Limits,
    total: Until,
    pause: Until,
    timer: Pin<Box<Sleep>>,
    _permit: OwnedSemaphorePermit,
}

impl fmt::Debug for Body {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Body")
            .field("open", &self.open.is_some())
            .finish()
    }
}

impl Body {
    pub(super) fn new(
        incoming: Incoming,
        driver: Driver,
        meter: Arc<Meter>,
        permit: OwnedSemaphorePermit,
        limits: Limits,
        total: Until,
    ) -> Self {
        if http_body::Body::is_end_stream(&incoming) {
            return Self { open: None };
        }
        let pause = Until::after(limits.between_bytes).or(total);
        let timer = Box::pin(sleep_until(pause.at));
        let open = Open {
            incoming,
            driver,
            meter,
            limits,
            total,
            pause,
            timer,
            _permit: permit,
        };
        Self { open: Some(open) }
    }
}

impl http_body::Body for Body {
    type Data = Bytes;
    type Error = HttpError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, HttpError>>> {
        let Some(open) = &mut self.open else {
            return Poll::Ready(None);
        };
        let polled = open.poll(cx);
        if matches!(polled, Poll::Ready(None | Some(Err(_)))) {
            self.open = None;
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.open.is_none()
    }

    fn size_hint(&self) -> SizeHint {
        match &self.open {
            Some(open) => open.incoming.size_hint(),
            None => SizeHint::with_exact(0),
        }
    }
}

impl Open {
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, HttpError>>> {
        // A peer that always has data ready must not exceed the total limit.
        if self.total.passed() {
            return Poll::Ready(Some(Err(self.total.error(Stage::Body))));
        }
        let mut polled = self.poll_incoming(cx);
        if polled.is_pending() {
            self.driver.drive(cx);
            polled = self.poll_incoming(cx);
        }
        match polled {
            Poll::Ready(Some(Ok(frame))) => {
                self.pause = Until::after(self.limits.between_bytes).or(self.total);
                self.timer.as_mut().reset(self.pause.at);
                Poll::Ready(Some(Ok(frame)))
            }
            Poll::Ready(Some(Err(error))) => {
                Poll::Ready(Some(Err(self.meter.explain(&error, Stage::Body))))
            }
            Poll::Ready(None) => Poll::Ready(None),
            Poll::Pending => {
                let late = self.timer.as_mut().poll(cx);
                late.map(|()| Some(Err(self.pause.error(Stage::Body))))
            }
        }
    }

    fn poll_incoming(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        http_body::Body::poll_frame(Pin::new(&mut self.incoming), cx)
    }
}

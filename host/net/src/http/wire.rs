//! The bytes of one connection: counted and bounded below TLS, where everything that the peer sends is seen.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

use super::{Budget, HttpError, MAX_INTERIM, Stage};

/// Counters of one connection, and the limit that it exceeded.
#[derive(Debug)]
pub(super) struct Meter {
    pub(super) address: SocketAddr,
    interim: AtomicU32,
    passed: OnceLock<Passed>,
    budget: Arc<Budget>,
}

#[derive(Debug, Clone, Copy)]
enum Passed {
    Interim,
    Budget,
}

impl Meter {
    /// Counts on a connection to `address`.
    pub(super) fn new(address: SocketAddr, budget: Arc<Budget>) -> Self {
        Self {
            address,
            interim: AtomicU32::new(0),
            passed: OnceLock::new(),
            budget,
        }
    }

    pub(super) fn interim(&self) {
        if MAX_INTERIM <= self.interim.fetch_add(1, Ordering::Relaxed) {
            self.pass(Passed::Interim);
        }
    }

    /// Returns the error of the exceeded limit, which is the cause of any later error.
    pub(super) fn error(&self) -> Option<HttpError> {
        Some(match self.passed.get()? {
            Passed::Interim => HttpError::Protocol(format!(
                "it has more than {MAX_INTERIM} interim answers (1xx) before it"
            )),
            Passed::Budget => self.budget.spent(),
        })
    }

    /// Returns the reason why hyper failed.
    pub(super) fn explain(&self, error: &hyper::Error, stage: Stage) -> HttpError {
        self.error()
            .unwrap_or_else(|| HttpError::of_hyper(error, stage, self.address))
    }

    fn pass(&self, limit: Passed) {
        // The first limit is the cause.
        let _ = self.passed.set(limit);
    }

    fn moved(&self, bytes: u64) {
        if !self.budget.charge(bytes) {
            self.pass(Passed::Budget);
        }
    }

    fn check(&self) -> io::Result<()> {
        match self.passed.get() {
            None => Ok(()),
            Some(_) => Err(io::Error::other("over a limit")),
        }
    }
}

/// A connection whose bytes are counted.
#[derive(Debug)]
pub(super) struct Metered {
    stream: TcpStream,
    meter: Arc<Meter>,
}

impl Metered {
    pub(super) fn new(stream: TcpStream, meter: Arc<Meter>) -> Self {
        Self { stream, meter }
    }
}

impl AsyncRead for Metered {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.meter.check()?;
        let before = buf.filled().len();
        ready!(Pin::new(&mut self.stream).poll_read(cx, buf))?;
        let read = buf.filled().len().saturating_sub(before);
        self.meter.moved(u64::try_from(read).unwrap_or(u64::MAX));
        Poll::Ready(self.meter.check())
    }
}

impl AsyncWrite for Metered {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.meter.check()?;
        let written = ready!(Pin::new(&mut self.stream).poll_write(cx, buf))?;
        self.meter.moved(u64::try_from(written).unwrap_or(u64::MAX));
        Poll::Ready(Ok(written))
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

/// A connection with or without TLS.
pub(super) trait Wire: AsyncRead + AsyncWrite + Send + Unpin {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin> Wire for S {}

/// Reading half of a TLS connection whose end without `close_notify` counts as an end: many cameras send none.
pub(super) struct AbruptEnd<R>(pub(super) R);

impl<R: AsyncRead + Unpin> AsyncRead for AbruptEnd<R> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match ready!(Pin::new(&mut self.0).poll_read(cx, buf)) {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Poll::Ready(Ok(())),
            read => Poll::Ready(read),
        }
    }
}

//! Connection for tonic servers that carries a value; each of its requests gets a clone of the value.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tonic::transport::server::Connected;

/// Stream with a value, which is the `ConnectInfo` of its requests.
pub struct Connection<S, K> {
    stream: S,
    kept: K,
}

impl<S, K> Connection<S, K> {
    /// Keeps `kept` until `stream` and all requests on it have ended.
    pub fn new(stream: S, kept: K) -> Self {
        Self { stream, kept }
    }
}

impl<S, K: Clone + Send + Sync + 'static> Connected for Connection<S, K> {
    type ConnectInfo = K;

    fn connect_info(&self) -> K {
        self.kept.clone()
    }
}

impl<S: AsyncRead + Unpin, K: Unpin> AsyncRead for Connection<S, K> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl<S: AsyncWrite + Unpin, K: Unpin> AsyncWrite for Connection<S, K> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

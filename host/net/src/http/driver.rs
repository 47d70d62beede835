//! Drives the connection of a request, only while a caller polls the answer or its body.

use std::pin::Pin;
use std::task::Context;

/// Holds the connection until it has ended.
pub(super) struct Driver(pub Option<Pin<Box<dyn Future<Output = hyper::Result<()>> + Send>>>);

impl Driver {
    /// Reads and writes. Errors are returned to the caller that awaits the answer or the body.
    pub(super) fn drive(&mut self, cx: &mut Context<'_>) {
        if let Some(connection) = &mut self.0
            && connection.as_mut().poll(cx).is_ready()
        {
            self.0 = None;
        }
    }
}

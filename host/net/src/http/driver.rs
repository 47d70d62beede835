//! The connection of a request. It works only while whoever awaits something of it polls it.

use std::pin::Pin;
use std::task::Context;

/// Holds the connection until it has ended.
pub(super) struct Driver(pub Option<Pin<Box<dyn Future<Output = hyper::Result<()>> + Send>>>);

impl Driver {
    /// Reads and writes. Its error is returned where the answer or the body is awaited.
    pub(super) fn drive(&mut self, cx: &mut Context<'_>) {
        if let Some(connection) = &mut self.0
            && connection.as_mut().poll(cx).is_ready()
        {
            self.0 = None;
        }
    }
}

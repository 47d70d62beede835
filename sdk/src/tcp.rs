//! Connections. Made by [`Host::connect`](crate::Host::connect).

use crate::host::imports;
use crate::net::Error;

/// A connection. Dropping it closes it.
#[derive(Debug)]
pub struct Stream(pub(crate) imports::TcpStream);

impl Stream {
    /// Sends all of it. Has no timeout of its own: see [`Host::within`](crate::Host::within).
    pub async fn write_all(&mut self, bytes: &[u8]) -> Result<(), Error> {
        self.0.write_all(bytes).await
    }

    /// Waits for at least one byte and gives what is there, at most `max` bytes. Empty: the other side sends no
    /// more. Has no timeout of its own; when the future is dropped, nothing is lost.
    pub async fn read(&mut self, max: usize) -> Result<Vec<u8>, Error> {
        self.0.read(max).await
    }
}

//! TCP connections, opened by [`Host::connect`](crate::Host::connect).

use crate::host::imports;
use crate::net::Error;

/// TCP connection. Dropping it closes it.
#[derive(Debug)]
pub struct Stream(pub(crate) imports::TcpStream);

impl Stream {
    /// Sends all bytes. Has no timeout of its own: see [`Host::within`](crate::Host::within).
    pub async fn write_all(&mut self, bytes: &[u8]) -> Result<(), Error> {
        self.0.write_all(bytes).await
    }

    /// Waits for at least one byte and returns the available bytes, at most `max`. Returns an empty vector if the peer sends
    /// no more. Has no timeout of its own; dropping the future loses no bytes.
    pub async fn read(&mut self, max: usize) -> Result<Vec<u8>, Error> {
        self.0.read(max).await
    }
}

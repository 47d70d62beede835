//! The connection that is made to a handler in the network when it registers. An address does not tell who has it later, but while this
//! connection holds, its peer is the same process. So properties, which may be credentials, are sent only over it.

use tokio_util::sync::CancellationToken;
use tonic::transport::Channel;

/// A connection that was made when the handler registered.
#[derive(Debug, Clone)]
pub struct FirstConnection {
    /// Channel over this connection alone; it never reconnects.
    pub channel: Channel,
    pub ended: CancellationToken,
}

impl FirstConnection {
    /// Returns true until the connection ends.
    pub fn holds(&self) -> bool {
        !self.ended.is_cancelled()
    }

    #[cfg(test)]
    pub fn mk(ended: CancellationToken) -> Self {
        let channel = tonic::transport::Endpoint::from_static("http://localhost").connect_lazy();
        Self { channel, ended }
    }
}

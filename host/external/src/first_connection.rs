//! The connection that is made to a handler in the network when it registers. An address says nothing of who has it later, but as long as this
//! connection holds, the same process is at its other end; so properties, which may be credentials, go over it alone.

use tokio_util::sync::CancellationToken;
use tonic::transport::Channel;

/// A connection that was made when the handler registered.
#[derive(Debug, Clone)]
pub struct FirstConnection {
    /// Calls over it; none is made over another one.
    pub channel: Channel,
    pub ended: CancellationToken,
}

impl FirstConnection {
    /// Whether it has not ended.
    pub fn holds(&self) -> bool {
        !self.ended.is_cancelled()
    }

    #[cfg(test)]
    pub fn mk(ended: CancellationToken) -> Self {
        let channel = tonic::transport::Endpoint::from_static("http://localhost").connect_lazy();
        Self { channel, ended }
    }
}

//! The connection that is made to a handler in the network when it registers. An address says nothing of who has it later, but as long as this
//! connection holds, the same process is at its other end; so properties, which may be credentials, go over it alone.

use tokio_util::sync::CancellationToken;
use tonic::transport::Channel;

use crate::book::First;
use crate::endpoint::Error;
use crate::handler::Target;
use crate::paced::Paced;
use crate::wire;

/// A connection that was made when the handler registered.
#[derive(Debug, Clone)]
pub struct FirstConnection {
    /// Calls over it; none is made over another one.
    pub channel: Channel,
    ended: CancellationToken,
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

/// Makes the connection, if it may still be made, or gives the one that holds.
///
/// # Errors
/// It has ended, or cannot be made.
pub async fn reach(target: &Target) -> Result<Channel, Error> {
    let at = || target.registered.endpoint.to_string();
    let first = target
        .shared
        .book(|book, now| book.first_connection(&target.source, now));
    match first {
        First::Holds(first) => return Ok(first.channel),
        First::Ended => return Err(Error::NotTheFirst { at: at() }),
        First::ToCome => {}
    }
    let connection = Paced::new(target.connect().await?);
    let ended = connection.ended();
    let channel = wire::channel(connection)
        .await
        .map_err(|error| Error::Unreachable {
            at: at(),
            source: std::io::Error::other(error),
        })?;
    let first = FirstConnection { channel, ended };
    target
        .shared
        .book(|book, _| book.connected(&target.source, first));
    match target
        .shared
        .book(|book, now| book.first_connection(&target.source, now))
    {
        First::Holds(first) => Ok(first.channel),
        _ => Err(Error::NotTheFirst { at: at() }),
    }
}

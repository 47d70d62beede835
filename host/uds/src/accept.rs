//! Accepts connections for tonic servers, which poll again at once after an error.

use std::convert::Infallible;
use std::time::Duration;

use futures::Stream;
use tokio::net::{UnixListener, UnixStream};

/// Delay after a failed `accept`, which most likely found no free file descriptor.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Listener that retries after errors. Logs the first error, and the next one only after a connection was accepted.
#[derive(Debug)]
pub struct Accepting {
    listener: UnixListener,
    /// Name of the clients in the log.
    client: &'static str,
    is_logged: bool,
}

impl Accepting {
    /// Creates an acceptor for `listener`; `client` names the clients in the log.
    pub fn new(listener: UnixListener, client: &'static str) -> Self {
        Self {
            listener,
            client,
            is_logged: false,
        }
    }

    /// Waits for the next connection and returns it with the uid of its peer.
    pub async fn next(&mut self) -> (UnixStream, u32) {
        loop {
            let accepted = self.listener.accept().await;
            let accepted = accepted.and_then(|(stream, _)| Ok((stream.peer_cred()?.uid(), stream)));
            match accepted {
                Ok((user, stream)) => {
                    self.is_logged = false;
                    return (stream, user);
                }
                Err(error) => {
                    if !self.is_logged {
                        tracing::warn!(%error, "cannot accept a connection of {}; trying again", self.client);
                    }
                    self.is_logged = true;
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    }

    /// Returns a stream of all connections.
    pub fn connections(self) -> impl Stream<Item = Result<UnixStream, Infallible>> {
        futures::stream::unfold(self, async |mut accepting| {
            let (stream, _) = accepting.next().await;
            Some((Ok(stream), accepting))
        })
    }
}

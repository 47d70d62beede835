//! Accepts connections for a server of tonic, which asks again at once after an error.

use std::convert::Infallible;
use std::time::Duration;

use futures::Stream;
use tokio::net::{UnixListener, UnixStream};

/// How long to wait after a failed `accept`, which most likely found no free file descriptor.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// A socket whose connections are accepted. An error is told once, until a connection is accepted again, and waited out.
#[derive(Debug)]
pub struct Accepting {
    listener: UnixListener,
    /// Who connects, for the log.
    client: &'static str,
    is_told: bool,
}

impl Accepting {
    /// Accepts what connects to `listener`; `client` says who that is.
    pub fn new(listener: UnixListener, client: &'static str) -> Self {
        Self {
            listener,
            client,
            is_told: false,
        }
    }

    /// The next connection, with the user at its other end.
    pub async fn next(&mut self) -> (UnixStream, u32) {
        loop {
            let accepted = self.listener.accept().await;
            let accepted = accepted.and_then(|(stream, _)| Ok((stream.peer_cred()?.uid(), stream)));
            match accepted {
                Ok((user, stream)) => {
                    self.is_told = false;
                    return (stream, user);
                }
                Err(error) => {
                    if !self.is_told {
                        tracing::warn!(%error, "cannot accept a connection of {}; trying again", self.client);
                    }
                    self.is_told = true;
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    }

    /// All connections, one after the other.
    pub fn connections(self) -> impl Stream<Item = Result<UnixStream, Infallible>> {
        futures::stream::unfold(self, async |mut accepting| {
            let (stream, _) = accepting.next().await;
            Some((Ok(stream), accepting))
        })
    }
}

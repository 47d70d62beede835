//! State of one registration of a resource: the kubelet's progress with the list, and the signal that ends all streams.
//!
//! A session ends as a whole before the next one begins: up to 1.36 the kubelet disconnects its newest client when a stream of an older one
//! ends.

use std::sync::Arc;

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// Progress of the kubelet with the list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Followed {
    /// Register was not sent, or was refused: a client that requests the list is not the kubelet.
    NotAsked,
    /// Register was sent: the next stream is the kubelet's.
    Awaited,
    /// The kubelet's stream is open.
    Open,
    /// The kubelet's stream has ended. A kubelet never opens another on its own.
    Ended,
}

pub(crate) struct Session {
    /// Token that ends all streams and connections.
    pub end: CancellationToken,
    followed: watch::Sender<Followed>,
}

impl Session {
    pub fn new() -> Arc<Self> {
        Arc::new(Self {
            end: CancellationToken::new(),
            followed: watch::Sender::new(Followed::NotAsked),
        })
    }

    /// Records that Register is being sent.
    pub fn await_stream(&self) {
        self.followed.send_replace(Followed::Awaited);
    }

    /// Records that Register was refused: the kubelet does not know of the session.
    pub fn refused(&self) {
        self.no_longer_awaited(Followed::NotAsked);
    }

    /// Changes the state if the kubelet's stream is awaited; returns true if it was.
    fn no_longer_awaited(&self, now: Followed) -> bool {
        self.followed.send_if_modified(|followed| {
            let is_awaited = *followed == Followed::Awaited;
            if is_awaited {
                *followed = now;
            }
            is_awaited
        })
    }

    /// Returns true if the kubelet may know of the session.
    pub fn is_known(&self) -> bool {
        *self.followed.borrow() != Followed::NotAsked
    }

    pub fn followed(&self) -> watch::Receiver<Followed> {
        self.followed.subscribe()
    }

    pub fn is_open(&self) -> bool {
        *self.followed.borrow() == Followed::Open
    }

    /// Records a new stream. The first one after Register is the kubelet's; no other one counts.
    pub fn open(self: &Arc<Self>) -> Option<OpenStream> {
        let is_awaited = self.no_longer_awaited(Followed::Open);
        is_awaited.then(|| OpenStream(Arc::clone(self)))
    }
}

/// Guard of the kubelet's open stream, which ends when the guard is dropped.
pub(crate) struct OpenStream(Arc<Session>);

impl Drop for OpenStream {
    fn drop(&mut self) {
        self.0.followed.send_replace(Followed::Ended);
    }
}

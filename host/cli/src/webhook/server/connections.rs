//! Open connections and the bytes of the requests they hold. Both are bounded; the peer that holds the most is closed first.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use axum::body::Body;
use futures::StreamExt as _;
use tokio_util::sync::CancellationToken;

/// Connections of a server.
#[derive(Debug)]
pub struct Connections {
    most: usize,
    most_bytes: usize,
    open: Mutex<OpenConnections>,
}

#[derive(Debug, Default)]
struct OpenConnections {
    next: u64,
    /// Connections in the order in which they were opened.
    states: BTreeMap<u64, ConnectionState>,
}

/// State of one connection.
#[derive(Debug)]
struct ConnectionState {
    peer: IpAddr,
    closed: CancellationToken,
    /// Number of bytes of its request's body.
    bytes: usize,
    /// True while a request has arrived completely and is not answered.
    is_whole: bool,
}

/// Place of one connection. Dropping it frees the place.
#[derive(Debug)]
pub struct ConnectionGuard {
    connections: Arc<Connections>,
    number: u64,
    peer: IpAddr,
    closed: CancellationToken,
    asked: CancellationToken,
}

/// Request that is being read, or is complete and not answered. Dropping it ends that state.
#[derive(Debug)]
pub struct RequestGuard<'a> {
    guard: &'a ConnectionGuard,
    bytes: Vec<u8>,
}

/// Error of reading a body.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum BodyError {
    /// Connection ended before the request was complete.
    #[error("the connection ended before the request")]
    Ended,
    /// Request over the size limit.
    #[error("the request is too large")]
    TooLarge,
    /// Connection closed in favour of peers that hold fewer bytes.
    #[error("all requests together are too large; the largest one is refused")]
    GaveWay,
}

impl Connections {
    /// Creates the bounds for at most `most` connections with at most `most_bytes` bytes of requests in all.
    pub fn new(most: usize, most_bytes: usize) -> Arc<Self> {
        Arc::new(Self {
            most,
            most_bytes,
            open: Mutex::default(),
        })
    }

    /// Opens a connection. If there are too many, one of the peer with the most connections is closed: the oldest without a
    /// complete request.
    pub fn open(self: &Arc<Self>, peer: IpAddr) -> ConnectionGuard {
        let mut open = self.lock();
        let closed = CancellationToken::new();
        let number = open.next;
        open.next += 1;
        if open.states.len() >= self.most {
            let count = |peer| {
                open.states
                    .values()
                    .filter(|state| state.peer == peer)
                    .count()
            };
            let first = open.states.iter().max_by_key(|(number, state)| {
                (count(state.peer), !state.is_whole, Reverse(**number))
            });
            if let Some(number) = first.map(|(number, _)| *number) {
                open.close(number);
            }
        }
        let state = ConnectionState {
            peer,
            closed: closed.clone(),
            bytes: 0,
            is_whole: false,
        };
        open.states.insert(number, state);
        ConnectionGuard {
            connections: Arc::clone(self),
            number,
            peer,
            closed,
            asked: CancellationToken::new(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, OpenConnections> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl OpenConnections {
    fn close(&mut self, number: u64) {
        if let Some(state) = self.states.remove(&number) {
            state.closed.cancel();
        }
    }

    fn bytes(&self, peer: Option<IpAddr>) -> usize {
        let states = self.states.values();
        let of = states.filter(|state| peer.is_none_or(|peer| state.peer == peer));
        of.map(|state| state.bytes).sum()
    }
}

impl ConnectionGuard {
    /// Returns the address of the peer.
    pub fn peer(&self) -> IpAddr {
        self.peer
    }

    /// Waits until the connection has to be closed for another one.
    pub async fn closed(&self) {
        self.closed.cancelled().await;
    }

    /// Waits until the head of its first request has arrived.
    pub async fn asked(&self) {
        self.asked.cancelled().await;
    }

    /// Records that the head of a request has arrived.
    pub fn asks(&self) {
        self.asked.cancel();
    }

    /// Reads the body of a request, of at most `most` bytes.
    pub async fn read(&self, body: Body, most: usize) -> Result<RequestGuard<'_>, BodyError> {
        let mut stream = body.into_data_stream();
        let mut request = RequestGuard {
            guard: self,
            bytes: Vec::new(),
        };
        while let Some(part) = stream.next().await {
            let part = part.map_err(|_| BodyError::Ended)?;
            if request.bytes.len() + part.len() > most {
                return Err(BodyError::TooLarge);
            }
            if !self.takes(part.len()) {
                return Err(BodyError::GaveWay);
            }
            request.bytes.extend_from_slice(&part);
        }
        if let Some(state) = self.state(&mut self.connections.lock()) {
            state.is_whole = true;
        }
        Ok(request)
    }

    fn state<'a>(&self, open: &'a mut OpenConnections) -> Option<&'a mut ConnectionState> {
        open.states.get_mut(&self.number)
    }

    /// Counts `bytes` more bytes, and closes connections that hold the most if there are too many. Returns false if this one
    /// was closed.
    fn takes(&self, bytes: usize) -> bool {
        let mut open = self.connections.lock();
        if let Some(state) = self.state(&mut open) {
            state.bytes += bytes;
        }
        while open.bytes(None) > self.connections.most_bytes {
            let first = open.states.iter().max_by_key(|(_, state)| {
                (open.bytes(Some(state.peer)), !state.is_whole, state.bytes)
            });
            match first.map(|(number, _)| *number) {
                Some(number) => open.close(number),
                None => break,
            }
        }
        open.states.contains_key(&self.number)
    }
}

impl RequestGuard<'_> {
    /// Takes the body, which counts until it is released.
    pub fn take(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.bytes)
    }

    /// Stops counting the body, since it has been dropped.
    pub fn release(&mut self) {
        if let Some(state) = self.guard.state(&mut self.guard.connections.lock()) {
            state.bytes = 0;
        }
    }
}

impl Drop for ConnectionGuard {
    fn drop(&mut self) {
        self.connections.lock().states.remove(&self.number);
    }
}

impl Drop for RequestGuard<'_> {
    fn drop(&mut self) {
        if let Some(state) = self.guard.state(&mut self.guard.connections.lock()) {
            state.bytes = 0;
            state.is_whole = false;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use axum::body::Bytes;
    use futures::{FutureExt as _, stream};

    use super::*;

    fn peer(number: u8) -> IpAddr {
        [10, 0, 0, number].into()
    }

    fn is_open(guard: &ConnectionGuard) -> bool {
        guard.closed().now_or_never().is_none()
    }

    /// Returns a body that sends so many bytes and does not end.
    fn unfinished(bytes: usize) -> Body {
        let first = stream::iter([Ok::<_, Infallible>(Bytes::from(vec![b' '; bytes]))]);
        Body::from_stream(first.chain(stream::pending()))
    }

    #[test]
    fn the_oldest_that_has_not_sent_a_whole_request_gives_way() {
        let connections = Connections::new(3, 100);
        let states: Vec<_> = (0..3).map(|_| connections.open(peer(1))).collect();
        let request = states[0].read("a".into(), 10).now_or_never().unwrap();
        let _next = connections.open(peer(1));
        let open: Vec<_> = states.iter().map(is_open).collect();
        assert_eq!(open, [true, false, true]);
        drop(request);
        let _next = connections.open(peer(1));
        assert!(!is_open(&states[0]));
    }

    #[test]
    fn who_has_most_connections_gives_way() {
        let connections = Connections::new(10, 100);
        let api_server = connections.open(peer(1));
        let flood: Vec<_> = (0..600).map(|_| connections.open(peer(2))).collect();
        assert!(is_open(&api_server));
        assert_eq!(flood.iter().filter(|guard| is_open(guard)).count(), 9);
        drop(flood);
        assert_eq!(connections.lock().states.len(), 1);
    }

    #[test]
    fn who_holds_most_bytes_gives_way_and_a_small_request_is_read() {
        let connections = Connections::new(100, 1000);
        let flood: Vec<_> = (0..9).map(|_| connections.open(peer(2))).collect();
        let mut reads: Vec<_> = flood
            .iter()
            .map(|guard| guard.read(unfinished(110), 500).boxed())
            .collect();
        for read in &mut reads {
            assert!(read.now_or_never().is_none());
        }
        let api_server = connections.open(peer(1));
        let body = Body::from(vec![b' '; 200]);
        let read = api_server.read(body, 500).now_or_never().unwrap().unwrap();
        assert_eq!(read.bytes.len(), 200);
        assert_eq!(flood.iter().filter(|guard| is_open(guard)).count(), 7);
        drop(reads);
        drop(read);
        assert_eq!(connections.lock().bytes(None), 0);
    }

    #[test]
    fn what_is_too_large_is_not_read() {
        let connections = Connections::new(1, 1000);
        let guard = connections.open(peer(1));
        for (size, most, expected) in [
            (10, 10, None),
            (11, 10, Some(BodyError::TooLarge)),
            (1001, 2000, Some(BodyError::GaveWay)),
        ] {
            let read = guard.read(Body::from(vec![b' '; size]), most);
            assert_eq!(read.now_or_never().unwrap().err(), expected, "{size}");
        }
    }
}

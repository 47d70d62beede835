//! Bounds the bytes of all requests that are being read or answered. If they are too many, connections of the peer that
//! holds the most are closed.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use axum::body::Body;
use futures::StreamExt as _;
use leafhost_endpoint::Connection;

#[derive(Debug)]
pub struct Requests {
    most_bytes: usize,
    held: Mutex<Held>,
}

#[derive(Debug, Default)]
struct Held {
    next: u64,
    requests: BTreeMap<u64, Request>,
}

/// Request that is being read, or is complete and not answered.
#[derive(Debug)]
struct Request {
    connection: Connection,
    /// Number of bytes of its body.
    bytes: usize,
}

/// Guard of a counted request. Dropping it removes the request from the count.
#[derive(Debug)]
pub struct RequestGuard {
    requests: Arc<Requests>,
    number: u64,
    connection: Connection,
}

/// Reason why a request is not read.
pub const ENDED: &str = "the connection ended before the request";
const TOO_LARGE: &str = "the request is too large";
const GAVE_WAY: &str = "all requests together are too large; the largest one is refused";

impl Requests {
    /// Creates the bound of at most `most_bytes` bytes in all requests together.
    pub fn new(most_bytes: usize) -> Arc<Self> {
        Arc::new(Self {
            most_bytes,
            held: Mutex::default(),
        })
    }

    /// Reads the body of a request, of at most `most` bytes. It counts until the guard is released or dropped.
    pub async fn read(
        self: &Arc<Self>,
        connection: &Connection,
        body: Body,
        most: usize,
    ) -> Result<(Vec<u8>, RequestGuard), &'static str> {
        let request = self.begin(connection);
        let mut bytes: Vec<u8> = Vec::new();
        let mut stream = body.into_data_stream();
        while let Some(part) = stream.next().await {
            let part = part.map_err(|_| ENDED)?;
            if bytes.len() + part.len() > most {
                return Err(TOO_LARGE);
            }
            if !request.takes(part.len()) {
                return Err(GAVE_WAY);
            }
            bytes.extend_from_slice(&part);
        }
        connection.set_whole(true);
        Ok((bytes, request))
    }

    fn begin(self: &Arc<Self>, connection: &Connection) -> RequestGuard {
        let mut held = self.lock();
        let number = held.next;
        held.next += 1;
        let request = Request {
            connection: connection.clone(),
            bytes: 0,
        };
        held.requests.insert(number, request);
        RequestGuard {
            requests: Arc::clone(self),
            number,
            connection: connection.clone(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Held> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Held {
    /// Returns the number of bytes of all requests, or of those of the connections for which `is_counted` is true.
    fn bytes(&self, is_counted: impl Fn(&Connection) -> bool) -> usize {
        let requests = self.requests.values();
        let counted = requests.filter(|request| is_counted(&request.connection));
        counted.map(|request| request.bytes).sum()
    }
}

impl RequestGuard {
    /// Counts `bytes` more bytes. While all requests together have too many, closes connections, first of the peer that
    /// holds the most. Returns false if this request's connection was closed.
    fn takes(&self, bytes: usize) -> bool {
        let mut held = self.requests.lock();
        if let Some(request) = held.requests.get_mut(&self.number) {
            request.bytes += bytes;
        }
        while held.bytes(|_| true) > self.requests.most_bytes {
            let first = held.requests.iter().max_by_key(|(_, request)| {
                let connection = &request.connection;
                let of_peer = held.bytes(|one| one.peer == connection.peer);
                (of_peer, !connection.is_whole(), request.bytes)
            });
            let Some(number) = first.map(|(number, _)| *number) else {
                break;
            };
            if let Some(request) = held.requests.remove(&number) {
                request.connection.close();
            }
        }
        held.requests.contains_key(&self.number)
    }

    /// Stops counting the bytes of the body. Call this when the body has been dropped.
    pub fn release(&self) {
        if let Some(request) = self.requests.lock().requests.get_mut(&self.number) {
            request.bytes = 0;
        }
    }
}

impl Drop for RequestGuard {
    fn drop(&mut self) {
        self.connection.set_whole(false);
        self.requests.lock().requests.remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use axum::body::Bytes;
    use futures::{FutureExt as _, stream};

    use super::*;

    fn opened(number: u8) -> Connection {
        Connection::new(Some([10, 0, 0, number].into()))
    }

    /// Returns a body that sends so many bytes and does not end.
    fn unfinished(bytes: usize) -> Body {
        let first = stream::iter([Ok::<_, Infallible>(Bytes::from(vec![b' '; bytes]))]);
        Body::from_stream(first.chain(stream::pending()))
    }

    #[test]
    fn who_holds_most_bytes_gives_way_and_a_small_request_is_read() {
        let requests = Requests::new(1000);
        let flood: Vec<_> = (0..9).map(|_| opened(2)).collect();
        let mut reads: Vec<_> = flood
            .iter()
            .map(|connection| requests.read(connection, unfinished(110), 500).boxed())
            .collect();
        for read in &mut reads {
            assert!(read.now_or_never().is_none());
        }
        let api_server = opened(1);
        let body = Body::from(vec![b' '; 200]);
        let read = requests.read(&api_server, body, 500).now_or_never();
        let (bytes, guard) = read.unwrap().unwrap();
        assert_eq!(bytes.len(), 200);
        assert!(api_server.is_whole());
        assert_eq!(flood.iter().filter(|one| !one.is_closed()).count(), 7);
        drop(reads);
        drop(guard);
        assert!(!api_server.is_whole());
        assert!(requests.lock().requests.is_empty());
    }

    #[test]
    fn what_is_too_large_is_not_read() {
        let requests = Requests::new(1000);
        for (size, most, expected) in [
            (10, 10, None),
            (11, 10, Some(TOO_LARGE)),
            (1001, 2000, Some(GAVE_WAY)),
        ] {
            let (connection, body) = (opened(1), Body::from(vec![b' '; size]));
            let read = requests.read(&connection, body, most);
            assert_eq!(read.now_or_never().unwrap().err(), expected, "{size}");
        }
    }
}

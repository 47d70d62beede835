//! Reads a connection at a bounded pace: counts the received HTTP/2 frames, and reads nothing while the peer is ahead of the pace, so that the peer
//! has to wait. This bounds the work of the HTTP/2 library for any type of frame.

use std::future::Future as _;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Buf as _;
use tokio::io::{AsyncRead, AsyncWrite, Join, ReadBuf, ReadHalf, WriteHalf, join, split};
use tokio::time::{Instant, Sleep, sleep_until};
use tokio_util::sync::{CancellationToken, DropGuard};

/// Time that each frame accounts for: 500 frames per second, or 8 MiB per second in the largest frames.
const FRAME: Duration = Duration::from_millis(2);
/// Maximum lead over the pace: 2,000 frames. The largest message takes 768 frames of the usual size.
const AHEAD: Duration = Duration::from_secs(4);
/// Size of a frame header, in bytes.
const HEADER: u8 = 9;
/// Size of the length in a frame header, in bytes.
const LENGTH: u8 = 3;

/// A connection whose receiving half is read at a bounded pace.
pub type PacedConnection<S> = Join<Paced<ReadHalf<S>>, WriteHalf<S>>;

/// Wraps a connection to a server so that it is read at a bounded pace.
pub fn paced<S: AsyncRead + AsyncWrite>(connection: S) -> PacedConnection<S> {
    let (read, write) = split(connection);
    join(Paced::new(read), write)
}

/// The receiving half of a connection, read at a bounded pace.
pub struct Paced<S> {
    inner: S,
    frames: Frames,
    /// `Instant` until which the frames read so far use up the pace.
    until: Instant,
    pause: Option<Pin<Box<Sleep>>>,
    ended: DropGuard,
}

impl<S> Paced<S> {
    fn new(inner: S) -> Self {
        Self::after(inner, 0)
    }

    /// Creates the receiving half of a connection that begins with `preface` bytes that are not frames.
    pub fn after(inner: S, preface: usize) -> Self {
        Self {
            inner,
            frames: Frames {
                left: preface,
                ..Frames::default()
            },
            until: Instant::now(),
            pause: None,
            ended: CancellationToken::new().drop_guard(),
        }
    }

    /// Returns a token that is cancelled when the connection ends.
    pub fn ended(&self) -> CancellationToken {
        self.ended.token().clone()
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Paced<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        if let Some(pause) = &mut this.pause {
            ready!(pause.as_mut().poll(context));
            this.pause = None;
        }
        let before = buffer.filled().len();
        ready!(Pin::new(&mut this.inner).poll_read(context, buffer))?;
        let read = buffer.filled().get(before..).unwrap_or_default();
        let (frames, now) = (this.frames.count(read), Instant::now());
        this.until = this.until.max(now) + FRAME * frames;
        if this.until > now + AHEAD {
            this.pause = Some(Box::pin(sleep_until(this.until - AHEAD)));
        }
        Poll::Ready(Ok(()))
    }
}

/// Counts frames in data that is read piece by piece.
#[derive(Debug, Default)]
struct Frames {
    /// Number of bytes before the next header.
    left: usize,
    /// Number of header bytes that were read; `length` holds the part of the length among them.
    header: u8,
    length: usize,
}

impl Frames {
    /// Consumes `bytes`; returns the number of frame headers that end in them.
    fn count(&mut self, mut bytes: &[u8]) -> u32 {
        let mut frames = 0;
        while let Some(&first) = bytes.first() {
            if self.left > 0 {
                let within = self.left.min(bytes.len());
                self.left -= within;
                bytes.advance(within);
                continue;
            }
            if self.header < LENGTH {
                self.length = self.length << 8 | usize::from(first);
            }
            self.header += 1;
            bytes.advance(1);
            if self.header == HEADER {
                frames += 1;
                *self = Self {
                    left: self.length,
                    ..Self::default()
                };
            }
        }
        frames
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;

    fn frame(length: u8) -> Vec<u8> {
        let mut frame = vec![0, 0, length, 6, 0, 0, 0, 0, 0];
        frame.extend(std::iter::repeat_n(0xff, length.into()));
        frame
    }

    #[test]
    fn frames_are_counted_however_they_are_cut() {
        let mut bytes = b"preface".to_vec();
        for length in [0, 8, 255, 0, 1] {
            bytes.extend(frame(length));
        }
        for size in [1, 2, 9, 10, 500] {
            let mut frames = Frames {
                left: 7,
                ..Frames::default()
            };
            let counted = bytes.chunks(size).map(|piece| frames.count(piece));
            assert_eq!(counted.sum::<u32>(), 5, "{size}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn who_floods_with_frames_waits_and_who_sends_large_ones_does_not() {
        let flood = async |frame: Vec<u8>, count: usize| {
            let (mut handler, agent) = tokio::io::duplex(1 << 14);
            let mut agent = Paced::new(agent);
            let begun = Instant::now();
            let all = frame.len() * count;
            let sends = async {
                for _ in 0..count {
                    handler.write_all(&frame).await.unwrap();
                }
            };
            let reads = async {
                let (mut read, mut buffer) = (0, [0; 4096]);
                while read < all {
                    read += agent.read(&mut buffer).await.unwrap();
                }
            };
            tokio::join!(sends, reads);
            begun.elapsed().as_secs()
        };
        assert_eq!(flood(frame(0), 1_900).await, 0);
        assert!((14..=16).contains(&flood(frame(0), 10_000).await));
        let mut large = vec![0, 0x40, 0, 0, 0, 0, 0, 0, 1];
        large.resize(9 + 0x4000, 7);
        assert_eq!(flood(large, 768).await, 0);
    }

    #[tokio::test]
    async fn the_end_of_a_connection_is_told() {
        let paced = Paced::new(tokio::io::duplex(1).0);
        let ended = paced.ended();
        assert!(!ended.is_cancelled());
        drop(paced);
        assert!(ended.is_cancelled());
    }
}

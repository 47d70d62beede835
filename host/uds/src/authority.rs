//! Accepts gRPC clients that send the path of the socket as `:authority`.
//!
//! C-core and Go do so (`%2Fvar%2Flib%2Fakri%2F…`), and the HTTP/2 library of the server resets such a stream because
//! the path is not a host. This module rewrites the frames of the client: it decodes header blocks and encodes them with
//! another `:authority`; everything else passes unchanged.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Buf as _, BufMut as _, BytesMut};
use loona_hpack::Decoder;
use loona_hpack::encoder::encode_integer_into;
use tokio::io::{AsyncRead, ReadBuf};

/// Length of the HTTP/2 connection preface, in bytes.
pub const PREFACE: usize = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".len();
const FRAME_HEADER: usize = 9;
/// Maximum size of a client's frame, the default of HTTP/2, which the server's settings keep.
const MAX_FRAME: usize = 16 << 10;
/// Maximum size of a header block, both as received and as passed on, in bytes.
const MAX_BLOCK: usize = MAX_FRAME;
/// Size of the client's header table, the default of HTTP/2, which the server's settings keep.
const TABLE: usize = 4096;
/// Size of the read buffer, in bytes.
const READ: usize = 4096;

const HEADERS: u8 = 1;
const CONTINUATION: u8 = 9;
const END_STREAM: u8 = 0x1;
const END_HEADERS: u8 = 0x4;
const PADDED: u8 = 0x8;
const PRIORITY: u8 = 0x20;

/// Receiving half of a connection, which replaces the client's `:authority` with `localhost`. `tokio::io::join` puts it together with the
/// sending half, and [`Connection`](crate::Connection) makes a connection for tonic of both.
pub struct Localhost<S> {
    inner: S,
    frames: Frames,
}

impl<S> Localhost<S> {
    /// Wraps a half from which nothing has been read.
    pub fn new(inner: S) -> Self {
        Self {
            inner,
            frames: Frames::default(),
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Localhost<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        while this.frames.ready.is_empty() {
            let mut bytes = [0; READ];
            let mut read = ReadBuf::new(&mut bytes);
            ready!(Pin::new(&mut this.inner).poll_read(context, &mut read))?;
            if read.filled().is_empty() {
                return Poll::Ready(Ok(()));
            }
            this.frames.take(read.filled())?;
        }
        let ready = &mut this.frames.ready;
        let fits = ready.len().min(buffer.remaining());
        buffer.put_slice(&ready.split_to(fits));
        Poll::Ready(Ok(()))
    }
}

/// Parser of the client's frames.
#[derive(Default)]
struct Frames {
    has_preface: bool,
    coming: BytesMut,
    /// Bytes to pass on.
    ready: BytesMut,
    decoder: Option<Decoder<'static>>,
    /// Header block whose end has not arrived.
    open: Option<Block>,
}

struct Block {
    stream: [u8; 4],
    end_stream: u8,
    bytes: Vec<u8>,
}

impl Frames {
    /// Processes bytes that were read.
    fn take(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.coming.extend_from_slice(bytes);
        if !self.has_preface {
            if self.coming.len() < PREFACE {
                return Ok(());
            }
            self.ready.put(self.coming.split_to(PREFACE));
            self.has_preface = true;
        }
        while let Some(header) = self.coming.first_chunk::<FRAME_HEADER>() {
            let [a, b, c, kind, flags, stream @ ..] = *header;
            let length = usize::from(a) << 16 | usize::from(b) << 8 | usize::from(c);
            if length > MAX_FRAME {
                return Err(refused("a frame is too large"));
            }
            if self.coming.len() < FRAME_HEADER + length {
                break;
            }
            let mut frame = self.coming.split_to(FRAME_HEADER + length);
            match (kind, self.open.is_some()) {
                (HEADERS, false) => {
                    frame.advance(FRAME_HEADER);
                    let block = Block {
                        stream,
                        end_stream: flags & END_STREAM,
                        bytes: fragment(&frame, flags)?.to_vec(),
                    };
                    self.collect(block, flags)?;
                }
                (CONTINUATION, true) => {
                    frame.advance(FRAME_HEADER);
                    if let Some(mut block) = self.open.take_if(|block| block.stream == stream) {
                        block.bytes.extend_from_slice(&frame);
                        self.collect(block, flags)?;
                    }
                }
                (_, true) => return Err(refused("a header block is interrupted")),
                (_, false) => self.ready.put(frame),
            }
        }
        Ok(())
    }

    /// Passes a header block on once it is complete.
    fn collect(&mut self, block: Block, flags: u8) -> io::Result<()> {
        if block.bytes.len() > MAX_BLOCK {
            return Err(refused("a header block is too large"));
        }
        if flags & END_HEADERS == 0 {
            self.open = Some(block);
            return Ok(());
        }
        let decoder = self.decoder.get_or_insert_with(|| {
            let mut decoder = Decoder::new();
            decoder.set_max_allowed_table_size(TABLE);
            decoder
        });
        let mut headers = Vec::new();
        let ended = decoder.decode_with_cb(&block.bytes, |name, value| {
            // One byte of a header block may refer to a header of four thousand bytes.
            if headers.len() <= MAX_BLOCK {
                let value = if *name == *b":authority" {
                    &b"localhost"[..]
                } else {
                    &*value
                };
                // Literals that enter no table: the server needs no state from earlier blocks.
                headers.push(0x10);
                put_text(&mut headers, &name);
                put_text(&mut headers, value);
            }
        });
        ended.map_err(|_| refused("cannot decode a header block"))?;
        if headers.len() > MAX_BLOCK {
            return Err(refused("a header block is too large"));
        }
        let length = u32::try_from(headers.len()).unwrap_or(u32::MAX);
        self.ready.put_uint(length.into(), 3);
        self.ready.put_u8(HEADERS);
        self.ready.put_u8(END_HEADERS | block.end_stream);
        self.ready.put_slice(&block.stream);
        self.ready.put_slice(&headers);
        Ok(())
    }
}

/// Returns the header block in a HEADERS frame.
fn fragment(frame: &[u8], flags: u8) -> io::Result<&[u8]> {
    let mut frame = frame;
    let mut padding = 0;
    if flags & PADDED != 0 {
        let (first, rest) = frame
            .split_first()
            .ok_or_else(|| refused("a frame is too short"))?;
        (padding, frame) = (usize::from(*first), rest);
    }
    let begin = if flags & PRIORITY != 0 { 5 } else { 0 };
    frame
        .len()
        .checked_sub(padding)
        .and_then(|end| frame.get(begin..end))
        .ok_or_else(|| refused("a frame is too short"))
}

/// Encodes a string as HPACK without Huffman coding.
fn put_text(block: &mut Vec<u8>, text: &[u8]) {
    const PREFIX_BITS: u8 = 7;
    // Writing to a vector cannot fail.
    drop(encode_integer_into(text.len(), PREFIX_BITS, 0, block));
    block.extend_from_slice(text);
}

fn refused(why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why)
}

#[cfg(test)]
mod tests {
    use loona_hpack::Encoder;

    use super::*;

    fn frame(kind: u8, flags: u8, payload: &[u8]) -> Vec<u8> {
        let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
        let mut frame = vec![length[1], length[2], length[3], kind, flags, 0, 0, 0, 1];
        frame.extend_from_slice(payload);
        frame
    }

    /// Returns the output after the preface; checks that input at once and input byte by byte give the same.
    fn pass(frames: &[Vec<u8>]) -> io::Result<Vec<u8>> {
        let mut sent = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
        sent.extend(frames.concat());
        let mut whole = Frames::default();
        whole.take(&sent)?;
        let mut bytewise = Frames::default();
        sent.iter().try_for_each(|byte| bytewise.take(&[*byte]))?;
        assert_eq!(whole.ready, bytewise.ready);
        Ok(whole.ready[PREFACE..].to_vec())
    }

    fn headers_of(frame: &[u8]) -> Vec<(String, String)> {
        let text = |bytes| String::from_utf8(bytes).unwrap();
        let headers = Decoder::new().decode(&frame[FRAME_HEADER..]).unwrap();
        headers
            .into_iter()
            .map(|(name, value)| (text(name), text(value)))
            .collect()
    }

    #[test]
    fn the_authority_is_replaced_and_all_else_stays() {
        let long = "x".repeat(300);
        let headers = [
            (":method", "POST"),
            (":path", "/v0.Registration/RegisterDiscoveryHandler"),
            ("user-agent", &long),
        ];
        let headers = headers.map(|(name, value)| (name.as_bytes(), value.as_bytes()));
        let authority = b"%2Fvar%2Flib%2Fakri%2Fagent-registration.sock";
        // The first block adds the entry to the table, the second refers to it.
        let put = [
            &[0x41, u8::try_from(authority.len()).unwrap()],
            &authority[..],
        ]
        .concat();
        let first = [put, Encoder::new().encode(headers)].concat();
        let second = [vec![0xbe], Encoder::new().encode(headers)].concat();
        let padded = [&[3][..], &[0; 5], &second, &[0; 3]].concat();
        let data = frame(0, END_STREAM, b"hello");
        let (begin, end) = first.split_at(7);
        let passed = pass(&[
            frame(4, 0, &[]),
            frame(HEADERS, 0, begin),
            frame(CONTINUATION, END_HEADERS, end),
            data.clone(),
            frame(
                HEADERS,
                END_HEADERS | END_STREAM | PADDED | PRIORITY,
                &padded,
            ),
        ])
        .unwrap();
        let (settings, rest) = passed.split_at(FRAME_HEADER);
        assert_eq!(settings, frame(4, 0, &[]));
        let length = usize::from(rest[1]) << 8 | usize::from(rest[2]);
        let (block, rest) = rest.split_at(FRAME_HEADER + length);
        assert_eq!(block[3..5], [HEADERS, END_HEADERS]);
        let seen = headers_of(block);
        assert_eq!(seen[0], (":authority".to_owned(), "localhost".to_owned()));
        assert_eq!(seen[3].1, long);
        assert_eq!(seen.len(), 4);
        let (hello, last) = rest.split_at(data.len());
        assert_eq!(hello, data);
        assert_eq!(last[3..5], [HEADERS, END_HEADERS | END_STREAM]);
        assert_eq!(headers_of(last), seen);
    }

    #[test]
    fn what_is_too_large_or_broken_ends_the_connection() {
        // An entry of four thousand bytes that single bytes refer to repeatedly.
        let mut bomb = vec![0x40, 1, b'a', 0x7f, 0xa1, 0x1e];
        bomb.extend([b'b'; 4000]);
        bomb.extend([0xbe; 10_000]);
        for frames in [
            vec![frame(HEADERS, END_HEADERS, &bomb)],
            vec![frame(HEADERS, END_HEADERS, &[0xff, 0xff, 0xff])],
            vec![frame(HEADERS, END_HEADERS | PADDED, &[9, 0])],
            vec![frame(HEADERS, END_HEADERS | PADDED, &[])],
            vec![frame(HEADERS, END_HEADERS | PRIORITY, &[0; 4])],
            vec![frame(HEADERS, 0, &[0x82]), frame(0, 0, &[])],
            vec![
                frame(HEADERS, 0, &[0; 9000]),
                frame(CONTINUATION, 0, &[0; 9000]),
            ],
            vec![vec![0xff; FRAME_HEADER]],
        ] {
            assert!(pass(&frames).is_err(), "{:?}", &frames[0][..12]);
        }
    }

    #[test]
    fn whatever_a_client_sends_is_passed_on_or_refused() {
        use rand::RngExt as _;
        let mut random = rand::rng();
        let headers = [(&b":authority"[..], &b"%2F"[..]), (b"a", b"b")];
        let block = Encoder::new().encode(headers);
        let (mut passed, mut refused) = (0, 0);
        for _ in 0..20_000 {
            let mut sent = [
                frame(HEADERS, END_HEADERS, &block),
                frame(HEADERS, 0, &block),
                frame(CONTINUATION, END_HEADERS, &block),
            ]
            .concat();
            for _ in 0..random.random_range(0..4) {
                let at = random.random_range(0..sent.len());
                sent[at] = random.random();
            }
            match pass(&[sent]) {
                Ok(out) => passed += usize::from(out.len() < 1000),
                Err(_) => refused += 1,
            }
        }
        assert!(passed > 1000 && refused > 1000, "{passed} {refused}");
        assert_eq!(passed + refused, 20_000);
    }
}

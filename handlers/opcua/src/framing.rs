//! Transport of OPC UA (OPC 10000-6, 6.7 and 7.1): splits bytes into chunks and joins chunks into messages. It does not
//! interpret services.
//!
//! Memory is allocated only for bytes that a peer has sent, never for announced ones; every bound is checked before the
//! bytes are stored.

use std::fmt;

use crate::status::Status;
use crate::text::quoted;

/// Maximum number of bytes in a chunk, sent or received. The handshake announces one byte less, since some peers store the size
/// in 16 bits.
pub const MAX_CHUNK: u32 = 64 * 1024;
/// Buffer size announced in the handshake.
const BUFFER: u32 = 65_535;
/// Maximum number of bytes in a message.
pub const MAX_MESSAGE: usize = 4 << 20;
/// Maximum number of chunks in a message.
pub const MAX_CHUNKS: u32 = 256;
/// Size of a chunk's header: type and size.
const HEADER: usize = 8;
/// Size of an Acknowledge body: five numbers.
const ACKNOWLEDGE: usize = 20;
/// Security policy of every channel here; discovery needs no other.
const POLICY: &[u8] = b"http://opcfoundation.org/UA/SecurityPolicy#None";

/// Error in the bytes of a peer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// First bytes that do not begin a chunk.
    #[error("the program that answers is not an OPC UA server: its bytes begin with {}", quoted(&String::from_utf8_lossy(.0)))]
    Foreign([u8; 3]),
    /// Chunk of a kind that was not expected.
    #[error("the server sent a {0} message where {1} was expected")]
    Kind(Kind, &'static str),
    /// Chunk that is neither intermediate, final nor aborting.
    #[error("the server sent a chunk of the unknown type {}", quoted(&char::from(*.0).to_string()))]
    Part(u8),
    /// Chunk of an impossible size.
    #[error("the server announced a chunk of {0} bytes; a chunk has {HEADER} to {MAX_CHUNK}")]
    ChunkSize(u32),
    /// Chunk without the mandatory fields.
    #[error("the server sent a chunk too short for its fields")]
    Short,
    /// Secure channel with a policy that was not requested.
    #[error("the server answered with the security policy {}", quoted(.0))]
    Policy(String),
    /// Answer to another request.
    #[error("the server answered request {got} where {asked} was asked")]
    OtherRequest {
        /// Number of the request.
        asked: u32,
        /// Number in the answer.
        got: u32,
    },
    /// Answer on another secure channel.
    #[error("the server answered on secure channel {got}, not on {own}")]
    OtherChannel {
        /// Number of the channel.
        own: u32,
        /// Number in the answer.
        got: u32,
    },
    /// Answer over the size limit.
    #[error("the answer is longer than {MAX_MESSAGE} bytes")]
    Long,
    /// Answer with too many chunks.
    #[error("the answer has more than {MAX_CHUNKS} chunks")]
    Endless,
    /// Answer that the server aborted.
    #[error("the server aborted its answer: {0}")]
    Aborted(Reason),
    /// Connection that the server refused.
    #[error("the server refused: {0}")]
    Refused(Reason),
}

/// Status code with a text of the peer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reason {
    /// Status code.
    pub status: Status,
    /// Text of the peer; may be empty.
    pub words: String,
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.status)?;
        if self.words.is_empty() {
            return Ok(());
        }
        write!(f, ", {}", quoted(&self.words))
    }
}

/// Kinds of messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// `HEL`
    Hello,
    /// `ACK`
    Acknowledge,
    /// `ERR`
    Error,
    /// `RHE`
    ReverseHello,
    /// `OPN`
    Open,
    /// `MSG`
    Message,
    /// `CLO`
    Close,
}

impl Kind {
    const ALL: [(Self, &'static [u8; 3]); 7] = [
        (Self::Hello, b"HEL"),
        (Self::Acknowledge, b"ACK"),
        (Self::Error, b"ERR"),
        (Self::ReverseHello, b"RHE"),
        (Self::Open, b"OPN"),
        (Self::Message, b"MSG"),
        (Self::Close, b"CLO"),
    ];

    fn code(self) -> &'static [u8; 3] {
        let known = Self::ALL.iter().find(|(kind, _)| *kind == self);
        known.map_or(b"MSG", |(_, code)| code)
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&String::from_utf8_lossy(self.code()))
    }
}

/// Returns the first message of a connection.
pub fn hello(url: &str) -> Vec<u8> {
    let max_message = u32::try_from(MAX_MESSAGE).unwrap_or(u32::MAX);
    let mut body = Vec::new();
    for number in [0, BUFFER, BUFFER, max_message, MAX_CHUNKS] {
        body.extend(u32::to_le_bytes(number));
    }
    put_bytes(&mut body, url.as_bytes());
    chunk(Kind::Hello, &body)
}

/// Returns a request to open a secure channel. `body` is the encoded request.
pub fn open(sequence: u32, body: &[u8]) -> Vec<u8> {
    let mut fields = 0_u32.to_le_bytes().to_vec();
    put_bytes(&mut fields, POLICY);
    // There is neither a certificate nor a thumbprint of one.
    fields.extend((-1_i32).to_le_bytes());
    fields.extend((-1_i32).to_le_bytes());
    fields.extend(sequence.to_le_bytes());
    fields.extend(sequence.to_le_bytes());
    fields.extend(body);
    chunk(Kind::Open, &fields)
}

/// Returns a request on a secure channel, or the message that closes it. `body` is the encoded request.
pub fn request(kind: Kind, channel: u32, token: u32, sequence: u32, body: &[u8]) -> Vec<u8> {
    let mut fields = Vec::new();
    for number in [channel, token, sequence, sequence] {
        fields.extend(u32::to_le_bytes(number));
    }
    fields.extend(body);
    chunk(kind, &fields)
}

fn chunk(kind: Kind, body: &[u8]) -> Vec<u8> {
    let size = u32::try_from(HEADER + body.len()).unwrap_or(u32::MAX);
    let mut bytes = kind.code().to_vec();
    bytes.push(b'F');
    bytes.extend(size.to_le_bytes());
    bytes.extend(body);
    bytes
}

fn put_bytes(body: &mut Vec<u8>, bytes: &[u8]) {
    body.extend(i32::try_from(bytes.len()).unwrap_or(i32::MAX).to_le_bytes());
    body.extend(bytes);
}

/// Message that a peer may send next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Expect {
    /// Answer to the Hello.
    Acknowledge,
    /// Answer to the request with this number for a secure channel.
    Opened(u32),
    /// Answer to a request on a secure channel.
    Answer {
        /// Number of the channel.
        channel: u32,
        /// Number of the request.
        request: u32,
    },
}

impl Expect {
    fn kind(self) -> (Kind, &'static str) {
        match self {
            Self::Acknowledge => (Kind::Acknowledge, "ACK"),
            Self::Opened(_) => (Kind::Open, "OPN"),
            Self::Answer { .. } => (Kind::Message, "MSG"),
        }
    }
}

/// Assembles messages from the bytes of a peer.
#[derive(Debug, Default)]
pub struct Reader {
    bytes: Vec<u8>,
    message: Vec<u8>,
    chunks: u32,
}

impl Reader {
    /// Returns the number of bytes in memory.
    pub fn held(&self) -> usize {
        self.bytes.len() + self.message.len()
    }

    /// Adds received bytes.
    pub fn push(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// Returns the expected message once it is complete.
    ///
    /// # Errors
    /// Fails if the peer violates the protocol; the reader must not be used afterwards.
    pub fn next(&mut self, expect: Expect) -> Result<Option<Vec<u8>>, Error> {
        while let Some((part, body)) = self.chunk(expect)? {
            self.chunks += 1;
            if self.chunks > MAX_CHUNKS {
                return Err(Error::Endless);
            }
            if part == Part::Abort {
                return Err(Error::Aborted(reason(&body)));
            }
            if self.message.len() + body.len() > MAX_MESSAGE {
                return Err(Error::Long);
            }
            self.message.extend(body);
            if part == Part::Final {
                self.chunks = 0;
                return Ok(Some(std::mem::take(&mut self.message)));
            }
        }
        Ok(None)
    }

    /// Returns the body of the next chunk once it is complete. The header is checked as soon as it has arrived.
    fn chunk(&mut self, expect: Expect) -> Result<Option<(Part, Vec<u8>)>, Error> {
        if let Some(code) = self.bytes.first_chunk::<3>()
            && !Kind::ALL.iter().any(|(_, known)| *known == code)
        {
            return Err(Error::Foreign(*code));
        }
        let Some(header) = self.bytes.first_chunk::<HEADER>() else {
            return Ok(None);
        };
        let [first, second, third, part, size @ ..] = *header;
        let size = u32::from_le_bytes(size);
        let length = usize::try_from(size).unwrap_or(usize::MAX);
        if length < HEADER || size > MAX_CHUNK {
            return Err(Error::ChunkSize(size));
        }
        let code = [first, second, third];
        let known = Kind::ALL.iter().find(|(_, known)| **known == code);
        let kind = known.map(|(kind, _)| *kind).ok_or(Error::Foreign(code))?;
        let (due, name) = expect.kind();
        if kind != due && kind != Kind::Error {
            return Err(Error::Kind(kind, name));
        }
        let part = Part::of(part)?;
        if self.bytes.len() < length {
            return Ok(None);
        }
        let body = self.bytes.drain(..length).skip(HEADER).collect::<Vec<u8>>();
        if kind == Kind::Error {
            return Err(Error::Refused(reason(&body)));
        }
        let fields = match expect {
            // The announced sizes do not matter: no request is longer than the size that any server must accept.
            Expect::Acknowledge => body.get(..ACKNOWLEDGE).ok_or(Error::Short)?,
            Expect::Opened(request) => opened(&body, request)?,
            Expect::Answer { channel, request } => answer(&body, channel, request)?,
        };
        Ok(Some((part, fields.to_vec())))
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Part {
    More,
    Final,
    Abort,
}

impl Part {
    fn of(code: u8) -> Result<Self, Error> {
        match code {
            b'C' => Ok(Self::More),
            b'F' => Ok(Self::Final),
            b'A' => Ok(Self::Abort),
            other => Err(Error::Part(other)),
        }
    }
}

/// Returns the part after the header fields of an answer to a request for a secure channel.
fn opened(body: &[u8], request: u32) -> Result<&[u8], Error> {
    let (_, rest) = number(body)?;
    let (policy, rest) = bytes(rest)?;
    let (_, rest) = bytes(rest)?;
    let (_, rest) = bytes(rest)?;
    if policy != POLICY {
        return Err(Error::Policy(String::from_utf8_lossy(policy).into_owned()));
    }
    numbered(rest, request)
}

/// Returns the part after the header fields of an answer.
fn answer(body: &[u8], channel: u32, request: u32) -> Result<&[u8], Error> {
    let (got, rest) = number(body)?;
    let (_, rest) = number(rest)?;
    if got != channel {
        return Err(Error::OtherChannel { own: channel, got });
    }
    numbered(rest, request)
}

/// Checks the request number and returns the rest. The sequence number is ignored: without security it protects nothing, and
/// peers begin and wrap it as they like.
fn numbered(body: &[u8], asked: u32) -> Result<&[u8], Error> {
    let (_, rest) = number(body)?;
    let (got, rest) = number(rest)?;
    if got != asked {
        return Err(Error::OtherRequest { asked, got });
    }
    Ok(rest)
}

fn number(body: &[u8]) -> Result<(u32, &[u8]), Error> {
    let (number, rest) = body.split_first_chunk().ok_or(Error::Short)?;
    Ok((u32::from_le_bytes(*number), rest))
}

/// Reads a byte string; a length of -1 means none.
fn bytes(body: &[u8]) -> Result<(&[u8], &[u8]), Error> {
    let (length, rest) = number(body)?;
    if length == u32::MAX {
        return Ok((&[], rest));
    }
    let length = usize::try_from(length).map_err(|_| Error::Short)?;
    rest.split_at_checked(length).ok_or(Error::Short)
}

/// Decodes the body of an `ERR` message or of an aborting chunk.
fn reason(body: &[u8]) -> Reason {
    let (status, rest) = number(body).unwrap_or((0, &[]));
    let (words, _) = bytes(rest).unwrap_or_default();
    Reason {
        status: Status(status),
        words: String::from_utf8_lossy(words).into_owned(),
    }
}

#[cfg(test)]
mod tests;

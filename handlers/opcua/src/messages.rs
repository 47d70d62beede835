//! The discovery services (OPC 10000-4, 5.5 and 5.6) as bytes: requests out, answers in. Knows nothing of connections.
//!
//! Messages are written and read field by field. Only texts, byte strings and status codes are left to the library: its
//! readers of whole messages descend as deep as the bytes say and allocate what the bytes announce, and its writers bring
//! along all types there are.

use std::time::{SystemTime, UNIX_EPOCH};

use opcua_types::{
    ByteString, DecodingOptions, SimpleBinaryDecodable, SimpleBinaryEncodable, StatusCode, UAString,
};

use crate::text::digest;

/// The most applications or records of one answer that are kept.
pub const MAX_LISTED: usize = 1_000;
/// The most of them that are read, repeated ones included.
const MAX_READ: usize = 16_000;
/// The most URLs of one application that are kept.
const MAX_URLS: usize = 16;
/// The most endpoints that are kept.
const MAX_ENDPOINTS: usize = 64;
/// The most elements of a small array, such as capabilities.
const MAX_ELEMENTS: usize = 1_000;
/// The longest text.
const MAX_TEXT: usize = 16 * 1024;
/// The longest certificate, chains included.
const MAX_CERTIFICATE: usize = 64 * 1024;
/// How deep diagnostics may lie in each other.
const MAX_DEPTH: usize = 16;
/// What is asked for a channel's life, in milliseconds.
const LIFETIME: u32 = 60_000;
/// How long an answer may take, in milliseconds; a hint.
const ANSWER_WITHIN: u32 = 5_000;
/// From the beginning of 1601 to that of 1970.
const TICKS_TO_1970: i64 = 116_444_736_000_000_000;

/// Why an answer cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The server says no.
    #[error("the server answered {status} (0x{:08X})", status.bits())]
    Fault {
        /// Why.
        status: StatusCode,
    },
    /// The answer is one to something else.
    #[error("the server answered message {0}, which is not what was asked for")]
    Other(u32),
    /// The bytes are not what they should be.
    #[error("cannot read the answer: {what} ends early, is too long or is no {what}")]
    Broken {
        /// What was to be read.
        what: &'static str,
    },
}

/// A secure channel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Channel {
    /// Its number.
    pub id: u32,
    /// The number of its token.
    pub token: u32,
}

/// What an answer lists, each thing once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct List<T> {
    /// The things.
    pub items: Vec<T>,
    /// Whether there were more than are kept.
    pub cut: bool,
}

/// An application, as `ApplicationDescription` (OPC 10000-4, 7.2) has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Application {
    /// Which installation it is; worldwide unique if its owner saw to that.
    pub uri: String,
    /// Which product.
    pub product: String,
    /// Its name.
    pub name: String,
    /// 0 server, 1 client, 2 both, 3 discovery server.
    pub kind: u32,
    /// Where it answers discovery services.
    pub urls: Vec<String>,
}

/// A server that a discovery server knows from the network (OPC 10000-4, 5.5.3).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    /// Where it answers discovery services.
    pub url: String,
    /// Its name.
    pub name: String,
}

/// A way to talk to a server, as `EndpointDescription` (OPC 10000-4, 7.14) has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Endpoint {
    /// The URI of the application behind it.
    pub application: String,
    /// DER, perhaps a chain.
    pub certificate: Vec<u8>,
    /// 1 none, 2 sign, 3 sign and encrypt.
    pub mode: u32,
    /// The URI of the security policy.
    pub policy: String,
    /// The numbers of its kinds of user tokens: 0 anonymous, 1 user name, 2 certificate, 3 issued token.
    pub tokens: Vec<u32>,
}

/// The ids of the messages (OPC 10000-6, annex A).
const OPEN: u16 = 446;
const OPENED: u32 = 449;
const CLOSE: u16 = 452;
const FIND_SERVERS: u16 = 422;
const SERVERS: u32 = 425;
const GET_ENDPOINTS: u16 = 428;
const ENDPOINTS: u32 = 431;
const FIND_SERVERS_ON_NETWORK: u16 = 12_208;
const RECORDS: u32 = 12_209;
/// `ServiceFault`
const FAULT: u32 = 397;

/// A request for a channel without security.
pub fn open_secure_channel(handle: u32) -> Vec<u8> {
    let mut request = request(OPEN, handle);
    // The protocol's version, a new channel, no security.
    for number in [0, 0, 1] {
        put(&mut request, number);
    }
    put_text(&mut request, &ByteString::null());
    put(&mut request, LIFETIME);
    request
}

/// A request for the applications that the server at that URL knows.
pub fn find_servers(handle: u32, url: &str) -> Vec<u8> {
    about(FIND_SERVERS, handle, url)
}

/// A request for the records of a discovery server.
pub fn find_servers_on_network(handle: u32) -> Vec<u8> {
    let mut request = request(FIND_SERVERS_ON_NETWORK, handle);
    // From the first record on, whatever the servers can do.
    for number in [0, u32::try_from(MAX_LISTED).unwrap_or(u32::MAX), NOTHING] {
        put(&mut request, number);
    }
    request
}

/// A request for the endpoints of the server at that URL.
pub fn get_endpoints(handle: u32, url: &str) -> Vec<u8> {
    about(GET_ENDPOINTS, handle, url)
}

/// The end of a channel.
pub fn close_secure_channel(handle: u32) -> Vec<u8> {
    request(CLOSE, handle)
}

/// A request about a URL, in any language, without a choice.
fn about(id: u16, handle: u32, url: &str) -> Vec<u8> {
    let mut request = request(id, handle);
    put_text(&mut request, &UAString::from(url));
    put(&mut request, NOTHING);
    put(&mut request, NOTHING);
    request
}

/// The id of a request, and the header that all have: no session, the time, its number, no diagnostics, no audit entry, how long
/// the answer may take, nothing more.
fn request(id: u16, handle: u32) -> Vec<u8> {
    let mut bytes = vec![1, 0];
    bytes.extend(id.to_le_bytes());
    bytes.extend([0, 0]);
    bytes.extend(now().to_le_bytes());
    for number in [handle, 0, NOTHING, ANSWER_WITHIN] {
        put(&mut bytes, number);
    }
    bytes.extend([0, 0, 0]);
    bytes
}

/// A text, byte string or array that is not there.
const NOTHING: u32 = u32::MAX;

fn put(bytes: &mut Vec<u8>, number: u32) {
    bytes.extend(number.to_le_bytes());
}

fn put_text(bytes: &mut Vec<u8>, text: &impl SimpleBinaryEncodable) {
    bytes.extend(text.encode_to_vec());
}

/// The time in tenths of microseconds since 1601 (OPC 10000-6, 5.2.2.5).
fn now() -> i64 {
    let Ok(since_1970) = SystemTime::now().duration_since(UNIX_EPOCH) else {
        return 0;
    };
    let seconds = i64::try_from(since_1970.as_secs()).unwrap_or_default();
    let rest = i64::from(since_1970.subsec_nanos() / 100);
    seconds
        .saturating_mul(10_000_000)
        .saturating_add(rest + TICKS_TO_1970)
}

/// Reads the answer to a request for a channel.
pub fn channel(body: &[u8]) -> Result<Channel, Error> {
    read(body, OPENED, |reader| {
        reader.number("protocol version")?;
        Ok(Channel {
            id: reader.number("secure channel id")?,
            token: reader.number("token id")?,
        })
    })
}

/// Reads the applications.
pub fn servers(body: &[u8]) -> Result<List<Application>, Error> {
    read(body, SERVERS, |reader| {
        reader.list("list of servers", Reader::application)
    })
}

/// Reads the records.
pub fn records(body: &[u8]) -> Result<List<Record>, Error> {
    read(body, RECORDS, |reader| {
        reader.skip(8, "counter reset time")?;
        reader.list("list of records", |reader| {
            reader.number("record id")?;
            let name = reader.text("server name")?;
            let url = reader.text("discovery URL")?;
            reader.texts("server capabilities", 0)?;
            Ok(Record { url, name })
        })
    })
}

/// Reads the endpoints; what comes behind the first 64 is not looked at.
pub fn endpoints(body: &[u8]) -> Result<Vec<Endpoint>, Error> {
    read(body, ENDPOINTS, |reader| {
        let count = reader.count("list of endpoints")?;
        (0..count.min(MAX_ENDPOINTS))
            .map(|_| reader.endpoint())
            .collect()
    })
}

/// Whatever the bytes are, as any of these answers: for showing that none of them does harm.
#[doc(hidden)]
pub fn read_all(body: &[u8]) {
    let _ = channel(body);
    let _ = servers(body);
    let _ = records(body);
    let _ = endpoints(body);
}

fn read<T>(
    body: &[u8],
    answer: u32,
    fields: impl FnOnce(&mut Reader<'_>) -> Result<T, Error>,
) -> Result<T, Error> {
    let mut reader = Reader {
        rest: body,
        options: DecodingOptions {
            max_string_length: MAX_TEXT,
            max_byte_string_length: MAX_CERTIFICATE,
            ..DecodingOptions::minimal()
        },
    };
    let id = reader.node_id("message type")?;
    let is_fault = id == FAULT;
    if !is_fault && id != answer {
        return Err(Error::Other(id));
    }
    let status = reader.response_header()?;
    if is_fault || status.is_bad() {
        return Err(Error::Fault { status });
    }
    fields(&mut reader)
}

/// What is left of an answer.
struct Reader<'a> {
    rest: &'a [u8],
    options: DecodingOptions,
}

impl Reader<'_> {
    /// A text or a byte string: its length is checked before anything is kept.
    fn leaf<T: SimpleBinaryDecodable>(&mut self, what: &'static str) -> Result<T, Error> {
        T::decode(&mut self.rest, &self.options).map_err(|_| Error::Broken { what })
    }

    /// The number of a standard node; 0 for any other node (OPC 10000-6, 5.2.2.9).
    fn node_id(&mut self, what: &'static str) -> Result<u32, Error> {
        match self.byte(what)? {
            0 => self.byte(what).map(u32::from),
            1 => {
                let namespace = self.byte(what)?;
                let low = self.byte(what)?;
                let high = self.byte(what)?;
                let id = u16::from_le_bytes([low, high]);
                Ok(if namespace == 0 { id.into() } else { 0 })
            }
            form @ 2..=5 => {
                let namespace = [self.byte(what)?, self.byte(what)?];
                match form {
                    2 => {
                        let id = self.number(what)?;
                        return Ok(if namespace == [0, 0] { id } else { 0 });
                    }
                    4 => self.skip(16, what)?,
                    _ => self.skip_bytes(what)?,
                }
                Ok(0)
            }
            _ => Err(Error::Broken { what }),
        }
    }

    fn number(&mut self, what: &'static str) -> Result<u32, Error> {
        let (number, rest) = self
            .rest
            .split_first_chunk()
            .ok_or(Error::Broken { what })?;
        self.rest = rest;
        Ok(u32::from_le_bytes(*number))
    }

    fn byte(&mut self, what: &'static str) -> Result<u8, Error> {
        let (byte, rest) = self.rest.split_first().ok_or(Error::Broken { what })?;
        self.rest = rest;
        Ok(*byte)
    }

    fn skip(&mut self, count: usize, what: &'static str) -> Result<(), Error> {
        self.rest = self.rest.get(count..).ok_or(Error::Broken { what })?;
        Ok(())
    }

    /// A length as it stands before texts and arrays; none is 0.
    fn count(&mut self, what: &'static str) -> Result<usize, Error> {
        match self.number(what)? {
            u32::MAX => Ok(0),
            count => usize::try_from(count).map_err(|_| Error::Broken { what }),
        }
    }

    fn skip_bytes(&mut self, what: &'static str) -> Result<(), Error> {
        let length = self.count(what)?;
        self.skip(length, what)
    }

    fn text(&mut self, what: &'static str) -> Result<String, Error> {
        let text: UAString = self.leaf(what)?;
        Ok(text.value().clone().unwrap_or_default())
    }

    /// The text of a text in some language (OPC 10000-6, 5.2.2.14).
    fn localized(&mut self, what: &'static str) -> Result<String, Error> {
        let mask = self.byte(what)?;
        if mask & 1 != 0 {
            self.skip_bytes(what)?;
        }
        if mask & 2 != 0 {
            return self.text(what);
        }
        Ok(String::new())
    }

    /// An array of texts, of which the first `most` are kept.
    fn texts(&mut self, what: &'static str, most: usize) -> Result<Vec<String>, Error> {
        let count = self.count(what)?;
        if count > MAX_ELEMENTS {
            return Err(Error::Broken { what });
        }
        let mut texts = Vec::new();
        for index in 0..count {
            let text = self.text(what)?;
            if index < most {
                texts.push(text);
            }
        }
        Ok(texts)
    }

    /// An array, each thing in it once. What is the same is known by its bytes.
    fn list<T>(
        &mut self,
        what: &'static str,
        item: impl Fn(&mut Self) -> Result<T, Error>,
    ) -> Result<List<T>, Error> {
        let count = self.count(what)?;
        let mut seen = Vec::new();
        let mut items = Vec::new();
        for _ in 0..count.min(MAX_READ) {
            let before = self.rest;
            let item = item(self)?;
            let length = before.len() - self.rest.len();
            let bytes = digest(before.get(..length).unwrap_or_default());
            if seen.contains(&bytes) {
                continue;
            }
            if items.len() == MAX_LISTED {
                return Ok(List { items, cut: true });
            }
            seen.push(bytes);
            items.push(item);
        }
        Ok(List {
            items,
            cut: count > MAX_READ,
        })
    }

    /// The service's result; what else there is, is left behind.
    fn response_header(&mut self) -> Result<StatusCode, Error> {
        self.skip(8, "timestamp")?;
        self.number("request handle")?;
        let status = StatusCode::from(self.number("service result")?);
        self.diagnostics()?;
        self.texts("string table", 0)?;
        self.node_id("additional header")?;
        match self.byte("additional header")? {
            0 => {}
            1 | 2 => self.skip_bytes("additional header")?,
            _ => {
                return Err(Error::Broken {
                    what: "additional header",
                });
            }
        }
        Ok(status)
    }

    /// Leaves diagnostics behind (OPC 10000-6, 5.2.2.12): four numbers, a text and a code, each if its bit is set, and
    /// perhaps more of the same inside.
    fn diagnostics(&mut self) -> Result<(), Error> {
        let what = "diagnostics";
        for _ in 0..MAX_DEPTH {
            let mask = self.byte(what)?;
            let numbers = (mask & 0x0f).count_ones();
            for _ in 0..numbers {
                self.number(what)?;
            }
            if mask & 0x10 != 0 {
                self.skip_bytes(what)?;
            }
            if mask & 0x20 != 0 {
                self.number(what)?;
            }
            if mask & 0x40 == 0 {
                return Ok(());
            }
        }
        Err(Error::Broken { what })
    }

    fn application(&mut self) -> Result<Application, Error> {
        let uri = self.text("application URI")?;
        let product = self.text("product URI")?;
        let name = self.localized("application name")?;
        let kind = self.number("application type")?;
        self.text("gateway URI")?;
        self.text("discovery profile")?;
        let urls = self.texts("discovery URLs", MAX_URLS)?;
        Ok(Application {
            uri,
            product,
            name,
            kind,
            urls,
        })
    }

    fn endpoint(&mut self) -> Result<Endpoint, Error> {
        self.text("endpoint URL")?;
        let server = self.application()?;
        let certificate: ByteString = self.leaf("certificate")?;
        let mode = self.number("security mode")?;
        let policy = self.text("security policy")?;
        let mut tokens = Vec::new();
        let what = "user token policies";
        let count = self.count(what)?;
        if count > MAX_ELEMENTS {
            return Err(Error::Broken { what });
        }
        for _ in 0..count {
            self.text(what)?;
            tokens.push(self.number(what)?);
            for _ in 0..3 {
                self.text(what)?;
            }
        }
        self.text("transport profile")?;
        self.byte("security level")?;
        Ok(Endpoint {
            application: server.uri,
            certificate: certificate.value.unwrap_or_default(),
            mode,
            policy,
            tokens,
        })
    }
}

#[cfg(test)]
mod tests;

//! The discovery services (OPC 10000-4, 5.5 and 5.6) as bytes: requests out, answers in. Knows nothing of connections.
//!
//! Answers are read field by field. Only texts, ids and codes are left to the library: its readers of whole messages
//! descend as deep as the bytes say and allocate what the bytes announce.

use std::collections::BTreeSet;

use opcua_types::{
    BinaryDecodable, BinaryEncodable, ByteString, CloseSecureChannelRequest, Context, ContextOwned,
    DateTime, DecodingOptions, DepthGauge, FindServersOnNetworkRequest, FindServersRequest,
    GetEndpointsRequest, LocalizedText, MessageInfo, MessageSecurityMode, NamespaceMap, NodeId,
    ObjectId, OpenSecureChannelRequest, RequestHeader, SecurityTokenRequestType, StatusCode,
    TypeLoaderCollection, UAString,
};

use crate::framing::MAX_MESSAGE;

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
    #[error("the server answered {0}, which is not what was asked for")]
    Other(String),
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
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
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
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
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
    /// 0 anonymous, 1 user name, 2 certificate, 3 issued token.
    pub tokens: BTreeSet<u32>,
}

/// The ids of the answers (OPC 10000-6, annex A).
const OPENED: u32 = 449;
const SERVERS: u32 = 425;
const ENDPOINTS: u32 = 431;
const RECORDS: u32 = 12_209;
/// `ServiceFault`
const FAULT: u32 = 397;

/// A request for a channel without security.
pub fn open_secure_channel(handle: u32) -> Vec<u8> {
    encode(&OpenSecureChannelRequest {
        request_header: header(handle),
        client_protocol_version: 0,
        request_type: SecurityTokenRequestType::Issue,
        security_mode: MessageSecurityMode::None,
        client_nonce: ByteString::null(),
        requested_lifetime: LIFETIME,
    })
}

/// A request for the applications that the server at that URL knows.
pub fn find_servers(handle: u32, url: &str) -> Vec<u8> {
    encode(&FindServersRequest {
        request_header: header(handle),
        endpoint_url: UAString::from(url),
        locale_ids: None,
        server_uris: None,
    })
}

/// A request for the records of a discovery server.
pub fn find_servers_on_network(handle: u32) -> Vec<u8> {
    encode(&FindServersOnNetworkRequest {
        request_header: header(handle),
        starting_record_id: 0,
        max_records_to_return: u32::try_from(MAX_LISTED).unwrap_or(u32::MAX),
        server_capability_filter: None,
    })
}

/// A request for the endpoints of the server at that URL.
pub fn get_endpoints(handle: u32, url: &str) -> Vec<u8> {
    encode(&GetEndpointsRequest {
        request_header: header(handle),
        endpoint_url: UAString::from(url),
        locale_ids: None,
        profile_uris: None,
    })
}

/// The end of a channel.
pub fn close_secure_channel(handle: u32) -> Vec<u8> {
    encode(&CloseSecureChannelRequest {
        request_header: header(handle),
    })
}

fn header(handle: u32) -> RequestHeader {
    RequestHeader::new(&NodeId::null(), &DateTime::now(), handle)
}

fn encode<T: BinaryEncodable + MessageInfo>(request: &T) -> Vec<u8> {
    let owned = context();
    let context = owned.context();
    let id: ObjectId = request.type_id();
    let mut bytes = NodeId::from(&id).encode_to_vec(&context);
    bytes.extend(request.encode_to_vec(&context));
    bytes
}

/// Without type loaders: nothing here needs one, and they are most of the library.
fn context() -> ContextOwned {
    let options = DecodingOptions {
        max_message_size: MAX_MESSAGE,
        max_string_length: MAX_TEXT,
        max_byte_string_length: MAX_CERTIFICATE,
        max_array_length: MAX_ELEMENTS,
        decoding_depth_gauge: DepthGauge::new(4),
        ..DecodingOptions::default()
    };
    ContextOwned::new(
        NamespaceMap::new(),
        TypeLoaderCollection::new_empty(),
        options,
    )
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
    let owned = context();
    let mut reader = Reader {
        rest: body,
        context: owned.context(),
    };
    let id: NodeId = reader.leaf("message type")?;
    let status = if id == NodeId::from((0, answer)) || id == NodeId::from((0, FAULT)) {
        reader.response_header()?
    } else {
        return Err(Error::Other(format!("message {id}")));
    };
    if status.is_bad() || id == NodeId::from((0, FAULT)) {
        return Err(Error::Fault { status });
    }
    fields(&mut reader)
}

/// What is left of an answer.
struct Reader<'a> {
    rest: &'a [u8],
    context: Context<'a>,
}

impl Reader<'_> {
    /// Something of a fixed shape whose size is checked before anything is kept.
    fn leaf<T: BinaryDecodable>(&mut self, what: &'static str) -> Result<T, Error> {
        T::decode(&mut self.rest, &self.context).map_err(|_| Error::Broken { what })
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

    /// An array, each thing in it once.
    fn list<T: Ord>(
        &mut self,
        what: &'static str,
        item: impl Fn(&mut Self) -> Result<T, Error>,
    ) -> Result<List<T>, Error> {
        let count = self.count(what)?;
        let mut items = BTreeSet::new();
        let mut cut = count > MAX_READ;
        for _ in 0..count.min(MAX_READ) {
            items.insert(item(self)?);
            if items.len() > MAX_LISTED {
                items.pop_last();
                cut = true;
            }
        }
        Ok(List {
            items: items.into_iter().collect(),
            cut,
        })
    }

    /// The service's result; what else there is, is left behind.
    fn response_header(&mut self) -> Result<StatusCode, Error> {
        self.skip(8, "timestamp")?;
        self.number("request handle")?;
        let status = StatusCode::from(self.number("service result")?);
        self.diagnostics()?;
        self.texts("string table", 0)?;
        let _: NodeId = self.leaf("additional header")?;
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
        let name: LocalizedText = self.leaf("application name")?;
        let kind = self.number("application type")?;
        self.text("gateway URI")?;
        self.text("discovery profile")?;
        let urls = self.texts("discovery URLs", MAX_URLS)?;
        Ok(Application {
            uri,
            product,
            name: name.text.value().clone().unwrap_or_default(),
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
        let mut tokens = BTreeSet::new();
        let what = "user token policies";
        let count = self.count(what)?;
        if count > MAX_ELEMENTS {
            return Err(Error::Broken { what });
        }
        for _ in 0..count {
            self.text(what)?;
            tokens.insert(self.number(what)?);
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

//! The discovery services (OPC 10000-4, 5.5 and 5.6) as bytes: requests out, answers in. Knows nothing of connections.
//!
//! Messages are written and read field by field. A library for all of OPC UA reads as deep as the bytes say and allocates what
//! they announce; the tests compare the bytes with such a library.

mod reader;
mod requests;

pub use requests::{
    close_secure_channel, find_servers, find_servers_on_network, get_endpoints, open_secure_channel,
};

use crate::status::Status;
use reader::{MAX_ENDPOINTS, Reader, read};

/// The most applications or records of one answer that are kept.
pub const MAX_LISTED: usize = 1_000;
/// Why an answer cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The server says no.
    #[error("the server answered {status}")]
    Fault {
        /// Why.
        status: Status,
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

impl Application {
    /// Where it is best asked: by the first URL of OPC UA's own protocol, else by the first.
    pub fn url(&self) -> Option<&str> {
        let listed = |prefix: &str| self.urls.iter().find(|url| url.starts_with(prefix));
        listed("opc.tcp").or_else(|| listed("")).map(String::as_str)
    }
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

/// The ids of the answers (OPC 10000-6, annex A).
const OPENED: u32 = 449;
const SERVERS: u32 = 425;
const ENDPOINTS: u32 = 431;
const RECORDS: u32 = 12_209;

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

#[cfg(test)]
mod tests;

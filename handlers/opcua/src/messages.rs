//! Encodes and decodes the discovery services (OPC 10000-4, 5.5 and 5.6). This module opens no connections.
//!
//! Messages are written and read field by field. A library for all of OPC UA recurses as deep as the bytes say and allocates
//! what they announce; the tests compare the bytes with such a library.

mod reader;
mod requests;

pub use requests::{
    close_secure_channel, find_servers, find_servers_on_network, get_endpoints, open_secure_channel,
};

use crate::status::Status;
use reader::{MAX_ENDPOINTS, Reader, read};

/// Maximum number of applications or records kept of one answer.
pub const MAX_LISTED: usize = 1_000;
/// Error of an answer that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// Fault returned by the server.
    #[error("the server answered {status}")]
    Fault {
        /// Status code of the fault.
        status: Status,
    },
    /// Answer to another request.
    #[error("the server answered message {0}, which is not what was asked for")]
    Other(u32),
    /// Malformed bytes.
    #[error("cannot read the answer: {what} ends early, is too long or is malformed")]
    Broken {
        /// Name of the field that could not be read.
        what: &'static str,
    },
}

/// Secure channel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Channel {
    /// Number of the channel.
    pub id: u32,
    /// Number of its token.
    pub token: u32,
}

/// Items listed in an answer, without duplicates.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct List<T> {
    /// Listed items.
    pub items: Vec<T>,
    /// True if there were more items than are kept.
    pub cut: bool,
}

/// Application, as in `ApplicationDescription` (OPC 10000-4, 7.2).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Application {
    /// URI of the installation; globally unique if its owner configured it so.
    pub uri: String,
    /// URI of the product.
    pub product: String,
    /// Name of the application.
    pub name: String,
    /// Type: 0 server, 1 client, 2 both, 3 discovery server.
    pub kind: u32,
    /// URLs at which it answers discovery services.
    pub urls: Vec<String>,
}

impl Application {
    /// Returns the preferred URL: the first with OPC UA's own protocol, otherwise the first.
    pub fn url(&self) -> Option<&str> {
        let listed = |prefix: &str| self.urls.iter().find(|url| url.starts_with(prefix));
        listed("opc.tcp").or_else(|| listed("")).map(String::as_str)
    }
}

/// Server that a discovery server knows from the network (OPC 10000-4, 5.5.3).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    /// URL at which it answers discovery services.
    pub url: String,
    /// Name of the server.
    pub name: String,
}

/// Endpoint of a server, as in `EndpointDescription` (OPC 10000-4, 7.14).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Endpoint {
    /// URI of the application behind the endpoint.
    pub application: String,
    /// Certificate in DER, possibly a chain.
    pub certificate: Vec<u8>,
    /// Security mode: 1 none, 2 sign, 3 sign and encrypt.
    pub mode: u32,
    /// URI of the security policy.
    pub policy: String,
    /// Token types: 0 anonymous, 1 user name, 2 certificate, 3 issued token.
    pub tokens: Vec<u32>,
}

/// Ids of the answers (OPC 10000-6, annex A).
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

/// Reads a list of applications.
pub fn servers(body: &[u8]) -> Result<List<Application>, Error> {
    read(body, SERVERS, |reader| {
        reader.list("list of servers", Reader::application)
    })
}

/// Reads a list of records.
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

/// Reads the first 64 endpoints and ignores the rest.
pub fn endpoints(body: &[u8]) -> Result<Vec<Endpoint>, Error> {
    read(body, ENDPOINTS, |reader| {
        let count = reader.count("list of endpoints")?;
        (0..count.min(MAX_ENDPOINTS))
            .map(|_| reader.endpoint())
            .collect()
    })
}

/// Reads the bytes as each of these answers, to show that no reader panics on them.
#[doc(hidden)]
pub fn read_all(body: &[u8]) {
    let _ = channel(body);
    let _ = servers(body);
    let _ = records(body);
    let _ = endpoints(body);
}

#[cfg(test)]
mod tests;

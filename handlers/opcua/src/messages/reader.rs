//! Reads answers field by field; announced lengths are checked against the available bytes before anything is stored.

use std::hash::{DefaultHasher, Hasher as _};

use super::{Application, Endpoint, Error, List, MAX_LISTED};
use crate::status::Status;

/// Maximum number of list items that are read, duplicates included.
const MAX_READ: usize = 16_000;
/// Maximum number of URLs kept of one application.
const MAX_URLS: usize = 16;
/// Maximum number of endpoints kept.
pub const MAX_ENDPOINTS: usize = 64;
/// Maximum number of token types of an endpoint.
const MAX_TOKENS: usize = 1_000;
/// Maximum number of bytes kept of a text.
const MAX_TEXT: usize = 16 * 1024;
/// Maximum number of bytes in a certificate, chains included.
const MAX_CERTIFICATE: usize = 64 * 1024;
/// Maximum nesting of diagnostics.
const MAX_DEPTH: usize = 16;
/// Id of `ServiceFault`.
pub const FAULT: u32 = 397;

/// Reads an answer of that id: its header, then the rest with `fields`.
pub fn read<T>(
    body: &[u8],
    answer: u32,
    fields: impl FnOnce(&mut Reader<'_>) -> Result<T, Error>,
) -> Result<T, Error> {
    let mut reader = Reader { rest: body };
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

/// Reader of the rest of an answer.
pub struct Reader<'a> {
    pub rest: &'a [u8],
}

impl Reader<'_> {
    /// Reads a byte string of at most `most` bytes; an absent one is empty.
    pub fn bytes(&mut self, most: usize, what: &'static str) -> Result<Vec<u8>, Error> {
        let length = self.count(what)?;
        let before = self.rest;
        self.skip(length, what)?;
        let bytes = before.get(..length).filter(|_| length <= most);
        Ok(bytes.ok_or(Error::Broken { what })?.to_vec())
    }

    /// Reads the number of a standard node; 0 for any other node (OPC 10000-6, 5.2.2.9).
    pub fn node_id(&mut self, what: &'static str) -> Result<u32, Error> {
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

    /// Reads a number.
    pub fn number(&mut self, what: &'static str) -> Result<u32, Error> {
        let (number, rest) = self
            .rest
            .split_first_chunk()
            .ok_or(Error::Broken { what })?;
        self.rest = rest;
        Ok(u32::from_le_bytes(*number))
    }

    /// Reads a byte.
    pub fn byte(&mut self, what: &'static str) -> Result<u8, Error> {
        let (byte, rest) = self.rest.split_first().ok_or(Error::Broken { what })?;
        self.rest = rest;
        Ok(*byte)
    }

    /// Skips bytes.
    pub fn skip(&mut self, count: usize, what: &'static str) -> Result<(), Error> {
        self.rest = self.rest.get(count..).ok_or(Error::Broken { what })?;
        Ok(())
    }

    /// Reads the length of a text or array; an absent one has length 0.
    pub fn count(&mut self, what: &'static str) -> Result<usize, Error> {
        match self.number(what)? {
            u32::MAX => Ok(0),
            count => usize::try_from(count).map_err(|_| Error::Broken { what }),
        }
    }

    /// Skips a text or a byte string.
    pub fn skip_bytes(&mut self, what: &'static str) -> Result<(), Error> {
        let length = self.count(what)?;
        self.skip(length, what)
    }

    /// Reads a text; an absent one is empty. A text that is too long or not UTF-8 is cut at that point: one server that
    /// registers with a discovery server must not make its whole list unreadable.
    pub fn text(&mut self, what: &'static str) -> Result<String, Error> {
        let before = self.rest;
        self.skip_bytes(what)?;
        let length = before.len() - self.rest.len();
        let text = before.get(4..length.min(4 + MAX_TEXT)).unwrap_or_default();
        let mut chunks = text.utf8_chunks();
        Ok(chunks.next().map_or("", |chunk| chunk.valid()).to_owned())
    }

    /// Reads the text of a localized text (OPC 10000-6, 5.2.2.14).
    pub fn localized(&mut self, what: &'static str) -> Result<String, Error> {
        let mask = self.byte(what)?;
        if mask & 1 != 0 {
            self.skip_bytes(what)?;
        }
        if mask & 2 != 0 {
            return self.text(what);
        }
        Ok(String::new())
    }

    /// Reads an array of texts, of which the first `most` are kept.
    pub fn texts(&mut self, what: &'static str, most: usize) -> Result<Vec<String>, Error> {
        let mut texts = Vec::new();
        for index in 0..self.count(what)? {
            if index < most {
                texts.push(self.text(what)?);
            } else {
                self.skip_bytes(what)?;
            }
        }
        Ok(texts)
    }

    /// Reads an array without duplicates. Items are equal if their bytes are equal.
    pub fn list<T>(
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
            // A peer that crafts a collision hides only its own items, so a fast digest is enough.
            let mut digest = DefaultHasher::new();
            digest.write(before.get(..length).unwrap_or_default());
            let bytes = digest.finish();
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

    /// Reads the service result and skips the rest of the header.
    pub fn response_header(&mut self) -> Result<Status, Error> {
        self.skip(8, "timestamp")?;
        self.number("request handle")?;
        let status = Status(self.number("service result")?);
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

    /// Skips diagnostics (OPC 10000-6, 5.2.2.12): four numbers, a text and a code, each if its bit is set, and possibly
    /// nested diagnostics.
    pub fn diagnostics(&mut self) -> Result<(), Error> {
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

    /// Reads an `ApplicationDescription`.
    pub fn application(&mut self) -> Result<Application, Error> {
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

    /// Reads an `EndpointDescription`.
    pub fn endpoint(&mut self) -> Result<Endpoint, Error> {
        self.text("endpoint URL")?;
        let server = self.application()?;
        let certificate = self.bytes(MAX_CERTIFICATE, "certificate")?;
        let mode = self.number("security mode")?;
        let policy = self.text("security policy")?;
        let mut tokens = Vec::new();
        let what = "user token policies";
        let count = self.count(what)?;
        if count > MAX_TOKENS {
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
            certificate,
            mode,
            policy,
            tokens,
        })
    }
}

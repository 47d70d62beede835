//! Requests for [`Host::http`](crate::Host::http), and their responses.

mod target;

use std::time::Duration;

pub(crate) use target::Target;

/// How long a request may take that does not say.
const LIMIT: Duration = Duration::from_secs(5);

/// How large a response may be for a request that does not say.
const MAX_BODY: usize = 256 << 10;

/// A request. One connection, one response: nothing is followed, nothing is sent again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request {
    /// The method, such as `POST`.
    pub method: String,
    /// The absolute URL, `http` or `https`, without user and password.
    pub url: String,
    /// The headers. None is added but `Host` and `Content-Length`.
    pub headers: Vec<(String, String)>,
    /// What is sent, with its length and in one piece.
    pub body: Vec<u8>,
    /// How long it may take from the start to the last byte of the response. 5 s unless said otherwise.
    pub limit: Duration,
    /// How many bytes the response's body may have. 256 KiB unless said otherwise.
    pub max_body: usize,
}

impl Request {
    /// Asks for what is there.
    pub fn get(url: impl Into<String>) -> Self {
        Self::new("GET", url, Vec::new())
    }

    /// Sends something.
    pub fn post(url: impl Into<String>, body: impl Into<Vec<u8>>) -> Self {
        Self::new("POST", url, body.into())
    }

    fn new(method: &str, url: impl Into<String>, body: Vec<u8>) -> Self {
        Self {
            method: method.to_owned(),
            url: url.into(),
            headers: Vec::new(),
            body,
            limit: LIMIT,
            max_body: MAX_BODY,
        }
    }

    /// One more header.
    #[must_use]
    pub fn header(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.headers.push((name.into(), value.into()));
        self
    }

    /// How long it may take, all of it.
    #[must_use]
    pub fn limit(mut self, limit: Duration) -> Self {
        self.limit = limit;
        self
    }

    /// How many bytes the response's body may have; more is [`Error::TooLarge`](crate::net::Error::TooLarge).
    #[must_use]
    pub fn max_body(mut self, bytes: usize) -> Self {
        self.max_body = bytes;
        self
    }

    /// The headers that go out: the author's, and the length of a body wherever one is expected.
    #[cfg(any(target_family = "wasm", test))]
    pub(crate) fn fields(&self) -> Vec<(&str, String)> {
        let authors = self.headers.iter();
        let mut fields: Vec<_> = authors
            .filter(|(name, _)| !name.eq_ignore_ascii_case("content-length"))
            .map(|(name, value)| (name.as_str(), value.clone()))
            .collect();
        if !self.body.is_empty() || !matches!(self.method.as_str(), "GET" | "HEAD" | "OPTIONS") {
            fields.push(("Content-Length", self.body.len().to_string()));
        }
        fields
    }
}

/// A response, whatever its status.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Response {
    /// The status, such as 200.
    pub status: u16,
    /// The headers in their order, with names in lower case. Bytes of a value that are no UTF-8 are replaced.
    pub headers: Vec<(String, String)>,
    /// All of the body.
    pub body: Vec<u8>,
}

impl Response {
    /// A response without headers.
    pub fn new(status: u16, body: impl Into<Vec<u8>>) -> Self {
        Self {
            status,
            headers: Vec::new(),
            body: body.into(),
        }
    }

    /// Reads the body as JSON, whatever the status: into a type with [`#[details]`](macro@crate::details), or into
    /// [`serde_json::Value`].
    ///
    /// # Errors
    /// What is wrong with the body, and where.
    pub fn json<T: serde::de::DeserializeOwned>(&self) -> serde_json::Result<T> {
        serde_json::from_slice(&self.body)
    }

    /// The value of the first header with this name, whatever the case of its letters.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers_named(name).next()
    }

    /// The values of all headers with this name.
    pub fn headers_named<'a>(&'a self, name: &str) -> impl Iterator<Item = &'a str> {
        self.headers
            .iter()
            .filter(move |(other, _)| other.eq_ignore_ascii_case(name))
            .map(|(_, value)| value.as_str())
    }
}

#[cfg(test)]
mod tests;

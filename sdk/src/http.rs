//! Requests for [`Host::http`](crate::Host::http), and their responses.

mod target;

use std::time::Duration;

pub(crate) use target::Target;

/// Default time limit of a request.
const LIMIT: Duration = Duration::from_secs(5);

/// Default size limit of a response's body.
const MAX_BODY: usize = 256 << 10;

/// HTTP request. It uses one connection for one response: no redirects, no retries.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request {
    /// Method, such as `POST`.
    pub method: String,
    /// Absolute URL with scheme `http` or `https`, without user and password.
    pub url: String,
    /// Headers. Leafhost adds only `Host`, `Connection: close`, and `Content-Length` where the method expects a body.
    pub headers: Vec<(String, String)>,
    /// Body, sent in one piece with its length.
    pub body: Vec<u8>,
    /// Time limit from the start to the last byte of the response; 5 s by default.
    pub limit: Duration,
    /// Maximum number of bytes in the response's body; 256 KiB by default.
    pub max_body: usize,
}

impl Request {
    /// Creates a GET request.
    pub fn get(url: impl Into<String>) -> Self {
        Self::new("GET", url, Vec::new())
    }

    /// Creates a POST request with a body.
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

    /// Adds a header.
    #[must_use]
    pub fn header(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.headers.push((name.into(), value.into()));
        self
    }

    /// Sets the time limit of the whole exchange.
    #[must_use]
    pub fn limit(mut self, limit: Duration) -> Self {
        self.limit = limit;
        self
    }

    /// Sets the upper bound of bytes in the response's body; a larger one fails with
    /// [`Error::TooLarge`](crate::net::Error::TooLarge).
    #[must_use]
    pub fn max_body(mut self, bytes: usize) -> Self {
        self.max_body = bytes;
        self
    }

    /// Returns the headers to send: the author's without `Content-Length`, which is computed wherever the method expects a
    /// body.
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

/// HTTP response with any status.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Response {
    /// Status code, such as 200.
    pub status: u16,
    /// Headers in the order received, with names in lower case. Bytes of a value that are not UTF-8 are replaced.
    pub headers: Vec<(String, String)>,
    /// Complete body.
    pub body: Vec<u8>,
}

impl Response {
    /// Creates a response without headers.
    pub fn new(status: u16, body: impl Into<Vec<u8>>) -> Self {
        Self {
            status,
            headers: Vec::new(),
            body: body.into(),
        }
    }

    /// Parses the body as JSON, whatever the status: into a type with [`#[details]`](macro@crate::details), or into
    /// [`serde_json::Value`].
    ///
    /// # Errors
    /// Fails if the body is not such JSON; the error says where.
    pub fn json<T: serde::de::DeserializeOwned>(&self) -> serde_json::Result<T> {
        serde_json::from_slice(&self.body)
    }

    /// Returns the value of the first header with this name; letter case is ignored.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers_named(name).next()
    }

    /// Returns the values of all headers with this name; letter case is ignored.
    pub fn headers_named<'a>(&'a self, name: &str) -> impl Iterator<Item = &'a str> {
        self.headers
            .iter()
            .filter(move |(other, _)| other.eq_ignore_ascii_case(name))
            .map(|(_, value)| value.as_str())
    }
}

#[cfg(test)]
mod tests;

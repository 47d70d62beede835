//! Parses the URL of a request.

use crate::net::Error;

/// URL split into the parts that a request needs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Target<'a> {
    pub tls: bool,
    /// Host and optional port, as written.
    pub authority: &'a str,
    pub path_with_query: String,
}

impl<'a> Target<'a> {
    pub fn parse(url: &'a str) -> Result<Self, Error> {
        let bad = |why| Error::Other(format!("URL {url:?} {why}"));
        if url.bytes().any(|c| c <= b' ' || c == 0x7f) {
            return Err(bad("has a space or control character"));
        }
        let (scheme, rest) = url.split_once("://").ok_or_else(|| bad("has no scheme"))?;
        let tls = scheme.eq_ignore_ascii_case("https");
        if !tls && !scheme.eq_ignore_ascii_case("http") {
            return Err(bad("is neither http nor https"));
        }
        let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
        let (authority, rest) = rest.split_at(end);
        if authority.contains('@') {
            return Err(bad("has a user"));
        }
        if authority.is_empty() || authority.starts_with(':') {
            return Err(bad("has no host"));
        }
        let path = rest.split('#').next().unwrap_or_default();
        let path_with_query = match path.chars().next() {
            Some('/') => path.to_owned(),
            _ => format!("/{path}"),
        };
        Ok(Self {
            tls,
            authority,
            path_with_query,
        })
    }

    /// Returns the host without brackets, and the port.
    #[cfg(not(target_family = "wasm"))]
    pub fn host_and_port(&self) -> (&'a str, u16) {
        let default = if self.tls { 443 } else { 80 };
        let (host, port) = match self.authority.rsplit_once(':') {
            Some((host, port)) if !port.contains(']') => (host, port.parse().unwrap_or(default)),
            _ => (self.authority, default),
        };
        let bare = host
            .strip_prefix('[')
            .and_then(|host| host.strip_suffix(']'));
        (bare.unwrap_or(host), port)
    }
}

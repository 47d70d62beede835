//! URLs as OPC UA servers write them. This module looks up no names.

use std::net::IpAddr;

/// Maximum number of bytes in a URL, which is that of a device's id.
pub const MAX_URL: usize = 1_024;
/// Port that the standard gives to `opc.tcp` (OPC 10000-6, 7.2).
const OPC_TCP_PORT: u16 = 4840;

/// Reason why a text is not the URL of a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// Text over the length limit.
    #[error("is longer than {MAX_URL} bytes")]
    Long,
    /// Character that no URL has.
    #[error("has a space, a control character or one outside ASCII")]
    Character,
    /// Text other than `scheme://…`.
    #[error("has no scheme")]
    Scheme,
    /// Missing or impossible host.
    #[error("has no host, or one that cannot be a host, such as one with a user or a zone")]
    Host,
    /// Invalid port.
    #[error("has a port that is not a number from 1 to 65535")]
    Port,
}

/// Parsed URL of a server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Url {
    text: String,
    scheme: String,
    host: Host,
    port: Option<u16>,
    /// Start and end of the path.
    path: (usize, usize),
}

/// Host of a URL.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Host {
    /// IP address.
    Address(IpAddr),
    /// Name in lower case.
    Name(String),
}

impl Url {
    /// Parses `scheme://host[:port][/path]`. The text is kept unchanged.
    pub fn parse(text: &str) -> Result<Self, Error> {
        if text.len() > MAX_URL {
            return Err(Error::Long);
        }
        if !text.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(Error::Character);
        }
        let (scheme, rest) = text.split_once(':').ok_or(Error::Scheme)?;
        let rest = rest.strip_prefix("//").ok_or(Error::Scheme)?;
        let in_scheme = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '+' | '-');
        if scheme.is_empty() || !scheme.chars().all(in_scheme) {
            return Err(Error::Scheme);
        }
        let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
        let (authority, behind) = rest.split_at_checked(end).ok_or(Error::Host)?;
        let (host, port) = split_port(authority)?;
        let begin = text.len() - behind.len();
        let length = behind.find(['?', '#']).unwrap_or(behind.len());
        Ok(Self {
            scheme: scheme.to_ascii_lowercase(),
            host: Host::parse(host)?,
            port,
            path: (begin, begin + length),
            text: text.to_owned(),
        })
    }

    /// Returns the URL as written.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// Returns the scheme in lower case.
    pub fn scheme(&self) -> &str {
        &self.scheme
    }

    /// Returns true if the scheme is OPC UA's own protocol.
    pub fn is_opc_tcp(&self) -> bool {
        self.scheme == "opc.tcp"
    }

    /// Returns the host.
    pub fn host(&self) -> &Host {
        &self.host
    }

    /// Returns the port, if it is written.
    pub fn explicit_port(&self) -> Option<u16> {
        self.port
    }

    /// Returns the port, or the default port of the scheme.
    pub fn port(&self) -> u16 {
        self.port.unwrap_or(match self.scheme.as_str() {
            "http" | "opc.ws" => 80,
            "https" | "opc.https" | "opc.wss" => 443,
            _ => OPC_TCP_PORT,
        })
    }

    /// Returns the part after host and port, without `?` and `#`.
    pub fn path(&self) -> &str {
        self.text.get(self.path.0..self.path.1).unwrap_or_default()
    }

    /// Returns `scheme://host:port` as written.
    pub fn authority(&self) -> &str {
        self.text.get(..self.path.0).unwrap_or_default()
    }

    /// Returns true if the host is written as a loopback address or name, without a lookup.
    pub fn is_loopback(&self) -> bool {
        self.host.is_loopback()
    }

    /// Returns this path on the host and port of `other`; without a path, `other` itself.
    pub fn at(&self, other: &Url) -> Result<Self, Error> {
        match self.path() {
            "" => Ok(other.clone()),
            path => Self::parse(&format!("{}{path}", other.authority())),
        }
    }

    /// Returns the same port and path on the host of `other`.
    pub fn with_host_of(&self, other: &Url) -> Result<Self, Error> {
        let (scheme, port, path) = (&self.scheme, self.port(), self.path());
        Self::parse(&format!("{scheme}://{}:{port}{path}", other.host.written()))
    }
}

/// Splits host and port. An IPv6 address must be in brackets.
fn split_port(authority: &str) -> Result<(&str, Option<u16>), Error> {
    if authority.contains('@') {
        return Err(Error::Host);
    }
    let (host, port) = match authority.rfind(']') {
        Some(end) => authority.split_at_checked(end + 1).ok_or(Error::Host)?,
        None if authority.starts_with('[') => return Err(Error::Host),
        None => authority.split_at(authority.find(':').unwrap_or(authority.len())),
    };
    if port.is_empty() {
        return Ok((host, None));
    }
    let digits = port.strip_prefix(':').ok_or(Error::Host)?;
    if !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(Error::Port);
    }
    match digits.parse() {
        Ok(0) | Err(_) => Err(Error::Port),
        Ok(port) => Ok((host, Some(port))),
    }
}

impl Host {
    fn parse(text: &str) -> Result<Self, Error> {
        if let Some(inner) = text.strip_prefix('[') {
            let address = inner.strip_suffix(']').and_then(|text| text.parse().ok());
            return address
                .map(|address| Self::Address(IpAddr::V6(address)))
                .ok_or(Error::Host);
        }
        if let Ok(address) = text.parse() {
            return Ok(Self::Address(IpAddr::V4(address)));
        }
        if text.is_empty() || text.contains(['[', ']', '\\']) {
            return Err(Error::Host);
        }
        Ok(Self::Name(text.to_ascii_lowercase()))
    }

    /// Returns the host in the form of a URL.
    pub fn written(&self) -> String {
        match self {
            Self::Address(IpAddr::V4(address)) => address.to_string(),
            Self::Address(IpAddr::V6(address)) => format!("[{address}]"),
            Self::Name(name) => name.clone(),
        }
    }

    /// Returns true if the host is written as a loopback address or name.
    pub fn is_loopback(&self) -> bool {
        match self {
            Self::Address(address) => is_loopback(*address),
            Self::Name(name) => {
                let name = name.strip_suffix('.').unwrap_or(name);
                name == "localhost" || name.ends_with(".localhost")
            }
        }
    }

    /// Returns true for the unspecified address: a server that listens on all addresses may list it.
    pub fn is_unspecified(&self) -> bool {
        matches!(self, Self::Address(address) if address.to_canonical().is_unspecified())
    }

    /// Returns true if the name has only characters and a length that a name server accepts.
    pub fn can_be_looked_up(&self) -> bool {
        match self {
            Self::Address(_) => false,
            Self::Name(name) => {
                name.len() <= 253
                    && name
                        .bytes()
                        .all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.'))
            }
        }
    }
}

/// Returns true if the address is a loopback address.
pub fn is_loopback(address: IpAddr) -> bool {
    address.to_canonical().is_loopback()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_is_read_into_its_parts() {
        for (text, scheme, host, port, path) in [
            (
                "opc.tcp://plc:4842/UA/Node",
                "opc.tcp",
                "plc",
                4842,
                "/UA/Node",
            ),
            ("OPC.TCP://PLC:4842", "opc.tcp", "plc", 4842, ""),
            ("opc.tcp://10.1.2.3", "opc.tcp", "10.1.2.3", 4840, ""),
            ("opc.tcp://10.1.2.3/", "opc.tcp", "10.1.2.3", 4840, "/"),
            (
                "opc.tcp://[fd00::7]:4841/a?b#c",
                "opc.tcp",
                "[fd00::7]",
                4841,
                "/a",
            ),
            ("opc.tcp://plc?x=/y", "opc.tcp", "plc", 4840, ""),
            ("https://plc/a", "https", "plc", 443, "/a"),
            ("opc.tcp://a_b.c.:1/", "opc.tcp", "a_b.c.", 1, "/"),
        ] {
            let url = Url::parse(text).unwrap();
            assert_eq!(url.as_str(), text);
            assert_eq!(url.scheme(), scheme, "{text}");
            assert_eq!(url.host().written(), host, "{text}");
            assert_eq!(url.port(), port, "{text}");
            assert_eq!(url.path(), path, "{text}");
        }
    }

    #[test]
    fn what_is_no_url_is_refused() {
        let long = format!("opc.tcp://{}", "a".repeat(MAX_URL));
        for (text, error) in [
            ("", Error::Scheme),
            ("plc:4840", Error::Scheme),
            ("://plc", Error::Scheme),
            ("a b://plc", Error::Character),
            ("opc_tcp://plc", Error::Scheme),
            ("opc.tcp://", Error::Host),
            ("opc.tcp:///path", Error::Host),
            ("opc.tcp://:4840", Error::Host),
            ("opc.tcp://user@plc:4840", Error::Host),
            ("opc.tcp://user:word@plc:4840", Error::Host),
            ("opc.tcp://[fe80::1%eth0]:4840", Error::Host),
            ("opc.tcp://[fe80::1%25eth0]:4840", Error::Host),
            ("opc.tcp://[fd00::7", Error::Host),
            ("opc.tcp://[fd00::7]x", Error::Host),
            ("opc.tcp://[plc]:1", Error::Host),
            ("opc.tcp://plc:", Error::Port),
            ("opc.tcp://plc:0", Error::Port),
            ("opc.tcp://plc:65536", Error::Port),
            ("opc.tcp://plc:+1", Error::Port),
            ("opc.tcp://fd00::7:4840", Error::Port),
            ("opc.tcp://plc\n:4840", Error::Character),
            ("opc.tcp://größe:4840", Error::Character),
            (long.as_str(), Error::Long),
        ] {
            assert_eq!(Url::parse(text), Err(error), "{text}");
        }
    }

    #[test]
    fn loopback_is_known_by_what_is_written() {
        for (host, loopback) in [
            ("localhost", true),
            ("LOCALHOST.", true),
            ("plc.localhost", true),
            ("127.1.2.3", true),
            ("[::1]", true),
            ("[::ffff:127.0.0.1]", true),
            ("localhost.example.com", false),
            ("128.0.0.1", false),
            ("0.0.0.0", false),
            ("[::]", false),
        ] {
            let url = Url::parse(&format!("opc.tcp://{host}:4840/")).unwrap();
            assert_eq!(url.is_loopback(), loopback, "{host}");
        }
    }

    #[test]
    fn a_path_moves_to_another_host() {
        for (listed, asked, at, with_host) in [
            (
                "opc.tcp://vm:4842/UA/Node",
                "opc.tcp://10.1.2.3:4840/",
                "opc.tcp://10.1.2.3:4840/UA/Node",
                "opc.tcp://10.1.2.3:4842/UA/Node",
            ),
            (
                "opc.tcp://vm/a",
                "opc.tcp://[fd00::7]:4840",
                "opc.tcp://[fd00::7]:4840/a",
                "opc.tcp://[fd00::7]:4840/a",
            ),
            (
                "opc.tcp://vm:4841/freeopcua/server/",
                "opc.tcp://plc:4841/freeopcua/server/",
                "opc.tcp://plc:4841/freeopcua/server/",
                "opc.tcp://plc:4841/freeopcua/server/",
            ),
            (
                "opc.tcp://vm:4841",
                "opc.tcp://plc:4840/a",
                "opc.tcp://plc:4840/a",
                "opc.tcp://plc:4841",
            ),
        ] {
            let (listed, asked) = (Url::parse(listed).unwrap(), Url::parse(asked).unwrap());
            assert_eq!(listed.at(&asked).unwrap().as_str(), at);
            assert_eq!(listed.with_host_of(&asked).unwrap().as_str(), with_host);
        }
    }
}

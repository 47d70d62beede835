//! URLs of streams and snapshots: the parts of a camera's URL that a workload is given. This module sends nothing.

use std::net::IpAddr;

use crate::xaddr::{self, Host};

/// Maximum number of bytes in a URL.
pub const MAX_BYTES: usize = 512;
/// Names of query parameters that hold a user or a password.
const SECRETS: [&str; 12] = [
    "user", "usr", "username", "loginuse", "account", "password", "passwd", "pass", "pwd", "psw",
    "passcode", "loginpas",
];
/// Prefixes of words in a path that show that a password follows.
const IN_PATH: [&str; 4] = ["password=", "passwd=", "pass=", "pwd="];

/// URL for a workload.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Link {
    /// URL without user and password, at the camera's address.
    pub url: String,
    /// Differences from the camera's URL.
    pub notes: Vec<String>,
}

/// Reason why a URL is not handed out. The texts contain no part of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// Text that is not a URL of the expected kind.
    #[error("the camera's URL has no usable form")]
    Form,
    /// URL with a password in its path.
    #[error("the camera's URL is left out: it has a password in its path")]
    Secret,
}

impl Link {
    /// Reads a URL of the camera at `at`. The URL must have one of the schemes.
    pub fn new(text: &str, schemes: &[&str], at: &Host) -> Result<Self, Error> {
        if text.len() > MAX_BYTES || !text.bytes().all(|b| b.is_ascii_graphic()) {
            return Err(Error::Form);
        }
        let (scheme, rest) = text.split_once("://").ok_or(Error::Form)?;
        let scheme = scheme.to_ascii_lowercase();
        if !schemes.contains(&scheme.as_str()) {
            return Err(Error::Form);
        }
        let mut notes = Vec::new();
        let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
        let (mut authority, path) = rest.split_at(end);
        if let Some((_, after)) = authority.rsplit_once('@') {
            authority = after;
            notes.push("the user in the camera's URL is left out".to_owned());
        }
        let named = xaddr::host(authority).map_err(|_| Error::Form)?;
        let authority = if named == *at {
            authority.to_owned()
        } else {
            notes.push(format!(
                "the camera's URL names the host {named}, and is given with the camera's address {at}"
            ));
            with_host(authority, at)
        };
        let path = path.split('#').next().unwrap_or_default();
        let (path, query) = path.split_once('?').unwrap_or((path, ""));
        let is_secret = |parameter: &&str| {
            let name = name(parameter).to_ascii_lowercase();
            SECRETS.contains(&name.as_str())
        };
        let (secret, kept): (Vec<&str>, Vec<&str>) = query.split('&').partition(is_secret);
        if !secret.is_empty() {
            notes.push("the user and password in the camera's URL are left out".to_owned());
        }
        let path = join(path, &kept);
        let lower = path.to_ascii_lowercase();
        let mut words = lower.split(|c: char| !c.is_ascii_alphanumeric() && c != '=');
        if words.any(|word| IN_PATH.iter().any(|start| word.starts_with(start))) {
            return Err(Error::Secret);
        }
        let url = format!("{scheme}://{authority}{path}");
        Ok(Self { url, notes })
    }
}

/// Returns the authority with another host and the same port.
fn with_host(authority: &str, host: &Host) -> String {
    let (_, after) = authority.rsplit_once(']').unwrap_or(("", authority));
    let port = after.split_once(':').map_or("", |(_, port)| port);
    let host = match host {
        Host::Ip(IpAddr::V6(ip)) => format!("[{ip}]"),
        host => host.to_string(),
    };
    if port.is_empty() {
        host
    } else {
        format!("{host}:{port}")
    }
}

/// Returns the names of the query parameters whose values differ; `None` if something else differs.
pub fn differences(one: &str, other: &str) -> Option<Vec<String>> {
    let (one, query) = one.split_once('?').unwrap_or((one, ""));
    let (other, other_query) = other.split_once('?').unwrap_or((other, ""));
    let (query, other_query): (Vec<_>, Vec<_>) =
        (query.split('&').collect(), other_query.split('&').collect());
    if one != other || query.len() != other_query.len() {
        return None;
    }
    let mut names = Vec::new();
    for (one, other) in query.into_iter().zip(other_query) {
        if name(one) != name(other) {
            return None;
        }
        if one != other {
            names.push(name(one).to_owned());
        }
    }
    Some(names)
}

/// Returns the URL without the query parameters of these names.
pub fn without(url: &str, names: &[String]) -> String {
    let (path, query) = url.split_once('?').unwrap_or((url, ""));
    let is_kept = |parameter: &&str| !names.iter().any(|other| other == name(parameter));
    join(path, &query.split('&').filter(is_kept).collect::<Vec<_>>())
}

fn name(parameter: &str) -> &str {
    parameter.split('=').next().unwrap_or_default()
}

fn join(path: &str, query: &[&str]) -> String {
    match query.join("&").as_str() {
        "" => path.to_owned(),
        query => format!("{path}?{query}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn link(text: &str) -> Result<Link, Error> {
        let at = Host::Ip("192.168.7.9".parse().unwrap());
        Link::new(text, &["rtsp", "rtsps"], &at)
    }

    #[test]
    fn a_url_of_the_camera_stays_as_it_is() {
        for text in [
            "rtsp://192.168.7.9:554/Streaming/Channels/101?transportmode=unicast&profile=Profile_1",
            "rtsp://192.168.7.9",
            "rtsps://192.168.7.9/a?b",
            "rtsp://192.168.7.9/bypass/1?compass=2",
        ] {
            let expected = Link {
                url: text.to_owned(),
                notes: Vec::new(),
            };
            assert_eq!(link(text), Ok(expected), "{text}");
        }
    }

    #[test]
    fn users_and_other_hosts_are_replaced_and_explained() {
        for (text, url, note) in [
            (
                "rtsp://admin:secret@192.168.7.9/a",
                "rtsp://192.168.7.9/a",
                "user",
            ),
            ("rtsp://a:b@c@192.168.7.9/a", "rtsp://192.168.7.9/a", "user"),
            (
                "rtsp://192.168.7.9/a?user=admin&channel=1&Password=secret",
                "rtsp://192.168.7.9/a?channel=1",
                "user and password",
            ),
            (
                "rtsp://192.168.7.9/a?pwd=secret",
                "rtsp://192.168.7.9/a",
                "password",
            ),
            (
                "RTSP://10.0.0.9:8554/a",
                "rtsp://192.168.7.9:8554/a",
                "10.0.0.9",
            ),
            (
                "rtsp://[2001:db8::9]:8554/a",
                "rtsp://192.168.7.9:8554/a",
                "2001:db8::9",
            ),
            ("rtsp://127.0.0.1/a", "rtsp://192.168.7.9/a", "127.0.0.1"),
            (
                "rtsp://evil.example/a",
                "rtsp://192.168.7.9/a",
                "evil.example",
            ),
        ] {
            let link = link(text).unwrap();
            assert_eq!(link.url, url);
            assert!(link.notes.iter().any(|one| one.contains(note)), "{link:?}");
            assert!(!format!("{link:?}").contains("secret"), "{link:?}");
        }
        let at = Host::Ip("2001:db8::9".parse().unwrap());
        let link = Link::new("rtsp://10.0.0.9:8554/a", &["rtsp"], &at).unwrap();
        assert_eq!(link.url, "rtsp://[2001:db8::9]:8554/a");
    }

    #[test]
    fn other_urls_are_left_out() {
        for (text, error) in [
            ("", Error::Form),
            ("http://192.168.7.9/a", Error::Form),
            ("rtsp:///a", Error::Form),
            ("rtsp://192.168.7.9/a b", Error::Form),
            ("rtsp://192.168.7.9:x/a", Error::Form),
            ("rtsp://admin:se/cret@192.168.7.9/a", Error::Form),
            (
                "rtsp://192.168.7.9/user=admin_password=tlJwpbo6_channel=1_stream=0.sdp?real_stream",
                Error::Secret,
            ),
            ("rtsp://192.168.7.9/a?b=c_PASSWORD=d", Error::Secret),
        ] {
            assert_eq!(link(text), Err(error), "{text}");
        }
        let long = format!("rtsp://192.168.7.9/{}", "a".repeat(MAX_BYTES));
        assert_eq!(link(&long), Err(Error::Form));
    }

    #[test]
    fn parameters_that_change_are_named_and_removed() {
        let names = |one, other| differences(one, other);
        assert_eq!(names("r://c/a?b=1", "r://c/a?b=1"), Some(Vec::new()));
        assert_eq!(names("r://c/a", "r://c/a"), Some(Vec::new()));
        let token = vec!["token".to_owned()];
        assert_eq!(
            names("r://c/a?b=1&token=2", "r://c/a?b=1&token=3"),
            Some(token.clone())
        );
        for (one, other) in [
            ("r://c/a", "r://c/b"),
            ("r://c/a?b=1", "r://c/a"),
            ("r://c/a?b=1", "r://c/a?c=1"),
        ] {
            assert_eq!(names(one, other), None, "{one} {other}");
        }
        assert_eq!(without("r://c/a?b=1&token=2", &token), "r://c/a?b=1");
        assert_eq!(without("r://c/a?token=2", &token), "r://c/a");
        assert_eq!(without("r://c/a", &token), "r://c/a");
    }
}

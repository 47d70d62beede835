//! HTTP Digest access authentication (RFC 7616, and RFC 2617 for older cameras): parses challenges and creates the answer.
//! `Basic` is not parsed as a challenge, so no server can request it.

use md5::Md5;
use sha2::{Digest as _, Sha256};

use super::{Credential, hex};

/// Maximum number of bytes in a header.
const MAX_HEADER: usize = 4 << 10;
/// Maximum number of headers that are read.
const MAX_HEADERS: usize = 8;

/// Hash algorithm of a challenge, in order of strength.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Algorithm {
    Md5,
    Sha256,
}

/// Digest challenge of a camera.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Challenge {
    realm: String,
    nonce: String,
    opaque: Option<String>,
    algorithm: Algorithm,
    /// Algorithm as the camera wrote it, to be repeated in the answer; older cameras may not know the parameter.
    spelled: Option<String>,
    is_session: bool,
    /// True if `auth` is offered; without any `qop` the answer is that of RFC 2069.
    has_qop: bool,
    /// True if the camera rejected only a stale nonce, and not the password.
    pub is_stale: bool,
}

impl Challenge {
    /// Returns the strongest supported challenge from the values of all `WWW-Authenticate` headers.
    pub fn strongest<'a>(headers: impl IntoIterator<Item = &'a str>) -> Option<Self> {
        headers
            .into_iter()
            .take(MAX_HEADERS)
            .filter(|header| header.len() <= MAX_HEADER)
            .flat_map(split)
            .filter_map(|(scheme, parameters)| Self::new(&scheme, &parameters))
            .reduce(|best, other| {
                if other.algorithm > best.algorithm {
                    other
                } else {
                    best
                }
            })
    }

    fn new(scheme: &str, parameters: &[(String, String)]) -> Option<Self> {
        let get = |name: &str| {
            parameters
                .iter()
                .find_map(|(other, value)| other.eq_ignore_ascii_case(name).then(|| value.clone()))
        };
        if !scheme.eq_ignore_ascii_case("digest") {
            return None;
        }
        let spelled = get("algorithm");
        let (algorithm, is_session) =
            match spelled.as_deref().map(str::to_ascii_lowercase).as_deref() {
                None | Some("md5") => (Algorithm::Md5, false),
                Some("md5-sess") => (Algorithm::Md5, true),
                Some("sha-256") => (Algorithm::Sha256, false),
                Some("sha-256-sess") => (Algorithm::Sha256, true),
                Some(_) => return None,
            };
        let qop = get("qop");
        let has_qop = match &qop {
            Some(offered) => offered
                .split(',')
                .any(|one| one.trim().eq_ignore_ascii_case("auth"))
                .then_some(true)?,
            None => false,
        };
        Some(Self {
            realm: get("realm")?,
            nonce: get("nonce")?,
            opaque: get("opaque"),
            algorithm,
            spelled,
            is_session,
            has_qop,
            is_stale: get("stale").is_some_and(|stale| stale.eq_ignore_ascii_case("true")),
        })
    }

    /// Returns true if another challenge has the same nonce.
    pub fn has_nonce_of(&self, other: &Self) -> bool {
        self.nonce == other.nonce
    }

    /// Returns the `Authorization` header for request number `count` with this challenge. `cnonce` must be new for every
    /// answer.
    pub fn answer(
        &self,
        credential: &Credential,
        (method, uri): (&str, &str),
        cnonce: &str,
        count: u32,
    ) -> String {
        let Credential { user, password } = credential;
        let Self { realm, nonce, .. } = self;
        let mut secret = self.hash(&format!("{user}:{realm}:{password}"));
        if self.is_session {
            secret = self.hash(&format!("{secret}:{nonce}:{cnonce}"));
        }
        let request = self.hash(&format!("{method}:{uri}"));
        let response = if self.has_qop {
            self.hash(&format!(
                "{secret}:{nonce}:{count:08x}:{cnonce}:auth:{request}"
            ))
        } else {
            self.hash(&format!("{secret}:{nonce}:{request}"))
        };
        let mut header = format!(
            "Digest username={}, realm={}, nonce={}, uri={}, response=\"{response}\"",
            quoted(user),
            quoted(realm),
            quoted(nonce),
            quoted(uri)
        );
        let mut add = |text: &str| header.push_str(text);
        if let Some(spelled) = &self.spelled {
            let is_plain = |c: &char| c.is_ascii_alphanumeric() || *c == '-';
            add(", algorithm=");
            add(&spelled.chars().filter(is_plain).collect::<String>());
        }
        if let Some(opaque) = &self.opaque {
            add(", opaque=");
            add(&quoted(opaque));
        }
        if self.has_qop {
            add(&format!(", qop=auth, nc={count:08x}"));
        }
        if self.has_qop || self.is_session {
            add(", cnonce=");
            add(&quoted(cnonce));
        }
        header
    }

    fn hash(&self, text: &str) -> String {
        match self.algorithm {
            Algorithm::Md5 => hex(&Md5::digest(text)),
            Algorithm::Sha256 => hex(&Sha256::digest(text)),
        }
    }
}

fn quoted(text: &str) -> String {
    format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\""))
}

/// Splits one header into challenges, each with its scheme and parameters. A comma separates challenges as well as the
/// parameters of one: a word without `=` begins a challenge.
fn split(header: &str) -> Vec<(String, Vec<(String, String)>)> {
    let mut challenges: Vec<(String, Vec<(String, String)>)> = Vec::new();
    let mut rest = header;
    loop {
        rest = rest.trim_start_matches([' ', '\t', ',']);
        let end = rest.find([' ', '\t', ',', '=']).unwrap_or(rest.len());
        let (word, after) = rest.split_at(end);
        if after.is_empty() && word.is_empty() {
            return challenges;
        }
        if let Some(after) = after.trim_start_matches([' ', '\t']).strip_prefix('=') {
            let (value, after) = value(after.trim_start_matches([' ', '\t']));
            if let Some((_, parameters)) = challenges.last_mut() {
                parameters.push((word.to_owned(), value));
            }
            rest = after;
        } else {
            challenges.push((word.to_owned(), Vec::new()));
            rest = after;
        }
    }
}

/// Parses a token or quoted string; returns it and the rest.
fn value(text: &str) -> (String, &str) {
    let Some(quoted) = text.strip_prefix('"') else {
        let end = text.find([' ', '\t', ',']).unwrap_or(text.len());
        let (value, rest) = text.split_at(end);
        return (value.to_owned(), rest);
    };
    let mut value = String::new();
    let mut characters = quoted.chars();
    while let Some(c) = characters.next() {
        match c {
            '"' => break,
            '\\' => value.extend(characters.next()),
            c => value.push(c),
        }
    }
    (value, characters.as_str())
}

#[cfg(test)]
mod tests;

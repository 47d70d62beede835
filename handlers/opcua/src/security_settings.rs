//! Security settings of a server's endpoints.

use sha2::{Digest, Sha256};

use crate::messages::Endpoint;

/// Maximum number of policies of a server; the standard has less than half as many.
const MAX_POLICIES: usize = 16;
/// Maximum number of bytes in a URI that is stored.
const MAX_URI: usize = 512;

/// Security settings of all endpoints of one server.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SecuritySettings {
    /// URI of the application that answers.
    pub application: String,
    /// SHA-256 of its certificate in hexadecimal digits; empty if it has none.
    pub certificate: String,
    /// Security modes: 1 none, 2 sign, 3 sign and encrypt.
    pub modes: Kinds,
    /// Names of security policies, the part after `#` of their URIs, sorted.
    pub policies: Vec<String>,
    /// Token types: 0 anonymous, 1 user name, 2 certificate, 3 issued token.
    pub tokens: Kinds,
}

/// Set of numbers from 0 to 7, by which the standard identifies modes and token types.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Kinds(u8);

impl Kinds {
    /// Adds a number; other numbers are ignored.
    pub fn add(&mut self, kind: u32) {
        self.0 |= 1_u8.checked_shl(kind).unwrap_or_default();
    }

    /// Returns true if the set contains the number.
    pub fn contains(self, kind: u32) -> bool {
        self.0 & 1_u8.checked_shl(kind).unwrap_or_default() != 0
    }
}

impl SecuritySettings {
    /// Summarizes endpoints; returns `None` if there are none.
    pub fn of(endpoints: &[Endpoint]) -> Option<Self> {
        let first = endpoints.first()?;
        let mut settings = Self::default();
        let uri = &first.application;
        if uri.len() <= MAX_URI && !uri.chars().any(char::is_control) {
            settings.application.clone_from(&first.application);
        }
        for endpoint in endpoints {
            settings.modes.add(endpoint.mode);
            for token in &endpoint.tokens {
                settings.tokens.add(*token);
            }
            if let Some(policy) = policy(&endpoint.policy)
                && let Err(index) = settings.policies.binary_search(&policy)
                && settings.policies.len() < MAX_POLICIES
            {
                settings.policies.insert(index, policy);
            }
            if settings.certificate.is_empty() {
                settings.certificate = digest(&endpoint.certificate).unwrap_or_default();
            }
        }
        Some(settings)
    }

    /// Encodes the settings as text with tabs as separators.
    pub fn write(&self) -> String {
        let (modes, tokens, policies) = (self.modes.0, self.tokens.0, self.policies.join(" "));
        let (application, certificate) = (&self.application, &self.certificate);
        format!("{application}\t{certificate}\t{modes}\t{tokens}\t{policies}")
    }

    /// Decodes the output of [`write`](Self::write).
    pub fn read<'a>(mut fields: impl Iterator<Item = &'a str>) -> Option<Self> {
        Some(Self {
            application: fields.next()?.to_owned(),
            certificate: fields.next()?.to_owned(),
            modes: Kinds(fields.next()?.parse().ok()?),
            tokens: Kinds(fields.next()?.parse().ok()?),
            policies: fields
                .next()?
                .split_whitespace()
                .map(str::to_owned)
                .collect(),
        })
    }
}

/// Returns the name in a policy's URI: `Basic256Sha256` for `http://opcfoundation.org/UA/SecurityPolicy#Basic256Sha256`.
fn policy(uri: &str) -> Option<String> {
    let (_, name) = uri.rsplit_once('#')?;
    let is_name = (1..=26).contains(&name.len())
        && name
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
    is_name.then(|| name.to_owned())
}

/// Returns the SHA-256 of the first certificate of a chain, which is the server's own.
fn digest(chain: &[u8]) -> Option<String> {
    let first = chain.get(..der_length(chain)?)?;
    let digest = Sha256::digest(first);
    Some(digest.iter().map(|byte| format!("{byte:02x}")).collect())
}

/// Returns the length of the DER sequence at the beginning, header included.
fn der_length(bytes: &[u8]) -> Option<usize> {
    let [0x30, length, rest @ ..] = bytes else {
        return None;
    };
    if *length < 0x80 {
        return Some(2 + usize::from(*length));
    }
    let count = usize::from(*length & 0x7f);
    let digits = rest
        .get(..count)
        .filter(|digits| (1..=4).contains(&digits.len()))?;
    let length = digits
        .iter()
        .fold(0_u64, |length, digit| (length << 8) | u64::from(*digit));
    usize::try_from(length).ok()?.checked_add(2 + count)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn endpoint(mode: u32, policy: &str, certificate: &[u8]) -> Endpoint {
        Endpoint {
            application: "urn:plc".to_owned(),
            certificate: certificate.to_vec(),
            mode,
            policy: policy.to_owned(),
            tokens: vec![0, 1, 77],
        }
    }

    #[test]
    fn endpoints_are_summarized() {
        let settings = SecuritySettings::of(&[
            endpoint(1, "http://opcfoundation.org/UA/SecurityPolicy#None", &[]),
            endpoint(
                3,
                "http://opcfoundation.org/UA/SecurityPolicy#Basic256Sha256",
                &[0x30, 1, 7],
            ),
            endpoint(9, "http://example.com/no-name", &[0x30, 1, 8]),
            endpoint(2, "#not a name", &[]),
        ])
        .unwrap();
        assert_eq!(settings.application, "urn:plc");
        assert!([1, 2, 3].iter().all(|mode| settings.modes.contains(*mode)));
        assert!(!settings.modes.contains(0) && !settings.modes.contains(9));
        assert_eq!(settings.policies, ["Basic256Sha256", "None"]);
        assert!(
            settings.tokens.contains(1)
                && !settings.tokens.contains(2)
                && !settings.tokens.contains(77)
        );
        assert_eq!(settings.certificate.len(), 64);
        assert_eq!(SecuritySettings::of(&[]), None);
        assert_eq!(
            SecuritySettings::read(settings.write().split('\t')),
            Some(settings)
        );
        assert_eq!(SecuritySettings::read("a\tb\tc".split('\t')), None);
    }

    #[test]
    fn the_digest_is_that_of_the_first_certificate_of_a_chain() {
        let alone = digest(&[0x30, 0x81, 2, 1, 2]);
        assert!(alone.is_some());
        assert_eq!(digest(&[0x30, 0x81, 2, 1, 2, 0x30, 1, 9]), alone);
        for broken in [
            &[][..],
            &[0x30],
            &[0x31, 1, 1],
            &[0x30, 2, 1],
            &[0x30, 0x80, 1],
            &[0x30, 0x85, 0, 0, 0, 0, 1, 1],
            &[0x30, 0x84, 0xff, 0xff, 0xff, 0xff, 1],
        ] {
            assert_eq!(digest(broken), None, "{broken:?}");
        }
    }
}

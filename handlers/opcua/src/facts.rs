//! What a server's endpoints say of its security. Decides nothing.

use std::collections::BTreeSet;

use leafhost_sdk::Deserialize;
use leafhost_sdk::serde::Serialize;
use sha2::{Digest, Sha256};

use crate::messages::Endpoint;

/// The most policies of a server; the standard has not half as many.
const MAX_POLICIES: usize = 16;
/// The longest URI that is remembered.
const MAX_URI: usize = 512;

/// What the endpoints of one server have in common.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(crate = "leafhost_sdk::serde")]
pub struct Facts {
    /// The URI of the application that answers.
    pub application: String,
    /// SHA-256 of its certificate, in hexadecimal digits; empty if it has none.
    pub certificate: String,
    /// 1 none, 2 sign, 3 sign and encrypt.
    pub modes: BTreeSet<u32>,
    /// Names of security policies, as they stand behind the `#` of their URIs.
    pub policies: BTreeSet<String>,
    /// 0 anonymous, 1 user name, 2 certificate, 3 issued token.
    pub tokens: BTreeSet<u32>,
}

impl Facts {
    /// What these endpoints say; without endpoints nothing is known.
    pub fn of(endpoints: &[Endpoint]) -> Option<Self> {
        let first = endpoints.first()?;
        let mut facts = Self::default();
        if first.application.len() <= MAX_URI {
            facts.application.clone_from(&first.application);
        }
        for endpoint in endpoints {
            let known = |code: &u32| *code <= 3;
            facts.modes.extend(Some(endpoint.mode).filter(known));
            facts
                .tokens
                .extend(endpoint.tokens.iter().filter(|code| known(code)));
            if facts.policies.len() < MAX_POLICIES {
                facts.policies.extend(policy(&endpoint.policy));
            }
            if facts.certificate.is_empty() {
                facts.certificate = digest(&endpoint.certificate).unwrap_or_default();
            }
        }
        Some(facts)
    }
}

/// `Basic256Sha256` of `http://opcfoundation.org/UA/SecurityPolicy#Basic256Sha256`.
fn policy(uri: &str) -> Option<String> {
    let (_, name) = uri.rsplit_once('#')?;
    let is_name = (1..=26).contains(&name.len())
        && name
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
    is_name.then(|| name.to_owned())
}

/// The SHA-256 of the first certificate of a chain: that of the server itself.
fn digest(chain: &[u8]) -> Option<String> {
    let first = chain.get(..der_length(chain)?)?;
    let digest = Sha256::digest(first);
    Some(digest.iter().map(|byte| format!("{byte:02x}")).collect())
}

/// How long the DER sequence at the beginning is, its header included.
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
            tokens: [0, 1, 77].into(),
        }
    }

    #[test]
    fn endpoints_are_summed_up() {
        let facts = Facts::of(&[
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
        assert_eq!(facts.application, "urn:plc");
        assert_eq!(facts.modes, [1, 2, 3].into());
        assert_eq!(
            facts.policies,
            ["Basic256Sha256".to_owned(), "None".to_owned()].into()
        );
        assert_eq!(facts.tokens, [0, 1].into());
        assert_eq!(facts.certificate.len(), 64);
        assert_eq!(Facts::of(&[]), None);
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

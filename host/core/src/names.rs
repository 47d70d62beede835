//! Validated names of Configurations, handlers, Instances and CDI devices.
//!
//! The formats are Akri's, so that brokers and tools written for it keep working.

use std::fmt;

use blake2::digest::consts::{U3, U5, U8};
use blake2::{Blake2b, Digest};

/// API group and version of Configurations and Instances.
pub const API_VERSION: &str = "akri.sh/v0";
/// API group; also the vendor of CDI devices and the prefix of extended resources.
pub const GROUP: &str = "akri.sh";
/// Maximum length of the name of a Kubernetes object, in bytes.
const MAX_NAME: usize = 253;
/// Maximum length of a digest in a name, in bytes: every Configuration name leaves room for `-` and 16 hex digits.
const MAX_DIGEST: usize = 8;

/// Error for a text that is not a valid name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{what} {text:?} {rule}")]
pub struct InvalidName {
    /// Kind of name that was expected.
    pub what: &'static str,
    /// Rejected text.
    pub text: String,
    /// Rule that the text breaks.
    pub rule: &'static str,
}

/// Namespace and name of a Configuration.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConfigurationKey {
    namespace: String,
    name: String,
}

impl ConfigurationKey {
    /// Validates both parts: the namespace must be a DNS label, the name a DNS subdomain that leaves room for the
    /// `-<hash>` of an Instance.
    pub fn new(namespace: &str, name: &str) -> Result<Self, InvalidName> {
        if namespace.len() > 63 || !is_dns_part(namespace) {
            return Err(InvalidName {
                what: "namespace",
                text: namespace.to_owned(),
                rule: "is not 1 to 63 lower-case letters, digits and '-'",
            });
        }
        if !is_dns_subdomain(name, MAX_NAME - 1 - 2 * MAX_DIGEST) {
            return Err(InvalidName {
                what: "Configuration name",
                text: name.to_owned(),
                rule: "is not 1 to 236 lower-case letters, digits, '-' and '.', each part between dots beginning and ending with a letter or digit",
            });
        }
        Ok(Self {
            namespace: namespace.to_owned(),
            name: name.to_owned(),
        })
    }

    /// Returns the namespace.
    pub fn namespace(&self) -> &str {
        &self.namespace
    }

    /// Returns the name within the namespace.
    pub fn name(&self) -> &str {
        &self.name
    }
}

impl fmt::Display for ConfigurationKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// Returns true if `text` is a valid name of a discovery handler: 1 to 63 letters, digits, `-`, `_`, `.`, with a letter
/// or digit at both ends. Case matters: `debugEcho` is Akri's.
pub fn is_handler_name(text: &str) -> bool {
    let inner = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    text.len() <= 63
        && text.chars().all(inner)
        && text.starts_with(|c: char| c.is_ascii_alphanumeric())
        && text.ends_with(|c: char| c.is_ascii_alphanumeric())
}

/// Returns true if `text` is a valid node name: a DNS subdomain of at most 253 bytes.
pub fn is_node_name(text: &str) -> bool {
    is_dns_subdomain(text, MAX_NAME)
}

/// Returns true if `text` is a valid name of an environment variable: `[A-Za-z_][A-Za-z0-9_]*`.
pub fn is_env_name(text: &str) -> bool {
    text.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
        && text.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_')
}

/// Returns true if `text` is a valid name of a device property: like an environment variable, but with `-` allowed,
/// because `KubeVirt` looks for `PCI_RESOURCE_…` with the dashes of the resource name.
pub fn is_property_name(text: &str) -> bool {
    text.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
        && text
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'-'))
}

fn is_dns_subdomain(text: &str, longest: usize) -> bool {
    text.len() <= longest && text.split('.').all(is_dns_part)
}

fn is_dns_part(text: &str) -> bool {
    !text.is_empty()
        && text
            .bytes()
            .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-')
        && !text.starts_with('-')
        && !text.ends_with('-')
}

/// Length of the BLAKE2b digest of a device in the name of its Instance.
///
/// Three bytes, as in Akri, can collide; the device that loses gets the next longer digest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum DigestLength {
    /// Three bytes, as in Akri.
    Three,
    /// Five bytes, used after a first collision.
    Five,
    /// Eight bytes, used after a second collision.
    Eight,
}

impl DigestLength {
    /// All lengths, from short to long.
    pub const ALL: [Self; 3] = [Self::Three, Self::Five, Self::Eight];

    /// Returns the number of hex digits in a name.
    pub fn digits(self) -> usize {
        match self {
            Self::Three => 6,
            Self::Five => 10,
            Self::Eight => 16,
        }
    }
}

/// Returns the hash of a device: lower-case hex of BLAKE2b over the id, for a local device over id and node name. The
/// digest length is a parameter of the hash function; the digest is not truncated.
///
/// Source: Akri, `agent/src/discovery_handler_manager`, checked against its test vectors.
pub fn device_hash(id: &str, local_to: Option<&str>, length: DigestLength) -> String {
    let node = local_to.unwrap_or_default();
    match length {
        DigestLength::Three => hex::<Blake2b<U3>>(id, node),
        DigestLength::Five => hex::<Blake2b<U5>>(id, node),
        DigestLength::Eight => hex::<Blake2b<U8>>(id, node),
    }
}

fn hex<D: Digest>(id: &str, node: &str) -> String {
    let digest = D::new().chain_update(id).chain_update(node).finalize();
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Returns `<configuration>-<hash>`.
pub fn instance_name(configuration: &str, hash: &str) -> String {
    format!("{configuration}-{hash}")
}

/// Returns `akri.sh/<configuration>=<hash>`.
pub fn cdi_name(configuration: &str, hash: &str) -> String {
    format!("{GROUP}/{configuration}={hash}")
}

/// Returns a name as a label value, which has at most 63 bytes.
pub fn label_value(name: &str) -> String {
    shortened(name, 63)
}

/// Returns a name unchanged up to `most` bytes, otherwise its beginning and a digest.
pub fn shortened(name: &str, most: usize) -> String {
    if name.len() <= most {
        return name.to_owned();
    }
    let head: String = name.chars().take(most.saturating_sub(17)).collect();
    format!("{}-{}", head.trim_end_matches(['-', '.']), digest(name))
}

/// Returns 16 hex digits derived from a text.
pub fn digest(text: &str) -> String {
    device_hash(text, None, DigestLength::Eight)
}

/// Returns the name of the DeviceClass for the devices of a Configuration.
pub fn class_name(configuration: &str) -> String {
    format!("{configuration}.{GROUP}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hashes_are_those_of_akri() {
        for (id, node, hash) in [
            ("foo0", None, "8120fe"),
            ("foo1", None, "a19705"),
            ("bar0", None, "d46b65"),
            ("bar1", None, "ab76e6"),
            ("dev_1", None, "cb2ad7"),
            ("my_local_device", Some("my_node"), "e77db4"),
        ] {
            assert_eq!(device_hash(id, node, DigestLength::Three), hash, "{id}");
        }
    }

    #[test]
    fn a_longer_digest_is_another_one_and_not_a_longer_text() {
        let short = device_hash("foo0", None, DigestLength::Three);
        let long = device_hash("foo0", None, DigestLength::Five);
        for length in DigestLength::ALL {
            assert_eq!(device_hash("foo0", None, length).len(), length.digits());
        }
        assert!(!long.starts_with(&short));
    }

    #[test]
    fn ten_thousand_devices_collide_in_three_bytes_and_not_in_five() {
        let distinct = |length| {
            let hashes: std::collections::BTreeSet<_> = (0..10_000)
                .map(|n| device_hash(&format!("device-{n}"), None, length))
                .collect();
            hashes.len()
        };
        assert!((9_985..10_000).contains(&distinct(DigestLength::Three)));
        assert_eq!(distinct(DigestLength::Five), 10_000);
    }

    #[test]
    fn a_property_may_have_the_dashes_of_a_resource() {
        for (name, env, property) in [
            ("UDEV_DEVNODE_0", true, true),
            ("_a", true, true),
            ("PCI_RESOURCE_AKRI_SH_UDEV-GPU", false, true),
            ("-A", false, false),
            ("0A", false, false),
            ("A=B", false, false),
            ("A.B", false, false),
            ("", false, false),
        ] {
            assert_eq!(
                (is_env_name(name), is_property_name(name)),
                (env, property),
                "{name}"
            );
        }
    }

    #[test]
    fn names_follow_kubernetes() {
        for (namespace, name, good) in [
            ("default", "udev-video", true),
            ("default", "a.b", true),
            ("default", "t", true),
            ("default", "", false),
            ("default", "Video", false),
            ("default", "a..b", false),
            ("default", "-a", false),
            ("default", "a_b", false),
            ("a.b", "a", false),
            ("default", &"a".repeat(236), true),
            ("default", &"a".repeat(237), false),
        ] {
            assert_eq!(
                ConfigurationKey::new(namespace, name).is_ok(),
                good,
                "{namespace}/{name}"
            );
        }
    }

    #[test]
    fn label_values_never_exceed_63_bytes() {
        assert_eq!(label_value("node-1"), "node-1");
        let long = "n".repeat(200);
        assert_eq!(label_value(&long).len(), 63);
        assert_ne!(label_value(&long), label_value(&"n".repeat(201)));
    }
}

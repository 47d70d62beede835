//! Authentication without sending the password: the username token of WS-Security and HTTP digest. Nothing here can
//! send a password as text.

pub mod credentials;
pub mod digest;
pub mod token;

use std::fmt;

/// A name and its password. Not shown by anything.
#[derive(Clone, PartialEq, Eq)]
pub struct Credential {
    /// The name.
    pub user: String,
    /// The password, perhaps empty.
    pub password: String,
}

impl fmt::Debug for Credential {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Credential")
    }
}

/// Bytes as lower-case hexadecimal digits.
fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

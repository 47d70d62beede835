//! Authentication without sending the password: the username token of WS-Security and HTTP digest. No code here can send a
//! password as text.

pub mod credentials;
pub mod digest;
pub mod token;

use std::fmt;

/// User name and password. `Debug` does not show them.
#[derive(Clone, PartialEq, Eq)]
pub struct Credential {
    /// User name.
    pub user: String,
    /// Password; may be empty.
    pub password: String,
}

impl fmt::Debug for Credential {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Credential")
    }
}

/// Formats bytes as lower-case hexadecimal digits.
fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

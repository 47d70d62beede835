//! The seal on native code: a keyed digest of name and content in front of the code. Does not know files.

use blake2::Blake2bMac;
use blake2::digest::consts::U32;
use blake2::digest::{KeyInit as _, Mac as _};

type Authenticator = Blake2bMac<U32>;

/// Length of the key, in bytes.
pub const KEY: usize = 64;
/// Length of the digest in front of the native code, in bytes.
pub const HEAD: usize = 32;

/// Creates and verifies seals with a key.
#[derive(Clone, PartialEq, Eq)]
pub struct Seal {
    key: [u8; KEY],
}

impl Seal {
    /// Creates a seal with this key.
    pub fn new(key: [u8; KEY]) -> Self {
        Self { key }
    }

    /// Returns the digest that precedes `code` in the file of that name.
    pub fn head(&self, name: &str, code: &[u8]) -> [u8; HEAD] {
        self.authenticator(name, code)
            .finalize()
            .into_bytes()
            .into()
    }

    /// Returns the code in the content of a file if it was sealed with this key under this name.
    pub fn verify<'a>(&self, name: &str, content: &'a [u8]) -> Option<&'a [u8]> {
        let (head, code) = content.split_at_checked(HEAD)?;
        self.authenticator(name, code).verify_slice(head).ok()?;
        Some(code)
    }

    fn authenticator(&self, name: &str, code: &[u8]) -> Authenticator {
        let mut authenticator = Authenticator::new(&self.key.into());
        authenticator.update(name.as_bytes());
        authenticator.update(&[0]);
        authenticator.update(code);
        authenticator
    }
}

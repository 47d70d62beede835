//! The seal on native code: a keyed digest of its name and content before it. Knows no file.

use blake2::Blake2bMac;
use blake2::digest::consts::U32;
use blake2::digest::{KeyInit as _, Mac as _};

type Authenticator = Blake2bMac<U32>;

/// The bytes of the key.
pub const KEY: usize = 64;
/// The bytes before the native code: the keyed digest.
pub const HEAD: usize = 32;

/// Whoever has the key makes seals and tells them from others'.
#[derive(Clone, PartialEq, Eq)]
pub struct Seal {
    key: [u8; KEY],
}

impl std::fmt::Debug for Seal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Seal").finish_non_exhaustive()
    }
}

impl Seal {
    /// With this key.
    pub fn new(key: [u8; KEY]) -> Self {
        Self { key }
    }

    /// What stands before `code` in the file of that name.
    pub fn head(&self, name: &str, code: &[u8]) -> [u8; HEAD] {
        self.authenticator(name, code)
            .finalize()
            .into_bytes()
            .into()
    }

    /// The code in the content of the file of that name, if it was sealed with this key under this name.
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

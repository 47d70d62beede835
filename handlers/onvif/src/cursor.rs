//! What the next call should know: the cameras that were asked, and what they said. A call without it finds the same
//! cameras, only slower.

use std::collections::BTreeMap;

use leafhost_sdk::serde::{Deserialize, Serialize};

use crate::soap;

/// The largest cursor that is written, in bytes.
const MAX_BYTES: usize = 1 << 20;
/// How many cameras are remembered.
const MAX_CAMERAS: usize = 2_000;
/// How many addresses that did not answer are remembered.
const MAX_FAILED: usize = 1_000;
/// Says what the bytes mean.
const VERSION: u8 = 1;

/// A moment: milliseconds of the host's monotonic clock.
pub type Moment = u64;

/// What is remembered.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(crate = "leafhost_sdk::serde")]
pub struct Cursor {
    version: u8,
    /// When everything was last probed.
    pub probed: Moment,
    /// What the agent was told, as a digest. Absent: nothing yet.
    pub told: Option<u64>,
    /// The cameras, by URL.
    pub cameras: BTreeMap<String, Camera>,
    /// What did not answer, by URL.
    pub failed: BTreeMap<String, Failed>,
}

/// A camera that has answered.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(crate = "leafhost_sdk::serde")]
pub struct Camera {
    /// Its endpoint reference, without `urn:uuid:`.
    pub uuid: String,
    /// What it announced, as a digest.
    pub announced: u64,
    /// The scopes it announced and those it told.
    pub scopes: Vec<String>,
    /// What it told.
    pub info: Info,
    /// When it was last asked.
    pub asked: Moment,
    /// For how many milliseconds from then on what it told is good.
    pub fresh_for: u64,
    /// When a farewell was last found to be false.
    pub doubted: Moment,
    /// How often it did not answer since it last did.
    pub misses: u32,
    /// How many milliseconds it took to answer.
    pub took: u64,
}

impl Camera {
    /// Whether it answered when it was last asked.
    pub fn is_here(&self) -> bool {
        self.misses == 0
    }
}

/// What a camera told.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(crate = "leafhost_sdk::serde", default)]
pub struct Info {
    /// Its address.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub ip: String,
    /// Its hardware address.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub mac: String,
    /// Its manufacturer.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub manufacturer: String,
    /// Its model.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub model: String,
    /// Its firmware.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub firmware: String,
    /// Its serial number.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub serial: String,
    /// Why it told no more.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub trouble: String,
}

/// An address that did not answer.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(crate = "leafhost_sdk::serde")]
pub struct Failed {
    /// How often.
    pub times: u32,
    /// When it was last asked.
    pub asked: Moment,
    /// Why.
    pub reason: String,
}

impl Info {
    /// Takes over what an answer has.
    pub fn take(&mut self, answer: soap::Answer) {
        for (own, other) in [
            (&mut self.ip, answer.ip),
            (&mut self.mac, answer.mac),
            (&mut self.manufacturer, answer.manufacturer),
            (&mut self.model, answer.model),
            (&mut self.firmware, answer.firmware),
            (&mut self.serial, answer.serial),
        ] {
            if !other.is_empty() {
                *own = other;
            }
        }
    }
}

impl Cursor {
    /// Reads what the last call wrote; what cannot be read is as nothing.
    pub fn read(bytes: Option<&[u8]>) -> Self {
        bytes
            .and_then(|bytes| serde_json::from_slice(bytes).ok())
            .filter(|cursor: &Self| cursor.version == VERSION)
            .unwrap_or_default()
    }

    /// Writes it down. Where it is too large the cameras that are not devices go first.
    pub fn write(mut self) -> Vec<u8> {
        self.version = VERSION;
        bound(&mut self.failed, MAX_FAILED, |failed| failed.asked);
        let mut most = MAX_CAMERAS;
        loop {
            bound(&mut self.cameras, most, |camera| {
                (camera.is_here(), camera.asked)
            });
            let bytes = serde_json::to_vec(&self).unwrap_or_default();
            if bytes.len() <= MAX_BYTES {
                return bytes;
            }
            most = self.cameras.len() * 3 / 4;
        }
    }
}

/// Leaves the `most` entries with the highest keys.
fn bound<V, K: Ord>(entries: &mut BTreeMap<String, V>, most: usize, key: impl Fn(&V) -> K) {
    let surplus = entries.len().saturating_sub(most);
    if surplus == 0 {
        return;
    }
    let mut names: Vec<(K, String)> = entries
        .iter()
        .map(|(name, entry)| (key(entry), name.clone()))
        .collect();
    names.sort();
    for (_, name) in names.into_iter().take(surplus) {
        entries.remove(&name);
    }
}

/// A digest for comparison with one this same component made: FNV-1a (Fowler, Noll, Vo), 64 bit.
pub fn digest<'a>(texts: impl IntoIterator<Item = &'a str>) -> u64 {
    let mut digest = 0xcbf2_9ce4_8422_2325_u64;
    for text in texts {
        for byte in text.bytes().chain([0xff]) {
            digest = (digest ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }
    digest
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mk_camera(is_here: bool, asked: u64, text: usize) -> Camera {
        Camera {
            misses: u32::from(!is_here),
            asked,
            scopes: vec!["s".repeat(text)],
            ..Camera::default()
        }
    }

    #[test]
    fn what_is_written_is_read() {
        let mut cursor = Cursor {
            probed: 7,
            told: Some(9),
            ..Cursor::default()
        };
        let mut camera = mk_camera(true, 3, 5);
        camera.info.mac = "00:11".to_owned();
        cursor.cameras.insert("http://a".to_owned(), camera);
        cursor
            .failed
            .insert("http://b".to_owned(), Failed::default());
        cursor.version = VERSION;
        let bytes = cursor.clone().write();
        assert_eq!(Cursor::read(Some(&bytes)), cursor);
    }

    #[test]
    fn what_cannot_be_read_is_as_nothing() {
        for bytes in [
            None,
            Some(&b""[..]),
            Some(b"{}"),
            Some(b"[1"),
            Some(b"{\"version\":9}"),
        ] {
            assert_eq!(Cursor::read(bytes), Cursor::default());
        }
    }

    #[test]
    fn a_cursor_is_never_too_large_and_devices_stay_in_it() {
        let mut cursor = Cursor::default();
        for n in 0..5_000_u64 {
            let url = format!("http://{n}");
            cursor
                .cameras
                .insert(url.clone(), mk_camera(n % 100 == 0, n, 5_000));
            cursor.failed.insert(
                url,
                Failed {
                    asked: n,
                    ..Failed::default()
                },
            );
        }
        let bytes = cursor.write();
        assert!(bytes.len() <= MAX_BYTES, "{}", bytes.len());
        let read = Cursor::read(Some(&bytes));
        assert_eq!(
            read.cameras
                .values()
                .filter(|camera| camera.is_here())
                .count(),
            50
        );
        assert_eq!(read.failed.len(), MAX_FAILED);
        assert!(read.failed.contains_key("http://4999"));
    }

    #[test]
    fn a_digest_tells_where_a_text_ends() {
        assert_ne!(digest(["a", "b"]), digest(["ab"]));
        assert_eq!(digest(["a", "b"]), digest(["a", "b"]));
    }
}

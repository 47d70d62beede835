//! State that a call leaves to the next one: the cameras and their answers. Without it a call finds the same cameras, only
//! slower.

mod bytes;
pub mod media;

use std::net::{IpAddr, Ipv4Addr};

use crate::filter::mac;
use crate::soap::{self, Interface};
use crate::xaddr::Host;
use bytes::{Reader, Writer};
use media::Media;

/// Maximum number of bytes in the cursor.
const MAX_BYTES: usize = 1 << 20;
/// Maximum number of stored cameras.
const MAX_CAMERAS: usize = 2_000;
/// Maximum number of stored addresses that did not answer.
const MAX_FAILED: usize = 1_000;
/// Version of the encoding.
const VERSION: u64 = 11;

/// Milliseconds of the host's monotonic clock.
pub type Moment = u64;

/// Decoded cursor.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Cursor {
    /// Start of the last full scan.
    pub probed: Moment,
    /// Time at which a scan last waited for late answers, or at which the session began.
    pub listened: Moment,
    /// Index of the next address of the details to probe.
    pub swept: u64,
    /// Digest of the devices that the agent has; `None` before the first complete answer.
    pub sent_digest: Option<u64>,
    /// Cameras that have answered.
    pub cameras: Entries<Camera>,
    /// Addresses that have not answered.
    pub failed: Entries<Failed>,
}

/// Entries by URL, sorted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entries<T>(Vec<(String, T)>);

/// Camera that has answered.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Camera {
    /// Endpoint reference without `urn:uuid:`.
    pub uuid: String,
    /// Digest of its announcement.
    pub announced: u64,
    /// Proof of its identity by the announcement.
    pub claim: Claim,
    /// Scopes that it announced or returned.
    pub scopes: Vec<String>,
    /// Information that it returned.
    pub info: Info,
    /// Time at which it was last asked.
    pub asked: Moment,
    /// Milliseconds after `asked` for which its answers are used.
    pub fresh_for: u64,
    /// Time at which it last refused credentials.
    pub refused: Moment,
    /// True if the camera refuses to tell its time, or requires credentials for it.
    pub hides_time: bool,
    /// Time at which a Bye for it was last found to be false.
    pub false_bye: Moment,
    /// Number of consecutive scans in which it neither announced itself nor answered.
    pub misses: u64,
    /// Time at which its service was last checked.
    pub checked: Moment,
    /// Number of consecutive times that its service did not answer although the camera announced itself.
    pub failures: u64,
    /// Reason why it is unhealthy; empty if it is healthy.
    pub unhealthy: String,
    /// Milliseconds that it took to answer.
    pub took: u64,
    /// Time at which its address changed.
    pub moved: Moment,
    /// Previous address while the change is reported.
    pub moved_from: String,
}

/// Information that a camera returned; fields that it did not return are empty.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Info {
    /// IP address.
    pub ip: String,
    /// Hardware address of the interface at which it is asked.
    pub mac: String,
    /// Hardware addresses of all its interfaces.
    pub macs: Vec<String>,
    /// Manufacturer.
    pub manufacturer: String,
    /// Model.
    pub model: String,
    /// Firmware version.
    pub firmware: String,
    /// Serial number.
    pub serial: String,
    /// Reason why facts are missing.
    pub trouble: String,
    /// Streams and snapshots, if they are wanted.
    pub media: Media,
}

/// Proof of the host's identity by an announcement.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Claim {
    /// No proof: the announcement came from another address.
    #[default]
    Foreign,
    /// Announcement from the host's own address, but another host claims the same camera.
    Contested,
    /// Announcement from the host's own address, and no other host claimed the camera before.
    Own,
}

/// Address that did not answer.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Failed {
    /// Number of failures.
    pub times: u64,
    /// Time at which it was last asked.
    pub asked: Moment,
    /// Time at which it last refused credentials.
    pub refused: Moment,
    /// Reason of the last failure.
    pub reason: String,
}

impl Camera {
    /// Returns true if it announced itself or answered in the last scan.
    pub fn is_here(&self) -> bool {
        self.misses == 0
    }

    /// Records that the camera answered now.
    pub fn found(&mut self, now: Moment) {
        self.checked = now;
        self.misses = 0;
        self.failures = 0;
        self.unhealthy.clear();
    }

    /// Returns the approximate size in bytes.
    fn size(&self) -> usize {
        let Info {
            ip,
            mac,
            macs,
            manufacturer,
            model,
            firmware,
            serial,
            trouble,
            media,
        } = &self.info;
        let info = [ip, mac, manufacturer, model, firmware, serial, trouble];
        let texts = info
            .into_iter()
            .chain([&self.unhealthy, &self.moved_from])
            .chain(macs)
            .chain(&self.scopes)
            .chain(media.texts());
        texts.map(String::len).sum()
    }
}

impl Info {
    /// Fills empty fields from an earlier answer.
    pub fn fill(&mut self, before: &Self) {
        if self.macs.is_empty() {
            self.macs.clone_from(&before.macs);
        }
        for (own, other) in [
            (&mut self.ip, &before.ip),
            (&mut self.mac, &before.mac),
            (&mut self.manufacturer, &before.manufacturer),
            (&mut self.model, &before.model),
            (&mut self.firmware, &before.firmware),
            (&mut self.serial, &before.serial),
        ] {
            if own.is_empty() {
                own.clone_from(other);
            }
        }
    }

    /// Adopts the fields that an answer of the camera asked at `at` has.
    pub fn take(&mut self, answer: soap::Answer, at: &Host) {
        let (ip, mac) = addresses(&answer.interfaces, at);
        let macs = macs(&answer.interfaces);
        if !macs.is_empty() {
            self.macs = macs;
        }
        for (own, other) in [
            (&mut self.ip, ip),
            (&mut self.mac, mac),
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

/// Returns the IP address and the hardware address of the camera's interface at `at`. If the camera reports no such
/// interface, returns those of the first interface with an address that is not link-local, otherwise only the first hardware
/// address. Disabled interfaces come last.
fn addresses(interfaces: &[Interface], at: &Host) -> (String, String) {
    let mut interfaces: Vec<&Interface> = interfaces.iter().collect();
    interfaces.sort_by_key(|interface| interface.is_disabled);
    let is_asked = |ip: &IpAddr| *at == Host::Ip(*ip);
    let is_of_use = |ip: &Ipv4Addr| !ip.is_unspecified() && !ip.is_link_local();
    let own = interfaces.iter().find(|one| one.ips.iter().any(is_asked));
    let own_ip = own.and_then(|one| one.ipv4().find(|ip| is_asked(&IpAddr::V4(*ip))));
    let ip = own_ip.or_else(|| {
        let mut all = interfaces.iter().flat_map(|one| one.ipv4());
        all.find(is_of_use)
    });
    let with_ip = interfaces
        .iter()
        .find(|one| one.ipv4().any(|other| Some(other) == ip));
    let mut by_rank = own.into_iter().chain(with_ip).chain(&interfaces);
    let mac = by_rank.find(|one| !one.mac.is_empty());
    (
        ip.map(|ip| ip.to_string()).unwrap_or_default(),
        mac.map(|one| mac::spell(&one.mac)).unwrap_or_default(),
    )
}

/// Returns the hardware addresses, each once.
fn macs(interfaces: &[Interface]) -> Vec<String> {
    let mut macs: Vec<String> = Vec::new();
    for interface in interfaces {
        let mac = mac::spell(&interface.mac);
        if !mac.is_empty() && !macs.contains(&mac) {
            macs.push(mac);
        }
    }
    macs
}

impl<T> Default for Entries<T> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<T> Entries<T> {
    fn find(&self, url: &str) -> Result<usize, usize> {
        self.0
            .binary_search_by(|(other, _)| other.as_str().cmp(url))
    }

    /// Returns the entry of a URL.
    pub fn get(&self, url: &str) -> Option<&T> {
        self.0.get(self.find(url).ok()?).map(|(_, entry)| entry)
    }

    /// Returns the entry of a URL for modification.
    pub fn get_mut(&mut self, url: &str) -> Option<&mut T> {
        let index = self.find(url).ok()?;
        self.0.get_mut(index).map(|(_, entry)| entry)
    }

    /// Inserts or replaces an entry.
    pub fn insert(&mut self, url: String, entry: T) {
        self.remove(&url);
        let (Ok(index) | Err(index)) = self.find(&url);
        self.0.insert(index, (url, entry));
    }

    /// Removes an entry.
    pub fn remove(&mut self, url: &str) -> Option<T> {
        let index = self.find(url).ok()?;
        Some(self.0.remove(index).1)
    }

    /// Keeps the entries for which `keep` returns true.
    pub fn retain(&mut self, keep: impl Fn(&str, &T) -> bool) {
        self.0.retain(|(url, entry)| keep(url, entry));
    }

    /// Returns mutable references to the entries, sorted by URL.
    pub fn values_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.0.iter_mut().map(|(_, entry)| entry)
    }

    /// Returns all entries, sorted by URL.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &T)> {
        self.0.iter().map(|(url, entry)| (url.as_str(), entry))
    }

    /// Keeps the `most` entries with the highest ranks.
    fn bound(&mut self, most: usize, rank: impl Fn(&T) -> u64) {
        let surplus = self.0.len().saturating_sub(most);
        if surplus == 0 {
            return;
        }
        let ranks = self.0.iter().map(|(_, entry)| rank(entry));
        let mut ranks: Vec<(u64, usize)> = ranks.zip(0..).collect();
        ranks.sort_unstable();
        let mut goes = vec![false; self.0.len()];
        for (_, place) in ranks.into_iter().take(surplus) {
            if let Some(goes) = goes.get_mut(place) {
                *goes = true;
            }
        }
        let mut goes = goes.into_iter();
        self.0.retain(|_| goes.next() != Some(true));
    }
}

impl Cursor {
    /// Decodes a cursor; an unreadable one counts as empty.
    pub fn read(bytes: Option<&[u8]>) -> Self {
        bytes.and_then(Self::parse).unwrap_or_default()
    }

    fn parse(bytes: &[u8]) -> Option<Self> {
        let mut reader = Reader(bytes);
        if reader.number()? != VERSION {
            return None;
        }
        let mut cursor = Self {
            probed: reader.number()?,
            listened: reader.number()?,
            swept: reader.number()?,
            sent_digest: match reader.number()? {
                0 => None,
                _ => Some(reader.number()?),
            },
            ..Self::default()
        };
        for _ in 0..reader.number()? {
            let (url, camera) = (reader.text()?, Camera::read(&mut reader)?);
            cursor.cameras.0.push((url, camera));
        }
        for _ in 0..reader.number()? {
            let failed = Failed {
                times: reader.number()?,
                asked: reader.number()?,
                refused: reader.number()?,
                reason: reader.text()?,
            };
            cursor.failed.0.push((reader.text()?, failed));
        }
        Some(cursor)
    }

    /// Encodes the cursor. If it is too large, absent cameras are dropped first, then the largest, so that a camera that
    /// sends much displaces no other.
    pub fn write(mut self) -> Vec<u8> {
        self.failed.bound(MAX_FAILED, |failed| failed.asked);
        let mut most = MAX_CAMERAS;
        loop {
            self.cameras.bound(most, |camera| {
                let size = u64::try_from(camera.size()).unwrap_or(u64::MAX);
                (u64::MAX / 2).saturating_sub(size) + u64::from(camera.is_here()) * (u64::MAX / 2)
            });
            let bytes = self.bytes();
            if bytes.len() <= MAX_BYTES {
                return bytes;
            }
            most = self.cameras.0.len() * 3 / 4;
            if most == 0 {
                self.failed
                    .bound(self.failed.0.len() / 2, |failed| failed.asked);
            }
        }
    }

    fn bytes(&self) -> Vec<u8> {
        let mut writer = Writer::default();
        writer.number(VERSION);
        writer.number(self.probed);
        writer.number(self.listened);
        writer.number(self.swept);
        writer.number(u64::from(self.sent_digest.is_some()));
        if let Some(digest) = self.sent_digest {
            writer.number(digest);
        }
        writer.count(self.cameras.0.len());
        for (url, camera) in self.cameras.iter() {
            writer.text(url);
            camera.write(&mut writer);
        }
        writer.count(self.failed.0.len());
        for (url, failed) in self.failed.iter() {
            writer.number(failed.times);
            writer.number(failed.asked);
            writer.number(failed.refused);
            writer.text(&failed.reason);
            writer.text(url);
        }
        writer.0
    }
}

impl Camera {
    fn read(reader: &mut Reader<'_>) -> Option<Self> {
        let mut camera = Self {
            uuid: reader.text()?,
            announced: reader.number()?,
            claim: match reader.number()? {
                0 => Claim::Foreign,
                1 => Claim::Contested,
                _ => Claim::Own,
            },
            asked: reader.number()?,
            fresh_for: reader.number()?,
            refused: reader.number()?,
            hides_time: reader.number()? != 0,
            false_bye: reader.number()?,
            misses: reader.number()?,
            checked: reader.number()?,
            failures: reader.number()?,
            unhealthy: reader.text()?,
            took: reader.number()?,
            moved: reader.number()?,
            moved_from: reader.text()?,
            info: Info {
                ip: reader.text()?,
                mac: reader.text()?,
                manufacturer: reader.text()?,
                model: reader.text()?,
                firmware: reader.text()?,
                serial: reader.text()?,
                trouble: reader.text()?,
                macs: Vec::new(),
                media: Media::default(),
            },
            scopes: Vec::new(),
        };
        for _ in 0..reader.number()? {
            camera.info.macs.push(reader.text()?);
        }
        for _ in 0..reader.number()? {
            camera.scopes.push(reader.text()?);
        }
        camera.info.media = Media::read(reader)?;
        Some(camera)
    }

    fn write(&self, writer: &mut Writer) {
        let Self { info, .. } = self;
        writer.text(&self.uuid);
        let claim = match self.claim {
            Claim::Foreign => 0,
            Claim::Contested => 1,
            Claim::Own => 2,
        };
        for number in [
            self.announced,
            claim,
            self.asked,
            self.fresh_for,
            self.refused,
            u64::from(self.hides_time),
            self.false_bye,
            self.misses,
            self.checked,
            self.failures,
        ] {
            writer.number(number);
        }
        writer.text(&self.unhealthy);
        writer.number(self.took);
        writer.number(self.moved);
        writer.text(&self.moved_from);
        for text in [
            &info.ip,
            &info.mac,
            &info.manufacturer,
            &info.model,
            &info.firmware,
            &info.serial,
            &info.trouble,
        ] {
            writer.text(text);
        }
        for texts in [&info.macs, &self.scopes] {
            writer.count(texts.len());
            for text in texts {
                writer.text(text);
            }
        }
        info.media.write(writer);
    }
}

/// Returns a digest that only this component compares: FNV-1a, 64 bit.
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
mod tests;

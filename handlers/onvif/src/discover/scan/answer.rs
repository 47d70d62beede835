//! Builds the answer to the agent: all devices, or those that changed.

use std::borrow::Cow;

use leafhost_sdk::{AttributeValue, Device, Discovery, Health};

use super::{FRESH, Scan};
use crate::details::Channels;
use crate::discover::cursor::media::Sources;
use crate::discover::cursor::{Camera, Info, digest};
use crate::discover::{devices, now};
use crate::filter;

impl Scan<'_> {
    /// Returns the devices of all present cameras.
    pub fn rendered(&self) -> Vec<Device> {
        let here = self
            .cursor
            .cameras
            .iter()
            .filter(|(_, camera)| camera.is_here());
        let mut rendered = Vec::new();
        for (url, camera) in here {
            if rendered.len() < self.most && self.filter(camera).is_ok() {
                rendered.extend(devices::devices(url, camera, self.details));
            }
        }
        rendered.truncate(self.most);
        rendered
    }

    /// Returns true if the video sources of the camera are to be devices and it has reported no more than `known`.
    fn lacks_sources(&self, camera: &Camera, known: Sources) -> bool {
        self.details.channels == Channels::Devices && camera.info.media.known <= known
    }

    /// Returns true if a camera must still be asked for its video sources, since one call asks only some cameras for them.
    fn awaits_sources(&self) -> bool {
        let now = now(self.asker.host);
        self.cursor.cameras.iter().any(|(_, camera)| {
            camera.is_here()
                && self.lacks_sources(camera, Sources::NotAsked)
                && now.saturating_sub(camera.asked) < FRESH
                && self.filter(camera).is_ok()
        })
    }

    /// Applies the address filters to the addresses that the camera reported.
    pub(super) fn filter(&self, camera: &Camera) -> Result<(), filter::Dropped> {
        let Info { ip, macs, .. } = &camera.info;
        let ip = (!ip.is_empty()).then_some(ip.as_str());
        filter::addresses(self.details, ip, macs)
    }

    /// Reports why a known camera is left out, or what it did not report.
    fn explain(&self, count: usize) {
        if count == self.most {
            let reason =
                format!("there may be more cameras than the {count} devices an answer may have");
            self.asker.host.skipped("cameras", "limits.devices", reason);
        }
        for (url, camera) in self
            .cursor
            .cameras
            .iter()
            .filter(|(_, camera)| camera.is_here())
        {
            let trouble = &camera.info.trouble;
            match self.filter(camera) {
                Err(dropped) => {
                    let reason = match trouble.as_str() {
                        "" => dropped.reason,
                        trouble => format!("{} ({trouble})", dropped.reason),
                    };
                    self.asker.host.skipped(url, dropped.rule, reason);
                }
                Ok(()) if self.lacks_sources(camera, Sources::NotReported) => {
                    let reason = "is no device until it reports its video sources";
                    self.asker.host.skipped(url, "channels", reason);
                }
                Ok(()) if !trouble.is_empty() => {
                    let reason = format!("is a device, but does not report everything: {trouble}");
                    self.asker.host.skipped(url, "answer", reason);
                }
                Ok(()) => {}
            }
            if self.filter(camera).is_ok() {
                for note in &camera.info.media.notes {
                    self.asker.host.skipped(url, "streams", note);
                }
            }
        }
    }

    /// Returns the answer after a full scan.
    pub fn everything(&mut self) -> Discovery {
        let devices = self.rendered();
        self.explain(devices.len());
        let digest = digest_of(&devices);
        let before = self.cursor.sent_digest.replace(digest);
        if before == Some(digest) && self.departed.is_empty() {
            Discovery::unchanged()
        } else if self.is_cut_short || self.awaits_sources() {
            // A partial answer withdraws no device, so the next answer must be complete.
            self.cursor.sent_digest = None;
            Discovery::partial(devices)
        } else {
            Discovery::complete(devices)
        }
    }

    /// Returns the answer after a partial scan: devices that differ from `before`.
    pub fn difference(&mut self, before: &[Device]) -> Discovery {
        let devices = self.rendered();
        // Only a complete answer withdraws a device, so the next one must be complete if one is missing here.
        let is_missing = |old: &Device| {
            !devices.iter().any(|one| one.id == old.id) && !self.departed.contains(&old.id)
        };
        let is_whole = !before.iter().any(is_missing);
        let digest = digest_of(&devices);
        let sent = self.cursor.sent_digest.filter(|_| is_whole);
        self.cursor.sent_digest = sent.map(|_| digest);
        let changed: Vec<Device> = devices
            .into_iter()
            .filter(|device| !before.contains(device))
            .collect();
        if changed.is_empty() {
            Discovery::unchanged()
        } else {
            Discovery::partial(changed)
        }
    }
}

/// Returns a digest of devices.
fn digest_of(devices: &[Device]) -> u64 {
    let mut texts = Vec::new();
    for device in devices {
        texts.push(Cow::Borrowed(device.id.as_str()));
        if let Health::Unhealthy(why) = &device.health {
            texts.push(Cow::Borrowed(why));
        }
        for (name, value) in &device.properties {
            texts.extend([name, value].map(|text| Cow::Borrowed(text.as_str())));
        }
        for attribute in &device.attributes {
            texts.push(Cow::Borrowed(&attribute.name));
            texts.push(match &attribute.value {
                AttributeValue::Text(text) | AttributeValue::Version(text) => Cow::Borrowed(text),
                AttributeValue::Integer(number) => Cow::Owned(number.to_string()),
                AttributeValue::Boolean(yes) => Cow::Owned(yes.to_string()),
            });
        }
    }
    digest(texts.iter().map(AsRef::as_ref))
}

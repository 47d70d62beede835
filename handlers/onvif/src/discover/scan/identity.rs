//! Implements `identity: endpoint-reference`: one device per endpoint reference, at any address.

use super::Scan;
use crate::details::Identity;
use crate::discover::candidates::Candidate;
use crate::discover::cursor::{Camera, Claim, Moment};
use crate::xaddr::XAddr;

/// Milliseconds for which a device reports that its address changed.
const TOLD: Moment = 60_000;

/// URL and endpoint reference of each camera before the scan, sorted.
pub(super) type Locations = Vec<(String, String)>;

impl Scan<'_> {
    /// Returns true if endpoint references alone identify devices.
    pub(super) fn follows_references(&self) -> bool {
        self.details.identity == Identity::EndpointReference
    }

    /// Returns the cameras' current URLs; empty unless endpoint references identify devices.
    pub(super) fn locations(&self) -> Locations {
        let cameras = self.cursor.cameras.iter();
        cameras
            .filter(|_| self.follows_references())
            .map(|(url, camera)| (url.to_owned(), camera.uuid.clone()))
            .collect()
    }

    /// Returns another address at which the candidate's camera is known.
    pub(super) fn elsewhere(&self, candidate: &Candidate) -> Option<XAddr> {
        let mut cameras = self.cursor.cameras.iter();
        let (url, _) = cameras.find(|(url, camera)| {
            self.follows_references()
                && camera.is_here()
                && camera.uuid == candidate.uuid
                && *url != candidate.xaddr.url
        })?;
        XAddr::new(url).ok()
    }

    /// Keeps one camera per endpoint reference: of those that answer, the one known before the scan. After a change of the
    /// address the device's health reports it for [`TOLD`].
    pub(super) fn merge_by_reference(&mut self, before: &Locations, now: Moment) {
        if !self.follows_references() {
            return;
        }
        let was_there = |url: &str, camera: &Camera| {
            let place = before.binary_search_by(|(other, _)| other.as_str().cmp(url));
            let place = place.ok().and_then(|place| before.get(place));
            place.is_some_and(|(_, uuid)| *uuid == camera.uuid)
        };
        let mut cameras: Vec<(&str, &Camera)> = self.cursor.cameras.iter().collect();
        cameras.sort_by_key(|(url, camera)| {
            let is_foreign = camera.claim == Claim::Foreign;
            let order = (!camera.is_here(), !was_there(url, camera), is_foreign);
            (camera.uuid.as_str(), order)
        });
        let (mut lost, mut moved) = (Vec::new(), Vec::new());
        let mut previous = "";
        for (url, camera) in cameras {
            if camera.uuid == previous {
                lost.push(url.to_owned());
                continue;
            }
            previous = &camera.uuid;
            let old = before.iter().find(|(_, uuid)| *uuid == camera.uuid);
            if let (Some((old, _)), false) = (old, was_there(url, camera)) {
                moved.push((url.to_owned(), old.clone()));
            }
        }
        for url in lost {
            self.cursor.cameras.remove(&url);
        }
        for (url, old) in moved {
            if let Some(camera) = self.cursor.cameras.get_mut(&url) {
                camera.moved = now;
                camera.moved_from = old;
            }
        }
        for camera in self.cursor.cameras.values_mut() {
            if now.saturating_sub(camera.moved) >= TOLD {
                camera.moved_from.clear();
            }
        }
    }
}

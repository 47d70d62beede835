//! Streams and snapshots that a camera reported.

use super::bytes::{Reader, Writer};
use crate::soap::cut;

/// Maximum number of notes of a camera.
const MAX_NOTES: usize = 6;

/// Streams of a camera.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Media {
    /// Profiles in the camera's order.
    pub profiles: Vec<Profile>,
    /// Explanations of missing and changed URLs.
    pub notes: Vec<String>,
    /// True if the camera was not asked for everything, or did not answer everything.
    pub is_incomplete: bool,
    /// Largest number of video sources that the camera reported.
    pub known: Sources,
}

/// Number of video sources that a camera reported, in ascending order.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Sources {
    /// The camera was not asked yet.
    #[default]
    NotAsked,
    /// The camera was asked and did not report them.
    NotReported,
    /// At most one.
    One,
    /// Two or more.
    Several,
}

/// Profile of a camera; texts that are not known are empty.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Profile {
    /// Identifier in requests.
    pub token: String,
    /// Name.
    pub name: String,
    /// Encoding of the video.
    pub codec: String,
    /// Width and height, such as `1920x1080`.
    pub resolution: String,
    /// URL of the stream.
    pub stream: String,
    /// URL of the snapshot.
    pub snapshot: String,
    /// Token of the video source, if each video source is a device.
    pub source: String,
    /// True if it can pan, tilt or zoom; if video sources are not devices, true if any profile of the camera can.
    pub has_ptz: bool,
}

impl Profile {
    fn texts(&self) -> [&String; 7] {
        let Self {
            token,
            name,
            codec,
            resolution,
            stream,
            snapshot,
            source,
            has_ptz: _,
        } = self;
        [token, name, codec, resolution, stream, snapshot, source]
    }
}

impl Media {
    /// Adds an explanation, once.
    pub fn note(&mut self, text: &str) {
        let text = cut(text);
        if self.notes.len() < MAX_NOTES && !self.notes.contains(&text) {
            self.notes.push(text);
        }
    }

    /// Returns the tokens of the video sources, in the order of their first profiles.
    pub fn sources(&self) -> Vec<&str> {
        let mut sources = Vec::new();
        for Profile { source, .. } in &self.profiles {
            if !source.is_empty() && !sources.contains(&source.as_str()) {
                sources.push(source.as_str());
            }
        }
        sources
    }

    /// Returns true if a video source of an earlier answer is missing here.
    pub fn lacks_source_of(&self, before: &Self) -> bool {
        let sources = self.sources();
        let mut before = before.sources().into_iter();
        before.any(|source| !sources.contains(&source))
    }

    /// Adopts from an earlier answer what is missing here, and the order of the profiles if they are the same. A camera that
    /// had several video sources keeps their ids, even if it now reports only one. URLs contain the address, so they are not
    /// adopted if `has_moved` is true.
    pub fn keep(&mut self, before: &Self, has_moved: bool) {
        self.known = self.known.max(before.known);
        let place = |profile: &Profile| {
            let mut others = before.profiles.iter();
            others.position(|other| other.token == profile.token)
        };
        if self.is_incomplete && self.profiles.is_empty() {
            self.profiles.clone_from(&before.profiles);
            for profile in self.profiles.iter_mut().filter(|_| has_moved) {
                profile.stream.clear();
                profile.snapshot.clear();
            }
        }
        if self.is_incomplete && !has_moved {
            for profile in &mut self.profiles {
                let old = place(profile).and_then(|place| before.profiles.get(place));
                let Some(old) = old else {
                    continue;
                };
                if profile.stream.is_empty() {
                    profile.stream.clone_from(&old.stream);
                }
                if profile.snapshot.is_empty() {
                    profile.snapshot.clone_from(&old.snapshot);
                }
            }
        }
        let has_same = self.profiles.len() == before.profiles.len();
        if has_same && self.profiles.iter().all(|one| place(one).is_some()) {
            self.profiles.sort_by_key(place);
        }
    }

    /// Returns all texts.
    pub(super) fn texts(&self) -> impl Iterator<Item = &String> {
        let profiles = self.profiles.iter().flat_map(Profile::texts);
        profiles.chain(&self.notes)
    }

    pub(super) fn read(reader: &mut Reader<'_>) -> Option<Self> {
        let mut media = Self {
            is_incomplete: reader.number()? != 0,
            known: match reader.number()? {
                0 => Sources::NotAsked,
                1 => Sources::NotReported,
                2 => Sources::One,
                _ => Sources::Several,
            },
            ..Self::default()
        };
        for _ in 0..reader.number()? {
            media.profiles.push(Profile {
                token: reader.text()?,
                name: reader.text()?,
                codec: reader.text()?,
                resolution: reader.text()?,
                stream: reader.text()?,
                snapshot: reader.text()?,
                source: reader.text()?,
                has_ptz: reader.number()? != 0,
            });
        }
        for _ in 0..reader.number()? {
            media.notes.push(reader.text()?);
        }
        Some(media)
    }

    pub(super) fn write(&self, writer: &mut Writer) {
        writer.number(u64::from(self.is_incomplete));
        writer.number(match self.known {
            Sources::NotAsked => 0,
            Sources::NotReported => 1,
            Sources::One => 2,
            Sources::Several => 3,
        });
        writer.count(self.profiles.len());
        for profile in &self.profiles {
            for text in profile.texts() {
                writer.text(text);
            }
            writer.number(u64::from(profile.has_ptz));
        }
        writer.count(self.notes.len());
        for note in &self.notes {
            writer.text(note);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mk_media(profiles: &[(&str, &str)], is_incomplete: bool) -> Media {
        let profiles = profiles.iter().map(|&(token, stream)| Profile {
            token: token.to_owned(),
            stream: stream.to_owned(),
            ..Profile::default()
        });
        Media {
            profiles: profiles.collect(),
            is_incomplete,
            ..Media::default()
        }
    }

    #[test]
    fn earlier_urls_stay_only_in_place_of_missing_answers() {
        let before = mk_media(&[("a", "1"), ("b", "2")], false);
        for (now, is_incomplete, kept) in [
            (&[][..], true, &[("a", "1"), ("b", "2")][..]),
            (&[], false, &[]),
            (&[("a", "")], true, &[("a", "1")]),
            (&[("a", "")], false, &[("a", "")]),
            (&[("a", "3"), ("c", "")], true, &[("a", "3"), ("c", "")]),
            // A camera that changes only the order.
            (&[("b", "2"), ("a", "1")], false, &[("a", "1"), ("b", "2")]),
            (&[("c", "2"), ("a", "1")], false, &[("c", "2"), ("a", "1")]),
        ] {
            let mut media = mk_media(now, is_incomplete);
            media.keep(&before, false);
            assert_eq!(media.profiles, mk_media(kept, false).profiles, "{now:?}");
        }
    }

    #[test]
    fn the_urls_of_another_address_do_not_stay() {
        let before = mk_media(&[("a", "1"), ("b", "2")], false);
        for (now, kept) in [
            (&[][..], &[("a", ""), ("b", "")][..]),
            (&[("b", ""), ("a", "3")], &[("a", "3"), ("b", "")]),
        ] {
            let mut media = mk_media(now, true);
            media.keep(&before, true);
            assert_eq!(media.profiles, mk_media(kept, false).profiles, "{now:?}");
        }
    }

    #[test]
    fn a_camera_that_had_several_video_sources_keeps_their_ids() {
        for (before, now, kept) in [
            (Sources::Several, Sources::One, Sources::Several),
            (Sources::Several, Sources::NotReported, Sources::Several),
            (Sources::One, Sources::NotAsked, Sources::One),
            (Sources::One, Sources::Several, Sources::Several),
            (
                Sources::NotAsked,
                Sources::NotReported,
                Sources::NotReported,
            ),
        ] {
            let [before, mut now] = [before, now].map(|known| Media {
                known,
                ..Media::default()
            });
            now.keep(&before, false);
            assert_eq!(now.known, kept, "{before:?}");
        }
    }

    #[test]
    fn each_note_is_kept_once_and_few_in_all() {
        let mut media = Media::default();
        for n in 0..20 {
            media.note(&format!("note {}", n / 2));
        }
        assert_eq!(media.notes.len(), MAX_NOTES);
        assert_eq!(media.notes.get(1).map(String::as_str), Some("note 1"));
    }
}

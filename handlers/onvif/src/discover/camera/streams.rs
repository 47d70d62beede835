//! Asks one camera for the URLs of its streams and snapshots.

use std::time::Duration;

use leafhost_sdk::net::Error::{Closed, TimedOut};

use super::{Exchange, QuestionError, Streams};
use crate::details::Channels;
use crate::discover::cursor::media::{Media, Profile, Sources};
use crate::link::{self, Link};
use crate::soap::{self, Answer, Operation};

/// Maximum number of profiles of a device.
const MAX_OF_DEVICE: usize = 4;
/// Maximum number of profiles of all devices of a camera.
const MAX_OF_CAMERA: usize = 32;

/// Request without a usable answer.
struct Failed(Operation, QuestionError);

impl Exchange<'_> {
    /// Asks for the streams. Returns true if a request timed out, or the camera is to be asked later.
    pub(super) async fn streams(&mut self, streams: Streams, media: &mut Media) -> bool {
        let (limit, channels) = match streams {
            Streams::No => return false,
            Streams::Later => (Duration::ZERO, Channels::One),
            Streams::Within(limit, channels) => (limit, channels),
        };
        if limit.is_zero() {
            media.is_incomplete = true;
            media.note("the camera is asked for its streams in a later call");
            return true;
        }
        self.ends = self.host.elapsed().saturating_add(limit);
        media.known = Sources::NotReported;
        let mut failed = Vec::new();
        if let Err(why) = self.profiles(channels, media).await {
            failed.push(why);
        } else {
            media.known = if media.sources().len() > 1 {
                Sources::Several
            } else {
                Sources::One
            };
            for operation in [Operation::GetStreamUri, Operation::GetSnapshotUri] {
                failed.extend(self.links(operation, media).await.err());
            }
        }
        for Failed(operation, why) in &failed {
            media.is_incomplete = true;
            media.note(&format!("{}: {why}", operation.name()));
        }
        let is_loss =
            |Failed(_, why): &Failed| matches!(why, QuestionError::Network(Closed | TimedOut));
        failed.iter().any(is_loss)
    }

    async fn question(&mut self, operation: Operation, profile: &str) -> Result<Answer, Failed> {
        let answer = self.ask(operation, profile).await;
        answer.map_err(|why| Failed(operation, why))
    }

    /// Asks for the media service and its profiles.
    async fn profiles(&mut self, channels: Channels, media: &mut Media) -> Result<(), Failed> {
        let mut service = match self.question(Operation::GetCapabilities, "").await {
            Ok(answer) => answer.media.service,
            Err(Failed(_, QuestionError::Answer(_))) => String::new(),
            Err(failed) => return Err(failed),
        };
        if service.is_empty() {
            let answer = self.question(Operation::GetServices, "").await?;
            service = answer.media.service;
        }
        self.media = self.xaddr.service(&service);
        if self.media.is_none() {
            media.note("the camera names no media service of ONVIF's first version");
            return Ok(());
        }
        let answer = self.question(Operation::GetProfiles, "").await?.media;
        let mut left = answer.profiles;
        let has_none = |one: &soap::media::Profile| one.source.is_empty();
        if channels == Channels::One {
            let has_ptz = left.iter().any(|one| one.has_ptz);
            for profile in &mut left {
                profile.source.clear();
                profile.has_ptz = has_ptz;
            }
        } else if left.iter().any(has_none) {
            media.note(
                "a profile is in no channel: its video source has no token of 1 to 64 printable ASCII characters",
            );
            if !left.iter().all(has_none) {
                left.retain(|one| !has_none(one));
            }
        }
        let all = left.len() + answer.more_profiles;
        // The first profile of each video source comes before the second one of any.
        for round in 1..=MAX_OF_DEVICE {
            let mut later = Vec::new();
            for profile in left {
                let given = media.profiles.iter();
                let same = given.filter(|one| one.source == profile.source).count();
                if same >= round || media.profiles.len() >= MAX_OF_CAMERA {
                    later.push(profile);
                    continue;
                }
                let (width, height) = profile.size;
                let is_known = width > 0 && height > 0;
                media.profiles.push(Profile {
                    token: profile.token,
                    name: profile.name,
                    codec: profile.codec,
                    resolution: if is_known {
                        format!("{width}x{height}")
                    } else {
                        String::new()
                    },
                    source: profile.source,
                    has_ptz: profile.has_ptz,
                    ..Profile::default()
                });
            }
            left = later;
        }
        let most = media.profiles.len();
        if most < all {
            media.note(&format!(
                "the camera has {all} profiles; the first {most} are given"
            ));
        } else if most == 0 {
            media.note("the camera has no profiles");
        }
        Ok(())
    }

    /// Asks for the streams or snapshots of all profiles. The first URL is asked for twice, to leave out values that change
    /// with each answer and so would change the device each time.
    async fn links(&mut self, operation: Operation, media: &mut Media) -> Result<(), Failed> {
        let is_stream = operation == Operation::GetStreamUri;
        let tokens: Vec<String> = media.profiles.iter().map(|one| one.token.clone()).collect();
        let mut changing = None;
        for (place, token) in tokens.iter().enumerate() {
            let url = match self.link(operation, token, media).await {
                Ok(url) => url,
                // A camera may have no such URL for one of its profiles.
                Err(Failed(_, why @ QuestionError::Answer(_))) => {
                    media.is_incomplete = true;
                    media.note(&format!("{}: {why}", operation.name()));
                    continue;
                }
                Err(failed) => return Err(failed),
            };
            if changing.is_none() && !url.is_empty() {
                let again = match self.link(operation, token, media).await {
                    Ok(again) if !again.is_empty() => again,
                    Ok(_) | Err(Failed(_, QuestionError::Answer(_))) => url.clone(),
                    // Without the comparison a changing value would change the device.
                    Err(failed) => return Err(failed),
                };
                let Some(names) = link::differences(&url, &again) else {
                    media.note(&format!(
                        "{}: the camera gives another URL each time, so none is given",
                        operation.name()
                    ));
                    return Ok(());
                };
                if !names.is_empty() {
                    media.note(&format!(
                        "{}: the camera changes {} each time, which is left out",
                        operation.name(),
                        names.join(" and ")
                    ));
                }
                changing = Some(names);
            }
            if let Some(profile) = media.profiles.get_mut(place) {
                let url = link::without(&url, changing.as_deref().unwrap_or_default());
                if is_stream {
                    profile.stream = url;
                } else {
                    profile.snapshot = url;
                }
            }
        }
        Ok(())
    }

    /// Asks for one URL; returns an empty text, with a note, if it cannot be handed out.
    async fn link(
        &mut self,
        operation: Operation,
        token: &str,
        media: &mut Media,
    ) -> Result<String, Failed> {
        let schemes: &[&str] = if operation == Operation::GetStreamUri {
            &["rtsp", "rtsps"]
        } else {
            &["http", "https"]
        };
        let answer = self.question(operation, token).await?;
        let (url, notes) = match Link::new(&answer.media.uri, schemes, &self.xaddr.host) {
            Ok(Link { url, notes }) => (url, notes),
            Err(error) => (String::new(), vec![error.to_string()]),
        };
        for note in notes {
            media.note(&format!("{}: {note}", operation.name()));
        }
        Ok(url)
    }
}

//! Parts of answers about streams: the media service's address, its profiles and their URLs. This module judges no URL.

use super::cut;
use crate::link::MAX_BYTES;
use crate::xml::Element;

/// Namespace of the media service (Media1, which every camera with Profile S has).
pub const MEDIA: &str = "http://www.onvif.org/ver10/media/wsdl";
/// Request for a stream by RTSP, to one receiver.
pub(super) const UNICAST: &str = "<StreamSetup><Stream xmlns=\"http://www.onvif.org/ver10/schema\">RTP-Unicast</Stream>\
     <Transport xmlns=\"http://www.onvif.org/ver10/schema\"><Protocol>RTSP</Protocol></Transport></StreamSetup>";

/// Maximum number of profiles that are read.
pub const MAX_PROFILES: usize = 128;
/// Maximum number of bytes in the token of a video source, as in ONVIF.
const MAX_SOURCE: usize = 64;
/// Maximum number of bytes in the name of a codec.
const MAX_CODEC: usize = 32;

/// Content of an answer about streams.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Media {
    /// Address of the media service.
    pub service: String,
    /// Profiles in the camera's order, at most [`MAX_PROFILES`].
    pub profiles: Vec<Profile>,
    /// Number of profiles beyond [`MAX_PROFILES`].
    pub more_profiles: usize,
    /// URL of a stream or snapshot.
    pub uri: String,
    /// True if the service that is being read is the media service.
    is_service: bool,
}

/// Media profile of a camera.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Profile {
    /// Identifier in requests.
    pub token: String,
    /// Name.
    pub name: String,
    /// Encoding of the video, such as `H264`.
    pub codec: String,
    /// Width and height of the video; 0 if the camera does not report them.
    pub size: (u32, u32),
    /// Token of its video source; empty if there is none that can be used in an id.
    pub source: String,
    /// True if it can pan, tilt or zoom.
    pub has_ptz: bool,
}

impl Media {
    /// Takes an element that has ended; `profile` is the profile that is being read.
    pub(super) fn take(&mut self, element: &Element<'_>, profile: &mut Profile) {
        let text = element.text;
        let number = || text.parse().unwrap_or_default();
        match (element.name(1), element.name(0)) {
            ("GetProfilesResponse", "Profiles") => {
                let mut whole = std::mem::take(profile);
                element.token().clone_into(&mut whole.token);
                if whole.token.is_empty() || self.profiles.len() >= MAX_PROFILES {
                    self.more_profiles += 1;
                } else {
                    self.profiles.push(whole);
                }
            }
            ("Profiles", "Name") => profile.name = cut(text),
            ("Profiles", "PTZConfiguration") => profile.has_ptz = true,
            ("VideoSourceConfiguration", "SourceToken") if is_printable(text) => {
                text.clone_into(&mut profile.source);
            }
            ("VideoEncoderConfiguration", "Encoding") => {
                profile.codec = cut(text);
                let end = profile.codec.floor_char_boundary(MAX_CODEC);
                profile.codec.truncate(end);
            }
            ("Resolution", "Width") if is_of_encoder(element) => profile.size.0 = number(),
            ("Resolution", "Height") if is_of_encoder(element) => profile.size.1 = number(),
            ("MediaUri", "Uri") => self.uri = short(text),
            ("Media", "XAddr") => self.service = short(text),
            ("Service", "Namespace") => self.is_service = text == MEDIA,
            ("Service", "XAddr") if self.is_service => self.service = short(text),
            _ => {}
        }
    }
}

fn is_of_encoder(element: &Element<'_>) -> bool {
    element.name(2) == "VideoEncoderConfiguration"
}

/// Returns true if the token of a video source can be part of an id.
fn is_printable(token: &str) -> bool {
    token.len() <= MAX_SOURCE && token.bytes().all(|b| matches!(b, b' '..=b'~'))
}

/// Returns the text, or an empty text if it is too long for a URL.
fn short(text: &str) -> String {
    if text.len() <= MAX_BYTES {
        text.to_owned()
    } else {
        String::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::soap::{Operation, read};

    fn media(operation: Operation, inside: &str) -> Media {
        let name = operation.name();
        let body = format!(
            "<s:Envelope xmlns:s='http://www.w3.org/2003/05/soap-envelope'><s:Body><{name}Response>{inside}</{name}Response></s:Body></s:Envelope>"
        );
        read(operation, 200, body.as_bytes()).unwrap().media
    }

    #[test]
    fn profiles_are_read_in_the_cameras_order() {
        let answer = media(
            Operation::GetProfiles,
            "<trt:Profiles token='b&amp;1' fixed='true'><tt:Name>Main</tt:Name>\
             <tt:VideoSourceConfiguration token='x'><tt:Name>no</tt:Name><tt:SourceToken>s 1</tt:SourceToken></tt:VideoSourceConfiguration>\
             <tt:AudioSourceConfiguration><tt:SourceToken>no</tt:SourceToken></tt:AudioSourceConfiguration>\
             <tt:VideoEncoderConfiguration token='y'><tt:Name>no</tt:Name><tt:Encoding>H264</tt:Encoding>\
             <tt:Resolution><tt:Width>1920</tt:Width><tt:Height>1080</tt:Height></tt:Resolution></tt:VideoEncoderConfiguration>\
             <tt:AudioEncoderConfiguration><tt:Encoding>G711</tt:Encoding></tt:AudioEncoderConfiguration></trt:Profiles>\
             <trt:Profiles token='a'><tt:PTZConfiguration token='z'><tt:Name>no</tt:Name></tt:PTZConfiguration></trt:Profiles>\
             <trt:Profiles/>",
        );
        let main = Profile {
            token: "b&1".to_owned(),
            name: "Main".to_owned(),
            codec: "H264".to_owned(),
            size: (1920, 1080),
            source: "s 1".to_owned(),
            has_ptz: false,
        };
        let other = Profile {
            token: "a".to_owned(),
            has_ptz: true,
            ..Profile::default()
        };
        assert_eq!(answer.profiles, [main, other]);
        assert_eq!(answer.more_profiles, 1);
    }

    #[test]
    fn the_number_of_profiles_is_bounded() {
        let answer = media(
            Operation::GetProfiles,
            &"<Profiles token='a'/>".repeat(MAX_PROFILES + 3),
        );
        assert_eq!(
            (answer.profiles.len(), answer.more_profiles),
            (MAX_PROFILES, 3)
        );
    }

    #[test]
    fn a_token_that_cannot_be_part_of_an_id_is_not_kept() {
        let long = "s".repeat(MAX_SOURCE + 1);
        for (token, kept) in [
            ("VideoSource_1", "VideoSource_1"),
            ("{0}:a/b", "{0}:a/b"),
            (&long[..MAX_SOURCE], &long[..MAX_SOURCE]),
            (long.as_str(), ""),
            ("s&#10;1", ""),
            ("\u{e4}", ""),
            ("", ""),
        ] {
            let inside = format!(
                "<Profiles token='a'><VideoSourceConfiguration><SourceToken>{token}</SourceToken></VideoSourceConfiguration></Profiles>"
            );
            let answer = media(Operation::GetProfiles, &inside);
            assert_eq!(answer.profiles[0].source, kept, "{token}");
        }
    }

    #[test]
    fn both_lists_of_services_name_the_media_service() {
        for (operation, inside) in [
            (
                Operation::GetCapabilities,
                "<Capabilities><Media><XAddr>http://c/m</XAddr></Media><PTZ><XAddr>http://c/p</XAddr></PTZ></Capabilities>",
            ),
            (
                Operation::GetServices,
                "<Service><Namespace>http://www.onvif.org/ver10/device/wsdl</Namespace><XAddr>http://c/d</XAddr></Service>\
                 <Service><Namespace>http://www.onvif.org/ver10/media/wsdl</Namespace><XAddr>http://c/m</XAddr></Service>\
                 <Service><Namespace>http://www.onvif.org/ver20/media/wsdl</Namespace><XAddr>http://c/m2</XAddr></Service>",
            ),
        ] {
            assert_eq!(media(operation, inside).service, "http://c/m");
        }
    }

    #[test]
    fn a_request_names_the_profile_and_the_service() {
        let request = Operation::GetStreamUri.request("a<b", None);
        for part in [
            "<GetStreamUri xmlns=\"http://www.onvif.org/ver10/media/wsdl\"><StreamSetup>",
            ">RTP-Unicast<",
            "<Protocol>RTSP</Protocol>",
            "<ProfileToken>a&lt;b</ProfileToken></GetStreamUri>",
        ] {
            assert!(request.contains(part), "{request}");
        }
        assert_eq!(
            Operation::GetProfiles.content_type(),
            "application/soap+xml; charset=utf-8; action=\"http://www.onvif.org/ver10/media/wsdl/GetProfiles\""
        );
    }

    #[test]
    fn a_url_that_is_too_long_is_not_kept() {
        let uri = |length| {
            let inside = format!("<MediaUri><Uri>{}</Uri></MediaUri>", "u".repeat(length));
            media(Operation::GetStreamUri, &inside).uri.len()
        };
        assert_eq!((uri(MAX_BYTES), uri(MAX_BYTES + 1)), (MAX_BYTES, 0));
    }
}

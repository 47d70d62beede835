//! Converts a camera into a device: Akri's id and properties, and attributes for selectors.

use leafhost_sdk::{Device, Health};

use crate::details::{Channels, Details, Identity};
use crate::discover::cursor::Camera;
use crate::discover::cursor::media::{Media, Profile, Sources};
use crate::filter::mac;
use crate::wsd;

/// Maximum number of bytes in the text of an attribute.
const MAX_TEXT: usize = 64;
/// Maximum number of bytes in the name of an attribute.
const MAX_NAME: usize = 32;
/// Maximum number of attributes of a device.
const MAX_ATTRIBUTES: usize = 32;
/// Maximum number of bytes in a scope; its value may be percent-encoded.
const MAX_SCOPE: usize = 256;
/// Prefix of ONVIF's own scopes.
const SCOPE: &str = "onvif://www.onvif.org/";

/// Returns true if a scope can become an attribute.
pub fn is_useful(scope: &str) -> bool {
    scope.starts_with(SCOPE) && scope.len() <= MAX_SCOPE
}

/// Returns the hardware address in a scope `MAC/…`, which some vendors use.
pub fn mac(scope: &str) -> Option<String> {
    let (category, value) = scope.strip_prefix(SCOPE)?.split_once('/')?;
    let mac = mac::spell(&decode(value));
    (category.eq_ignore_ascii_case("mac") && mac::is_spelled(&mac)).then_some(mac)
}

/// Returns the id of the device.
fn id(url: &str, uuid: &str, identity: Identity) -> String {
    match identity {
        Identity::Url => format!("{url}-{uuid}"),
        Identity::EndpointReference => wsd::urn(uuid),
    }
}

fn health(camera: &Camera) -> Health {
    match (camera.unhealthy.as_str(), camera.moved_from.as_str()) {
        ("", "") => Health::Healthy,
        ("", old) => Health::Unhealthy(format!(
            "its address has changed from {old}; restart the programs that use that address"
        )),
        (why, _) => Health::Unhealthy(why.to_owned()),
    }
}

/// Builds the devices of a camera: one, or one for each of its video sources. There is none while the video sources are to
/// be devices but are not known yet, because any other id would be withdrawn as soon as they are.
pub fn devices(url: &str, camera: &Camera, details: &Details) -> Vec<Device> {
    let media = &camera.info.media;
    let sources = match (details.channels, media.known) {
        (Channels::Devices, Sources::NotAsked | Sources::NotReported) => Vec::new(),
        (Channels::Devices, Sources::Several) => media.sources(),
        (Channels::Devices, Sources::One) | (Channels::One, _) => vec![""],
    };
    let sources = sources.into_iter();
    sources
        .map(|source| device(url, camera, details.identity, source))
        .collect()
}

/// Builds the device of a video source, or of the whole camera if `source` is empty.
fn device(url: &str, camera: &Camera, identity: Identity, source: &str) -> Device {
    let Camera { uuid, info, .. } = camera;
    let mut id = id(url, uuid, identity);
    if !source.is_empty() {
        // Endpoint references are in lower case, so none can imitate this.
        id.push_str("#VideoSource=");
        id.push_str(source);
    }
    let mut device = Device::new(id)
        .physical_id(uuid)
        .health(health(camera))
        .property("ONVIF_DEVICE_SERVICE_URL", url)
        .property("ONVIF_DEVICE_UUID", uuid);
    for (name, value) in [
        ("ONVIF_DEVICE_IP_ADDRESS", &info.ip),
        ("ONVIF_DEVICE_MAC_ADDRESS", &info.mac),
    ] {
        if !value.is_empty() {
            device = device.property(name, value);
        }
    }
    for (name, value) in [
        ("manufacturer", &info.manufacturer),
        ("model", &info.model),
        ("firmware", &info.firmware),
        ("serial", &info.serial),
    ] {
        device = text(device, name, value);
    }
    if !source.is_empty() {
        device = device.property("ONVIF_DEVICE_VIDEO_SOURCE", source);
        device = text(device, "video_source", source);
    }
    device = streams(device, &info.media, source);
    for scope in &camera.scopes {
        device = attribute(device, scope);
    }
    device
}

/// Adds the streams and snapshots of each profile of the source by number, and those of the first also without a number.
fn streams(mut device: Device, media: &Media, source: &str) -> Device {
    let all = media.profiles.iter();
    let is_part = |one: &&Profile| source.is_empty() || one.source == source;
    let profiles: Vec<&Profile> = all.filter(is_part).collect();
    for (place, profile) in profiles.iter().enumerate() {
        for (name, value) in [
            ("NAME", &profile.name),
            ("STREAM_URI", &profile.stream),
            ("SNAPSHOT_URI", &profile.snapshot),
            ("RESOLUTION", &profile.resolution),
            ("CODEC", &profile.codec),
        ] {
            if !value.is_empty() {
                device = device.property(format!("ONVIF_DEVICE_PROFILE_{place}_{name}"), value);
            }
        }
    }
    let Some(first) = profiles.first() else {
        return device;
    };
    for (name, value) in [
        ("ONVIF_DEVICE_STREAM_URI", &first.stream),
        ("ONVIF_DEVICE_SNAPSHOT_URI", &first.snapshot),
    ] {
        if !value.is_empty() {
            device = device.property(name, value);
        }
    }
    device = text(device, "resolution", &first.resolution);
    device = text(device, "codec", &first.codec);
    device.attribute("ptz", profiles.iter().any(|one| one.has_ptz))
}

/// Adds the attribute of a scope: `name/…`, `location/…` and `hardware/…` are texts, of which the first counts; each
/// `type/…` and `Profile/…` is a boolean.
fn attribute(device: Device, scope: &str) -> Device {
    let Some((category, value)) = scope
        .strip_prefix(SCOPE)
        .and_then(|rest| rest.split_once('/'))
    else {
        return device;
    };
    match category.to_ascii_lowercase().as_str() {
        name @ ("name" | "location" | "hardware") => {
            if device.get_attribute(name).is_some() {
                return device;
            }
            text(device, name, &decode(value))
        }
        category @ ("type" | "profile") => {
            let name: String = format!("{category}_{value}")
                .chars()
                .map(|c| {
                    if c.is_ascii_alphanumeric() {
                        c.to_ascii_lowercase()
                    } else {
                        '_'
                    }
                })
                .collect();
            if value.is_empty()
                || name.len() > MAX_NAME
                || device.attributes.len() >= MAX_ATTRIBUTES
            {
                return device;
            }
            device.attribute(name, true)
        }
        _ => device,
    }
}

fn text(device: Device, name: &str, value: &str) -> Device {
    let mut value: String = value.chars().filter(|c| !c.is_control()).collect();
    value.truncate(value.floor_char_boundary(MAX_TEXT));
    let value = value.trim();
    if value.is_empty() || device.attributes.len() >= MAX_ATTRIBUTES {
        return device;
    }
    device.attribute(name, value)
}

/// Decodes percent escapes; invalid ones stay as they are.
fn decode(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('%') {
        bytes.extend_from_slice(before.as_bytes());
        let digits = after
            .get(..2)
            .filter(|digits| digits.bytes().all(|b| b.is_ascii_hexdigit()));
        if let Some(byte) = digits.and_then(|digits| u8::from_str_radix(digits, 16).ok()) {
            bytes.push(byte);
            rest = after.get(2..).unwrap_or_default();
        } else {
            bytes.push(b'%');
            rest = after;
        }
    }
    bytes.extend_from_slice(rest.as_bytes());
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::discover::cursor::Info;
    use leafhost_sdk::AttributeValue;

    fn mk_camera(scopes: &[&str]) -> Camera {
        Camera {
            uuid: "c9790c3a-701b-464d-a189-0060351c8ada".to_owned(),
            scopes: scopes.iter().map(|&scope| scope.to_owned()).collect(),
            info: Info {
                ip: "192.168.7.9".to_owned(),
                manufacturer: "Example & Sons".to_owned(),
                serial: "\u{e4}".repeat(40),
                ..Info::default()
            },
            ..Camera::default()
        }
    }

    #[test]
    fn id_and_properties_are_those_of_akri() {
        let device = device(
            "http://192.168.7.9/onvif/device_service",
            &mk_camera(&[]),
            Identity::Url,
            "",
        );
        assert_eq!(
            device.id,
            "http://192.168.7.9/onvif/device_service-c9790c3a-701b-464d-a189-0060351c8ada"
        );
        assert_eq!(
            device.properties,
            [
                (
                    "ONVIF_DEVICE_SERVICE_URL",
                    "http://192.168.7.9/onvif/device_service"
                ),
                ("ONVIF_DEVICE_UUID", "c9790c3a-701b-464d-a189-0060351c8ada"),
                ("ONVIF_DEVICE_IP_ADDRESS", "192.168.7.9"),
            ]
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
        );
        assert_eq!(
            device.physical_id.as_deref(),
            Some("c9790c3a-701b-464d-a189-0060351c8ada")
        );
        assert_eq!(
            device.get_attribute("serial"),
            Some(&"\u{e4}".repeat(32).into())
        );
        assert_eq!(device.get_attribute("model"), None);
    }

    #[test]
    fn the_reference_alone_is_the_id_if_the_details_say_so() {
        for (uuid, name) in [
            (
                "c9790c3a-701b-464d-a189-0060351c8ada",
                "urn:uuid:c9790c3a-701b-464d-a189-0060351c8ada",
            ),
            ("http://camera/1", "http://camera/1"),
        ] {
            assert_eq!(id("u", uuid, Identity::EndpointReference), name);
        }
    }

    #[test]
    fn a_scope_names_the_hardware_address() {
        for (scope, expected) in [
            (
                "onvif://www.onvif.org/MAC/C0:56:E3:01:02:03",
                Some("c0:56:e3:01:02:03"),
            ),
            (
                "onvif://www.onvif.org/mac/c056e3010203",
                Some("c0:56:e3:01:02:03"),
            ),
            (
                "onvif://www.onvif.org/MAC/c0%3A56%3Ae3%3A01%3A02%3A03",
                Some("c0:56:e3:01:02:03"),
            ),
            ("onvif://www.onvif.org/MAC/unknown", None),
            ("onvif://www.onvif.org/MAC/", None),
            ("onvif://www.onvif.org/name/C0:56:E3:01:02:03", None),
            ("odm:MAC/C0:56:E3:01:02:03", None),
        ] {
            assert_eq!(mac(scope).as_deref(), expected, "{scope}");
        }
    }

    #[test]
    fn scopes_become_attributes() {
        let device = device(
            "u",
            &mk_camera(&[
                "onvif://www.onvif.org/name/PyCam%20One%",
                "onvif://www.onvif.org/name/other",
                "onvif://www.onvif.org/location/country/china",
                "onvif://www.onvif.org/location/",
                "onvif://www.onvif.org/Profile/Streaming",
                "onvif://www.onvif.org/type/video_encoder",
                "onvif://www.onvif.org/type/Network_Video_Transmitter_and_more",
                "odm:hardware",
                "",
            ]),
            Identity::Url,
            "",
        );
        let yes = AttributeValue::Boolean(true);
        for (name, value) in [
            ("name", Some(&"PyCam One%".into())),
            ("location", Some(&"country/china".into())),
            ("profile_streaming", Some(&yes)),
            ("type_video_encoder", Some(&yes)),
        ] {
            assert_eq!(device.get_attribute(name), value, "{name}");
        }
        assert_eq!(device.attributes.len(), 6);
    }

    #[test]
    fn a_device_has_at_most_the_allowed_number_of_attributes() {
        let scopes: Vec<String> = (0..99).map(|n| format!("{SCOPE}type/{n}")).collect();
        let scopes: Vec<&str> = scopes.iter().map(String::as_str).collect();
        assert_eq!(
            device("u", &mk_camera(&scopes), Identity::Url, "")
                .attributes
                .len(),
            MAX_ATTRIBUTES
        );
    }
}

//! Builds a device from the data of a server. It makes no decisions.

use leafhost_sdk::{AttributeValue, Device, Health};

use crate::location::Location;
use crate::messages::Application;
use crate::security_settings::SecuritySettings;

/// Upper bound of bytes in the text of an attribute.
const MAX_ATTRIBUTE: usize = 64;
/// Upper bound of bytes in a physical id.
const MAX_PHYSICAL_ID: usize = 256;
/// Policies that also have an attribute when absent, so that any selector may use them.
const POLICIES: [&str; 4] = [
    "None",
    "Basic256Sha256",
    "Aes128_Sha256_RsaOaep",
    "Aes256_Sha256_RsaPss",
];
/// Upper bound of attributes for other policies; a device has at most 32 attributes.
const MAX_POLICIES: usize = 12;

/// Builds the device of an application at a location.
pub fn device(
    location: &Location,
    application: &Application,
    settings: Option<&SecuritySettings>,
) -> Device {
    let url = location.url.as_str();
    let mut device = Device::new(url)
        .shared(!location.url.is_loopback())
        .property("OPCUA_DISCOVERY_URL", url)
        .health(Health::Healthy);
    device.physical_id = bounded(&application.uri, MAX_PHYSICAL_ID);
    let kind = match application.kind {
        0 => "Server",
        2 => "ClientAndServer",
        3 => "DiscoveryServer",
        _ => "",
    };
    for (name, value) in [
        ("applicationName", application.name.as_str()),
        ("applicationUri", &application.uri),
        ("productUri", &application.product),
        ("applicationType", kind),
    ] {
        if let Some(value) = bounded(value, MAX_ATTRIBUTE) {
            device = device.attribute(name, value);
        }
    }
    match settings {
        Some(settings) => secured(device, settings),
        None => device,
    }
}

fn secured(mut device: Device, settings: &SecuritySettings) -> Device {
    for (mode, name) in [(1, "modeNone"), (2, "modeSign"), (3, "modeSignAndEncrypt")] {
        device = device.attribute(name, settings.modes.contains(mode));
    }
    for (token, name) in [
        (0, "tokenAnonymous"),
        (1, "tokenUserName"),
        (2, "tokenCertificate"),
        (3, "tokenIssued"),
    ] {
        device = device.attribute(name, settings.tokens.contains(token));
    }
    for name in POLICIES {
        device = device.attribute(
            format!("policy{name}"),
            settings.policies.iter().any(|policy| policy == name),
        );
    }
    let others = settings
        .policies
        .iter()
        .filter(|name| !POLICIES.contains(&name.as_str()));
    for name in others.take(MAX_POLICIES) {
        device = device.attribute(format!("policy{name}"), true);
    }
    match bounded(&settings.certificate, MAX_ATTRIBUTE) {
        Some(digest) => device.attribute("certificateSha256", digest),
        None => device,
    }
}

/// Returns a text that is equal for two devices only if they are equal. No part contains a line break.
pub fn comparison_text(device: &Device) -> String {
    let mut text = format!("{}\n{:?}\n", device.id, device.shared);
    text.extend(device.physical_id.as_deref());
    for attribute in &device.attributes {
        text.push('\n');
        text.push_str(&attribute.name);
        text.push('=');
        match &attribute.value {
            AttributeValue::Text(value) | AttributeValue::Version(value) => text.push_str(value),
            AttributeValue::Boolean(value) => text.push_str(if *value { "true" } else { "false" }),
            AttributeValue::Integer(value) => text.push_str(&value.to_string()),
        }
    }
    text.push_str("\n\n");
    text
}

/// Returns the text if it is not empty, short enough and without control characters.
fn bounded(text: &str, most: usize) -> Option<String> {
    let fits = !text.is_empty() && text.len() <= most && !text.chars().any(char::is_control);
    fits.then(|| text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::security_settings::Kinds;
    use crate::url::Url;

    fn mk_application(uri: &str, name: &str) -> Application {
        Application {
            uri: uri.to_owned(),
            product: String::new(),
            name: name.to_owned(),
            kind: 0,
            urls: Vec::new(),
        }
    }

    fn mk_kinds(numbers: &[u32]) -> Kinds {
        let mut kinds = Kinds::default();
        for number in numbers {
            kinds.add(*number);
        }
        kinds
    }

    fn mk_place(url: &str) -> Location {
        Location {
            url: Url::parse(url).unwrap(),
            addresses: Vec::new(),
            moved: false,
        }
    }

    #[test]
    fn a_server_has_akris_id_and_property_and_selectable_attributes() {
        let settings = SecuritySettings {
            certificate: "ab".repeat(32),
            modes: mk_kinds(&[1, 3]),
            policies: vec!["Basic128Rsa15".to_owned(), "None".to_owned()],
            tokens: mk_kinds(&[0]),
            ..SecuritySettings::default()
        };
        let url = "opc.tcp://plc:4842/UA";
        let device = device(
            &mk_place(url),
            &mk_application("urn:plc", "PLC 1"),
            Some(&settings),
        );
        assert_eq!(device.id, url);
        assert_eq!(
            device.properties,
            [("OPCUA_DISCOVERY_URL".to_owned(), url.to_owned())]
        );
        assert_eq!(device.physical_id.as_deref(), Some("urn:plc"));
        assert_eq!(device.shared, Some(true));
        for (name, value) in [
            ("applicationName", AttributeValue::from("PLC 1")),
            ("applicationUri", "urn:plc".into()),
            ("applicationType", "Server".into()),
            ("modeNone", true.into()),
            ("modeSign", false.into()),
            ("policyBasic256Sha256", false.into()),
            ("policyBasic128Rsa15", true.into()),
            ("tokenAnonymous", true.into()),
            ("tokenUserName", false.into()),
            ("certificateSha256", "ab".repeat(32).into()),
        ] {
            assert_eq!(device.get_attribute(name), Some(&value), "{name}");
        }
        assert_eq!(device.get_attribute("productUri"), None);
    }

    #[test]
    fn any_difference_changes_the_comparison_text() {
        let settings = SecuritySettings::default();
        let location = mk_place("opc.tcp://plc:1");
        let plain = device(
            &location,
            &mk_application("urn:plc", "PLC 1"),
            Some(&settings),
        );
        let others = [
            plain.clone().attribute("modeNone", true),
            plain.clone().attribute("more", "x"),
            plain.clone().attribute("more", 1_u32),
            plain.clone().physical_id("urn:other"),
            plain.clone().shared(false),
            Device {
                id: "x".to_owned(),
                ..plain.clone()
            },
        ];
        let mut texts: Vec<String> = others.iter().chain([&plain]).map(comparison_text).collect();
        texts.sort();
        texts.dedup();
        assert_eq!(texts.len(), others.len() + 1);
    }

    #[test]
    fn attributes_stay_within_the_limits() {
        let settings = SecuritySettings {
            certificate: "ab".repeat(32),
            policies: (0..16).map(|number| format!("{number:A>26}")).collect(),
            ..SecuritySettings::default()
        };
        let mut application = mk_application(&"u".repeat(257), &"n".repeat(65));
        application.product = "a\nb".to_owned();
        let device = device(
            &mk_place("opc.tcp://127.1.2.3:1"),
            &application,
            Some(&settings),
        );
        assert!(device.attributes.len() <= 32, "{}", device.attributes.len());
        assert!(
            device
                .attributes
                .iter()
                .all(|attribute| attribute.name.len() <= 32)
        );
        for name in ["applicationName", "applicationUri", "productUri"] {
            assert_eq!(device.get_attribute(name), None, "{name}");
        }
        assert_eq!(device.physical_id, None);
        assert_eq!(device.shared, Some(false));
    }
}

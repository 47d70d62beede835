//! WS-Discovery (2005/04 draft, as ONVIF uses it): writes probes and parses messages. This module opens no sockets and
//! trusts no input.

use crate::xml;

/// Maximum number of matches read from one message. A message is a datagram, so more than one is rare already.
const MAX_MATCHES: usize = 64;
/// Maximum number of addresses kept from one match.
pub const MAX_XADDRS: usize = 16;
/// Maximum number of scopes kept from one match.
const MAX_SCOPES: usize = 128;
/// Maximum number of types kept of one match.
const MAX_TYPES: usize = 32;

/// Namespace of WS-Discovery.
const DISCOVERY: &str = "http://schemas.xmlsoap.org/ws/2005/04/discovery";
/// ONVIF's namespace for `NetworkVideoTransmitter`.
const NETWORK: &str = "http://www.onvif.org/ver10/network/wsdl";
/// ONVIF's namespace for `Device`.
const DEVICE: &str = "http://www.onvif.org/ver10/device/wsdl";

/// Kind of devices to probe for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Cameras and encoders.
    NetworkVideoTransmitter,
    /// All devices that speak ONVIF: recorders and devices of later profiles have only this type.
    Device,
}

/// Returns a probe for devices of a kind. `message_id` is a URI such as `urn:uuid:…`.
///
/// The prefixes are declared on the envelope, since some devices look for the declaration of the type's prefix only there.
/// Others look for it only at the type, so that of the transmitter is declared there as well.
pub fn probe(kind: Kind, message_id: &str) -> String {
    let types = match kind {
        Kind::NetworkVideoTransmitter => format!(
            "<d:Types xmlns:d=\"{DISCOVERY}\" xmlns:dn=\"{NETWORK}\">dn:NetworkVideoTransmitter</d:Types>"
        ),
        Kind::Device => "<d:Types>tds:Device</d:Types>".to_owned(),
    };
    message("Probe", message_id, &types)
}

/// Returns a Resolve for a device that announced no address.
pub fn resolve(endpoint: &str, message_id: &str) -> String {
    let endpoint = xml::escape(endpoint);
    let reference =
        format!("<a:EndpointReference><a:Address>{endpoint}</a:Address></a:EndpointReference>");
    message("Resolve", message_id, &reference)
}

fn message(action: &str, message_id: &str, inside: &str) -> String {
    format!(
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n\
         <s:Envelope xmlns:s=\"http://www.w3.org/2003/05/soap-envelope\" \
         xmlns:a=\"http://schemas.xmlsoap.org/ws/2004/08/addressing\" \
         xmlns:d=\"{DISCOVERY}\" \
         xmlns:dn=\"{NETWORK}\" xmlns:tds=\"{DEVICE}\">\
         <s:Header><a:MessageID>{message_id}</a:MessageID>\
         <a:To s:mustUnderstand=\"true\">urn:schemas-xmlsoap-org:ws:2005:04:discovery</a:To>\
         <a:Action s:mustUnderstand=\"true\">{DISCOVERY}/{action}</a:Action></s:Header>\
         <s:Body><d:{action}>{inside}</d:{action}></s:Body></s:Envelope>"
    )
}

/// Message received by datagram.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Message {
    /// Answer to Probe or Resolve.
    Matches {
        /// Id of the answered message, if present.
        relates_to: String,
        /// Id of this message.
        message_id: String,
        /// Devices; may be empty.
        matches: Vec<Announcement>,
    },
    /// Announcement of a device.
    Hello(Announcement),
    /// Endpoint reference of a device that leaves.
    Bye(String),
    /// Name of the element of any other message.
    Other(String),
}

/// Announced description of a device.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Announcement {
    /// Address of the endpoint reference, such as `urn:uuid:…`.
    pub endpoint: String,
    /// Types as written.
    pub types: Vec<String>,
    /// True if one of the types is ONVIF's, or none is given.
    pub is_onvif: bool,
    /// Scopes.
    pub scopes: Vec<String>,
    /// Addresses, at most [`MAX_XADDRS`].
    pub xaddrs: Vec<String>,
    /// Number of further addresses.
    pub more_xaddrs: usize,
    /// Version that increases when any other field changes.
    pub metadata_version: String,
}

/// Parses a datagram.
pub fn read(payload: &[u8]) -> xml::Result<Message> {
    let mut relates_to = String::new();
    let mut message_id = String::new();
    let mut current = Announcement::default();
    let mut matches = Vec::new();
    let mut message = None;
    let mut body = String::new();
    xml::read(payload, &mut |element| match element.name(0) {
        "RelatesTo" => element.text.clone_into(&mut relates_to),
        "MessageID" => element.text.clone_into(&mut message_id),
        "Address" if element.name(1) == "EndpointReference" => {
            element.text.clone_into(&mut current.endpoint);
        }
        "Types" => take_types(element, &mut current),
        "Scopes" => {
            let scopes = element.text.split_whitespace().take(MAX_SCOPES);
            current.scopes.extend(scopes.map(str::to_owned));
            current.scopes.truncate(MAX_SCOPES);
        }
        "XAddrs" => {
            let mut xaddrs = element.text.split_whitespace().map(str::to_owned);
            current
                .xaddrs
                .extend(xaddrs.by_ref().take(MAX_XADDRS - current.xaddrs.len()));
            current.more_xaddrs += xaddrs.count();
        }
        "MetadataVersion" => element.text.clone_into(&mut current.metadata_version),
        "ProbeMatch" | "ResolveMatch" => {
            let ended = finish(std::mem::take(&mut current));
            if matches.len() < MAX_MATCHES {
                matches.push(ended);
            }
        }
        "ProbeMatches" | "ResolveMatches" => {
            message = Some(Message::Matches {
                relates_to: std::mem::take(&mut relates_to),
                message_id: std::mem::take(&mut message_id),
                matches: std::mem::take(&mut matches),
            });
        }
        "Hello" => message = Some(Message::Hello(finish(std::mem::take(&mut current)))),
        "Bye" => message = Some(Message::Bye(std::mem::take(&mut current.endpoint))),
        name if element.name(1) == "Body" => body = name.chars().take(32).collect(),
        _ => {}
    })?;
    if message.is_none() && !matches.is_empty() {
        // Some devices omit the element around the matches.
        return Ok(Message::Matches {
            relates_to,
            message_id,
            matches,
        });
    }
    Ok(message.unwrap_or(Message::Other(body)))
}

fn take_types(element: &xml::Element<'_>, current: &mut Announcement) {
    for name in element.text.split_whitespace().take(MAX_TYPES) {
        // With an undeclared prefix the local name decides, because no other meaning is possible.
        let onvif = match element.resolve(name) {
            (Some(namespace), local) => {
                (namespace == NETWORK && local.starts_with("NetworkVideo"))
                    || (namespace == DEVICE && local == "Device")
            }
            (None, local) => local == "NetworkVideoTransmitter",
        };
        current.is_onvif |= onvif;
        current.types.push(name.to_owned());
    }
}

fn finish(mut announcement: Announcement) -> Announcement {
    announcement.is_onvif |= announcement.types.is_empty();
    announcement
}

/// Returns true if a message with these headers answers one of ours. Cameras write `uuid:` for `urn:uuid:`, use our id as
/// their own, or omit the header; only a message that names another id is rejected.
pub fn answers(relates_to: &str, message_id: &str, ours: &[String]) -> bool {
    let is_ours = |id: &str| ours.iter().any(|own| uuid(own) == uuid(id));
    !is_uuid(&uuid(relates_to)) || is_ours(relates_to) || is_ours(message_id)
}

/// Returns an endpoint reference without `urn:`, `uuid:` and braces, in lower case. Akri names a camera this way, whichever
/// form the camera uses.
pub fn uuid(endpoint: &str) -> String {
    let name = endpoint.trim().to_ascii_lowercase();
    let name = name.strip_prefix("urn:").unwrap_or(&name);
    let name = name.strip_prefix("uuid:").unwrap_or(name);
    name.trim_matches(['{', '}']).to_owned()
}

/// Returns the endpoint reference of a [`uuid`] in normalized form.
pub fn urn(uuid: &str) -> String {
    if is_uuid(uuid) {
        format!("urn:uuid:{uuid}")
    } else {
        uuid.to_owned()
    }
}

fn is_uuid(text: &str) -> bool {
    text.len() == 36 && text.bytes().all(|b| b.is_ascii_hexdigit() || b == b'-')
}

#[cfg(test)]
mod tests;

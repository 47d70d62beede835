//! Requests of ONVIF's device and media services that discovery needs, and their answers. This module opens no connections
//! and knows no credentials.
//!
//! Answers are matched by local names, because cameras put elements into wrong namespaces.

pub mod clock;
pub mod media;

use std::net::{IpAddr, Ipv4Addr};

use crate::xml::{self, Element};
use clock::UtcTime;
use media::{Media, Profile};

/// Maximum number of bytes kept of a camera's text.
const MAX_TEXT: usize = 256;
/// Maximum number of scopes that are kept.
const MAX_SCOPES: usize = 128;
/// Maximum number of network interfaces kept of a camera.
const MAX_INTERFACES: usize = 16;
/// Maximum number of addresses kept of an interface.
const MAX_IPS: usize = 32;
/// Maximum number of codes kept of a fault.
const MAX_CODES: usize = 8;

/// Namespace of the device service.
const DEVICE: &str = "http://www.onvif.org/ver10/device/wsdl";

/// Request to a camera.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    /// Time of the camera; a camera should answer this request without credentials.
    GetSystemDateAndTime,
    /// Manufacturer, model and serial number.
    GetDeviceInformation,
    /// Network addresses.
    GetNetworkInterfaces,
    /// Scopes: names and capabilities.
    GetScopes,
    /// Address of the media service.
    GetCapabilities,
    /// Addresses of all services, for cameras without `GetCapabilities`.
    GetServices,
    /// Media profiles.
    GetProfiles,
    /// URL of a profile's stream.
    GetStreamUri,
    /// URL of a profile's snapshot.
    GetSnapshotUri,
}

impl Operation {
    /// Returns the name on the wire.
    pub fn name(self) -> &'static str {
        match self {
            Self::GetSystemDateAndTime => "GetSystemDateAndTime",
            Self::GetDeviceInformation => "GetDeviceInformation",
            Self::GetNetworkInterfaces => "GetNetworkInterfaces",
            Self::GetScopes => "GetScopes",
            Self::GetCapabilities => "GetCapabilities",
            Self::GetServices => "GetServices",
            Self::GetProfiles => "GetProfiles",
            Self::GetStreamUri => "GetStreamUri",
            Self::GetSnapshotUri => "GetSnapshotUri",
        }
    }

    /// Returns true if the request is one to the media service, and not to the device service.
    pub fn is_media(self) -> bool {
        matches!(
            self,
            Self::GetProfiles | Self::GetStreamUri | Self::GetSnapshotUri
        )
    }

    fn namespace(self) -> &'static str {
        if self.is_media() {
            media::MEDIA
        } else {
            DEVICE
        }
    }

    /// Returns the content of the request; `profile` is the token of the profile that it is about.
    fn content(self, profile: &str) -> String {
        let profile = || format!("<ProfileToken>{}</ProfileToken>", xml::escape(profile));
        match self {
            Self::GetCapabilities => "<Category>Media</Category>".to_owned(),
            Self::GetServices => "<IncludeCapability>false</IncludeCapability>".to_owned(),
            Self::GetStreamUri => format!("{}{}", media::UNICAST, profile()),
            Self::GetSnapshotUri => profile(),
            _ => String::new(),
        }
    }

    /// Returns the `Content-Type` of the request (SOAP 1.2, RFC 3902).
    pub fn content_type(self) -> String {
        format!(
            "application/soap+xml; charset=utf-8; action=\"{}/{}\"",
            self.namespace(),
            self.name()
        )
    }

    /// Returns the request about a profile, or about the camera, with an optional `wsse:Security` element. Some devices accept
    /// only exactly this body.
    pub fn request(self, profile: &str, security: Option<&str>) -> String {
        let (name, namespace) = (self.name(), self.namespace());
        let element = match self.content(profile).as_str() {
            "" => format!("<{name} xmlns=\"{namespace}\"/>"),
            content => format!("<{name} xmlns=\"{namespace}\">{content}</{name}>"),
        };
        let header = security.map_or(String::new(), |security| {
            format!("<s:Header>{security}</s:Header>")
        });
        format!(
            "<s:Envelope xmlns:s=\"http://www.w3.org/2003/05/soap-envelope\">{header}\
             <s:Body xmlns:xsi=\"http://www.w3.org/2001/XMLSchema-instance\" xmlns:xsd=\"http://www.w3.org/2001/XMLSchema\">\
             {element}</s:Body></s:Envelope>"
        )
    }
}

/// Answer that is not a fault.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Answer {
    /// True if the body contained the response element.
    pub is_response: bool,
    /// Time of the camera's clock.
    pub time: Option<UtcTime>,
    /// Manufacturer.
    pub manufacturer: String,
    /// Model.
    pub model: String,
    /// Firmware version.
    pub firmware: String,
    /// Serial number.
    pub serial: String,
    /// Network interfaces as reported by the camera.
    pub interfaces: Vec<Interface>,
    /// Scopes.
    pub scopes: Vec<String>,
    /// Streams and snapshots.
    pub media: Media,
}

/// Network interface of a camera.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Interface {
    /// True if the camera reports the interface as disabled.
    pub is_disabled: bool,
    /// Hardware address, unnormalized.
    pub mac: String,
    /// Addresses as reported by the camera: manual, link-local, by DHCP and from routers.
    pub ips: Vec<IpAddr>,
}

impl Interface {
    /// Returns its IPv4 addresses.
    pub fn ipv4(&self) -> impl Iterator<Item = Ipv4Addr> {
        self.ips.iter().filter_map(|ip| match ip {
            IpAddr::V4(ip) => Some(*ip),
            IpAddr::V6(_) => None,
        })
    }
}

/// Error of a response without an answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// Camera that requires credentials or rejects those given.
    #[error("wants credentials: {0}")]
    NotAuthorized(String),
    /// Any other fault.
    #[error("answers with a fault: {0}")]
    Fault(String),
    /// Response that is not SOAP.
    #[error("{0}")]
    NotSoap(String),
}

/// Parts of a fault that were read so far.
#[derive(Debug, Default)]
struct Fault {
    codes: Vec<String>,
    reason: String,
}

/// Numbers of a date that were read so far.
#[derive(Debug, Default)]
struct Date {
    date: (i64, i64, i64),
    time: (i64, i64, i64),
}

/// Reads an HTTP response. The status counts only if the body is not decisive.
pub fn read(operation: Operation, status: u16, body: &[u8]) -> Result<Answer, Failure> {
    let mut answer = Answer::default();
    let mut fault = Fault::default();
    let mut utc = Date::default();
    let mut interface = Interface::default();
    let mut profile = Profile::default();
    let (mut is_envelope, mut is_fault, mut has_date) = (false, false, false);
    let response = format!("{}Response", operation.name());
    let read = xml::read(body, &mut |element| {
        let text = element.text;
        match element.name(0) {
            "Envelope" => is_envelope = element.name(1).is_empty(),
            "Fault" => is_fault |= element.name(1) == "Body",
            "UTCDateTime" => has_date = true,
            "NetworkInterfaces" => {
                let whole = std::mem::take(&mut interface);
                if answer.interfaces.len() < MAX_INTERFACES {
                    answer.interfaces.push(whole);
                }
            }
            name if name == response => answer.is_response = true,
            _ => {
                take_fault(element, &mut fault);
                take_number(element, &mut utc);
                take_interface(element, &mut interface);
                answer.media.take(element, &mut profile);
                take(element, &mut answer, text);
            }
        }
    });
    if is_fault {
        return Err(fault.classify(status));
    }
    match (read, status) {
        (_, 401 | 403) => Err(Failure::NotAuthorized(format!("HTTP status {status}"))),
        (Ok(()), 200) if is_envelope => {
            answer.time = has_date.then(|| UtcTime::new(utc.date, utc.time)).flatten();
            Ok(answer)
        }
        (Ok(()), 200) => Err(Failure::NotSoap("answers with XML that is not SOAP".into())),
        (Err(error), 200) => Err(Failure::NotSoap(format!("answers with no SOAP: {error}"))),
        (_, 300..=399) => Err(Failure::NotSoap(format!(
            "answers with a redirect ({status}), which is not followed"
        ))),
        _ => Err(Failure::NotSoap(format!(
            "answers with HTTP status {status}"
        ))),
    }
}

fn take(element: &Element<'_>, answer: &mut Answer, text: &str) {
    let place = match element.name(0) {
        "Manufacturer" => &mut answer.manufacturer,
        "Model" => &mut answer.model,
        "FirmwareVersion" => &mut answer.firmware,
        "SerialNumber" => &mut answer.serial,
        "ScopeItem" => {
            if answer.scopes.len() < MAX_SCOPES && !text.is_empty() {
                answer.scopes.push(cut(text));
            }
            return;
        }
        _ => return,
    };
    if place.is_empty() {
        *place = cut(text);
    }
}

/// Collects the elements of the current interface; the interface's own element ends after all of them.
fn take_interface(element: &Element<'_>, interface: &mut Interface) {
    let text = element.text;
    if element.ends(&["NetworkInterfaces", "Enabled"]) {
        interface.is_disabled = matches!(text, "false" | "0");
    } else if element.ends(&["NetworkInterfaces", "Info", "HwAddress"]) {
        if interface.mac.is_empty() {
            interface.mac = cut(text);
        }
    } else if (element.ends(&["NetworkInterfaces", "IPv4", "Config", "*", "Address"])
        || element.ends(&["NetworkInterfaces", "IPv6", "Config", "*", "Address"]))
        && let (Ok(ip), true) = (text.parse(), interface.ips.len() < MAX_IPS)
    {
        interface.ips.push(ip);
    }
}

fn take_number(element: &Element<'_>, utc: &mut Date) {
    let place = match (element.name(1), element.name(0)) {
        ("Date", "Year") => &mut utc.date.0,
        ("Date", "Month") => &mut utc.date.1,
        ("Date", "Day") => &mut utc.date.2,
        ("Time", "Hour") => &mut utc.time.0,
        ("Time", "Minute") => &mut utc.time.1,
        ("Time", "Second") => &mut utc.time.2,
        _ => return,
    };
    if element.name(2) == "UTCDateTime" {
        *place = element.text.parse().unwrap_or(-1);
    }
}

fn take_fault(element: &Element<'_>, fault: &mut Fault) {
    match (element.name(1), element.name(0)) {
        ("Code" | "Subcode", "Value") | ("Fault", "faultcode") | (_, "subcode")
            if fault.codes.len() < MAX_CODES =>
        {
            // The value of a code ends before the subcodes inside of the code, so the outermost comes first.
            fault.codes.push(cut(element.text));
        }
        ("Reason", "Text") | ("Fault", "faultstring") => fault.reason = cut(element.text),
        _ => {}
    }
}

impl Fault {
    /// Classifies the fault. Cameras that require credentials report this in a subcode (mostly with HTTP status 400), in
    /// words, or only as the sender's fault (`Client` in SOAP 1.1). A server that lacks the operation also reports the
    /// sender's fault, but explains it in words.
    fn classify(self, status: u16) -> Failure {
        let text = self.text();
        let lower = text.to_ascii_lowercase();
        let says = [
            "notauthorized",
            "not authorized",
            "unauthorized",
            "failedauthentication",
        ]
        .into_iter()
        .chain([
            "authority failure",
            "invalidsecurity",
            "authentication failed",
        ])
        .any(|words| lower.contains(words));
        let lacks = [
            "not implemented",
            "not supported",
            "not recognized",
            "unknown method",
        ]
        .iter()
        .any(|words| lower.contains(words));
        let local = |code: &str| {
            let name = code.rsplit(':').next().unwrap_or_default();
            matches!(name, "Sender" | "Client") || name.starts_with("Client.")
        };
        let only_sender = !self.codes.is_empty() && self.codes.iter().all(|code| local(code));
        if says || (only_sender && !lacks) || matches!(status, 401 | 403) {
            Failure::NotAuthorized(cut(&text))
        } else {
            Failure::Fault(cut(&text))
        }
    }

    fn text(&self) -> String {
        let codes = self.codes.join(" ");
        match (codes.is_empty(), self.reason.is_empty()) {
            (true, true) => "without a reason".to_owned(),
            (false, true) => codes,
            (true, false) => self.reason.clone(),
            (false, false) => format!("{codes}: {}", self.reason),
        }
    }
}

/// Returns a peer's text on one line, shortened.
pub fn cut(text: &str) -> String {
    let mut line: String = text
        .chars()
        .map(|c| if c.is_control() { ' ' } else { c })
        .collect();
    line.truncate(line.floor_char_boundary(MAX_TEXT));
    line.trim().to_owned()
}

#[cfg(test)]
mod tests;

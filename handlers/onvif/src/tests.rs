//! Tests of whole calls on a fake network.

mod addresses;
mod akri;
mod cameras;
mod credentials;
mod floods;
mod hostile;
mod identity;
mod impersonation;
mod interfaces;
mod later_calls;
mod quirks;
mod services;
mod streams;
mod sweep;
mod without_time;

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use leafhost_sdk::testing::{Call, FakeHost, HttpAnswer, UdpAnswer, description_problems};
use leafhost_sdk::{Datagram, Devices, Discovery, Event, Wake, http, net};

use super::Onvif;

const GROUP: &str = "239.255.255.250:3702";
const SERVICE: &str = "/onvif/device_service";

/// Creates a network with this node on it.
fn mk_network() -> FakeHost {
    FakeHost::new().interface("eth0", 2, ["192.168.7.2/24", "fe80::2/64"])
}

fn uuid(n: u32) -> String {
    format!("00000000-0000-4000-8000-{n:012}")
}

fn url(n: u32) -> String {
    format!("http://192.168.7.{n}{SERVICE}")
}

fn id(n: u32) -> String {
    format!("{}-{}", url(n), uuid(n))
}

/// Creates a WS-Discovery message with this body.
fn mk_message(action: &str, body: &str) -> Vec<u8> {
    format!(
        r#"<?xml version="1.0"?><E:Envelope xmlns:E="http://www.w3.org/2003/05/soap-envelope" xmlns:a="http://schemas.xmlsoap.org/ws/2004/08/addressing" xmlns:d="http://schemas.xmlsoap.org/ws/2005/04/discovery" xmlns:q="http://www.onvif.org/ver10/network/wsdl"><E:Header><a:Action>http://schemas.xmlsoap.org/ws/2005/04/discovery/{action}</a:Action></E:Header><E:Body>{body}</E:Body></E:Envelope>"#
    )
    .into_bytes()
}

fn mk_announcement(uuid: &str, xaddrs: &str) -> String {
    format!(
        "<a:EndpointReference><a:Address>urn:uuid:{uuid}</a:Address></a:EndpointReference>\
         <d:Types>q:NetworkVideoTransmitter</d:Types>\
         <d:Scopes>onvif://www.onvif.org/name/Cam onvif://www.onvif.org/type/ptz</d:Scopes>\
         <d:XAddrs>{xaddrs}</d:XAddrs><d:MetadataVersion>1</d:MetadataVersion>"
    )
}

fn mk_match(uuid: &str, xaddrs: &str) -> Vec<u8> {
    let announcement = mk_announcement(uuid, xaddrs);
    mk_message(
        "ProbeMatches",
        &format!("<d:ProbeMatches><d:ProbeMatch>{announcement}</d:ProbeMatch></d:ProbeMatches>"),
    )
}

fn mk_datagram(source: &str, payload: Vec<u8>) -> Event {
    Event::Multicast(Datagram {
        group: "239.255.255.250".to_owned(),
        port: 3702,
        source: source.to_owned(),
        interface: 2,
        payload,
    })
}

fn mk_hello(n: u32) -> Event {
    let announcement = mk_announcement(&uuid(n), &url(n));
    let payload = mk_message("Hello", &format!("<d:Hello>{announcement}</d:Hello>"));
    mk_datagram(&format!("192.168.7.{n}:3702"), payload)
}

fn mk_bye(n: u32, source: &str) -> Event {
    let uuid = uuid(n);
    let payload = mk_message(
        "Bye",
        &format!(
            "<d:Bye><a:EndpointReference><a:Address>uuid:{uuid}</a:Address></a:EndpointReference></d:Bye>"
        ),
    );
    mk_datagram(source, payload)
}

/// Adds the announcement of camera `n`, which answers probes.
fn announced(host: FakeHost, n: u32) -> FakeHost {
    answering(
        host,
        &format!("192.168.7.{n}:3702"),
        mk_match(&uuid(n), &url(n)),
    )
}

/// Adds a member of the group that answers every probe.
fn answering(host: FakeHost, from: &str, payload: Vec<u8>) -> FakeHost {
    let from = from.parse().unwrap();
    host.udp_peer(GROUP, move |_, _| {
        vec![UdpAnswer {
            after: Duration::from_millis(30),
            from,
            payload: payload.clone(),
        }]
    })
}

/// Adds camera 9; also returns the number of password digests that it was sent. `reply` answers a request, with its text, and
/// true if that has a digest.
fn with_digests(
    reply: impl Fn(&http::Request, &str, bool) -> http::Response + 'static,
) -> (FakeHost, Rc<Cell<usize>>) {
    let proofs = Rc::new(Cell::new(0));
    let counted = Rc::clone(&proofs);
    let host = announced(mk_network(), 9);
    let host = host.http_server("http://192.168.7.9:80", move |request| {
        let body = String::from_utf8_lossy(&request.body).into_owned();
        let has_token = body.contains("PasswordDigest");
        counted.set(counted.get() + usize::from(has_token));
        reply(request, &body, has_token).into()
    });
    (host, proofs)
}

fn mk_soap(body: &str) -> Vec<u8> {
    format!(
        r#"<s:Envelope xmlns:s="http://www.w3.org/2003/05/soap-envelope" xmlns:tds="http://www.onvif.org/ver10/device/wsdl" xmlns:tt="http://www.onvif.org/ver10/schema"><s:Body>{body}</s:Body></s:Envelope>"#
    )
    .into_bytes()
}

const DATE: &str = "<tds:GetSystemDateAndTimeResponse><tds:SystemDateAndTime><tt:UTCDateTime><tt:Time><tt:Hour>7</tt:Hour><tt:Minute>50</tt:Minute><tt:Second>45</tt:Second></tt:Time><tt:Date><tt:Year>2010</tt:Year><tt:Month>9</tt:Month><tt:Day>16</tt:Day></tt:Date></tt:UTCDateTime></tds:SystemDateAndTime></tds:GetSystemDateAndTimeResponse>";

/// Returns the answer of a camera that requires no credentials.
fn answer(n: u32, request: &http::Request) -> http::Response {
    let asked = String::from_utf8_lossy(&request.body).into_owned();
    let body = if asked.contains("<GetSystemDateAndTime ") {
        DATE.to_owned()
    } else if asked.contains("<GetNetworkInterfaces ") {
        format!(
            "<tds:GetNetworkInterfacesResponse><tds:NetworkInterfaces><tt:Info><tt:HwAddress>00:11:22:33:44:{n:02X}</tt:HwAddress></tt:Info><tt:IPv4><tt:Config><tt:Manual><tt:Address>192.168.7.{n}</tt:Address></tt:Manual></tt:Config></tt:IPv4></tds:NetworkInterfaces></tds:GetNetworkInterfacesResponse>"
        )
    } else if asked.contains("<GetDeviceInformation ") {
        format!(
            "<tds:GetDeviceInformationResponse><tds:Manufacturer>Example</tds:Manufacturer><tds:Model>M1</tds:Model><tds:FirmwareVersion>1.2.3</tds:FirmwareVersion><tds:SerialNumber>SN{n}</tds:SerialNumber></tds:GetDeviceInformationResponse>"
        )
    } else {
        "<tds:GetScopesResponse><tds:Scopes><tt:ScopeItem>onvif://www.onvif.org/Profile/T</tt:ScopeItem></tds:Scopes></tds:GetScopesResponse>".to_owned()
    };
    http::Response::new(200, mk_soap(&body))
}

fn fails(error: net::Error) -> HttpAnswer {
    HttpAnswer {
        after: Duration::ZERO,
        result: Err(error),
    }
}

/// Adds camera `n` at its address, which announces itself and answers at once.
fn with_camera(host: FakeHost, n: u32) -> FakeHost {
    let host = answering(
        host,
        &format!("192.168.7.{n}:3702"),
        mk_match(&uuid(n), &url(n)),
    );
    with_service(host, n)
}

fn with_service(host: FakeHost, n: u32) -> FakeHost {
    host.http_server(&format!("http://192.168.7.{n}:80"), move |request| {
        answer(n, request).into()
    })
}

/// Adds camera `n`, which is present only while the switch is on.
fn with_switched(host: FakeHost, n: u32, is_on: &Rc<Cell<bool>>) -> FakeHost {
    let (heard, asked) = (Rc::clone(is_on), Rc::clone(is_on));
    let from = format!("192.168.7.{n}:3702").parse().unwrap();
    host.udp_peer(GROUP, move |_, _| {
        let answer = UdpAnswer {
            after: Duration::from_millis(30),
            from,
            payload: mk_match(&uuid(n), &url(n)),
        };
        heard.get().then_some(answer).into_iter().collect()
    })
    .http_server(&format!("http://192.168.7.{n}:80"), move |request| {
        if asked.get() {
            answer(n, request).into()
        } else {
            fails(net::Error::Refused)
        }
    })
}

fn call(details: &str) -> Call<Onvif> {
    Call::new(details)
}

/// Creates the next call of the session with these events.
fn next(before: &Discovery, details: &str, events: Vec<Event>) -> Call<Onvif> {
    call(details)
        .events(events)
        .cursor(before.cursor.clone().unwrap())
}

fn ids(discovery: &Discovery) -> Vec<&str> {
    discovery
        .devices()
        .iter()
        .map(|device| device.id.as_str())
        .collect()
}

fn is_complete(discovery: &Discovery) -> bool {
    matches!(discovery.devices, Devices::Complete(_))
}

fn is_partial(discovery: &Discovery) -> bool {
    matches!(discovery.devices, Devices::Partial(_))
}

/// Returns the HTTP requests so far.
fn requests(host: &FakeHost) -> Vec<String> {
    let contacts = host.contacts();
    contacts
        .into_iter()
        .map(|contact| contact.to)
        .filter(|to| to.starts_with("http"))
        .collect()
}

/// Counts the datagrams so far.
fn datagrams(host: &FakeHost) -> usize {
    host.contacts()
        .iter()
        .filter(|contact| contact.to.starts_with("udp"))
        .count()
}

fn reasons(host: &FakeHost, subject: &str) -> Vec<String> {
    let skipped = host.skipped();
    skipped
        .into_iter()
        .filter(|skipped| skipped.subject.contains(subject))
        .map(|skipped| format!("{}: {}", skipped.rule, skipped.reason))
        .collect()
}

#[test]
fn the_description_is_valid() {
    assert!(description_problems::<Onvif>().is_empty());
}

#[test]
fn a_camera_becomes_a_device() {
    let host = with_camera(mk_network(), 9);
    let found = call("").run(&host).unwrap();
    assert!(is_complete(&found));
    assert_eq!(ids(&found), [id(9)], "{:?}", host.skipped());
    let device = &found.devices()[0];
    for (name, value) in [
        ("ONVIF_DEVICE_SERVICE_URL", url(9)),
        ("ONVIF_DEVICE_UUID", uuid(9)),
        ("ONVIF_DEVICE_IP_ADDRESS", "192.168.7.9".to_owned()),
        ("ONVIF_DEVICE_MAC_ADDRESS", "00:11:22:33:44:09".to_owned()),
    ] {
        assert_eq!(device.get_property(name), Some(value.as_str()), "{name}");
    }
    for (name, value) in [
        ("manufacturer", "Example".into()),
        ("model", "M1".into()),
        ("firmware", "1.2.3".into()),
        ("serial", "SN9".into()),
        ("name", "Cam".into()),
        ("type_ptz", true.into()),
        ("profile_t", true.into()),
    ] {
        assert_eq!(device.get_attribute(name), Some(&value), "{name}");
    }
    assert_eq!(device.physical_id, Some(uuid(9)));
    assert!(host.skipped().is_empty(), "{:?}", host.skipped());
    assert!(host.log().is_empty());
}

#[test]
fn where_nobody_answers_it_is_said_where_was_asked() {
    let host = mk_network()
        .interface("eth1", 3, ["10.0.0.2/24"])
        .interface("eth2", 4, [""; 0]);
    let found = call("").run(&host).unwrap();
    assert!(found.devices().is_empty());
    assert_eq!(
        reasons(&host, "network"),
        ["network.interfaces: no camera answered on eth0 and eth1"]
    );
}

#[test]
fn the_first_call_ends_within_a_second_after_the_probe() {
    let mut host = mk_network();
    for n in 10..110 {
        host = answering(
            host,
            &format!("192.168.7.{n}:3702"),
            mk_match(&uuid(n), &url(n)),
        );
        host = host.http_server(&format!("http://192.168.7.{n}:80"), move |request| {
            HttpAnswer {
                after: Duration::from_millis(50),
                result: Ok(answer(n, request)),
            }
        });
    }
    let found = call("discoveryTimeoutSeconds: 2").run(&host).unwrap();
    assert_eq!(found.devices().len(), 100);
    assert!(
        host.now() <= Duration::from_millis(3_500),
        "{:?}",
        host.now()
    );
}

#[test]
fn the_answer_wakes_on_timer_network_and_multicast() {
    let host = with_camera(mk_network(), 9);
    let found = call("").run(&host).unwrap();
    let [network, groups @ .., time] = found.wakes() else {
        unreachable!("{:?}", found.wakes());
    };
    assert_eq!(network, &Wake::Network);
    assert_eq!(time, &Wake::After(8_500));
    let groups: Vec<_> = groups
        .iter()
        .filter_map(|wake| match wake {
            Wake::Multicast(filter) => {
                let words: Vec<_> = filter
                    .contains
                    .iter()
                    .map(|word| String::from_utf8_lossy(word))
                    .collect();
                Some(format!(
                    "{} {} {}",
                    filter.group,
                    filter.port,
                    words.join(" ")
                ))
            }
            _ => None,
        })
        .collect();
    assert_eq!(
        groups,
        [
            "239.255.255.250 3702 /Hello",
            "ff02::c 3702 /Hello",
            "239.255.255.250 3702 /Bye",
            "ff02::c 3702 /Bye",
            "239.255.255.250 3702 /ProbeMatches",
            "ff02::c 3702 /ProbeMatches"
        ]
    );
}

//! Tests of deviations of real cameras from the standards, each in a whole call.

use super::*;

/// Returns the text of the first element with this local name.
fn text_of(payload: &[u8], name: &str) -> String {
    let payload = String::from_utf8_lossy(payload);
    let (_, rest) = payload.split_once(&format!(":{name}>")).unwrap();
    rest.split('<').next().unwrap().to_owned()
}

/// Creates a probe answer with these prefixes and this content.
fn mk_reply(declared: &str, header: &str, matches: &str) -> Vec<u8> {
    format!(
        "<E:Envelope xmlns:E='http://www.w3.org/2003/05/soap-envelope' xmlns:a='http://schemas.xmlsoap.org/ws/2004/08/addressing' \
         xmlns:d='http://schemas.xmlsoap.org/ws/2005/04/discovery' {declared}><E:Header>{header}</E:Header>\
         <E:Body><d:ProbeMatches>{matches}</d:ProbeMatches></E:Body></E:Envelope>"
    )
    .into_bytes()
}

fn mk_one(endpoint: &str, inside: &str) -> String {
    format!(
        "<d:ProbeMatch><a:EndpointReference><a:Address>{endpoint}</a:Address></a:EndpointReference>{inside}</d:ProbeMatch>"
    )
}

#[test]
fn every_form_of_announcement_gives_the_same_device() {
    const NETWORK: &str = "xmlns:dn='http://www.onvif.org/ver10/network/wsdl'";
    const BOTH: &str = "xmlns:dn='http://www.onvif.org/ver10/network/wsdl' xmlns:tds='http://www.onvif.org/ver10/device/wsdl'";
    let own = format!("urn:uuid:{}", uuid(9));
    let plain = format!("<d:XAddrs>{}</d:XAddrs>", url(9));
    let at = |path: &str| format!("http://192.168.7.9{path}");
    for (name, payload, url) in [
        (
            "Axis: both types; http, https and the address it gave itself, over several lines",
            mk_reply(
                BOTH,
                "",
                &mk_one(
                    &own,
                    "<d:Types>tds:Device dn:NetworkVideoTransmitter</d:Types><d:XAddrs>https://169.254.9.9/onvif/device_service\n  \
                     http://169.254.9.9/onvif/device_service\r\n\thttps://192.168.7.9/onvif/device_service\n  \
                     http://192.168.7.9/onvif/device_service </d:XAddrs><d:MetadataVersion>1</d:MetadataVersion>",
                ),
            ),
            url(9),
        ),
        (
            "Hikvision: a link-local address behind the IPv4 one",
            mk_reply(
                NETWORK,
                "",
                &mk_one(
                    &own,
                    "<d:Types>dn:NetworkVideoTransmitter</d:Types>\
                     <d:XAddrs>http://192.168.7.9/onvif/device_service http://[fe80::9]/onvif/device_service</d:XAddrs>",
                ),
            ),
            url(9),
        ),
        (
            "a recorder: a device and no transmitter",
            mk_reply(
                BOTH,
                "",
                &mk_one(&own, &format!("<d:Types>tds:Device</d:Types>{plain}")),
            ),
            url(9),
        ),
        (
            "a reference in capitals without urn:, metadata of version 0, no AppSequence, no scopes",
            mk_reply(
                NETWORK,
                "<a:MessageID>uuid:1</a:MessageID>",
                &mk_one(
                    &own.replace("urn:uuid:", "uuid:")
                        .to_uppercase()
                        .replace("UUID:", "uuid:"),
                    &format!(
                        "<d:Types>dn:NetworkVideoTransmitter</d:Types>{plain}<d:MetadataVersion>0</d:MetadataVersion>"
                    ),
                ),
            ),
            url(9),
        ),
        (
            "a reference all in capitals",
            mk_reply("", "", &mk_one(&own.to_uppercase(), &plain)),
            url(9),
        ),
        (
            "a reference in braces",
            mk_reply("", "", &mk_one(&format!("uuid:{{{}}}", uuid(9)), &plain)),
            url(9),
        ),
        (
            "a match directly in the body",
            String::from_utf8(mk_reply(NETWORK, "", &mk_one(&own, &plain)))
                .unwrap()
                .replace("<d:ProbeMatches>", "")
                .replace("</d:ProbeMatches>", "")
                .into_bytes(),
            url(9),
        ),
        (
            "a prefix made up for each message",
            mk_reply(
                "xmlns:QOKaNunOmQ='http://www.onvif.org/ver10/network/wsdl'",
                "<d:AppSequence InstanceId='1' MessageNumber='7'/>",
                &mk_one(
                    &own,
                    &format!(
                        "<d:Types>QOKaNunOmQ:NetworkVideoTransmitter</d:Types><d:Scopes/>{plain}"
                    ),
                ),
            ),
            url(9),
        ),
        (
            "a prefix that is declared nowhere",
            mk_reply(
                "",
                "",
                &mk_one(
                    &own,
                    &format!("<d:Types>dn:NetworkVideoTransmitter</d:Types>{plain}"),
                ),
            ),
            url(9),
        ),
        (
            "a query with an entity",
            mk_reply(
                NETWORK,
                "",
                &mk_one(
                    &own,
                    "<d:XAddrs>http://192.168.7.9/onvif?a=1&amp;b=2</d:XAddrs>",
                ),
            ),
            at("/onvif?a=1&b=2"),
        ),
        (
            "a computer in the same message",
            mk_reply(
                "xmlns:w='http://schemas.xmlsoap.org/ws/2006/02/devprof'",
                "",
                &(mk_one("urn:uuid:pc", "<d:Types>w:Device</d:Types>") + &mk_one(&own, &plain)),
            ),
            url(9),
        ),
    ] {
        let host = answering(mk_network(), "192.168.7.9:3702", payload);
        let found = call("").run(&with_service(host, 9)).unwrap();
        assert_eq!(ids(&found), [format!("{url}-{}", uuid(9))], "{name}");
    }
}

#[test]
fn replies_with_the_same_reference_are_one_camera() {
    let count = Cell::new(0);
    let host = mk_network().udp_peer(GROUP, move |_, _| {
        [(10, 3702), (200, 40_000), (900, 50_000)]
            .map(|(after, port)| {
                count.set(count.get() + 1);
                let header = format!(
                    "<a:MessageID>urn:uuid:{0}</a:MessageID><d:AppSequence InstanceId='{0}' MessageNumber='1'/>",
                    count.get()
                );
                let endpoint = [uuid(9), format!("uuid:{}", uuid(9))][count.get() % 2].clone();
                let space = " ".repeat(count.get());
                let inside = format!("{space}<d:XAddrs>{space}{}</d:XAddrs>", url(9));
                UdpAnswer {
                    after: Duration::from_millis(after),
                    from: format!("192.168.7.9:{port}").parse().unwrap(),
                    payload: mk_reply("", &header, &mk_one(&endpoint, &inside)),
                }
            })
            .into()
    });
    let host = with_service(host, 9);
    let found = call("").run(&host).unwrap();
    assert_eq!(ids(&found), [id(9)]);
    assert_eq!(requests(&host).len(), 4);
    assert!(host.skipped().is_empty(), "{:?}", host.skipped());
}

#[test]
fn an_empty_probe_answer_announces_no_camera() {
    let empty = mk_reply("", "", "");
    let host = answering(mk_network(), "192.168.7.5:3702", empty);
    let found = call("").run(&host).unwrap();
    assert!(found.devices().is_empty() && requests(&host).is_empty());
}

#[test]
fn an_answer_that_repeats_our_message_id_is_accepted() {
    for relates_to in [
        "",
        "<a:RelatesTo>urn:uuid:99999999-9999-4999-8999-999999999999</a:RelatesTo>",
        "ours",
    ] {
        let host = mk_network().udp_peer(GROUP, move |_, payload| {
            let ours = text_of(payload, "MessageID");
            let related = format!("<a:RelatesTo>{ours}</a:RelatesTo>");
            let related = if relates_to == "ours" {
                &related
            } else {
                relates_to
            };
            let header = format!("<a:MessageID>{ours}</a:MessageID>{related}");
            vec![UdpAnswer {
                after: Duration::ZERO,
                from: "192.168.7.9:3702".parse().unwrap(),
                payload: mk_reply(
                    "",
                    &header,
                    &mk_one(&uuid(9), &format!("<d:XAddrs>{}</d:XAddrs>", url(9))),
                ),
            }]
        });
        let found = call("").run(&with_service(host, 9)).unwrap();
        assert_eq!(ids(&found), [id(9)], "{relates_to}");
    }
}

#[test]
fn a_camera_that_accepts_only_one_form_of_probe_is_found() {
    type Takes = fn(&str) -> bool;
    const TRANSMITTER: &str = ":NetworkVideoTransmitter</";
    let cases: [(&str, Takes); 5] = [
        ("names as Akri writes them", |probe| {
            probe.contains(TRANSMITTER) && probe.contains(":MessageID>uuid:")
        }),
        ("names of today's form", |probe| {
            probe.contains(":MessageID>urn:uuid:")
        }),
        ("prefixes declared where the type is", |probe| {
            let (_, types) = probe.split_once(":Types ").unwrap_or_default();
            let declared = types.split('>').next().unwrap_or_default();
            probe.contains(TRANSMITTER)
                && declared.contains("=\"http://www.onvif.org/ver10/network/wsdl\"")
                && declared.contains("=\"http://schemas.xmlsoap.org/ws/2005/04/discovery\"")
        }),
        ("a prefix declared on the envelope", |probe| {
            let envelope = probe.split("Header>").next().unwrap_or_default();
            probe.contains(TRANSMITTER)
                && envelope.contains("=\"http://www.onvif.org/ver10/network/wsdl\"")
        }),
        ("a type without anything beside it", |probe| {
            probe.contains("<d:Types>tds:Device</d:Types>")
        }),
    ];
    for (name, takes) in cases {
        let host = mk_network().udp_peer(GROUP, move |_, payload| {
            let answer = UdpAnswer {
                after: Duration::ZERO,
                from: "192.168.7.9:3702".parse().unwrap(),
                payload: mk_match(&uuid(9), &url(9)),
            };
            takes(&String::from_utf8_lossy(payload))
                .then_some(answer)
                .into_iter()
                .collect()
        });
        let found = call("").run(&with_service(host, 9)).unwrap();
        assert_eq!(ids(&found), [id(9)], "{name}");
    }
}

#[test]
fn open_operations_are_read_and_locked_ones_explained() {
    // Manufacturers differ in which requests want credentials.
    for (open, mac, manufacturer, scope, trouble) in [
        (
            &["GetNetworkInterfaces"][..],
            true,
            false,
            false,
            "GetDeviceInformation: wants credentials: none for",
        ),
        (
            &["GetDeviceInformation", "GetScopes"],
            false,
            true,
            true,
            "GetNetworkInterfaces: wants credentials: none for",
        ),
        (
            &["GetScopes"],
            false,
            false,
            true,
            "GetNetworkInterfaces: wants credentials: none for",
        ),
    ] {
        let host = announced(mk_network(), 9);
        let host = host.http_server("http://192.168.7.9:80", move |request| {
            let asked = String::from_utf8_lossy(&request.body).into_owned();
            let is_open = asked.contains("<GetSystemDateAndTime ")
                || open.iter().any(|name| asked.contains(&format!("<{name} ")));
            if is_open {
                answer(9, request).into()
            } else {
                let fault = "<s:Fault><s:Code><s:Value>s:Sender</s:Value><s:Subcode><s:Value>ter:NotAuthorized</s:Value></s:Subcode></s:Code></s:Fault>";
                http::Response::new(400, mk_soap(fault)).into()
            }
        });
        let found = call("").run(&host).unwrap();
        let device = &found.devices()[0];
        assert_eq!(
            device.get_property("ONVIF_DEVICE_MAC_ADDRESS").is_some(),
            mac
        );
        assert_eq!(device.get_attribute("manufacturer").is_some(), manufacturer);
        assert_eq!(device.get_attribute("profile_t").is_some(), scope);
        assert!(
            reasons(&host, &url(9))[0].contains(trouble),
            "{:?}",
            host.skipped()
        );
    }
}

#[test]
fn the_reported_address_is_one_that_other_hosts_can_use() {
    for (told, ip) in [
        (&["192.168.7.9"][..], "192.168.7.9"),
        (&["10.0.0.9"], "10.0.0.9"),
        (&["10.0.0.9", "192.168.7.9"], "192.168.7.9"),
        (&["169.254.3.4", "10.0.0.9"], "10.0.0.9"),
        (&["0.0.0.0", "169.254.3.4"], "192.168.7.9"),
        (&["none"], "192.168.7.9"),
    ] {
        let host = announced(mk_network(), 9);
        let host = host.http_server("http://192.168.7.9:80", move |request| {
            if !String::from_utf8_lossy(&request.body).contains("<GetNetworkInterfaces ") {
                return answer(9, request).into();
            }
            let address = |ip: &&str| {
                format!("<tt:Manual><tt:Address>{ip}</tt:Address></tt:Manual>")
            };
            let config: String = told.iter().map(address).collect();
            let body = format!(
                "<tds:GetNetworkInterfacesResponse><tds:NetworkInterfaces><tt:Info><tt:HwAddress>00-11-22-AA-BB-CC</tt:HwAddress></tt:Info><tt:IPv4><tt:Config>{config}</tt:Config></tt:IPv4></tds:NetworkInterfaces></tds:GetNetworkInterfacesResponse>"
            );
            http::Response::new(200, mk_soap(&body)).into()
        });
        let found = call("macAddresses: {items: ['0011.22aa.bbCC']}")
            .run(&host)
            .unwrap();
        let device = &found.devices()[0];
        let property = |name: &str| device.get_property(name).unwrap_or_default().to_owned();
        assert_eq!(property("ONVIF_DEVICE_IP_ADDRESS"), ip, "{told:?}");
        assert_eq!(property("ONVIF_DEVICE_MAC_ADDRESS"), "00:11:22:aa:bb:cc");
    }
}

#[test]
fn a_camera_that_answers_forbidden_is_sent_credentials_once() {
    let old = "<s:Fault><faultcode>s:Client</faultcode><faultstring>no</faultstring></s:Fault>";
    for (status, body) in [
        (403, Vec::new()),
        (403, b"<html>403 Forbidden</html>".to_vec()),
        (500, mk_soap(old)),
    ] {
        for is_right in [true, false] {
            let tokens = Rc::new(Cell::new(0));
            let counted = Rc::clone(&tokens);
            let refusal = body.clone();
            let host = announced(mk_network(), 9);
            let host = host.http_server("http://192.168.7.9:80", move |request| {
                let asked = String::from_utf8_lossy(&request.body).into_owned();
                let has_token = asked.contains("PasswordDigest");
                counted.set(counted.get() + usize::from(has_token));
                if asked.contains("<GetSystemDateAndTime ") || (has_token && is_right) {
                    answer(9, request).into()
                } else {
                    http::Response::new(status, refusal.clone()).into()
                }
            });
            let found = call("")
                .secret("username_default", "u")
                .secret("password_default", "hunter2-hunter2")
                .run(&host)
                .unwrap();
            let manufacturer = found.devices()[0].get_attribute("manufacturer");
            assert_eq!(manufacturer.is_some(), is_right, "{status}");
            assert_eq!(tokens.get(), if is_right { 3 } else { 1 }, "{status}");
        }
    }
}

#[test]
fn an_answer_is_read_whatever_its_content_type() {
    for content_type in [
        None,
        Some("application/soap+xml; charset=utf-8; action=\"http://www.onvif.org/x\""),
        Some("application/soap+xml"),
        Some("text/xml;charset=ISO-8859-1"),
        Some("text/html"),
    ] {
        let host = announced(mk_network(), 9);
        let host = host.http_server("http://192.168.7.9:80", move |request| {
            let mut response = answer(9, request);
            let header = content_type.map(|value| ("Content-Type".to_owned(), value.to_owned()));
            response.headers.extend(header);
            response.into()
        });
        let found = call("").run(&host).unwrap();
        assert_eq!(ids(&found), [id(9)], "{content_type:?}");
        let manufacturer = found.devices()[0].get_attribute("manufacturer");
        assert_eq!(manufacturer, Some(&"Example".into()));
    }
}

#[test]
fn texts_are_decoded_in_their_declared_encoding() {
    for (declared, bytes, name) in [
        ("GB2312", &b"\xb4\xf3\xc3\xc5"[..], "大门"),
        ("ISO-8859-1", b"K\xfcche", "Küche"),
    ] {
        let encoded = move |text: &[u8]| {
            let start = format!("<?xml version=\"1.0\" encoding=\"{declared}\"?>");
            let text = String::from_utf8_lossy(text);
            let text = text
                .strip_prefix("<?xml version=\"1.0\"?>")
                .unwrap_or(&text);
            let (before, after) = text.split_once("NAME").unwrap_or((text, ""));
            let bytes = if after.is_empty() { &[][..] } else { bytes };
            [start.as_bytes(), before.as_bytes(), bytes, after.as_bytes()].concat()
        };
        let announcement = String::from_utf8(mk_match(&uuid(9), &url(9))).unwrap();
        let announcement = announcement.replace("name/Cam", "name/NAME");
        let host = answering(
            mk_network(),
            "192.168.7.9:3702",
            encoded(announcement.as_bytes()),
        );
        let host = host.http_server("http://192.168.7.9:80", move |request| {
            let mut response = answer(9, request);
            let body = String::from_utf8(response.body).unwrap();
            response.body = encoded(body.replace("Example", "NAME").as_bytes());
            response.into()
        });
        let found = call("").run(&host).unwrap();
        let device = &found.devices()[0];
        for attribute in ["name", "manufacturer"] {
            assert_eq!(
                device.get_attribute(attribute),
                Some(&name.into()),
                "{declared}"
            );
        }
    }
}

#[test]
fn an_empty_response_to_the_time_request_is_a_present_camera() {
    let host = announced(mk_network(), 9);
    let host = host.http_server("http://192.168.7.9:80", move |_| {
        http::Response::new(200, mk_soap("")).into()
    });
    let found = call("").run(&host).unwrap();
    assert_eq!(ids(&found), [id(9)]);
}

#[test]
fn a_camera_gets_four_requests_and_no_stream_request() {
    let asked = Rc::new(std::cell::RefCell::new(Vec::new()));
    let kept = Rc::clone(&asked);
    let host = announced(mk_network(), 9);
    let host = host.http_server("http://192.168.7.9:80", move |request| {
        let body = String::from_utf8_lossy(&request.body).into_owned();
        let (_, operation) = body.split_once("XMLSchema\"><").unwrap();
        let operation = operation.split(' ').next().unwrap().to_owned();
        assert_eq!(request.method, "POST");
        kept.borrow_mut().push(operation);
        answer(9, request).into()
    });
    call("").run(&host).unwrap();
    // A stream's address may contain the password.
    assert_eq!(
        *asked.borrow(),
        [
            "GetSystemDateAndTime",
            "GetNetworkInterfaces",
            "GetDeviceInformation",
            "GetScopes"
        ]
    );
}

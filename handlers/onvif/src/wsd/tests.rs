use super::*;

fn fixture(name: &str) -> &'static [u8] {
    match name {
        "wsdiscovery-match" => include_bytes!("../../fixtures/wsdiscovery-match.xml"),
        "wsdiscovery-no-match" => include_bytes!("../../fixtures/wsdiscovery-no-match.xml"),
        "wsdiscovery-hello" => include_bytes!("../../fixtures/wsdiscovery-hello.xml"),
        "wsdiscovery-bye" => include_bytes!("../../fixtures/wsdiscovery-bye.xml"),
        "wsdd-match" => include_bytes!("../../fixtures/wsdd-match.xml"),
        "onvif-server-match" => include_bytes!("../../fixtures/onvif-server-match.xml"),
        "predator-match" => include_bytes!("../../fixtures/predator-match.xml"),
        _ => b"",
    }
}

fn matches(payload: &[u8]) -> Vec<Announcement> {
    match read(payload).unwrap() {
        Message::Matches { matches, .. } => matches,
        other => unreachable!("{other:?}"),
    }
}

/// Creates a match with this content, in an envelope with unusual prefixes.
fn mk_match(inside: &str) -> Vec<u8> {
    format!(
        r#"<x:Envelope xmlns:x="http://www.w3.org/2003/05/soap-envelope" xmlns:y="http://schemas.xmlsoap.org/ws/2005/04/discovery" xmlns:z="http://schemas.xmlsoap.org/ws/2004/08/addressing"><x:Header><z:ReplyTo><z:Address>http://schemas.xmlsoap.org/ws/2004/08/addressing/role/anonymous</z:Address></z:ReplyTo></x:Header><x:Body><y:ProbeMatches><y:ProbeMatch><z:EndpointReference><z:Address>uuid:a</z:Address></z:EndpointReference>{inside}</y:ProbeMatch></y:ProbeMatches></x:Body></x:Envelope>"#
    )
    .into_bytes()
}

fn texts(list: &[&str]) -> Vec<String> {
    list.iter().map(|&text| text.to_owned()).collect()
}

#[test]
fn a_probe_declares_its_prefixes_on_the_envelope() {
    for (kind, types) in [
        (
            Kind::NetworkVideoTransmitter,
            (NETWORK, "NetworkVideoTransmitter"),
        ),
        (Kind::Device, (DEVICE, "Device")),
    ] {
        let probe = probe(kind, "urn:uuid:1");
        let envelope = probe.split("<s:Header>").next().unwrap();
        assert!(envelope.contains("xmlns:dn=\"http://www.onvif.org/ver10/network/wsdl\""));
        assert!(envelope.contains("xmlns:tds=\"http://www.onvif.org/ver10/device/wsdl\""));
        let mut said = Vec::new();
        xml::read(probe.as_bytes(), &mut |element| {
            if element.name(0) == "Types" {
                let (namespace, local) = element.resolve(element.text);
                assert_eq!((namespace.as_deref(), local), (Some(types.0), types.1));
            }
            said.push(format!("{} {}", element.name(0), element.text));
        })
        .unwrap();
        for text in [
            "MessageID urn:uuid:1",
            "To urn:schemas-xmlsoap-org:ws:2005:04:discovery",
            "Action http://schemas.xmlsoap.org/ws/2005/04/discovery/Probe",
        ] {
            assert!(said.iter().any(|one| one == text), "{text}: {said:?}");
        }
        assert_eq!(
            read(probe.as_bytes()).unwrap(),
            Message::Other("Probe".to_owned())
        );
    }
}

#[test]
fn recorded_matches_are_read() {
    for (name, endpoint, xaddrs) in [
        (
            "wsdiscovery-match",
            "urn:uuid:61447e80-8b6a-4992-b227-cf95a4d91b42",
            &[
                "http://10.99.0.10:8080/onvif/device_service",
                "http://[fe80::1]:8080/onvif/device_service",
            ][..],
        ),
        (
            "onvif-server-match",
            "urn:uuid:772426b3-80b1-420b-a8e5-2b564d9533d1",
            &["http://10.99.0.12:8080/onvif/device_service"],
        ),
        (
            "predator-match",
            "uuid:c9790c3a-701b-464d-a189-0060351c8ada",
            &["SERVICE_URI"],
        ),
    ] {
        let matches = matches(fixture(name));
        let [one] = &matches[..] else {
            unreachable!("{name}: {matches:?}");
        };
        assert_eq!(one.endpoint, endpoint);
        assert_eq!(one.xaddrs, xaddrs);
        assert_eq!(one.metadata_version, "1");
        assert!(one.is_onvif && !one.scopes.is_empty(), "{one:?}");
    }
}

#[test]
fn an_empty_answer_has_no_match() {
    assert_eq!(matches(fixture("wsdiscovery-no-match")), []);
}

#[test]
fn a_computer_is_no_camera() {
    let matches = matches(fixture("wsdd-match"));
    assert_eq!(matches[0].types, ["wsdp:Device", "pub:Computer"]);
    assert!(!matches[0].is_onvif);
    assert!(matches[0].xaddrs.is_empty() && matches[0].scopes.is_empty());
}

#[test]
fn hello_and_bye_are_read() {
    let Message::Hello(hello) = read(fixture("wsdiscovery-hello")).unwrap() else {
        unreachable!();
    };
    assert_eq!(
        uuid(&hello.endpoint),
        "61447e80-8b6a-4992-b227-cf95a4d91b42"
    );
    assert_eq!(hello.xaddrs.len(), 2);
    assert!(hello.is_onvif);
    assert_eq!(
        read(fixture("wsdiscovery-bye")).unwrap(),
        Message::Bye("urn:uuid:61447e80-8b6a-4992-b227-cf95a4d91b42".to_owned())
    );
}

#[test]
fn lists_are_separated_by_any_white_space() {
    // Line breaks as Axis sends them.
    let payload = mk_match(
        "<y:XAddrs>http://192.168.7.9/a\n      https://192.168.7.9/a\t http://169.254.9.9/a\r\n https://169.254.9.9/a\n</y:XAddrs>\
         <y:Scopes>\n onvif://www.onvif.org/name/Py%20Cam\n onvif://www.onvif.org/type/ptz </y:Scopes>",
    );
    let one = matches(&payload).remove(0);
    assert_eq!(
        one.xaddrs,
        [
            "http://192.168.7.9/a",
            "https://192.168.7.9/a",
            "http://169.254.9.9/a",
            "https://169.254.9.9/a"
        ]
    );
    assert_eq!(
        one.scopes,
        [
            "onvif://www.onvif.org/name/Py%20Cam",
            "onvif://www.onvif.org/type/ptz"
        ]
    );
    assert_eq!(one.endpoint, "uuid:a");
    assert_eq!(one.metadata_version, "");
}

#[test]
fn types_are_matched_by_namespace() {
    let network = "http://www.onvif.org/ver10/network/wsdl";
    let device = "http://www.onvif.org/ver10/device/wsdl";
    for (inside, is_onvif) in [
        (
            format!("<y:Types xmlns:q='{network}'>q:NetworkVideoTransmitter</y:Types>"),
            true,
        ),
        (
            format!("<y:Types xmlns:q='{network}'>q:NetworkVideoDisplay</y:Types>"),
            true,
        ),
        (
            format!("<y:Types xmlns:q='{network}'>q:Device</y:Types>"),
            false,
        ),
        (
            format!("<y:Types xmlns:q='{device}'>p:x q:Device</y:Types>"),
            true,
        ),
        (
            format!("<y:Types xmlns='{network}'>NetworkVideoTransmitter</y:Types>"),
            true,
        ),
        (
            "<y:Types>dn:NetworkVideoTransmitter</y:Types>".to_owned(),
            true,
        ),
        ("<y:Types>tds:Device</y:Types>".to_owned(), false),
        (
            "<y:Types xmlns:dn='urn:other'>dn:NetworkVideoTransmitter</y:Types>".to_owned(),
            false,
        ),
        ("<y:Types/>".to_owned(), true),
        (String::new(), true),
    ] {
        assert_eq!(
            matches(&mk_match(&inside))[0].is_onvif,
            is_onvif,
            "{inside}"
        );
    }
}

#[test]
fn lists_are_bounded() {
    let many = (0..10_000).map(|n| format!("http://10.0.{}.{}/", n / 256, n % 256));
    let many = many.collect::<Vec<_>>().join(" ");
    let one = matches(&mk_match(&format!(
        "<y:XAddrs>{many}</y:XAddrs><y:XAddrs>http://a/</y:XAddrs><y:Scopes>{}</y:Scopes>",
        "s ".repeat(9_999)
    )))
    .remove(0);
    assert_eq!(
        (one.xaddrs.len(), one.more_xaddrs),
        (MAX_XADDRS, 10_000 - MAX_XADDRS + 1)
    );
    assert_eq!(one.scopes.len(), MAX_SCOPES);
    let all = format!(
        "<E><Body><ProbeMatches>{}</ProbeMatches></Body></E>",
        "<ProbeMatch/>".repeat(999)
    );
    assert_eq!(matches(all.as_bytes()).len(), MAX_MATCHES);
}

#[test]
fn an_answer_is_accepted_unless_it_relates_to_another_message() {
    let ours = texts(&[
        "urn:uuid:11111111-2222-4333-8444-555555555555",
        "urn:uuid:66666666-2222-4333-8444-555555555555",
    ]);
    for (relates_to, message_id, is_ours) in [
        (
            "urn:uuid:11111111-2222-4333-8444-555555555555",
            "urn:uuid:x",
            true,
        ),
        ("uuid:66666666-2222-4333-8444-555555555555", "", true),
        ("URN:UUID:11111111-2222-4333-8444-555555555555", "", true),
        ("11111111-2222-4333-8444-555555555555", "", true),
        ("", "urn:uuid:11111111-2222-4333-8444-555555555555", true),
        ("", "", true),
        ("RELATES_TO", "", true),
        ("urn:uuid:99999999-2222-4333-8444-555555555555", "", false),
        (
            "urn:uuid:99999999-2222-4333-8444-555555555555",
            "uuid:11111111-2222-4333-8444-555555555555",
            true,
        ),
    ] {
        assert_eq!(
            answers(relates_to, message_id, &ours),
            is_ours,
            "{relates_to} {message_id}"
        );
    }
}

#[test]
fn an_endpoint_is_named_as_in_akri() {
    for (endpoint, name) in [
        ("urn:uuid:C9790C3A-701B", "c9790c3a-701b"),
        ("uuid:c9790c3a-701b", "c9790c3a-701b"),
        ("urn:c9790c3a", "c9790c3a"),
        ("c9790c3a", "c9790c3a"),
        ("http://camera/1", "http://camera/1"),
    ] {
        assert_eq!(uuid(endpoint), name);
    }
}

#[test]
fn no_damage_to_a_message_panics() {
    for name in [
        "wsdiscovery-match",
        "wsdiscovery-hello",
        "wsdd-match",
        "predator-match",
    ] {
        let whole = fixture(name);
        for at in 0..whole.len() {
            let _ = read(whole.get(..at).unwrap());
            for value in [0, b'<', b'>', b'&', b':', b'"', b' ', 0xff] {
                let mut damaged = whole.to_vec();
                damaged[at] = value;
                if let Ok(Message::Matches { matches, .. }) = read(&damaged) {
                    assert!(matches.iter().all(|one| one.xaddrs.len() <= MAX_XADDRS));
                }
            }
        }
    }
}

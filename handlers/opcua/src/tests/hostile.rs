//! Tests with hostile peers.

use std::net::Ipv4Addr;
use std::time::Duration;

use leafhost_sdk::Devices;
use leafhost_sdk::testing::{Call, FakeHost, TcpReaction};

use super::fake::{self, Fake};
use super::{connections, details, discover, ids, reason};
use crate::OpcUa;

const HOSTILE: &str = "opc.tcp://10.6.6.6:4840/";
const GOOD: &str = "opc.tcp://10.1.2.3:4840/";

/// Creates a host with a good server, whose list takes half a second.
fn mk_host() -> FakeHost {
    let good = Fake::server("urn:good", "Good", GOOD).slow(Duration::from_millis(200));
    good.at(FakeHost::new(), "10.1.2.3:4840")
}

/// Adds a server that behaves correctly until its list, which is `bytes`.
fn lists(host: FakeHost, bytes: Vec<u8>) -> FakeHost {
    host.tcp_server("10.6.6.6:4840", move || {
        let bytes = bytes.clone();
        Box::new(move |request| TcpReaction {
            send: match request.get(..3) {
                Some(b"HEL") => fake::hello(),
                Some(b"OPN") => fake::opened(request),
                Some(b"MSG") => bytes.clone(),
                _ => Vec::new(),
            },
            ..TcpReaction::default()
        })
    })
}

/// Finds the good server; returns the reason why the other one is not a device.
fn withstands(host: &FakeHost) -> String {
    let call = Call::<OpcUa>::new(&details(&[HOSTILE, GOOD], ""));
    let found = call.run(host).unwrap();
    assert_eq!(ids(&found), [GOOD]);
    let why = reason(host, HOSTILE);
    // A truncated answer may still list known servers.
    let bound = [
        "longer than 4194304",
        "more than 256",
        "BadEncodingLimitsExceeded",
    ];
    assert_eq!(
        matches!(found.devices, Devices::Partial(_)),
        bound.iter().any(|words| why.contains(words)),
        "{why}"
    );
    why
}

#[test]
fn broken_chunks_are_explained() {
    let sized = |size: u32| [&b"MSGF"[..], &size.to_le_bytes()].concat();
    let abort = fake::chunk(
        b'A',
        2,
        &[0, 0, 0x08, 0x80, 4, 0, 0, 0, b'f', b'u', b'l', b'l'],
    );
    let endless: Vec<u8> = (0..300).flat_map(|_| fake::chunk(b'C', 2, b"")).collect();
    let large: Vec<u8> = (0..90)
        .flat_map(|_| fake::chunk(b'C', 2, &vec![0; 60_000]))
        .collect();
    let deep = [&[1, 0, 0xa9, 0x01][..], &[0; 16], &vec![0x40; 1 << 20]].concat();
    let announced = [
        &[1, 0, 0xa9, 0x01][..],
        &[0; 16],
        &[0],
        &[0xff; 4],
        &[0, 0, 2],
        &i32::MAX.to_le_bytes(),
    ]
    .concat();
    for (bytes, words) in [
        (sized(0), "a chunk of 0 bytes"),
        (sized(7), "a chunk of 7 bytes"),
        (sized(u32::MAX), "a chunk of 4294967295 bytes"),
        (sized(u32::MAX >> 1), "a chunk of 2147483647 bytes"),
        (sized(65_537), "a chunk of 65537 bytes"),
        (
            abort,
            "aborted its answer: BadEncodingLimitsExceeded (0x80080000), \"full\"",
        ),
        (endless, "more than 256 chunks"),
        (large, "longer than 4194304 bytes"),
        (
            fake::chunk(b'F', 9, b""),
            "answered request 9 where 2 was asked",
        ),
        (
            fake::chunks(2, &[1, 0, 0xb0, 0x01], 9),
            "answered message 432",
        ),
        (fake::chunks(2, &deep, 60_000), "diagnostics"),
        (fake::chunks(2, &announced, 60_000), "additional header"),
        (
            b"HTTP/1.1 400 Bad Request\r\n\r\n".to_vec(),
            "not an OPC UA server: its bytes begin with \"HTT\"",
        ),
    ] {
        let why = withstands(&lists(mk_host(), bytes));
        assert!(why.contains(words), "{words}: {why}");
    }
}

#[test]
fn a_server_that_answers_byte_by_byte_delays_no_other() {
    let drip =
        |bytes: Vec<u8>| mk_host().tcp_dripping("10.6.6.6:4840", bytes, Duration::from_secs(1));
    let host = drip(fake::hello());
    let why = withstands(&host);
    assert!(why.contains("no hello within 3 s"), "{why}");
    assert!(host.now() <= Duration::from_secs(4), "{:?}", host.now());

    // The server acknowledges in time, then sends one byte of the next answer and no more.
    let host = mk_host().tcp_server("10.6.6.6:4840", || {
        Box::new(|request| TcpReaction {
            send: match request.get(..3) {
                Some(b"HEL") => fake::hello(),
                Some(b"OPN") => b"O".to_vec(),
                _ => Vec::new(),
            },
            ..TcpReaction::default()
        })
    });
    let why = withstands(&host);
    assert!(why.contains("took longer than 6 s"), "{why}");
}

/// Creates a list that announces this many servers and repeats one `times` times.
fn mk_list(announced: u32, times: usize) -> Vec<u8> {
    let own = fake::application(
        "urn:lds",
        "LDS",
        opcua_types::ApplicationType::DiscoveryServer,
        &[HOSTILE],
    );
    let one = Fake::new().lists(own).list();
    let (header, item) = one.split_at(4 + 24);
    let mut bytes = header.to_vec();
    bytes.extend(announced.to_le_bytes());
    bytes.extend(item[4..].repeat(times));
    bytes
}

#[test]
fn a_discovery_server_that_lists_itself_a_million_times_is_one_device() {
    let mut million = fake::chunks(2, &mk_list(1_000_000, 1_000_000), 65_000);
    // The reader stops before it has read this many bytes.
    million.truncate(6 << 20);
    let why = withstands(&lists(mk_host(), million));
    assert!(why.contains("longer than 4194304 bytes"), "{why}");
    // The list has as many items as fit, but announces a million.
    let fitting = mk_list(1_000_000, 30_000);
    let host = lists(mk_host(), fake::chunks(2, &fitting, 65_000));
    let call = Call::<OpcUa>::new(&details(&[HOSTILE, GOOD], ""));
    let found = call.run(&host).unwrap();
    assert_eq!(ids(&found), [GOOD]);
    assert!(matches!(found.devices, Devices::Partial(_)), "{found:?}");
    let reasons: Vec<String> = host
        .skipped()
        .into_iter()
        .filter(|skipped| skipped.subject == HOSTILE)
        .map(|skipped| skipped.reason)
        .collect();
    assert_eq!(reasons.len(), 2, "{reasons:?}");
    assert!(
        reasons
            .iter()
            .any(|reason| reason.contains("lists more servers than the handler asks"))
    );
    // A million network records of itself.
    let mut lds = Fake::discovery(HOSTILE);
    for _ in 0..10_000 {
        lds = lds.recorded(HOSTILE);
    }
    let host = lds.at(mk_host(), "10.6.6.6:4840");
    discover(&host, &[HOSTILE, GOOD], "");
    assert_eq!(connections(&host).len(), 2);
}

#[test]
fn a_list_never_causes_connections_to_this_machine() {
    for (listed, contacted) in [
        ("opc.tcp://127.0.0.1:4842/", "10.6.6.6:4842"),
        ("opc.tcp://[::1]:4842/", "10.6.6.6:4842"),
        ("opc.tcp://[::ffff:127.0.0.1]:4842/", "10.6.6.6:4842"),
        ("opc.tcp://localhost:4842/", "10.6.6.6:4842"),
        ("opc.tcp://a.localhost.:4842/", "10.6.6.6:4842"),
        ("opc.tcp://0.0.0.0:4842/", "10.6.6.6:4842"),
        ("opc.tcp://[::]:4842/", "10.6.6.6:4842"),
        // Names that resolve to this node, which a peer may legitimately list for itself.
        ("opc.tcp://here:4842/", "10.6.6.6:4842"),
        ("opc.tcp://127.1:4842/", "10.6.6.6:4842"),
    ] {
        for mode in ["unresolvable", "use-configured-host"] {
            let lds = Fake::discovery(HOSTILE)
                .knows("urn:x", "X", listed)
                .recorded(listed);
            let host = FakeHost::new()
                .name("here", ["127.0.1.1", "::1"])
                .name("127.1", ["127.0.0.1"]);
            let host = Fake::new().at(lds.at(host, "10.6.6.6:4840"), "127.0.0.1:4842");
            discover(&host, &[HOSTILE], &format!("hostRewrite: {mode}"));
            assert_eq!(
                connections(&host),
                ["10.6.6.6:4840", contacted],
                "{listed} {mode}"
            );
        }
    }
}

/// Adds a discovery server that lists this many servers at silent addresses.
fn mk_flood(host: FakeHost, times: u32) -> FakeHost {
    let mut lds = Fake::discovery(HOSTILE);
    let mut host = host;
    for number in 0..times {
        let address = format!("{}:4840", Ipv4Addr::from(0x0a07_0000 + number));
        lds = lds.knows("", "X", &format!("opc.tcp://{address}/"));
        host = host.tcp_silent(address);
    }
    lds.at(host, "10.6.6.6:4840")
}

#[test]
fn a_list_of_many_dead_servers_neither_withdraws_known_nor_hides_new_servers() {
    let call = || Call::<OpcUa>::new(&details(&[HOSTILE, GOOD], ""));
    let lds = |host| {
        let lds = Fake::discovery(GOOD).knows("urn:a", "A", "opc.tcp://10.1.2.4:4840/");
        Fake::new()
            .endpoint("urn:a")
            .at(lds.at(host, "10.1.2.3:4840"), "10.1.2.4:4840")
    };
    // The new server is asked in its turn, not after a thousand others.
    let host = mk_flood(lds(FakeHost::new()), 999);
    let found = call().run(&host).unwrap();
    assert!(
        matches!(found.devices, Devices::Partial(_)),
        "who was not asked may be there"
    );
    assert_eq!(ids(&found), ["opc.tcp://10.1.2.4:4840/"]);
    assert!(host.now() <= Duration::from_secs(24), "{:?}", host.now());
    assert!(
        host.skipped()
            .iter()
            .any(|skipped| skipped.reason.contains("the others follow"))
    );
    // The known server is asked first.
    let host = mk_flood(lds(FakeHost::new()), 999);
    let again = call()
        .cursor(found.cursor.clone().unwrap())
        .run(&host)
        .unwrap();
    assert_eq!(ids(&again), ["opc.tcp://10.1.2.4:4840/"]);
    let contacts = host.contacts();
    let contact = contacts
        .iter()
        .find(|contact| contact.to == "tcp 10.1.2.4:4840")
        .unwrap();
    assert_eq!(contact.at, Duration::ZERO);
    // Silent servers are asked last, so that all are asked within three calls.
    let mut cursor = again.cursor.clone().unwrap();
    let mut tried: std::collections::BTreeSet<String> = connections(&host).into_iter().collect();
    for _ in 0..2 {
        let host = mk_flood(lds(FakeHost::new()), 999);
        cursor = call().cursor(cursor).run(&host).unwrap().cursor.unwrap();
        tried.extend(connections(&host));
    }
    assert_eq!(tried.len(), 1_002);
}

#[test]
fn the_bytes_of_all_servers_together_are_bounded() {
    let mut host = mk_host();
    let mut urls = vec![GOOD.to_owned()];
    let body = mk_list(1, 50_000);
    assert!((3 << 20..4 << 20).contains(&body.len()), "{}", body.len());
    for number in 0..20 {
        let bytes = fake::chunks(2, &body, 65_000);
        host = host.tcp_server(format!("10.6.6.{number}:4840"), move || {
            let bytes = bytes.clone();
            Box::new(move |request| TcpReaction {
                send: match request.get(..3) {
                    Some(b"HEL") => fake::hello(),
                    Some(b"OPN") => fake::opened(request),
                    Some(b"MSG") => bytes.clone(),
                    _ => Vec::new(),
                },
                ..TcpReaction::default()
            })
        });
        urls.push(format!("opc.tcp://10.6.6.{number}:4840/"));
    }
    let urls: Vec<&str> = urls.iter().map(String::as_str).collect();
    let found = Call::<OpcUa>::new(&details(&urls, "")).run(&host).unwrap();
    assert_eq!(ids(&found), [GOOD]);
    assert!(
        matches!(found.devices, Devices::Partial(_)),
        "what one server sends must not withdraw what another one lists"
    );
    let flooded = host
        .skipped()
        .iter()
        .filter(|skipped| skipped.reason.contains("more than 16 MiB"))
        .count();
    assert!(flooded >= 16, "{flooded}");
}

#[test]
fn texts_of_peers_are_quoted_and_shortened() {
    let name = "\u{1b}[31m".repeat(1_000);
    let url = format!("opc.tcp://{}/\n", "a".repeat(5_000));
    let host = Fake::discovery(HOSTILE)
        .knows("urn:x", &name, &url)
        .at(FakeHost::new(), "10.6.6.6:4840");
    assert_eq!(discover(&host, &[HOSTILE], "").devices(), []);
    for skipped in host.skipped() {
        let text = format!("{}{}{}", skipped.subject, skipped.rule, skipped.reason);
        assert!(!text.contains('\u{1b}') && text.len() < 2_000, "{text}");
    }
}

#[test]
fn names_beyond_the_lookup_limit_are_not_taken_for_unresolvable() {
    let mk_host = || {
        let mut lds = Fake::discovery(GOOD);
        let mut evil = Fake::discovery(HOSTILE);
        let mut host = FakeHost::new();
        for number in 0..40_u8 {
            let (name, address) = (format!("plc{number}"), format!("10.1.3.{number}"));
            let url = format!("opc.tcp://{name}:4840/");
            lds = lds.knows(&format!("urn:{number}"), "PLC", &url);
            host = host.name(&name, [address.as_str()]);
            host = Fake::new()
                .endpoint(&format!("urn:{number}"))
                .at(host, &format!("{address}:4840"));
        }
        for number in 0..500 {
            evil = evil.knows("", "X", &format!("opc.tcp://n{number}.invalid:4850/"));
        }
        let host = evil.at(host, "10.6.6.6:4840");
        lds.at(host, "10.1.2.3:4840")
    };
    let mut cursor = None;
    let mut seen = std::collections::BTreeSet::new();
    for _ in 0..6 {
        let host = mk_host();
        let mut call = Call::<OpcUa>::new(&details(&[HOSTILE, GOOD], ""));
        if let Some(cursor) = cursor {
            call = call.cursor(cursor);
        }
        let found = call.run(&host).unwrap();
        assert!(matches!(found.devices, Devices::Partial(_)));
        let names = host.contacts().into_iter();
        let names = names
            .filter(|contact| contact.to.starts_with("name "))
            .count();
        assert_eq!(names, 64);
        assert!(ids(&found).len() >= 32, "{:?}", ids(&found));
        for id in ids(&found) {
            assert!(id.starts_with("opc.tcp://plc"), "{id}");
            seen.insert(id.to_owned());
        }
        let late = host.skipped();
        let late = late
            .iter()
            .filter(|one| one.reason.contains("not looked up"));
        assert!(late.count() >= 400);
        cursor = found.cursor;
    }
    assert_eq!(seen.len(), 40, "every call begins with other names");
}

#[test]
fn the_name_of_a_configured_server_is_looked_up_once() {
    let mut host = FakeHost::new();
    let urls: Vec<String> = (0..64).map(|n| format!("opc.tcp://plc{n}:4840/")).collect();
    for (number, url) in urls.iter().enumerate() {
        let address = format!("10.1.3.{number}");
        host = host.name(&format!("plc{number}"), [address.as_str()]);
        host = Fake::server("", "PLC", url).at(host, &format!("{address}:4840"));
    }
    let urls: Vec<&str> = urls.iter().map(String::as_str).collect();
    assert_eq!(discover(&host, &urls, "").devices().len(), 64);
    let contacts = host.contacts().into_iter();
    let names = contacts.filter(|contact| contact.to.starts_with("name "));
    assert_eq!(names.count(), 64);
}

#[test]
fn connections_of_a_call_are_bounded_and_the_next_call_continues() {
    let urls: Vec<String> = (0..6)
        .map(|n| format!("opc.tcp://10.6.6.{n}:4840/"))
        .collect();
    let mut host = FakeHost::new();
    for number in 0..6_u32 {
        let mut lds = Fake::discovery(&urls[0]);
        for place in 0..999 {
            let address = Ipv4Addr::from(0x0b00_0000 + (number << 16) + place);
            lds = lds.knows("", "X", &format!("opc.tcp://{address}:4840/"));
        }
        host = lds.at(host, &format!("10.6.6.{number}:4840"));
    }
    let urls: Vec<&str> = urls.iter().map(String::as_str).collect();
    let found = Call::<OpcUa>::new(&details(&urls, "")).run(&host).unwrap();
    assert!(matches!(found.devices, Devices::Partial(_)));
    let connections = connections(&host).len();
    assert!((3_800..4_096).contains(&connections), "{connections}");
}

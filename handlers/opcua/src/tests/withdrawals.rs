//! No peer may withdraw a known server, cause connections to others, or exceed its time.

use std::collections::BTreeSet;
use std::fmt;
use std::time::Duration;

use leafhost_sdk::testing::{Call, FakeHost, TcpReaction};
use leafhost_sdk::{Devices, Discovery, Event};
use opcua_types::{ApplicationType, StatusCode};

use super::fake::{self, Fake, application};
use super::{connections, details, discover, ids};
use crate::OpcUa;

const HOSTILE: &str = "opc.tcp://10.6.6.6:4840/";
const GOOD: &str = "opc.tcp://10.1.2.3:4840/";

/// Adds an honest discovery server and a server that it lists.
fn mk_good(host: FakeHost) -> FakeHost {
    let lds = Fake::discovery(GOOD).knows("urn:a", "A", "opc.tcp://10.1.2.4:4840/");
    let host = lds.at(host, "10.1.2.3:4840");
    Fake::new().endpoint("urn:a").at(host, "10.1.2.4:4840")
}

/// Adds a server with these answers to three requests.
fn mk_hostile(host: FakeHost, hello: &Answer, channel: &Answer, list: &Answer) -> FakeHost {
    let answers = [hello.clone(), channel.clone(), list.clone()];
    host.tcp_server("10.6.6.6:4840", move || {
        let answers = answers.clone();
        let fake = Fake::discovery(HOSTILE);
        Box::new(move |request| {
            let answer = match request.get(..3) {
                Some(b"HEL") => &answers[0],
                Some(b"OPN") => &answers[1],
                Some(b"MSG") => &answers[2],
                _ => &Answer::Right,
            };
            match answer {
                Answer::Right => fake.react(request),
                Answer::Bytes(bytes) => TcpReaction {
                    send: bytes.clone(),
                    ..TcpReaction::default()
                },
                Answer::Ends => TcpReaction {
                    close: true,
                    ..TcpReaction::default()
                },
            }
        })
    })
}

#[derive(Clone)]
enum Answer {
    Right,
    Bytes(Vec<u8>),
    Ends,
}

impl fmt::Debug for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Right => f.write_str("right"),
            Self::Bytes(bytes) => write!(
                f,
                "{:?}",
                String::from_utf8_lossy(&bytes[..bytes.len().min(40)])
            ),
            Self::Ends => f.write_str("ends"),
        }
    }
}

/// Creates a message of one chunk.
fn message(code: &[u8], body: &[u8]) -> Vec<u8> {
    let size = 8 + u32::try_from(body.len()).unwrap();
    [code, &size.to_le_bytes(), body].concat()
}

/// Creates the body of an `ERR` message or of an aborting chunk.
fn refusal(length: u32, words: &[u8]) -> Vec<u8> {
    [
        &0x8001_0000_u32.to_le_bytes()[..],
        &length.to_le_bytes(),
        words,
    ]
    .concat()
}

/// Returns messages that a peer may send at any time.
fn at_any_time() -> Vec<Answer> {
    let mut all = vec![
        Vec::new(),
        b"M".to_vec(),
        b"GET / HTTP/1.1\r\n".to_vec(),
        vec![0; 64],
    ];
    for code in [
        b"MSGF", b"MSGC", b"MSGA", b"OPNF", b"ACKF", b"ERRF", b"HELF", b"RHEF", b"CLOF", b"MSG\0",
    ] {
        for size in [
            0,
            1,
            7,
            8,
            65_537,
            i32::MAX.cast_unsigned(),
            1 << 31,
            u32::MAX,
        ] {
            all.push([&code[..], &size.to_le_bytes()].concat());
        }
    }
    for (length, words) in [
        (60_000, vec![b'x'; 60_000]),
        (60_000, vec![0x1b; 60_000]),
        (60_000, vec![0xff; 60_000]),
        (u32::MAX, Vec::new()),
        (u32::MAX - 1, b"less than none".to_vec()),
        (i32::MAX.cast_unsigned(), b"all there is".to_vec()),
    ] {
        all.push(message(b"ERRF", &refusal(length, &words)));
        all.push(fake::chunk(b'A', 2, &refusal(length, &words)));
    }
    all.push((0..300).flat_map(|_| message(b"ACKC", &[0; 20])).collect());
    all.push((0..300).flat_map(|_| fake::chunk(b'C', 2, b"")).collect());
    all.push(
        (0..90)
            .flat_map(|_| fake::chunk(b'C', 2, &vec![0; 60_000]))
            .collect(),
    );
    let mut answers: Vec<Answer> = all.into_iter().map(Answer::Bytes).collect();
    answers.push(Answer::Ends);
    answers
}

fn again(host: &FakeHost, urls: &[&str], before: &Discovery) -> Discovery {
    let call = Call::<OpcUa>::new(&details(urls, "")).events([Event::Timer]);
    call.cursor(before.cursor.clone().unwrap())
        .run(host)
        .unwrap()
}

/// Returns true if no known server is withdrawn.
fn keeps(found: &Discovery, id: &str) -> bool {
    let stays = match &found.devices {
        Devices::Unchanged | Devices::Partial(_) => true,
        Devices::Complete(devices) => devices.iter().any(|device| device.id == id),
    };
    stays && found.departed.is_empty()
}

#[test]
fn no_answer_of_one_peer_withdraws_another_known_server() {
    let urls = [HOSTILE, GOOD];
    let known = "opc.tcp://10.1.2.4:4840/";
    let honest = Fake::discovery(HOSTILE).at(mk_good(FakeHost::new()), "10.6.6.6:4840");
    let first = discover(&honest, &urls, "");
    assert_eq!(ids(&first), [known]);
    let right = &Answer::Right;
    let answers = at_any_time();
    for answer in &answers {
        for host in [
            mk_hostile(mk_good(FakeHost::new()), answer, right, right),
            mk_hostile(mk_good(FakeHost::new()), right, answer, right),
            mk_hostile(mk_good(FakeHost::new()), right, right, answer),
        ] {
            let second = again(&host, &urls, &first);
            assert!(keeps(&second, known), "{answer:?}: {second:?}");
            // A peer is tried twice for six seconds, with a pause of one second.
            assert!(
                host.now() <= Duration::from_secs(14),
                "{answer:?}: {:?}",
                host.now()
            );
            for contact in connections(&host) {
                assert!(
                    ["10.6.6.6:4840", "10.1.2.3:4840", "10.1.2.4:4840"].contains(&contact.as_str()),
                    "{answer:?}: {contact}"
                );
            }
            for skipped in host.skipped() {
                let text = format!("{}{}", skipped.subject, skipped.reason);
                assert!(text.len() < 2_000, "{answer:?}: {text}");
                assert!(!text.contains(char::is_control), "{answer:?}: {text:?}");
            }
        }
    }
}

#[test]
fn a_peer_that_accepts_and_stays_silent_is_given_up_after_three_seconds() {
    let silent = Answer::Bytes(Vec::new());
    let host = mk_hostile(mk_good(FakeHost::new()), &silent, &silent, &silent);
    let found = discover(&host, &[HOSTILE, GOOD], "");
    assert_eq!(ids(&found), ["opc.tcp://10.1.2.4:4840/"]);
    assert!(super::reason(&host, HOSTILE).contains("no hello within 3 s"));
    assert!(host.now() < Duration::from_secs(4), "{:?}", host.now());
}

#[test]
fn an_answer_must_match_channel_request_and_type() {
    let list = Fake::server("urn:x", "X", HOSTILE).list();
    let right = fake::chunk(b'F', 2, &list);
    let with = |at: usize, number: u32| {
        let mut bytes = right.clone();
        bytes[at..at + 4].copy_from_slice(&number.to_le_bytes());
        bytes
    };
    let typed = |id: u16| {
        let mut bytes = right.clone();
        bytes[26..28].copy_from_slice(&id.to_le_bytes());
        bytes
    };
    for (bytes, expected) in [
        (right.clone(), Ok(())),
        (with(8, 5), Err("answered on secure channel 5, not on 4")),
        (with(8, 0), Err("answered on secure channel 0")),
        (with(20, 1), Err("answered request 1 where 2 was asked")),
        (with(20, u32::MAX), Err("answered request 4294967295")),
        // Without security, neither protects anything.
        (with(12, 77), Ok(())),
        (with(16, 0), Ok(())),
        (with(16, u32::MAX), Ok(())),
        (typed(431), Err("answered message 431")),
        (typed(449), Err("answered message 449")),
        (typed(12_209), Err("answered message 12209")),
        (typed(422), Err("answered message 422")),
        // A fault with a good status.
        (typed(397), Err("the server answered Good")),
        (
            message(b"OPNF", &right[8..]),
            Err("a OPN message where MSG was expected"),
        ),
    ] {
        let once = std::cell::Cell::new(false);
        let (bytes, fake) = (bytes, Fake::new().endpoint("urn:x"));
        let host = mk_good(FakeHost::new()).tcp_server("10.6.6.6:4840", move || {
            once.set(false);
            let (bytes, fake, once) = (bytes.clone(), fake.clone(), once.clone());
            Box::new(move |request| {
                if request.starts_with(b"MSG") && !once.replace(true) {
                    return TcpReaction {
                        send: bytes.clone(),
                        ..TcpReaction::default()
                    };
                }
                fake.react(request)
            })
        });
        let found = discover(&host, &[HOSTILE, GOOD], "");
        let good = "opc.tcp://10.1.2.4:4840/";
        match expected {
            Ok(()) => assert_eq!(ids(&found), [good, HOSTILE]),
            Err(words) => {
                assert_eq!(ids(&found), [good], "{words}");
                let why = super::reason(&host, HOSTILE);
                assert!(why.contains(words), "{words}: {why}");
            }
        }
    }
}

#[test]
fn sizes_in_an_acknowledge_are_ignored() {
    for number in [0, 1, 8_191, i32::MAX.cast_unsigned(), u32::MAX] {
        let body = number.to_le_bytes().repeat(5);
        let acknowledged = Answer::Bytes(message(b"ACKF", &body));
        let right = &Answer::Right;
        let host = mk_hostile(FakeHost::new(), &acknowledged, right, right);
        let found = discover(&host, &[HOSTILE], "applicationTypes: [DiscoveryServer]");
        assert_eq!(ids(&found), [HOSTILE], "{number} {:?}", host.skipped());
    }
    // An acknowledge without sizes is invalid.
    let short = Answer::Bytes(message(b"ACKF", &[0; 19]));
    let host = mk_hostile(FakeHost::new(), &short, &Answer::Right, &Answer::Right);
    discover(&host, &[HOSTILE], "applicationTypes: [DiscoveryServer]");
    assert!(super::reason(&host, HOSTILE).contains("too short for its fields"));
}

#[test]
fn a_registration_with_absurd_texts_makes_no_list_unreadable() {
    let long = "n".repeat(1 << 20);
    let registrant = |uri: &str, name: &str, urls: &[&str]| {
        application(uri, name, ApplicationType::Server, urls)
    };
    let mut binary = registrant("urn:x", "\u{1}\u{1}\u{1}", &["opc.tcp://10.6.6.6:4850/"]);
    binary.product_uri = long.as_str().into();
    let many: Vec<String> = (0..5_000)
        .map(|n| format!("opc.tcp://10.6.6.6:{n}/"))
        .collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    let long_url = format!("opc.tcp://{long}:4840/");
    for hostile in [
        registrant("urn:x", &long, &["opc.tcp://10.6.6.6:4850/"]),
        registrant(&long, "X", &["opc.tcp://10.6.6.6:4850/"]),
        registrant("urn:x", "X", &[long_url.as_str()]),
        registrant("urn:x", "X", &many),
        registrant("urn:x", "X", &[]),
        binary,
    ] {
        let lds =
            Fake::discovery(GOOD)
                .lists(hostile)
                .knows("urn:a", "A", "opc.tcp://10.1.2.4:4840/");
        let host = lds.at(FakeHost::new(), "10.1.2.3:4840");
        let host = Fake::new().endpoint("urn:a").at(host, "10.1.2.4:4840");
        let found = discover(&host, &[GOOD], "");
        assert_eq!(ids(&found), ["opc.tcp://10.1.2.4:4840/"]);
        for skipped in host.skipped() {
            let text = format!("{}{}", skipped.subject, skipped.reason);
            assert!(text.len() < 3_000, "{} bytes", text.len());
        }
    }
    // Bytes that are not UTF-8.
    let mut list = Fake::discovery(GOOD)
        .knows("urn:x", "!!!!", "opc.tcp://10.6.6.6:4850/")
        .knows("urn:a", "A", "opc.tcp://10.1.2.4:4840/")
        .list();
    let at = list.windows(4).position(|four| four == b"!!!!").unwrap();
    list[at + 2] = 0xff;
    let mut fake = Some(list);
    let host = Fake::new()
        .endpoint("urn:a")
        .at(FakeHost::new(), "10.1.2.4:4840");
    let host = host.tcp_server("10.1.2.3:4840", move || {
        let list = fake.take().unwrap_or_default();
        let lds = Fake::discovery(GOOD);
        Box::new(move |request| match request.get(26..28) {
            Some([0xa6, 1]) => TcpReaction {
                send: fake::chunks(2, &list, 60_000),
                ..TcpReaction::default()
            },
            _ => lds.react(request),
        })
    });
    assert_eq!(
        ids(&discover(&host, &[GOOD], "")),
        ["opc.tcp://10.1.2.4:4840/"]
    );
    let skipped = host.skipped();
    assert!(
        skipped.iter().any(|one| one.reason.contains("\"!!\"")),
        "what comes before is the name: {skipped:?}"
    );
}

#[test]
fn a_list_longer_than_a_limit_withdraws_nothing() {
    let known = "opc.tcp://10.1.2.4:4840/";
    let first = discover(&mk_good(FakeHost::new()), &[GOOD], "");
    assert_eq!(ids(&first), [known]);
    let mut many = Fake::discovery(GOOD);
    let mut recorded = Fake::discovery(GOOD).knows("urn:a", "A", known);
    let mut large = Fake::discovery(GOOD);
    for number in 0..10_000 {
        let url = format!("opc.tcp://10.7.{}.{}:4840/", number / 250, number % 250);
        many = many.knows("", "X", &url);
        recorded = recorded.recorded(&url);
    }
    for number in 0..5 {
        let name = format!("{number}{}", "n".repeat(1 << 20));
        large = large.knows("", &name, "opc.tcp://10.7.0.1:4840/");
    }
    let server = |fake: Fake| {
        let host = fake.at(FakeHost::new(), "10.1.2.3:4840");
        Fake::new().endpoint("urn:a").at(host, "10.1.2.4:4840")
    };
    for (what, host) in [
        (
            "ten thousand applications",
            server(many.knows("urn:a", "A", known)),
        ),
        ("ten thousand records", server(recorded)),
        ("five mebibytes", server(large.knows("urn:a", "A", known))),
        (
            "too many chunks",
            server(
                Fake::discovery(GOOD)
                    .knows(&"u".repeat(300), "A", known)
                    .in_chunks(1),
            ),
        ),
        (
            "one that says so",
            server(Fake::new().faults(StatusCode::BadResponseTooLarge)),
        ),
        (
            "one that stops there",
            server(Fake::new().faults(StatusCode::BadEncodingLimitsExceeded)),
        ),
    ] {
        let found = again(&host, &[GOOD], &first);
        assert!(
            matches!(found.devices, Devices::Partial(_)),
            "{what}: {found:?}"
        );
        assert!(connections(&host).len() < 1_100, "{what}");
        assert!(
            host.now() <= Duration::from_secs(24),
            "{what}: {:?}",
            host.now()
        );
    }
}

#[test]
fn ten_thousand_listed_loopback_and_metadata_addresses_are_not_contacted() {
    let mut lds = Fake::discovery(HOSTILE);
    for port in 0..10_000_u32 {
        let host = ["127.0.0.1", "localhost", "[::1]", "0.0.0.0"][port as usize % 4];
        lds = lds
            .knows("", "X", &format!("opc.tcp://{host}:{}/", 10_000 + port))
            .recorded(&format!("opc.tcp://{host}:{}/", 20_000 + port));
    }
    for address in ["169.254.169.254", "[fd00:ec2::254]", "[fe80::1]"] {
        lds = lds.recorded(&format!("opc.tcp://{address}:80/"));
    }
    let host = lds.at(mk_good(FakeHost::new()), "10.6.6.6:4840");
    let call = Call::<OpcUa>::new(&details(&[HOSTILE, GOOD], ""));
    let found = call.run(&host).unwrap();
    assert!(ids(&found).contains(&"opc.tcp://10.1.2.4:4840/"));
    let hosts: BTreeSet<String> = connections(&host)
        .iter()
        .map(|to| to.rsplit_once(':').unwrap().0.to_owned())
        .collect();
    let hosts: Vec<&str> = hosts.iter().map(String::as_str).collect();
    assert_eq!(hosts, ["10.1.2.3", "10.1.2.4", "10.6.6.6"]);
}

#[test]
fn a_server_that_uses_anothers_uri_withdraws_nothing() {
    let lds = |clone: bool| {
        let lds = Fake::discovery(GOOD).recorded("opc.tcp://10.1.2.5:4840/");
        if clone {
            lds.recorded("opc.tcp://10.1.2.4:4840/")
        } else {
            lds
        }
    };
    let server = |url: &str| Fake::server("urn:b", "B", url);
    let (known, clone) = ("opc.tcp://10.1.2.5:4840/", "opc.tcp://10.1.2.4:4840/");
    let mk_host = |with_clone: bool| {
        let host = lds(with_clone).at(FakeHost::new(), "10.1.2.3:4840");
        let host = server(known).at(host, "10.1.2.5:4840");
        server(clone).at(host, "10.1.2.4:4840")
    };
    let first = discover(&mk_host(false), &[GOOD], "");
    assert_eq!(ids(&first), [known]);
    let second = again(&mk_host(true), &[GOOD], &first);
    assert_eq!(ids(&second), [clone, known], "both are asked and named");
    // Without a cursor the result is the same.
    assert_eq!(ids(&discover(&mk_host(true), &[GOOD], "")), [clone, known]);
}

//! Tests of the address that identifies a camera, and of addresses that cannot be used.

use super::*;

const INSIDE: &str = "http://192.168.254.1/onvif/device_service";

/// Adds a recorder at .9 with a private network behind it, whose address it announces first.
fn with_recorder(host: FakeHost) -> FakeHost {
    let xaddrs = format!("{INSIDE} {}", url(9));
    answering(host, "192.168.7.9:3702", mk_match(&uuid(9), &xaddrs))
}

fn at(url: &str, n: u32) -> String {
    format!("{url}-{}", uuid(n))
}

#[test]
fn a_camera_whose_first_address_fails_is_found_at_the_source_of_its_answer() {
    let nobody: fn(FakeHost) -> FakeHost = |host| host;
    for (what, inside) in [
        ("no way leads there", nobody),
        ("not granted", |host| host.deny("192.168.254.1:80")),
        ("nobody answers", |host| {
            host.http_server("http://192.168.254.1:80", |_| HttpAnswer {
                after: Duration::from_hours(1),
                result: Err(net::Error::Closed),
            })
        }),
        ("a router", |host| {
            host.http_server("http://192.168.254.1:80", |_| {
                http::Response::new(404, "<html>").into()
            })
        }),
    ] {
        let host = inside(with_service(with_recorder(mk_network()), 9));
        let mut found = call("").run(&host).unwrap();
        assert_eq!(ids(&found), [id(9)], "{what}: {:?}", host.skipped());
        assert!(!reasons(&host, INSIDE).is_empty(), "{what}");
        let asked = |url: &str| {
            let requests = requests(&host);
            requests.iter().filter(|to| to.contains(url)).count()
        };
        let before = asked(INSIDE);
        for _ in 0..4 {
            host.pass(Duration::from_secs(9));
            found = next(&found, "", vec![Event::Timer]).run(&host).unwrap();
            assert_eq!(found.devices, Devices::Unchanged, "{what}");
        }
        assert_eq!(asked(INSIDE), before, "{what}: it stays where it was found");
    }
}

#[test]
fn a_camera_is_found_at_the_source_of_its_hello() {
    let host = with_service(mk_network(), 9);
    let found = call("").run(&host).unwrap();
    let announcement = mk_announcement(&uuid(9), &format!("{INSIDE} {}", url(9)));
    let payload = mk_message("Hello", &format!("<d:Hello>{announcement}</d:Hello>"));
    let hello = mk_datagram("192.168.7.9:3702", payload);
    let found = next(&found, "", vec![hello]).run(&host).unwrap();
    assert_eq!(ids(&found), [id(9)]);
}

#[test]
fn a_first_address_that_answers_is_used_whatever_the_source_of_the_announcement() {
    let host = with_service(with_recorder(mk_network()), 9);
    let host = host.http_server("http://192.168.254.1:80", |request| {
        answer(9, request).into()
    });
    let mut found = call("").run(&host).unwrap();
    assert_eq!(ids(&found), [at(INSIDE, 9)]);
    for _ in 0..2 {
        host.pass(Duration::from_secs(9));
        found = next(&found, "", vec![Event::Timer]).run(&host).unwrap();
        assert_eq!(found.devices, Devices::Unchanged);
    }
}

#[test]
fn an_address_of_another_camera_is_not_used() {
    // The recorder's private network has the same addresses as the outer one.
    let xaddrs = format!("{} {}", url(10), url(9));
    let host = answering(
        mk_network(),
        "192.168.7.9:3702",
        mk_match(&uuid(9), &xaddrs),
    );
    let host = with_camera(with_service(host, 9), 10);
    let found = call("").run(&host).unwrap();
    assert_eq!(ids(&found), [id(10), id(9)], "{:?}", host.skipped());
}

#[test]
fn credentials_are_sent_to_the_source_of_the_answer() {
    let tokens = Rc::new(Cell::new(0));
    let counted = Rc::clone(&tokens);
    let host = with_recorder(mk_network()).http_server("http://192.168.7.9:80", move |request| {
        let has_token = String::from_utf8_lossy(&request.body).contains("PasswordDigest");
        counted.set(counted.get() + usize::from(has_token));
        if has_token || String::from_utf8_lossy(&request.body).contains("<GetSystemDateAndTime ") {
            answer(9, request).into()
        } else {
            http::Response::new(401, "").into()
        }
    });
    let found = call("")
        .secret("username_default", "u")
        .secret("password_default", "hunter2-hunter2")
        .run(&host)
        .unwrap();
    assert_eq!((ids(&found), tokens.get()), (vec![id(9).as_str()], 3));
}

/// Adds a device that announces no address, and answers Resolve with one.
fn with_shy(host: FakeHost, tells: bool) -> FakeHost {
    let asked = format!("<a:Address>urn:uuid:{}</a:Address>", uuid(9));
    host.udp_peer(GROUP, move |_, payload| {
        let payload = String::from_utf8_lossy(payload);
        let announcement = mk_announcement(&uuid(9), &url(9));
        let (_, related) = payload.split_once(":MessageID>").unwrap();
        let related = related.split('<').next().unwrap();
        let (kind, inside) = if payload.contains("/Probe<") {
            let without = announcement.replace(&format!("<d:XAddrs>{}</d:XAddrs>", url(9)), "");
            ("Probe", without)
        } else {
            assert!(payload.contains("/Resolve<") && payload.contains(&asked));
            let (reference, _) = announcement.split_once("<d:Types>").unwrap();
            let inside = format!("{reference}<d:XAddrs>{}</d:XAddrs>", url(9));
            ("Resolve", inside)
        };
        let body =
            format!("<d:{kind}Matches><d:{kind}Match>{inside}</d:{kind}Match></d:{kind}Matches>");
        let message = String::from_utf8(mk_message(&format!("{kind}Matches"), &body)).unwrap();
        let header = format!("<E:Header><a:RelatesTo>{related}</a:RelatesTo>");
        let answer = UdpAnswer {
            after: Duration::from_millis(30),
            from: "192.168.7.9:3702".parse().unwrap(),
            payload: message.replace("<E:Header>", &header).into_bytes(),
        };
        (kind == "Probe" || tells)
            .then_some(answer)
            .into_iter()
            .collect()
    })
}

#[test]
fn a_device_that_announces_no_address_is_asked_for_one() {
    let host = with_service(with_shy(mk_network(), true), 9);
    let mut found = call("scopes: {items: ['onvif://www.onvif.org/type/ptz']}")
        .run(&host)
        .unwrap();
    assert_eq!(ids(&found), [id(9)], "{:?}", host.skipped());
    assert!(host.skipped().is_empty(), "{:?}", host.skipped());
    // A known device is not resolved again.
    let sent = datagrams(&host);
    for n in 1..4 {
        host.pass(Duration::from_secs(9));
        found = next(
            &found,
            "scopes: {items: ['onvif://www.onvif.org/type/ptz']}",
            vec![Event::Timer],
        )
        .run(&host)
        .unwrap();
        assert_eq!(found.devices, Devices::Unchanged);
        assert_eq!(datagrams(&host) - sent, n * 8);
    }
    assert!(host.skipped().is_empty(), "{:?}", host.skipped());
}

#[test]
fn a_device_that_tells_no_address_is_explained() {
    let host = with_service(with_shy(mk_network(), false), 9);
    let found = call("").run(&host).unwrap();
    assert!(found.devices().is_empty());
    assert_eq!(
        reasons(&host, &uuid(9)),
        ["XAddrs: announces no address, and names none when it is asked"]
    );
    assert!(
        host.now() < Duration::from_millis(2_500),
        "{:?}",
        host.now()
    );
}

/// Adds a camera that answers probes after this time.
fn with_late(host: FakeHost, n: u32, after: Duration) -> FakeHost {
    let from = format!("192.168.7.{n}:3702").parse().unwrap();
    let host = host.udp_peer(GROUP, move |_, _| {
        vec![UdpAnswer {
            after,
            from,
            payload: mk_match(&uuid(n), &url(n)),
        }]
    });
    with_service(host, n)
}

#[test]
fn a_camera_that_answers_late_is_found_and_explained() {
    const WHY: &str = "discoveryTimeoutSeconds: answers a probe after 3.0 s, and the handler usually waits only 1 s; set 4";
    let late = Duration::from_secs(3);
    // As the only camera it is found in the first scan.
    let host = with_late(mk_network(), 9, late);
    let found = call("").run(&host).unwrap();
    assert_eq!(ids(&found), [id(9)]);
    assert_eq!(reasons(&host, &uuid(9)), [WHY]);
    // Among others it is found in the first scan after every quarter of an hour, and delays no other.
    let host = with_camera(with_late(mk_network(), 9, late), 10);
    let mut found = call("").run(&host).unwrap();
    assert_eq!(ids(&found), [id(10)]);
    assert!(host.now() < Duration::from_secs(2), "{:?}", host.now());
    let mut long = Vec::new();
    for _ in 0..200 {
        let began = host.now();
        host.pass(Duration::from_secs(8));
        found = next(&found, "", vec![Event::Timer]).run(&host).unwrap();
        if host.now().saturating_sub(began) < Duration::from_secs(10) {
            assert_eq!(found.devices, Devices::Unchanged);
        } else {
            long.push(found.devices.clone());
            assert_eq!(reasons(&host, &uuid(9)), vec![WHY; long.len()]);
        }
    }
    assert_eq!(long.len(), 2);
    assert_eq!(long.pop(), Some(Devices::Unchanged), "it has stayed");
    assert!(matches!(&long[..], [Devices::Complete(both)] if both.len() == 2));
}

#[test]
fn a_camera_that_answers_to_the_group_is_found_and_explained() {
    let host = with_service(mk_network(), 9);
    let found = call("").run(&host).unwrap();
    assert!(found.devices().is_empty());
    let reply = || mk_datagram("192.168.7.9:3702", mk_match(&uuid(9), &url(9)));
    host.pass(Duration::from_secs(1));
    let found = next(&found, "", vec![reply()]).run(&host).unwrap();
    assert_eq!(ids(&found), [id(9)]);
    assert_eq!(
        reasons(&host, &uuid(9)),
        [
            "announcement: answers probes to the group and not to the sender, so its answers count as greetings"
        ]
    );
    // Answers of a known camera cause no requests.
    let asked = requests(&host).len();
    host.pass(Duration::from_millis(5_200));
    let found = next(&found, "", vec![reply()]).run(&host).unwrap();
    assert_eq!(found.devices, Devices::Unchanged);
    assert_eq!(requests(&host).len(), asked);
}

#[test]
fn a_camera_that_announces_a_wrong_address_is_found_at_the_senders() {
    let wrong = "http://10.0.0.9:80/onvif/device_service";
    let used = "http://192.168.7.9:80/onvif/device_service";
    let host = answering(mk_network(), "192.168.7.9:3702", mk_match(&uuid(9), wrong));
    let host = with_service(host, 9);
    let found = call("").run(&host).unwrap();
    assert_eq!(ids(&found), [at(used, 9)], "{:?}", host.skipped());
    assert_eq!(
        reasons(&host, wrong),
        [
            "answer: does not answer GetSystemDateAndTime: unreachable; it was announced from 192.168.7.9, and is in no network of this node: the camera's own address is probably misconfigured"
        ]
    );
    // It stays there, with an explanation in each call.
    host.pass(Duration::from_secs(9));
    let asked = requests(&host).len();
    let again = next(&found, "", vec![Event::Timer]).run(&host).unwrap();
    assert_eq!(again.devices, Devices::Unchanged);
    assert!(requests(&host)[asked..].iter().all(|to| to.contains(used)));
    assert_eq!(
        reasons(&host, &uuid(9)),
        [format!(
            "XAddrs: {used} is used, the sender's address: the announced address {wrong} did not answer"
        )]
    );
}

#[test]
fn the_senders_address_is_used_only_if_the_announced_one_fails_and_the_camera_is_its_only_one() {
    let other = "http://192.168.7.77/onvif/device_service";
    let announced = answering(mk_network(), "192.168.7.9:3702", mk_match(&uuid(9), other));
    let host = with_service(announced, 9).http_server("http://192.168.7.77:80", |request| {
        answer(9, request).into()
    });
    let found = call("").run(&host).unwrap();
    assert_eq!(ids(&found), [at(other, 9)]);
    // A recorder answers for its cameras, and is none of them.
    let mut host = with_service(mk_network(), 9);
    for n in [20, 21] {
        let inside = format!("http://10.0.0.{n}{SERVICE}");
        host = answering(host, "192.168.7.9:3702", mk_match(&uuid(n), &inside));
    }
    let found = call("").run(&host).unwrap();
    assert!(found.devices().is_empty(), "{:?}", ids(&found));
}

#[test]
fn the_hardware_address_comes_from_a_scope_if_the_camera_refuses_the_rest() {
    for (source, mac) in [
        ("192.168.7.9", Some("c0:56:e3:01:02:03")),
        ("192.168.7.66", None),
    ] {
        let announcement = String::from_utf8(mk_match(&uuid(9), &url(9))).unwrap();
        let scope = "<d:Scopes>onvif://www.onvif.org/MAC/C0:56:E3:01:02:03 ";
        let announcement = announcement.replace("<d:Scopes>", scope);
        let host = answering(
            mk_network(),
            &format!("{source}:3702"),
            announcement.into_bytes(),
        );
        let host = host.http_server("http://192.168.7.9:80", |request| {
            let body = String::from_utf8_lossy(&request.body).into_owned();
            if body.contains("<GetSystemDateAndTime ") {
                answer(9, request).into()
            } else {
                http::Response::new(401, "").into()
            }
        });
        let found = call("").run(&host).unwrap();
        let told = found.devices()[0].get_property("ONVIF_DEVICE_MAC_ADDRESS");
        assert_eq!(told, mac, "{source}");
        let found = call("macAddresses: {items: [C056E3010203]}")
            .run(&host)
            .unwrap();
        assert_eq!(found.devices().len(), usize::from(mac.is_some()));
    }
}

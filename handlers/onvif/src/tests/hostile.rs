//! Networks that mean harm: nothing costs more than its limit, withdraws a camera or keeps one away.

use super::*;

fn dripping(host: FakeHost, n: u32) -> FakeHost {
    let host = answering(
        host,
        &format!("192.168.7.{n}:3702"),
        mk_match(&uuid(n), &url(n)),
    );
    host.http_server(&format!("http://192.168.7.{n}:80"), move |request| {
        HttpAnswer {
            after: Duration::from_hours(1),
            result: Ok(answer(n, request)),
        }
    })
}

#[test]
fn cameras_that_drip_do_not_hold_up_the_others() {
    let mut host = mk_network();
    for n in 10..60 {
        host = dripping(host, n);
    }
    for n in 60..110 {
        host = with_camera(host, n);
    }
    for n in 110..160 {
        host = dripping(host, n);
    }
    let found = call("").run(&host).unwrap();
    assert!(is_complete(&found));
    assert_eq!(found.devices().len(), 50);
    assert!(host.now() < Duration::from_secs(8), "{:?}", host.now());
    assert!(reasons(&host, &url(10))[0].contains("timed out"));
}

#[test]
fn known_cameras_are_looked_at_before_new_ones() {
    let is_on = Rc::new(Cell::new(false));
    let mut host = with_switched(mk_network(), 200, &Rc::new(Cell::new(true)));
    for n in 10..190 {
        let (heard, from) = (
            Rc::clone(&is_on),
            format!("192.168.7.{n}:3702").parse().unwrap(),
        );
        host = host.udp_peer(GROUP, move |_, _| {
            let answer = UdpAnswer {
                after: Duration::ZERO,
                from,
                payload: mk_match(&uuid(n), &url(n)),
            };
            heard.get().then_some(answer).into_iter().collect()
        });
        host = host.http_server(&format!("http://192.168.7.{n}:80"), |_| HttpAnswer {
            after: Duration::from_hours(1),
            result: Err(net::Error::Closed),
        });
    }
    let found = call("").run(&host).unwrap();
    assert_eq!(ids(&found), [id(200)]);
    is_on.set(true);
    host.pass(Duration::from_mins(20));
    let before = host.contacts().len();
    let found = next(&found, "", vec![Event::Timer]).run(&host).unwrap();
    assert_eq!(found.devices, Devices::Unchanged);
    let first = host
        .contacts()
        .into_iter()
        .skip(before)
        .find(|contact| contact.to.starts_with("http"));
    assert_eq!(first.unwrap().to, format!("http POST {}", url(200)));
}

/// Answers every probe with `many` made-up cameras that do not exist.
fn flooding(host: FakeHost, is_on: &Rc<Cell<bool>>, many: u32) -> FakeHost {
    let is_on = Rc::clone(is_on);
    host.udp_peer(GROUP, move |_, _| {
        let many = if is_on.get() { many } else { 0 };
        (0..many)
            .map(|n| {
                let ip = format!("10.{}.{}.1", n / 250 % 250, n % 250);
                UdpAnswer {
                    after: Duration::ZERO,
                    from: format!("{ip}:{}", 1_024 + n % 60_000).parse().unwrap(),
                    payload: mk_match(
                        &format!("{n:08}-0000-0000-0000-{n:012}"),
                        &format!("http://{ip}/"),
                    ),
                }
            })
            .collect()
    })
}

#[test]
fn a_flood_withdraws_nobody_and_a_camera_that_came_in_it_is_found_after_it() {
    let (is_flood, is_new) = (Rc::new(Cell::new(false)), Rc::new(Cell::new(false)));
    let host = flooding(mk_network(), &is_flood, 10_000);
    let host = with_switched(with_camera(host, 9), 10, &is_new);
    let mut found = call("").run(&host).unwrap();
    assert_eq!(ids(&found), [id(9)]);
    is_flood.set(true);
    is_new.set(true);
    for _ in 0..3 {
        host.pass(Duration::from_secs(5));
        let began = host.now();
        found = next(&found, "", vec![Event::Timer]).run(&host).unwrap();
        assert!(host.now().saturating_sub(began) < Duration::from_secs(24));
        assert!(
            !is_complete(&found) || ids(&found).contains(&id(9).as_str()),
            "{:?}",
            ids(&found)
        );
        assert!(found.departed.is_empty());
        assert!(found.cursor.as_ref().unwrap().len() <= 1 << 20);
    }
    is_flood.set(false);
    let mut all = Vec::new();
    for _ in 0..3 {
        host.pass(Duration::from_secs(5));
        found = next(&found, "", vec![Event::Timer]).run(&host).unwrap();
        all.extend(ids(&found).into_iter().map(str::to_owned));
    }
    assert!(all.contains(&id(10)), "{all:?}");
}

#[test]
fn a_call_without_time_for_all_answers_in_part_and_goes_on() {
    let mut host = mk_network();
    for n in 1..251 {
        let ip = format!("192.168.8.{n}");
        for port in [80, 81, 82, 83] {
            let url = format!("http://{ip}:{port}/");
            let host_number = n * 4 + port - 80;
            host = answering(
                host,
                &format!("{ip}:3702"),
                mk_match(&uuid(host_number), &url),
            );
            host = host.http_server(&format!("http://{ip}:{port}"), move |request| HttpAnswer {
                after: Duration::from_millis(400),
                result: Ok(answer(9, request)),
            });
        }
    }
    let found = call("").run(&host).unwrap();
    assert!(is_partial(&found));
    let some = found.devices().len();
    assert!((200..1_000).contains(&some), "{some}");
    assert_eq!(found.wakes().last(), Some(&Wake::After(1_000)));
    assert!(host.now() < Duration::from_secs(24));
    let mut found = found;
    for _ in 0..4 {
        host.pass(Duration::from_secs(1));
        found = next(&found, "", vec![Event::Timer]).run(&host).unwrap();
    }
    assert!(is_complete(&found) || found.devices == Devices::Unchanged);
    host.pass(Duration::from_secs(9));
    let again = call("").run(&host).unwrap();
    assert!(is_partial(&again));
}

#[test]
fn a_flood_of_greetings_costs_no_probe_and_little_time() {
    let host = with_camera(mk_network(), 9);
    let found = call("").run(&host).unwrap();
    let sent = datagrams(&host);
    let hellos = (0..64).map(|n| {
        let announcement = mk_announcement(&uuid(500 + n), &format!("http://10.9.9.{n}/"));
        let payload = mk_message("Hello", &format!("<d:Hello>{announcement}</d:Hello>"));
        mk_datagram("192.168.7.66:3702", payload)
    });
    let began = host.now();
    let found = next(&found, "", hellos.collect()).run(&host).unwrap();
    assert_eq!(found.devices, Devices::Unchanged);
    assert_eq!(datagrams(&host), sent);
    assert!(host.now().saturating_sub(began) < Duration::from_secs(3));
}

#[test]
fn what_does_not_answer_is_asked_less_and_less() {
    let host = answering(
        mk_network(),
        "192.168.7.9:3702",
        mk_match(&uuid(9), &url(9)),
    );
    let host = host.http_server("http://192.168.7.9:80", |_| fails(net::Error::Refused));
    let mut found = call("").run(&host).unwrap();
    for _ in 0..12 {
        host.pass(Duration::from_millis(8_500));
        found = next(&found, "", vec![Event::Timer]).run(&host).unwrap();
    }
    let asked = requests(&host).len();
    assert!((4..=6).contains(&asked), "{asked}");
    assert_eq!(reasons(&host, &url(9)).len(), 13);
}

#[test]
fn addresses_that_lead_elsewhere_are_not_contacted() {
    let many = (0..10_000).map(|n| format!("http://10.0.{}.{}/", n / 250, n % 250));
    for xaddrs in [
        "http://127.0.0.1/ http://[::1]/ http://localhost/ http://[fe80::1]/ http://0.0.0.0/"
            .to_owned(),
        many.collect::<Vec<_>>().join(" "),
    ] {
        let host = answering(
            mk_network(),
            "192.168.7.9:3702",
            mk_match(&uuid(9), &xaddrs),
        );
        let found = call("leafhost.dev/xaddrs: all").run(&host).unwrap();
        assert!(found.devices().is_empty());
        assert!(requests(&host).len() <= 16, "{:?}", requests(&host));
        assert!(
            !requests(&host)
                .iter()
                .any(|url| url.contains("127.0.0.1") || url.contains("fe80"))
        );
        assert!(!reasons(&host, &uuid(9)).is_empty());
    }
}

#[test]
fn an_address_that_is_not_granted_is_named() {
    let host = answering(
        mk_network(),
        "192.168.7.9:3702",
        mk_match(&uuid(9), "http://169.254.169.254/latest"),
    );
    let host = host.deny("169.254.169.254:80");
    let found = call("").run(&host).unwrap();
    assert!(found.devices().is_empty());
    assert!(
        reasons(&host, "169.254.169.254")[0].contains("not granted"),
        "{:?}",
        host.skipped()
    );
}

#[test]
fn answers_that_cannot_be_read_are_named_and_nothing_else_happens() {
    for (payload, words) in [
        (b"<a><b>".to_vec(), "cut off"),
        (b"\xff\xfe\x00".to_vec(), "no XML"),
        ("<a>".repeat(20_000).into_bytes(), "64 deep"),
        (b"<!DOCTYPE a [<!ENTITY a 'a'>]><a>&a;</a>".to_vec(), "document type"),
        (vec![b'x'; 65_000], "no XML"),
        (mk_message("Hello", "<d:Hello/>"), "a greeting or farewell"),
        (
            String::from_utf8(mk_match(&uuid(9), &url(9))).unwrap().replace(
                "<E:Header>",
                "<E:Header><a:RelatesTo>urn:uuid:99999999-9999-4999-8999-999999999999</a:RelatesTo>",
            ).into_bytes(),
            "a probe that is not ours",
        ),
    ] {
        let host = with_camera(answering(mk_network(), "192.168.7.66:3702", payload), 9);
        let found = call("").run(&host).unwrap();
        assert_eq!(ids(&found), [id(9)]);
        let said = reasons(&host, "192.168.7.66");
        assert_eq!(said.len(), 1, "{said:?}");
        assert!(said[0].contains(words), "{said:?}");
    }
}

#[test]
fn what_a_camera_answers_that_means_harm_is_named() {
    let deep = mk_soap(&"<a>".repeat(80_000));
    let laughs = br#"<!DOCTYPE l [<!ENTITY a "ha"><!ENTITY b "&a;&a;&a;">]><s:Envelope><s:Body>&b;</s:Body></s:Envelope>"#.to_vec();
    for (body, words) in [(deep, "64 deep"), (laughs, "document type")] {
        let host = answering(
            mk_network(),
            "192.168.7.66:3702",
            mk_match(&uuid(66), &url(66)),
        );
        let host = host.http_server("http://192.168.7.66:80", move |_| {
            http::Response::new(200, body.clone()).into()
        });
        let host = with_camera(host, 9);
        let found = call("").run(&host).unwrap();
        assert_eq!(ids(&found), [id(9)]);
        assert!(
            reasons(&host, &url(66))[0].contains(words),
            "{:?}",
            host.skipped()
        );
    }
}

#[test]
fn a_clone_takes_nobodys_place() {
    let host = with_camera(mk_network(), 9);
    let clone = url(66);
    let host = answering(host, "192.168.7.66:3702", mk_match(&uuid(9), &clone));
    let host = with_service(host, 66);
    let found = call("").run(&host).unwrap();
    assert_eq!(ids(&found), [format!("{clone}-{}", uuid(9)), id(9)]);
    assert!(
        found
            .devices()
            .iter()
            .all(|device| device.physical_id == Some(uuid(9)))
    );
    assert!(reasons(&host, &uuid(9))[0].contains("each that answers is a device of its own"));
}

#[test]
fn a_camera_that_a_forger_describes_otherwise_stays() {
    let is_forged = Rc::new(Cell::new(false));
    let switch = Rc::clone(&is_forged);
    let host = with_camera(mk_network(), 9).udp_peer(GROUP, move |_, _| {
        // The same camera without the scope the operator wants, and at a port that sorts before.
        let payload = String::from_utf8(mk_match(&uuid(9), "http://192.168.7.9:1/")).unwrap();
        let answer = |payload: String| UdpAnswer {
            after: Duration::ZERO,
            from: "192.168.7.66:3702".parse().unwrap(),
            payload: payload.into_bytes(),
        };
        let forged = [payload.clone(), payload.replace("type/ptz", "type/none")];
        if switch.get() {
            forged.map(answer).into()
        } else {
            Vec::new()
        }
    });
    let details = "scopes: {items: ['onvif://www.onvif.org/type/ptz']}";
    let mut found = call(details).run(&host).unwrap();
    assert_eq!(ids(&found), [id(9)]);
    is_forged.set(true);
    for _ in 0..3 {
        host.pass(Duration::from_secs(9));
        found = next(&found, details, vec![Event::Timer])
            .run(&host)
            .unwrap();
        assert_eq!(found.devices, Devices::Unchanged);
    }
}

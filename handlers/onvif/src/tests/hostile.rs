//! Tests of hostile networks: no host exceeds its limit, withdraws a camera or hides one.

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
fn cameras_that_answer_byte_by_byte_do_not_delay_others() {
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
fn known_cameras_are_asked_before_new_ones() {
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

#[test]
fn a_call_that_runs_out_of_time_answers_partially_and_continues_in_the_next() {
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
fn a_flood_of_hellos_costs_no_probe_and_little_time() {
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
fn an_address_that_does_not_answer_is_asked_less_and_less_often() {
    let host = announced(mk_network(), 9);
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
fn unusable_announced_addresses_are_not_contacted() {
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
fn an_address_that_is_not_granted_is_explained() {
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
fn unreadable_probe_answers_are_explained_and_ignored() {
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
            "a probe that the handler did not send",
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
fn harmful_answers_of_a_camera_are_explained() {
    let attributes: String = (0..10_000).map(|n| format!(" a{n}=''")).collect();
    let whole = mk_soap(DATE);
    let gzip = b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\x03\xb3\x29\xb6\x72".to_vec();
    for (status, body, words) in [
        (200, mk_soap(&"<a>".repeat(100_000)), "larger than 262144"),
        (200, mk_soap(&"<a>".repeat(80_000)), "64 deep"),
        (200, mk_soap(&format!("<a{attributes}/>")), "128 attributes"),
        (200, mk_soap(&"<a/>".repeat(20_000)), "10000 elements"),
        (200, mk_soap(&"x".repeat(300_000)), "larger than 262144"),
        (200, whole[..whole.len() - 13].to_vec(), "cut off"),
        (
            200,
            br#"<!DOCTYPE l [<!ENTITY a "ha"><!ENTITY b "&a;&a;&a;">]><s:Envelope><s:Body>&b;</s:Body></s:Envelope>"#.to_vec(),
            "document type",
        ),
        (
            200,
            br#"<!DOCTYPE l SYSTEM "http://169.254.169.254/"><s:Envelope><s:Body/></s:Envelope>"#.to_vec(),
            "document type",
        ),
        (200, gzip, "no XML"),
        (200, vec![0; 200_000], "no XML"),
        (302, Vec::new(), "redirect (302)"),
        (401, Vec::new(), "wants credentials"),
        (500, mk_soap(&"<s:Fault>".repeat(60)), "status 500"),
    ] {
        let host = announced(mk_network(), 66);
        let host = host.http_server("http://192.168.7.66:80", move |_| {
            let mut response = http::Response::new(status, body.clone());
            let elsewhere = ("location".to_owned(), url(67));
            response.headers.push(elsewhere);
            response.into()
        });
        let host = with_service(with_camera(host, 9), 67);
        let mut found = call("").run(&host).unwrap();
        assert_eq!(ids(&found), [id(9)], "{words}");
        let said = reasons(&host, &url(66));
        assert!(said[0].contains(words), "{words}: {said:?}");
        // Nor does it withdraw the other camera later.
        for _ in 0..3 {
            host.pass(Duration::from_secs(9));
            found = next(&found, "", vec![Event::Timer]).run(&host).unwrap();
            assert_eq!(found.devices, Devices::Unchanged, "{words}");
        }
        assert!(!requests(&host).iter().any(|to| to.contains("192.168.7.67")));
    }
}

#[test]
fn a_camera_with_a_false_time_is_a_device_and_gets_a_token_of_that_time_or_none() {
    for (year, created) in [
        ("1970", Some("1970-09-16T07:50:45Z")),
        ("2100", Some("2100-09-16T07:50:45Z")),
        ("9999999999999999999", None),
        ("-5", None),
    ] {
        let tokens = Rc::new(std::cell::RefCell::new(Vec::new()));
        let kept = Rc::clone(&tokens);
        let host = with_camera(mk_network(), 10);
        let host = announced(host, 9);
        let host = host.http_server("http://192.168.7.9:80", move |request| {
            let body = String::from_utf8_lossy(&request.body).into_owned();
            if body.contains("<GetSystemDateAndTime ") {
                let date = DATE.replace(">2010<", &format!(">{year}<"));
                return http::Response::new(200, mk_soap(&date)).into();
            }
            let created = body.split_once("<wsu:Created>");
            let created = created.and_then(|(_, rest)| rest.split('<').next());
            kept.borrow_mut().extend(created.map(str::to_owned));
            http::Response::new(401, "").into()
        });
        let found = call("")
            .secret("username_00000000_0000_4000_8000_000000000009", "u")
            .secret(
                "password_00000000_0000_4000_8000_000000000009",
                "hunter2-hunter2",
            )
            .run(&host)
            .unwrap();
        assert_eq!(ids(&found), [id(10), id(9)], "{year}");
        assert_eq!(
            *tokens.borrow(),
            created.map(str::to_owned).into_iter().collect::<Vec<_>>()
        );
        let said = reasons(&host, &url(9));
        let is_named = created.is_some() || said[0].contains("does not report its time");
        assert!(is_named, "{said:?}");
    }
}

#[test]
fn a_clone_does_not_displace_the_camera() {
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
fn a_camera_stays_when_a_forged_announcement_describes_it_differently() {
    let is_forged = Rc::new(Cell::new(false));
    let switch = Rc::clone(&is_forged);
    let host = with_camera(mk_network(), 9).udp_peer(GROUP, move |_, _| {
        // The same camera without the wanted scope, and at a port that sorts first.
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

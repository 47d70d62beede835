//! Tests of sessions with several calls.

use leafhost_sdk::testing::budget;
use leafhost_sdk::{Handler, Request};

use super::*;

fn pass(host: &FakeHost, seconds: u64) {
    host.pass(Duration::from_secs(seconds));
}

#[test]
fn cameras_with_unchanged_announcements_are_pinged_in_every_other_scan() {
    let mut host = mk_network();
    for n in 10..60 {
        host = with_camera(host, n);
    }
    let mut found = call("").run(&host).unwrap();
    assert_eq!(found.devices().len(), 50);
    let asked = requests(&host).len();
    let sent = datagrams(&host);
    for _ in 0..5 {
        pass(&host, 9);
        found = next(&found, "", vec![Event::Timer]).run(&host).unwrap();
        assert_eq!(found.devices, Devices::Unchanged);
    }
    let greeted: Vec<_> = requests(&host).split_off(asked);
    assert_eq!(greeted.len(), 5 * 25);
    for n in 10..60 {
        let times = greeted.iter().filter(|to| to.ends_with(&url(n))).count();
        assert!((2..=3).contains(&times), "{n}: {times}");
    }
    // Two kinds of probe, each twice, over IPv4 and IPv6.
    assert_eq!((sent, datagrams(&host)), (8, 6 * 8));
}

#[test]
fn cameras_are_asked_again_once_their_answers_are_outdated() {
    let mut host = mk_network();
    for n in 10..50 {
        host = with_camera(host, n);
    }
    let found = call("").run(&host).unwrap();
    pass(&host, 16 * 60);
    let before = requests(&host).len();
    let found = next(&found, "", vec![Event::Timer]).run(&host).unwrap();
    assert_eq!(found.devices, Devices::Unchanged);
    // Four requests each, and pings for half of the others.
    assert_eq!(requests(&host).len() - before, 16 * 4 + 12);
}

#[test]
fn a_probe_is_sent_every_ten_seconds_however_often_the_session_wakes() {
    let host = with_camera(mk_network(), 9);
    let mut found = call("").run(&host).unwrap();
    let sent = datagrams(&host);
    let start = host.now();
    for _ in 0..10 {
        pass(&host, 1);
        found = next(&found, "", vec![mk_bye(77, "192.168.7.77:3702")])
            .run(&host)
            .unwrap();
        assert_eq!(found.devices, Devices::Unchanged);
        let passed = host.now().saturating_sub(start) + Duration::from_millis(1_500);
        let left = Duration::from_secs(10).saturating_sub(passed);
        let left = left.max(Duration::from_secs(1));
        assert_eq!(
            found.wakes().last(),
            Some(&Wake::After(u32::try_from(left.as_millis()).unwrap()))
        );
    }
    assert_eq!(datagrams(&host), sent);
    pass(&host, 1);
    let found = next(&found, "", vec![mk_bye(77, "192.168.7.77:3702")])
        .run(&host)
        .unwrap();
    assert_eq!(datagrams(&host), 2 * sent);
    assert_eq!(found.wakes().last(), Some(&Wake::After(8_500)));
}

#[test]
fn a_camera_that_sends_hello_is_a_device_at_once() {
    let is_on = Rc::new(Cell::new(false));
    let host = with_switched(with_camera(mk_network(), 9), 10, &is_on);
    let found = call("").run(&host).unwrap();
    assert_eq!(ids(&found), [id(9)]);
    pass(&host, 3);
    is_on.set(true);
    let (sent, began) = (datagrams(&host), host.now());
    let found = next(&found, "", vec![mk_hello(10)]).run(&host).unwrap();
    assert!(is_partial(&found));
    assert_eq!(ids(&found), [id(10)]);
    assert_eq!(datagrams(&host), sent);
    assert!(host.now().saturating_sub(began) < Duration::from_millis(100));
    pass(&host, 6);
    let found = next(&found, "", vec![Event::Timer]).run(&host).unwrap();
    assert_eq!(found.devices, Devices::Unchanged);
}

#[test]
fn a_camera_that_sends_hello_before_it_can_answer_is_tried_again() {
    let asked = Cell::new(0);
    let host = mk_network().http_server("http://192.168.7.9:80", move |request| {
        asked.set(asked.get() + 1);
        if asked.get() < 3 {
            fails(net::Error::Refused)
        } else {
            answer(9, request).into()
        }
    });
    let found = call("").run(&host).unwrap();
    let began = host.now();
    let found = next(&found, "", vec![mk_hello(9)]).run(&host).unwrap();
    assert_eq!(ids(&found), [id(9)]);
    assert!(host.now().saturating_sub(began) < Duration::from_millis(1_500));
}

#[test]
fn a_hello_without_an_address_causes_a_probe() {
    let host = with_camera(mk_network(), 9);
    let found = call("").run(&host).unwrap();
    let sent = datagrams(&host);
    pass(&host, 2);
    let hello = mk_message(
        "Hello",
        "<d:Hello><a:EndpointReference><a:Address>urn:uuid:x</a:Address></a:EndpointReference></d:Hello>",
    );
    let hello = mk_datagram("192.168.7.10:3702", hello);
    let found = next(&found, "", vec![hello]).run(&host).unwrap();
    assert_eq!(
        (found.devices, datagrams(&host)),
        (Devices::Unchanged, 2 * sent)
    );
}

#[test]
fn a_network_change_causes_a_probe_and_many_changes_cause_few() {
    let host = with_camera(mk_network(), 9);
    let mut found = call("").run(&host).unwrap();
    let sent = datagrams(&host);
    let began = host.now();
    for _ in 0..50 {
        host.pass(Duration::from_millis(100));
        found = next(&found, "", vec![Event::Network]).run(&host).unwrap();
    }
    let seconds = usize::try_from((host.now().saturating_sub(began)).as_secs()).unwrap();
    assert!(
        datagrams(&host) / sent <= 2 + seconds / 2,
        "{seconds}: {}",
        datagrams(&host) / sent
    );
    pass(&host, 2);
    let before = datagrams(&host);
    next(&found, "", vec![Event::Network]).run(&host).unwrap();
    assert_eq!(datagrams(&host), before + sent);
}

#[test]
fn a_camera_that_sends_bye_and_is_silent_is_gone() {
    let is_on = Rc::new(Cell::new(true));
    let host = with_switched(with_camera(mk_network(), 9), 10, &is_on);
    let found = call("").run(&host).unwrap();
    assert_eq!(ids(&found), [id(10), id(9)]);
    pass(&host, 1);
    is_on.set(false);
    let (began, before) = (host.now(), requests(&host).len());
    let found = next(&found, "", vec![mk_bye(10, "192.168.7.10:3702")])
        .run(&host)
        .unwrap();
    assert_eq!(found.devices, Devices::Unchanged);
    assert_eq!(found.departed, [id(10)]);
    assert_eq!(requests(&host).len() - before, 2);
    let took = host.now().saturating_sub(began);
    assert!(
        took >= Duration::from_millis(250) && took < Duration::from_secs(1),
        "{took:?}"
    );
    pass(&host, 8);
    let found = next(&found, "", vec![Event::Timer]).run(&host).unwrap();
    assert_eq!(found.devices, Devices::Unchanged);
}

#[test]
fn a_camera_switched_off_after_its_bye_is_gone_within_two_seconds() {
    let is_on = Rc::new(Cell::new(true));
    let switch = Rc::clone(&is_on);
    let host = announced(mk_network(), 9).http_server("http://192.168.7.9:80", move |request| {
        HttpAnswer {
            after: if switch.get() {
                Duration::ZERO
            } else {
                Duration::from_hours(1)
            },
            result: Ok(answer(9, request)),
        }
    });
    let found = call("").run(&host).unwrap();
    is_on.set(false);
    let began = host.now();
    let found = next(&found, "", vec![mk_bye(9, "192.168.7.9:3702")])
        .run(&host)
        .unwrap();
    assert_eq!(found.departed, [id(9)]);
    assert!(
        host.now().saturating_sub(began) < Duration::from_secs(2),
        "{:?}",
        host.now().saturating_sub(began)
    );
}

#[test]
fn a_camera_that_still_answers_briefly_after_its_bye_is_gone_in_the_next_scan() {
    let is_on = Rc::new(Cell::new(true));
    let host = with_switched(with_camera(mk_network(), 9), 10, &is_on);
    let found = call("").run(&host).unwrap();
    pass(&host, 1);
    let found = next(&found, "", vec![mk_bye(10, "192.168.7.10:3702")])
        .run(&host)
        .unwrap();
    assert!(found.departed.is_empty());
    let soon = |wake: &Wake| matches!(wake, Wake::After(time) if *time <= 2_000);
    assert!(found.wakes().iter().any(soon), "{:?}", found.wakes());
    is_on.set(false);
    pass(&host, 2);
    let found = next(&found, "", vec![Event::Timer]).run(&host).unwrap();
    assert_eq!(found.departed, [id(10)]);
}

#[test]
fn a_camera_that_probes_do_not_reach_stays_after_a_forged_bye() {
    let host = with_camera(mk_network(), 9);
    let mut found = call("").run(&host).unwrap();
    let quiet =
        mk_network().http_server("http://192.168.7.9:80", |request| answer(9, request).into());
    quiet.pass(host.now());
    found = next(&found, "", vec![mk_bye(9, "192.168.7.66:9999")])
        .run(&quiet)
        .unwrap();
    for _ in 0..8 {
        pass(&quiet, 10);
        found = next(&found, "", vec![Event::Timer]).run(&quiet).unwrap();
        assert!(found.departed.is_empty());
        assert_eq!(found.devices, Devices::Unchanged);
    }
}

#[test]
fn a_forged_bye_withdraws_no_camera() {
    let host = with_camera(mk_network(), 9);
    let mut found = call("").run(&host).unwrap();
    let before = requests(&host).len();
    for _ in 0..10 {
        host.pass(Duration::from_millis(100));
        found = next(&found, "", vec![mk_bye(9, "192.168.7.66:9999")])
            .run(&host)
            .unwrap();
        assert_eq!(found.devices, Devices::Unchanged);
        assert!(found.departed.is_empty());
    }
    // One check of the camera is enough for a while.
    assert_eq!(requests(&host).len() - before, 1);
    assert!(reasons(&host, &url(9))[0].contains("somebody said that it goes"));
}

#[test]
fn a_camera_that_answers_anything_is_not_gone() {
    let is_busy = Rc::new(Cell::new(false));
    let switch = Rc::clone(&is_busy);
    let host = announced(mk_network(), 9).http_server("http://192.168.7.9:80", move |request| {
        if switch.get() {
            http::Response::new(503, "busy").into()
        } else {
            answer(9, request).into()
        }
    });
    let found = call("").run(&host).unwrap();
    is_busy.set(true);
    let bye = mk_bye(9, "192.168.7.66:3702");
    let found = next(&found, "", vec![bye]).run(&host).unwrap();
    assert!(found.departed.is_empty());
    assert_eq!(found.devices, Devices::Unchanged);
}

#[test]
fn a_bye_from_an_address_that_is_not_granted_withdraws_no_camera() {
    let is_denied = Rc::new(Cell::new(false));
    let switch = Rc::clone(&is_denied);
    let host = announced(mk_network(), 9).http_server("http://192.168.7.9:80", move |request| {
        if switch.get() {
            fails(net::Error::Denied("x".to_owned()))
        } else {
            answer(9, request).into()
        }
    });
    let found = call("").run(&host).unwrap();
    is_denied.set(true);
    let found = next(&found, "", vec![mk_bye(9, "192.168.7.9:3702")])
        .run(&host)
        .unwrap();
    assert!(found.departed.is_empty());
}

#[test]
fn a_camera_whose_probe_answer_is_lost_stays() {
    let is_announced = Rc::new(Cell::new(true));
    let switch = Rc::clone(&is_announced);
    let host = mk_network().udp_peer(GROUP, move |_, _| {
        let answer = UdpAnswer {
            after: Duration::ZERO,
            from: "192.168.7.9:3702".parse().unwrap(),
            payload: mk_match(&uuid(9), &url(9)),
        };
        switch.get().then_some(answer).into_iter().collect()
    });
    let host = with_service(host, 9);
    let found = call("").run(&host).unwrap();
    is_announced.set(false);
    pass(&host, 9);
    let before = requests(&host).len();
    let found = next(&found, "", vec![Event::Timer]).run(&host).unwrap();
    assert_eq!(found.devices, Devices::Unchanged);
    assert_eq!(requests(&host).len() - before, 1);
}

#[test]
fn a_silent_camera_is_left_out_and_comes_back() {
    let is_on = Rc::new(Cell::new(true));
    let host = with_switched(with_camera(mk_network(), 9), 10, &is_on);
    let found = call("").run(&host).unwrap();
    is_on.set(false);
    pass(&host, 9);
    let found = next(&found, "", vec![Event::Timer]).run(&host).unwrap();
    assert!(is_complete(&found));
    assert_eq!(ids(&found), [id(9)]);
    assert!(found.departed.is_empty());
    pass(&host, 9);
    let found = next(&found, "", vec![Event::Timer]).run(&host).unwrap();
    assert_eq!(found.devices, Devices::Unchanged);
    is_on.set(true);
    pass(&host, 30);
    let found = next(&found, "", vec![Event::Timer]).run(&host).unwrap();
    assert_eq!(ids(&found), [id(10), id(9)]);
}

#[test]
fn without_a_cursor_the_same_devices_are_found() {
    let host = with_camera(with_camera(mk_network(), 9), 10);
    let first = call("").run(&host).unwrap();
    pass(&host, 9);
    let again = call("").events([Event::Timer]).run(&host).unwrap();
    assert_eq!(first.devices, again.devices);
}

#[test]
fn changed_credentials_are_tried_on_known_cameras() {
    let host = with_camera(mk_network(), 9);
    let found = call("").run(&host).unwrap();
    let before = requests(&host).len();
    pass(&host, 1);
    let found = next(&found, "", vec![Event::Changed]).run(&host).unwrap();
    assert_eq!(found.devices, Devices::Unchanged);
    assert_eq!(requests(&host).len() - before, 4);
}

#[test]
fn lost_events_cause_a_full_scan() {
    let host = with_camera(mk_network(), 9);
    let found = call("").run(&host).unwrap();
    let sent = datagrams(&host);
    pass(&host, 1);
    let request = Request {
        node: "node-a".to_owned(),
        configuration: "default/example".to_owned(),
        details: serde_yaml_ng::from_str("{}").unwrap(),
        properties: Vec::new(),
        events: vec![mk_hello(9)],
        events_lost: true,
        budget: budget(),
        cursor: found.cursor,
    };
    let found = Onvif::discover(&request, &host.host()).unwrap();
    assert_eq!(
        (found.devices, datagrams(&host)),
        (Devices::Unchanged, 2 * sent)
    );
}

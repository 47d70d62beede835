//! Tests of cameras that are present while their services refuse, fail or lose packets.

use leafhost_sdk::Health;

use super::*;

/// Behaviour of a camera's service.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Service {
    Open,
    /// Answers only the request for the time.
    Locked,
    /// Refuses all requests.
    Closed,
    Refuses,
    Silent,
    Broken,
}

/// Adds a camera at .9 that answers probes while `is_announced`, and whose service behaves as set.
fn with_moods(host: FakeHost, is_announced: &Rc<Cell<bool>>, mood: &Rc<Cell<Service>>) -> FakeHost {
    let (is_announced, mood) = (Rc::clone(is_announced), Rc::clone(mood));
    let host = host.udp_peer(GROUP, move |_, _| {
        let answer = UdpAnswer {
            after: Duration::ZERO,
            from: "192.168.7.9:3702".parse().unwrap(),
            payload: mk_match(&uuid(9), &url(9)),
        };
        is_announced.get().then_some(answer).into_iter().collect()
    });
    host.http_server("http://192.168.7.9:80", move |request| {
        let body = String::from_utf8_lossy(&request.body).into_owned();
        let is_time = body.contains("<GetSystemDateAndTime ");
        match mood.get() {
            Service::Open => answer(9, request).into(),
            Service::Locked if is_time => answer(9, request).into(),
            Service::Locked | Service::Closed => http::Response::new(401, "").into(),
            Service::Refuses => fails(net::Error::Refused),
            Service::Silent => HttpAnswer {
                after: Duration::from_hours(1),
                result: Err(net::Error::Closed),
            },
            Service::Broken => http::Response::new(503, "busy").into(),
        }
    })
}

fn mk_camera(mood: Service) -> (FakeHost, Rc<Cell<bool>>, Rc<Cell<Service>>) {
    let (is_announced, mood) = (Rc::new(Cell::new(true)), Rc::new(Cell::new(mood)));
    let host = with_moods(mk_network(), &is_announced, &mood);
    (host, is_announced, mood)
}

/// Runs a scan at the next timer wake; returns its answer and updates the session's devices.
fn look(host: &FakeHost, details: &str, found: &Discovery, known: &mut Discovery) -> Discovery {
    let wake = found.wakes().iter().find_map(|wake| match wake {
        Wake::After(time) => Some(u64::from(*time)),
        _ => None,
    });
    host.pass(Duration::from_millis(wake.unwrap()));
    let next = next(found, details, vec![Event::Timer]).run(host).unwrap();
    if next.devices != Devices::Unchanged {
        known.devices = next.devices.clone();
    }
    next
}

#[test]
fn a_camera_that_wants_a_password_for_the_time_is_present_while_it_refuses() {
    let tokens = Rc::new(Cell::new(0));
    let counted = Rc::clone(&tokens);
    let (is_announced, is_changed) = (Rc::new(Cell::new(true)), Rc::new(Cell::new(false)));
    let (heard, changed) = (Rc::clone(&is_announced), Rc::clone(&is_changed));
    let host = mk_network().udp_peer(GROUP, move |_, _| {
        let answer = UdpAnswer {
            after: Duration::ZERO,
            from: "192.168.7.9:3702".parse().unwrap(),
            payload: mk_match(&uuid(9), &url(9)),
        };
        heard.get().then_some(answer).into_iter().collect()
    });
    let host = host.http_server("http://192.168.7.9:80", move |request| {
        let body = String::from_utf8_lossy(&request.body).into_owned();
        let has_token = body.contains("PasswordDigest");
        counted.set(counted.get() + usize::from(has_token));
        if has_token && !changed.get() {
            return answer(9, request).into();
        }
        let mut refusal = http::Response::new(401, "");
        refusal.headers.push((
            "date".to_owned(),
            "Fri, 20 Nov 2026 08:58:44 GMT".to_owned(),
        ));
        refusal.into()
    });
    let secretive = |call: Call<Onvif>| {
        call.secret("username_default", "u")
            .secret("password_default", "hunter2-hunter2")
    };
    let mut found = secretive(call("macAddresses: {items: ['00:11:22:33:44:09']}"))
        .run(&host)
        .unwrap();
    assert_eq!(ids(&found), [id(9)], "{:?}", host.skipped());
    // The camera stops answering probes; later its password is changed, and it answers again.
    for n in 0..200 {
        is_announced.set(n >= 100);
        is_changed.set(n >= 50);
        host.pass(Duration::from_secs(9));
        found = secretive(next(
            &found,
            "macAddresses: {items: ['00:11:22:33:44:09']}",
            vec![Event::Timer],
        ))
        .run(&host)
        .unwrap();
        assert_eq!(found.devices, Devices::Unchanged, "{n}");
    }
    // Four for the complete answers, then at most one per quarter of an hour.
    assert!((5..=8).contains(&tokens.get()), "{}", tokens.get());
}

#[test]
fn a_cameras_earlier_answers_survive_later_failures() {
    const DETAILS: &str = "macAddresses: {items: ['00:11:22:33:44:09']}";
    let secretive = |call: Call<Onvif>| {
        call.secret("username_default", "u")
            .secret("password_default", "hunter2-hunter2")
    };
    for later in [Service::Locked, Service::Closed] {
        let (host, _, mood) = mk_camera(Service::Open);
        let mut found = secretive(call(DETAILS)).run(&host).unwrap();
        mood.set(later);
        // The camera's answers are outdated after a quarter of an hour, or earlier if the operator changes something.
        for event in [Event::Timer, Event::Changed, Event::Timer, Event::Timer] {
            host.pass(Duration::from_mins(16));
            found = secretive(next(&found, DETAILS, vec![event]))
                .run(&host)
                .unwrap();
            assert_eq!(found.devices, Devices::Unchanged, "{later:?}");
        }
        assert!(
            reasons(&host, &url(9))
                .iter()
                .any(|reason| reason.contains("wants credentials")),
            "{:?}",
            host.skipped()
        );
    }
}

#[test]
fn a_camera_whose_service_fails_while_it_answers_probes_is_unhealthy_until_it_serves_again() {
    for (mood, seconds, reason) in [
        (
            Service::Refuses,
            30,
            "it answers probes, but does not answer GetSystemDateAndTime: connection refused",
        ),
        (
            Service::Silent,
            40,
            "it answers probes, but does not answer GetSystemDateAndTime: timed out",
        ),
        (
            Service::Broken,
            40,
            "it answers probes, but GetSystemDateAndTime: answers with HTTP status 503",
        ),
    ] {
        // One request of many fails.
        let mut host = mk_network();
        for n in 10..30 {
            host = with_camera(host, n);
        }
        let (is_announced, switch) = (Rc::new(Cell::new(true)), Rc::new(Cell::new(Service::Open)));
        let host = with_moods(host, &is_announced, &switch);
        let mut found = call("").run(&host).unwrap();
        let mut known = found.clone();
        assert_eq!(known.devices().len(), 21);
        let health = |known: &Discovery| {
            let mut devices = known.devices().iter();
            let device = devices.find(|device| device.id == id(9));
            device.map(|device| device.health.clone())
        };
        found = look(&host, "", &found, &mut known);
        assert_eq!(health(&known), Some(Health::Healthy));
        switch.set(mood);
        let began = host.now();
        while health(&known) == Some(Health::Healthy) {
            found = look(&host, "", &found, &mut known);
            let passed = host.now().saturating_sub(began);
            assert!(
                passed < Duration::from_secs(seconds),
                "{mood:?}: {passed:?}"
            );
        }
        assert_eq!(
            health(&known),
            Some(Health::Unhealthy(reason.to_owned())),
            "{mood:?}"
        );
        // While that lasts the camera is neither left out nor forgotten.
        for _ in 0..120 {
            found = look(&host, "", &found, &mut known);
            assert_eq!(found.devices, Devices::Unchanged, "{mood:?}");
        }
        switch.set(Service::Open);
        let began = host.now();
        while health(&known) != Some(Health::Healthy) {
            found = look(&host, "", &found, &mut known);
            let passed = host.now().saturating_sub(began);
            assert!(passed < Duration::from_secs(45), "{mood:?}: {passed:?}");
        }
        assert_eq!(known.devices().len(), 21);
        // If it does not answer probes either, it is left out.
        switch.set(mood);
        is_announced.set(false);
        while health(&known).is_some() {
            found = look(&host, "", &found, &mut known);
            let passed = host.now().saturating_sub(began);
            assert!(passed < Duration::from_secs(90), "{mood:?}: {passed:?}");
        }
    }
}

#[test]
fn a_known_camera_that_is_silent_is_pinged_again_after_a_second() {
    let (host, is_announced, mood) = mk_camera(Service::Open);
    let found = call("").run(&host).unwrap();
    is_announced.set(false);
    mood.set(Service::Refuses);
    host.pass(Duration::from_secs(9));
    let before = host.contacts().len();
    next(&found, "", vec![Event::Timer]).run(&host).unwrap();
    let contacts = host.contacts().split_off(before);
    let times: Vec<_> = contacts
        .iter()
        .filter(|contact| contact.to.starts_with("http"))
        .map(|contact| contact.at)
        .collect();
    assert_eq!(times.len(), 2);
    assert_eq!(times[1].saturating_sub(times[0]), Duration::from_secs(1));
}

#[test]
fn a_refusal_by_another_host_at_a_gone_cameras_address_does_not_keep_the_camera() {
    let (host, is_announced, mood) = mk_camera(Service::Open);
    let mut found = call("").run(&host).unwrap();
    let mut known = found.clone();
    is_announced.set(false);
    mood.set(Service::Closed);
    let began = host.now();
    while !known.devices().is_empty() {
        found = look(&host, "", &found, &mut known);
        let passed = host.now().saturating_sub(began);
        assert!(passed < Duration::from_secs(90), "{passed:?}");
    }
}

#[test]
fn a_slow_camera_is_healthy_in_every_scan() {
    let (heard, slow) = (Rc::new(Cell::new(true)), Rc::new(Cell::new(Service::Open)));
    let host = with_moods(mk_network(), &heard, &slow).udp_peer(GROUP, |_, _| {
        vec![UdpAnswer {
            after: Duration::ZERO,
            from: "192.168.7.10:3702".parse().unwrap(),
            payload: mk_match(&uuid(10), &url(10)),
        }]
    });
    let host = host.http_server("http://192.168.7.10:80", |request| HttpAnswer {
        after: Duration::from_millis(1_400),
        result: Ok(answer(10, request)),
    });
    let mut found = call("").run(&host).unwrap();
    let mut known = found.clone();
    assert_eq!(known.devices().len(), 2);
    for _ in 0..20 {
        found = look(&host, "", &found, &mut known);
        assert_eq!(found.devices, Devices::Unchanged);
    }
}

/// Generates reproducible pseudo-random numbers (Marsaglia, xorshift).
fn random(state: &Cell<u64>) -> u64 {
    let mut x = state.get();
    x ^= x << 13;
    x ^= x >> 7;
    x ^= x << 17;
    state.set(x);
    x
}

#[test]
fn with_a_third_of_packets_lost_every_camera_is_found_within_half_a_minute_and_none_withdrawn() {
    for seed in 1..=10_u64 {
        let state = Rc::new(Cell::new(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15)));
        let is_lost = |state: &Rc<Cell<u64>>| {
            let state = Rc::clone(state);
            move || random(&state) % 100 < 30
        };
        let mut host = mk_network();
        for n in 10..30 {
            let is_lost_here = is_lost(&state);
            let from = format!("192.168.7.{n}:3702").parse().unwrap();
            host = host.udp_peer(GROUP, move |_, _| {
                let answer = UdpAnswer {
                    after: Duration::from_millis(30),
                    from,
                    payload: mk_match(&uuid(n), &url(n)),
                };
                let is_announced = !is_lost_here() && !is_lost_here();
                is_announced.then_some(answer).into_iter().collect()
            });
            let is_lost_here = is_lost(&state);
            host = host.http_server(&format!("http://192.168.7.{n}:80"), move |request| {
                // A lost packet is resent after a second; a ping is sent once or twice.
                if is_lost_here() {
                    HttpAnswer {
                        after: Duration::from_hours(1),
                        result: Err(net::Error::Closed),
                    }
                } else {
                    answer(n, request).into()
                }
            });
        }
        let mut found = call("").run(&host).unwrap();
        let mut known = found.clone();
        let mut missing_since = [None; 30];
        let mut were_found = [false; 30];
        while host.now() < Duration::from_mins(6) {
            found = look(&host, "", &found, &mut known);
            let now = host.now();
            assert!(found.departed.is_empty());
            for n in 10..30_u32 {
                let is_there = known.devices().iter().any(|device| device.id == id(n));
                let since = &mut missing_since[n as usize];
                *since = if is_there { None } else { since.or(Some(now)) };
                let missing = since.map_or(Duration::ZERO, |since| now.saturating_sub(since));
                assert!(
                    missing < Duration::from_mins(2),
                    "seed {seed}: {n} at {now:?}"
                );
                were_found[n as usize] |= is_there;
                let is_late = now > Duration::from_secs(30) && !were_found[n as usize];
                assert!(!is_late, "seed {seed}: {n} is not found at {now:?}");
            }
        }
    }
}

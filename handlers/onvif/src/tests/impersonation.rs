//! Tests that a host that claims to be a present camera neither displaces it nor gets a digest of its password.

use super::*;

const PASSWORD: &str = "hunter2-hunter2";

/// Adds a camera at `at` that requires a token for everything but the time; also returns the number of tokens it got.
fn with_locked(host: FakeHost, at: u32) -> (FakeHost, Rc<Cell<usize>>) {
    let tokens = Rc::new(Cell::new(0));
    let counted = Rc::clone(&tokens);
    let host = host.http_server(&format!("http://192.168.7.{at}:80"), move |request| {
        let body = String::from_utf8_lossy(&request.body).into_owned();
        let has_token = body.contains("PasswordDigest");
        counted.set(counted.get() + usize::from(has_token));
        if has_token || body.contains("<GetSystemDateAndTime ") {
            answer(at, request).into()
        } else {
            http::Response::new(401, "").into()
        }
    });
    (host, tokens)
}

fn trusting(call: Call<Onvif>) -> Call<Onvif> {
    call.secret("username_default", "secret-admin")
        .secret("password_default", PASSWORD)
}

/// Adds a host that answers every probe while the switch is on.
fn with_claim(host: FakeHost, source: u32, is_on: &Rc<Cell<bool>>, payload: Vec<u8>) -> FakeHost {
    let is_on = Rc::clone(is_on);
    let from = format!("192.168.7.{source}:3702").parse().unwrap();
    host.udp_peer(GROUP, move |_, _| {
        let claim = UdpAnswer {
            after: Duration::from_millis(1),
            from,
            payload: payload.clone(),
        };
        is_on.get().then_some(claim).into_iter().collect()
    })
}

fn mk_claim(source: u32, uuid: &str, url: &str) -> Event {
    let announcement = mk_announcement(uuid, url);
    let payload = mk_message("Hello", &format!("<d:Hello>{announcement}</d:Hello>"));
    mk_datagram(&format!("192.168.7.{source}:3702"), payload)
}

#[test]
fn a_host_that_claims_a_known_cameras_reference_is_sent_no_credentials() {
    let is_claimed = Rc::new(Cell::new(false));
    let host = announced(mk_network(), 9);
    let host = with_claim(host, 66, &is_claimed, mk_match(&uuid(9), &url(66)));
    let (host, real) = with_locked(host, 9);
    let (host, forged) = with_locked(host, 66);
    let mut found = trusting(call("")).run(&host).unwrap();
    assert_eq!((real.get(), forged.get()), (3, 0));
    is_claimed.set(true);
    host.pass(Duration::from_secs(6));
    let hello = mk_claim(66, &uuid(9), &url(66));
    found = trusting(next(&found, "", vec![hello])).run(&host).unwrap();
    for _ in 0..6 {
        host.pass(Duration::from_secs(9));
        found = trusting(next(&found, "", vec![Event::Timer]))
            .run(&host)
            .unwrap();
    }
    assert_eq!((real.get(), forged.get()), (3, 0));
    assert!(
        reasons(&host, &url(66))
            .iter()
            .any(|reason| reason.contains("another host says that it is the same camera")),
        "{:?}",
        reasons(&host, &url(66))
    );
}

#[test]
fn of_two_new_hosts_with_one_reference_neither_is_sent_credentials_until_one_is_gone() {
    let is_claimed = Rc::new(Cell::new(true));
    let host = announced(mk_network(), 9);
    let host = with_claim(host, 66, &is_claimed, mk_match(&uuid(9), &url(66)));
    let (host, real) = with_locked(host, 9);
    let silent = Rc::clone(&is_claimed);
    let host = host.http_server("http://192.168.7.66:80", move |request| {
        assert!(!String::from_utf8_lossy(&request.body).contains("PasswordDigest"));
        if silent.get() {
            answer(66, request).into()
        } else {
            fails(net::Error::Refused)
        }
    });
    let mut found = trusting(call("")).run(&host).unwrap();
    assert_eq!((found.devices().len(), real.get()), (2, 0));
    is_claimed.set(false);
    for _ in 0..3 {
        host.pass(Duration::from_secs(9));
        found = trusting(next(&found, "", vec![Event::Timer]))
            .run(&host)
            .unwrap();
    }
    assert_eq!(real.get(), 3);
}

#[test]
fn a_camera_with_a_new_address_is_sent_credentials_again() {
    let is_old = Rc::new(Cell::new(true));
    let is_new = Rc::new(Cell::new(false));
    let host = with_claim(mk_network(), 9, &is_old, mk_match(&uuid(9), &url(9)));
    let host = with_claim(host, 10, &is_new, mk_match(&uuid(9), &url(10)));
    let switch = Rc::clone(&is_old);
    let host = host.http_server("http://192.168.7.9:80", move |request| {
        if switch.get() {
            answer(9, request).into()
        } else {
            fails(net::Error::Unreachable)
        }
    });
    let (host, tokens) = with_locked(host, 10);
    let mut found = trusting(call("")).run(&host).unwrap();
    is_old.set(false);
    is_new.set(true);
    for _ in 0..3 {
        host.pass(Duration::from_secs(9));
        found = trusting(next(&found, "", vec![Event::Timer]))
            .run(&host)
            .unwrap();
    }
    assert_eq!(tokens.get(), 3);
}

#[test]
fn another_host_cannot_change_a_known_cameras_reference() {
    let is_claimed = Rc::new(Cell::new(false));
    let is_announced = Rc::new(Cell::new(true));
    let host = with_claim(mk_network(), 9, &is_announced, mk_match(&uuid(9), &url(9)));
    let host = with_claim(host, 66, &is_claimed, mk_match(&uuid(7), &url(9)));
    let host = with_service(host, 9);
    let mut found = call("").run(&host).unwrap();
    assert_eq!(ids(&found), [id(9)]);
    is_claimed.set(true);
    host.pass(Duration::from_secs(6));
    let hello = mk_claim(66, &uuid(7), &url(9));
    found = next(&found, "", vec![hello]).run(&host).unwrap();
    assert_eq!(found.devices, Devices::Unchanged);
    // This holds even if the camera's own answer is lost.
    for is_lost in [false, true, true, false] {
        is_announced.set(!is_lost);
        host.pass(Duration::from_secs(9));
        found = next(&found, "", vec![Event::Timer]).run(&host).unwrap();
        assert_eq!(found.devices, Devices::Unchanged);
    }
}

#[test]
fn only_a_known_camera_itself_changes_its_description() {
    let host = with_camera(mk_network(), 9);
    let found = call("").run(&host).unwrap();
    host.pass(Duration::from_secs(6));
    let payload = mk_message(
        "Hello",
        &format!(
            "<d:Hello>{}</d:Hello>",
            mk_announcement(&uuid(9), &url(9)).replace("name/Cam", "name/Other")
        ),
    );
    let forged = mk_datagram("192.168.7.66:3702", payload);
    let found = next(&found, "", vec![forged]).run(&host).unwrap();
    assert_eq!(found.devices, Devices::Unchanged);
}

#[test]
fn a_camera_first_announced_by_another_host_takes_its_own_description() {
    // The other host is known before the camera announces itself.
    let (is_claimed, is_announced) = (Rc::new(Cell::new(true)), Rc::new(Cell::new(false)));
    let host = with_claim(mk_network(), 9, &is_announced, mk_match(&uuid(9), &url(9)));
    let host = with_claim(host, 66, &is_claimed, mk_match(&uuid(7), &url(9)));
    let host = with_service(host, 9);
    let found = call("").run(&host).unwrap();
    assert_eq!(ids(&found), [format!("{}-{}", url(9), uuid(7))]);
    is_announced.set(true);
    host.pass(Duration::from_secs(9));
    let found = next(&found, "", vec![Event::Timer]).run(&host).unwrap();
    assert_eq!(ids(&found), [id(9)]);
}

#[test]
fn long_answers_of_one_camera_do_not_displace_others_from_the_cursor() {
    let mut host = mk_network();
    for n in 10..30 {
        host = with_camera(host, n);
    }
    let codes = format!("<s:Value>{}</s:Value>", "x".repeat(250)).repeat(900);
    let fault = mk_soap(&format!("<s:Fault><s:Code>{codes}</s:Code></s:Fault>"));
    assert!(fault.len() < 256 << 10);
    let scopes = format!("onvif://www.onvif.org/type/{} ", "x".repeat(400));
    for port in 1..=60 {
        let url = format!("http://192.168.7.66:{port}/");
        let announcement = String::from_utf8(mk_match(&format!("{port}"), &url)).unwrap();
        let announcement =
            announcement.replace("<d:Scopes>", &format!("<d:Scopes>{}", scopes.repeat(120)));
        host = answering(host, "192.168.7.66:3702", announcement.into_bytes());
        let fault = fault.clone();
        host = host.http_server(&format!("http://192.168.7.66:{port}"), move |request| {
            let is_date = String::from_utf8_lossy(&request.body).contains("<GetSystemDateAndTime ");
            if is_date && port % 2 == 0 {
                answer(66, request).into()
            } else {
                http::Response::new(500, fault.clone()).into()
            }
        });
    }
    let found = call("").run(&host).unwrap();
    let devices = found.devices().len();
    assert_eq!(devices, 50);
    let size = found.cursor.as_ref().unwrap().len();
    assert!(size < 256 << 10, "{size}");
    assert!(reasons(&host, "").iter().all(|reason| reason.len() < 1_024));
    let asked = requests(&host).len();
    host.pass(Duration::from_secs(9));
    let found = next(&found, "", vec![Event::Timer]).run(&host).unwrap();
    assert_eq!(found.devices, Devices::Unchanged);
    let requests = requests(&host);
    let others = requests
        .iter()
        .skip(asked)
        .filter(|url| !url.contains("192.168.7.66"));
    assert!(others.count() <= 20, "they are greeted, not asked anew");
}

#[test]
fn a_camera_first_announced_by_another_host_is_sent_credentials_once_it_announces_itself() {
    let (is_other, is_own) = (Rc::new(Cell::new(true)), Rc::new(Cell::new(false)));
    let host = with_claim(mk_network(), 66, &is_other, mk_match(&uuid(9), &url(9)));
    let host = with_claim(host, 9, &is_own, mk_match(&uuid(9), &url(9)));
    let (host, tokens) = with_locked(host, 9);
    let found = trusting(call("")).run(&host).unwrap();
    assert_eq!((found.devices().len(), tokens.get()), (1, 0));
    is_own.set(true);
    host.pass(Duration::from_secs(9));
    let found = trusting(next(&found, "", vec![Event::Timer]))
        .run(&host)
        .unwrap();
    assert_eq!((found.devices().len(), tokens.get()), (1, 3));
}

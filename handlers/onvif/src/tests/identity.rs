//! Tests that devices identified by endpoint references alone keep their identity when addresses change.

use leafhost_sdk::Health;

use super::*;

const DETAILS: &str = "leafhost.dev/identity: endpoint-reference";

fn urn(n: u32) -> String {
    format!("urn:uuid:{}", uuid(n))
}

/// Numbers of the cameras by address.
type Places = Rc<std::cell::RefCell<Vec<(u32, u32)>>>;

/// Creates cameras at changeable addresses; also returns the addresses to which tokens were sent.
fn mk_cameras(at: &[u32], places: &Places) -> (FakeHost, Rc<std::cell::RefCell<Vec<u32>>>) {
    let tokens = Rc::new(std::cell::RefCell::new(Vec::new()));
    let mut host = mk_network();
    for &address in at {
        let (heard, asked, told) = (Rc::clone(places), Rc::clone(places), Rc::clone(&tokens));
        let from = format!("192.168.7.{address}:3702").parse().unwrap();
        host = host.udp_peer(GROUP, move |_, _| {
            let heard = heard.borrow();
            let here = heard.iter().filter(|(place, _)| *place == address);
            here.map(|(_, n)| UdpAnswer {
                after: Duration::from_millis(30),
                from,
                payload: mk_match(&uuid(*n), &url(address)),
            })
            .collect()
        });
        host = host.http_server(&format!("http://192.168.7.{address}:80"), move |request| {
            let here = asked.borrow();
            let Some((_, n)) = here.iter().find(|(place, _)| *place == address) else {
                return fails(net::Error::TimedOut);
            };
            let body = String::from_utf8_lossy(&request.body).into_owned();
            let has_token = body.contains("PasswordDigest");
            if has_token {
                told.borrow_mut().push(address);
            }
            if has_token || body.contains("<GetSystemDateAndTime ") {
                answer(*n, request).into()
            } else {
                http::Response::new(401, "").into()
            }
        });
    }
    (host, tokens)
}

fn places(at: &[(u32, u32)]) -> Places {
    Rc::new(std::cell::RefCell::new(at.to_vec()))
}

fn secretive(call: Call<Onvif>) -> Call<Onvif> {
    call.secret("username_default", "u")
        .secret("password_default", "hunter2-hunter2")
}

fn look(host: &FakeHost, found: &Discovery, events: Vec<Event>) -> Discovery {
    host.pass(Duration::from_secs(9));
    secretive(next(found, DETAILS, events)).run(host).unwrap()
}

fn property(found: &Discovery, id: &str, name: &str) -> String {
    let device = found.devices().iter().find(|device| device.id == id);
    let device = device.unwrap_or_else(|| unreachable!("{id} in {found:?}"));
    device.get_property(name).unwrap_or_default().to_owned()
}

#[test]
fn a_camera_with_a_new_address_is_the_same_device_and_is_sent_credentials_at_once() {
    let hello = |n| {
        let announcement = mk_announcement(&uuid(9), &url(n));
        let payload = mk_message("Hello", &format!("<d:Hello>{announcement}</d:Hello>"));
        mk_datagram(&format!("192.168.7.{n}:3702"), payload)
    };
    let bye = || mk_bye(9, "192.168.7.9:3702");
    for events in [
        vec![Event::Timer],
        vec![hello(10)],
        vec![bye(), hello(10)],
        vec![bye()],
    ] {
        let places = places(&[(9, 9), (20, 20)]);
        let (host, tokens) = mk_cameras(&[9, 10, 20], &places);
        let mut found = secretive(call(DETAILS)).run(&host).unwrap();
        assert_eq!(ids(&found), [urn(20), urn(9)]);
        assert_eq!(
            property(&found, &urn(9), "ONVIF_DEVICE_SERVICE_URL"),
            url(9)
        );
        *places.borrow_mut() = vec![(10, 9), (20, 20)];
        tokens.borrow_mut().clear();
        let is_lost = events.len() == 1 && events[0] == bye();
        found = look(&host, &found, events);
        assert!(found.departed.is_empty());
        if is_lost {
            // Without a Hello from the new address the next scan finds it.
            assert_eq!(found.devices, Devices::Unchanged);
            found = look(&host, &found, vec![Event::Timer]);
        }
        let new = [("URL", url(10)), ("MAC", "00:11:22:33:44:09".to_owned())];
        for (name, value) in new {
            let name = if name == "URL" {
                "ONVIF_DEVICE_SERVICE_URL"
            } else {
                "ONVIF_DEVICE_MAC_ADDRESS"
            };
            assert_eq!(property(&found, &urn(9), name), value);
        }
        assert_eq!(*tokens.borrow(), [10, 10, 10]);
        let device = |found: &Discovery| {
            let mut devices = found.devices().iter();
            devices
                .find(|one| one.id == urn(9))
                .map(|one| one.health.clone())
        };
        let why = format!(
            "its address has changed from {}; restart the programs that use that address",
            url(9)
        );
        assert_eq!(device(&found), Some(Health::Unhealthy(why)));
        // The health reports it for a minute.
        let mut told = found.clone();
        for _ in 0..7 {
            found = look(&host, &found, vec![Event::Timer]);
            assert!(found.departed.is_empty());
            if found.devices != Devices::Unchanged {
                assert!(is_complete(&found));
                assert_eq!(ids(&found).len(), 2, "no camera is ever missing: {found:?}");
                told = found.clone();
            }
        }
        assert_eq!(device(&told), Some(Health::Healthy));
    }
}

#[test]
fn two_cameras_that_swap_addresses_keep_their_devices() {
    let places = places(&[(9, 9), (10, 10)]);
    let (host, _) = mk_cameras(&[9, 10], &places);
    let found = secretive(call(DETAILS)).run(&host).unwrap();
    *places.borrow_mut() = vec![(9, 10), (10, 9)];
    let found = look(&host, &found, vec![Event::Timer]);
    assert!(is_complete(&found) && found.departed.is_empty());
    for (n, at) in [(9, 10), (10, 9)] {
        let told = property(&found, &urn(n), "ONVIF_DEVICE_SERVICE_URL");
        assert_eq!(told, url(at));
    }
}

#[test]
fn a_host_that_claims_a_present_cameras_reference_is_neither_the_device_nor_sent_credentials() {
    let places = places(&[(9, 9)]);
    let (host, tokens) = mk_cameras(&[9, 66], &places);
    let mut found = secretive(call(DETAILS)).run(&host).unwrap();
    assert_eq!(*tokens.borrow(), [9, 9, 9]);
    places.borrow_mut().push((66, 9));
    let announcement = mk_announcement(&uuid(9), &url(66));
    let payload = mk_message("Hello", &format!("<d:Hello>{announcement}</d:Hello>"));
    for _ in 0..4 {
        found = look(&host, &found, vec![Event::Timer]);
        assert_eq!(found.devices, Devices::Unchanged);
    }
    assert!(!requests(&host).iter().any(|to| to.contains("192.168.7.66")));
    assert!(
        reasons(&host, &url(66))[0].contains("another known host is this camera"),
        "{:?}",
        host.skipped()
    );
    // A Hello leads to requests to both; the known camera answers.
    let forged = mk_datagram("192.168.7.66:3702", payload);
    found = look(&host, &found, vec![forged]);
    assert_eq!(found.devices, Devices::Unchanged);
    assert!(found.departed.is_empty());
    assert!(!tokens.borrow().contains(&66), "{tokens:?}");
}

#[test]
fn of_two_new_hosts_with_one_reference_one_is_the_device() {
    let places = places(&[(9, 9), (66, 9)]);
    let (host, tokens) = mk_cameras(&[9, 66], &places);
    let mut found = secretive(call(DETAILS)).run(&host).unwrap();
    assert_eq!(ids(&found), [urn(9)]);
    assert!(tokens.borrow().is_empty());
    assert!(
        reasons(&host, &uuid(9))[0].contains("the one that was found first is the device"),
        "{:?}",
        host.skipped()
    );
    for _ in 0..3 {
        found = look(&host, &found, vec![Event::Timer]);
        assert!(found.departed.is_empty() && found.devices == Devices::Unchanged);
    }
    assert!(tokens.borrow().is_empty());
}

#[test]
fn a_camera_that_sent_bye_is_left_out_and_may_return_within_the_grace_period() {
    let places = places(&[(9, 9), (20, 20)]);
    let (host, _) = mk_cameras(&[9, 20], &places);
    let found = secretive(call(DETAILS)).run(&host).unwrap();
    places.borrow_mut().remove(0);
    let found = look(&host, &found, vec![mk_bye(9, "192.168.7.9:3702")]);
    assert!(found.departed.is_empty());
    let found = look(&host, &found, vec![Event::Timer]);
    assert!(is_complete(&found) && found.departed.is_empty());
    assert_eq!(ids(&found), [urn(20)]);
}

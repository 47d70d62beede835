//! Who is told what of a password.

use super::*;

const PASSWORD: &str = "hunter2-hunter2";

fn secretive(call: Call<Onvif>) -> Call<Onvif> {
    call.secret("username_default", "secret-admin")
        .secret("password_default", PASSWORD)
}

/// A camera at `at` that wants a password for all but the time, and what it was sent with one.
fn with_locked(host: FakeHost, at: &str) -> (FakeHost, Rc<Cell<usize>>) {
    let proofs = Rc::new(Cell::new(0));
    let counted = Rc::clone(&proofs);
    let host = host.http_server(&format!("http://{at}:80"), move |request| {
        let body = String::from_utf8_lossy(&request.body).into_owned();
        assert!(!body.contains(PASSWORD) && !format!("{:?}", request.headers).contains(PASSWORD));
        if body.contains("PasswordDigest") {
            counted.set(counted.get() + 1);
        }
        if body.contains("<GetSystemDateAndTime ") || body.contains("PasswordDigest") {
            answer(9, request).into()
        } else {
            http::Response::new(
                400,
                mk_soap("<s:Fault><s:Code><s:Value>s:Sender</s:Value></s:Code></s:Fault>"),
            )
            .into()
        }
    });
    (host, proofs)
}

#[test]
fn a_camera_at_its_own_address_is_told_a_digest() {
    let host = answering(
        mk_network(),
        "192.168.7.9:3702",
        mk_match(&uuid(9), &url(9)),
    );
    let (host, proofs) = with_locked(host, "192.168.7.9");
    let found = secretive(call("")).run(&host).unwrap();
    assert_eq!(
        found.devices()[0].get_property("ONVIF_DEVICE_MAC_ADDRESS"),
        Some("00:11:22:33:44:09")
    );
    assert_eq!(proofs.get(), 3);
    let all = format!(
        "{:?} {:?} {:?} {:?}",
        found.devices,
        host.log(),
        host.skipped(),
        found
            .cursor
            .map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
    );
    assert!(
        !all.contains(PASSWORD) && !all.contains("secret-admin"),
        "{all}"
    );
}

#[test]
fn an_address_that_another_announces_is_told_nothing() {
    // Somebody at .66 says that the camera is at .9, and the other way round: none of it proves who is there.
    for (source, at) in [("192.168.7.66", 9), ("192.168.7.9", 66)] {
        let host = answering(
            mk_network(),
            &format!("{source}:3702"),
            mk_match(&uuid(9), &url(at)),
        );
        let (host, proofs) = with_locked(host, &format!("192.168.7.{at}"));
        let found = secretive(call("")).run(&host).unwrap();
        assert_eq!((found.devices().len(), proofs.get()), (1, 0));
        assert!(
            reasons(&host, &url(at))[0].contains("name it in ipAddresses"),
            "{:?}",
            host.skipped()
        );
    }
}

#[test]
fn an_address_the_operator_named_is_told_a_digest() {
    let host = answering(
        mk_network(),
        "192.168.7.66:3702",
        mk_match(&uuid(9), &url(9)),
    );
    let (host, proofs) = with_locked(host, "192.168.7.9");
    let details = "ipAddresses: {items: [192.168.7.9]}";
    let found = secretive(call(details)).run(&host).unwrap();
    assert_eq!((found.devices().len(), proofs.get()), (1, 3));
}

#[test]
fn a_greeting_proves_no_more_than_an_answer() {
    let (host, proofs) = with_locked(mk_network(), "192.168.7.9");
    let found = call("").run(&host).unwrap();
    let announcement = mk_announcement(&uuid(9), &url(9));
    let payload = mk_message("Hello", &format!("<d:Hello>{announcement}</d:Hello>"));
    let forged = mk_datagram("192.168.7.66:3702", payload);
    let found = secretive(next(&found, "", vec![forged]))
        .run(&host)
        .unwrap();
    assert_eq!((found.devices().len(), proofs.get()), (1, 0));
}

#[test]
fn problems_of_credentials_are_logged_once_without_values() {
    let host = mk_network();
    let found = call("")
        .secret("device_credential_list", PASSWORD)
        .run(&host)
        .unwrap();
    host.pass(Duration::from_secs(9));
    next(&found, "", vec![Event::Timer])
        .secret("device_credential_list", PASSWORD)
        .run(&host)
        .unwrap();
    let log = host.log();
    assert_eq!(log.len(), 1);
    assert_eq!(
        log[0].1,
        "discovery property \"device_credential_list\" is no JSON list of names of properties"
    );
}

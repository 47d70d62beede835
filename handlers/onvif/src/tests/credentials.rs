//! Tests of the hosts to which credentials are sent.

use super::*;

const PASSWORD: &str = "hunter2-hunter2";

fn secretive(call: Call<Onvif>) -> Call<Onvif> {
    call.secret("username_default", "secret-admin")
        .secret("password_default", PASSWORD)
}

/// Adds a camera at `at` that requires a password for everything but the time; also returns the number of digests it was
/// sent.
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
fn a_camera_that_announces_its_own_address_is_sent_a_digest() {
    let host = announced(mk_network(), 9);
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
fn an_address_announced_by_another_host_is_sent_no_credentials() {
    // A host at .66 announces the camera at .9, and the reverse: neither proves which camera is there.
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
fn an_address_named_by_the_operator_is_sent_a_digest() {
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
fn a_hello_proves_no_more_than_a_probe_answer() {
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
fn problems_of_credentials_are_logged_once_and_without_values() {
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
        "discovery property \"device_credential_list\" is not a JSON list of names of properties"
    );
}

#[test]
fn a_wrong_password_is_not_tried_again_for_a_quarter_of_an_hour() {
    // Wrong passwords lock accounts. The camera refuses from the first or from the second request on.
    for first in [true, false] {
        let proofs = Rc::new(Cell::new(0));
        let counted = Rc::clone(&proofs);
        let host = announced(mk_network(), 9);
        let host = host.http_server("http://192.168.7.9:80", move |request| {
            let body = String::from_utf8_lossy(&request.body).into_owned();
            let is_signed = request
                .headers
                .iter()
                .any(|(name, _)| name == "Authorization");
            counted.set(counted.get() + usize::from(is_signed || body.contains("PasswordDigest")));
            if !first && body.contains("<GetSystemDateAndTime ") {
                return answer(9, request).into();
            }
            let mut response = http::Response::new(401, "");
            let nonce = counted.get();
            for (name, value) in [
                (
                    "www-authenticate",
                    format!("Digest realm=\"c\", nonce=\"{nonce}\""),
                ),
                ("date", "Fri, 20 Nov 2026 08:58:44 GMT".to_owned()),
            ] {
                response.headers.push((name.to_owned(), value));
            }
            response.into()
        });
        let mut found = secretive(call("")).run(&host).unwrap();
        assert_eq!(found.devices().len(), usize::from(!first));
        // The camera got one digest and one token.
        assert_eq!(proofs.get(), 2, "{first}");
        for n in 0..40 {
            host.pass(Duration::from_secs(9));
            let event = if n % 4 == 3 {
                mk_hello(9)
            } else {
                Event::Timer
            };
            found = secretive(next(&found, "", vec![event])).run(&host).unwrap();
        }
        assert_eq!(proofs.get(), 2, "{first}");
        assert!(!reasons(&host, &url(9)).is_empty());
        // Changed credentials are tried at once.
        host.pass(Duration::from_secs(9));
        found = secretive(next(&found, "", vec![Event::Changed]))
            .run(&host)
            .unwrap();
        assert_eq!(proofs.get(), 4, "{first}");
        host.pass(Duration::from_mins(16));
        secretive(next(&found, "", vec![Event::Timer]))
            .run(&host)
            .unwrap();
        assert_eq!(proofs.get(), 6, "{first}");
    }
}

#[test]
fn a_cameras_earlier_answers_stay_while_credentials_are_not_tried() {
    // The camera's user may read everything but the scopes.
    let (host, proofs) = with_digests(|request, body, has_token| {
        let may = has_token && !body.contains("<GetScopes ");
        if may || body.contains("<GetSystemDateAndTime ") {
            answer(9, request)
        } else {
            http::Response::new(401, "")
        }
    });
    let mut found = secretive(call("")).run(&host).unwrap();
    let device = &found.devices()[0];
    assert_eq!(
        device.get_attribute("manufacturer"),
        Some(&"Example".into())
    );
    assert_eq!(proofs.get(), 3);
    for _ in 0..10 {
        host.pass(Duration::from_secs(10));
        found = secretive(next(&found, "", vec![mk_hello(9)]))
            .run(&host)
            .unwrap();
        assert_eq!(found.devices, Devices::Unchanged);
    }
    assert_eq!(proofs.get(), 3);
}

#[test]
fn no_digest_follows_a_redirect() {
    let host = announced(mk_network(), 9);
    let host = host.http_server("http://192.168.7.9:80", |request| {
        let body = String::from_utf8_lossy(&request.body).into_owned();
        if body.contains("<GetSystemDateAndTime ") {
            return answer(9, request).into();
        }
        let is_signed = request
            .headers
            .iter()
            .any(|(name, _)| name == "Authorization");
        let (status, name, value) = if is_signed {
            (307, "location", "http://192.168.7.66/onvif/device_service")
        } else {
            (401, "www-authenticate", "Digest realm=\"c\", nonce=\"1\"")
        };
        let mut response = http::Response::new(status, "");
        response.headers.push((name.to_owned(), value.to_owned()));
        response.into()
    });
    let host = with_service(host, 66);
    let found = secretive(call("")).run(&host).unwrap();
    assert_eq!(found.devices().len(), 1);
    assert!(reasons(&host, &url(9))[0].contains("redirect (307)"));
    assert!(
        !requests(&host)
            .iter()
            .any(|request| request.contains("192.168.7.66"))
    );
}

#[test]
fn credentials_in_each_of_akris_forms_reach_the_camera() {
    let ways: [&[(&str, &str)]; 4] = [
        &[
            ("device_credential_list", r#"["list"]"#),
            (
                "list",
                r#"{"00000000-0000-4000-8000-000000000009": {"username": "secret-admin", "password": "aHVudGVyMi1odW50ZXIy", "base64encoded": true}}"#,
            ),
        ],
        &[
            ("device_credential_ref_list", r#"["refs"]"#),
            (
                "refs",
                r#"{"00000000-0000-4000-8000-000000000009": {"username_ref": "u", "password_ref": "p"}}"#,
            ),
            ("u", "secret-admin"),
            ("p", PASSWORD),
        ],
        &[
            (
                "username_00000000_0000_4000_8000_000000000009",
                "secret-admin",
            ),
            ("password_00000000_0000_4000_8000_000000000009", PASSWORD),
        ],
        &[
            ("username_default", "secret-admin"),
            ("password_default", PASSWORD),
        ],
    ];
    for way in ways {
        let host = announced(mk_network(), 9);
        let host = host.http_server("http://192.168.7.9:80", |request| {
            let body = String::from_utf8_lossy(&request.body).into_owned();
            let is_right = body.contains("<wsse:Username>secret-admin<")
                && body.contains(&password_digest(&body));
            if is_right || body.contains("<GetSystemDateAndTime ") {
                answer(9, request).into()
            } else {
                http::Response::new(401, "").into()
            }
        });
        let with = way
            .iter()
            .fold(call(""), |call, (name, value)| call.secret(name, *value));
        let found = with.run(&host).unwrap();
        let manufacturer = found.devices()[0].get_attribute("manufacturer");
        assert_eq!(manufacturer, Some(&"Example".into()), "{way:?}");
    }
}

/// Computes the digest of the password for a token's nonce and time (WSS `UsernameToken` Profile 1.0, 3.1).
fn password_digest(body: &str) -> String {
    use base64::Engine as _;
    use base64::engine::general_purpose::STANDARD;
    use sha1::Digest as _;
    let text = |name: &str| {
        let (_, rest) = body.split_once(name)?;
        rest.split_once('>')?.1.split('<').next()
    };
    let nonce = text("<wsse:Nonce").and_then(|nonce| STANDARD.decode(nonce).ok());
    let created = text("<wsu:Created").unwrap_or("none");
    let whole = [
        &nonce.unwrap_or_default(),
        created.as_bytes(),
        PASSWORD.as_bytes(),
    ]
    .concat();
    STANDARD.encode(sha1::Sha1::digest(whole))
}

use std::cell::RefCell;
use std::rc::Rc;

use leafhost_sdk::Property;
use leafhost_sdk::testing::{FakeHost, HttpAnswer};

use super::*;

const URL: &str = "http://192.168.7.9/onvif/device_service";
const DATE: &str = "<GetSystemDateAndTimeResponse><SystemDateAndTime><UTCDateTime><Time><Hour>7</Hour><Minute>50</Minute><Second>45</Second></Time><Date><Year>2010</Year><Month>9</Month><Day>16</Day></Date></UTCDateTime></SystemDateAndTime></GetSystemDateAndTimeResponse>";

fn mk_soap(body: &str) -> String {
    format!(
        "<s:Envelope xmlns:s='http://www.w3.org/2003/05/soap-envelope'><s:Body>{body}</s:Body></s:Envelope>"
    )
}

fn mk_credentials() -> Credentials {
    let property = |name: &str, value: &str| Property {
        name: name.to_owned(),
        value: Some(value.as_bytes().to_vec()),
        secret: true,
    };
    Credentials::new(&[
        property("username_default", "admin"),
        property("password_default", "hunter2"),
    ])
}

type Requests = Rc<RefCell<Vec<http::Request>>>;

/// Creates a camera that tells everybody the time. It answers other requests if `lets` accepts them, and otherwise with
/// `refuses`.
fn mk_camera(
    mut lets: impl FnMut(&http::Request) -> bool + 'static,
    mut refuses: impl FnMut(usize) -> http::Response + 'static,
) -> (FakeHost, Requests) {
    let requests = Requests::default();
    let kept = Rc::clone(&requests);
    let host = FakeHost::new().http_server("http://192.168.7.9:80", move |request| {
        let asked = String::from_utf8_lossy(&request.body).into_owned();
        kept.borrow_mut().push(request.clone());
        let response = if asked.contains("<GetSystemDateAndTime ") {
            http::Response::new(200, mk_soap(DATE))
        } else if lets(request) {
            http::Response::new(200, mk_soap("<R><Manufacturer>Example</Manufacturer></R>"))
        } else {
            refuses(kept.borrow().len())
        };
        HttpAnswer::from(response)
    });
    (host, requests)
}

fn ask(
    host: &FakeHost,
    may_authenticate: Result<(), &'static str>,
) -> Result<CameraReply, AskError> {
    let credentials = mk_credentials();
    let call = host.host();
    let asker = Asker {
        host: &call,
        credentials: &credentials,
    };
    let xaddr = XAddr::new(URL).unwrap();
    call.block_on(asker.ask(&xaddr, "uuid", may_authenticate, LIMIT, Streams::No))
        .reply
}

fn has_token(request: &http::Request) -> bool {
    String::from_utf8_lossy(&request.body).contains("#PasswordDigest")
}

fn not_authorized() -> http::Response {
    let fault = "<s:Fault><s:Code><s:Value>s:Sender</s:Value><s:Subcode><s:Value>ter:NotAuthorized</s:Value></s:Subcode></s:Code></s:Fault>";
    http::Response::new(400, mk_soap(fault))
}

fn challenge(nonce: &str, more: &str) -> http::Response {
    let mut response = http::Response::new(401, "<html>401</html>");
    let value = format!("Digest realm=\"camera\", qop=\"auth\", nonce=\"{nonce}\"{more}");
    response.headers.push((
        "www-authenticate".to_owned(),
        "Basic realm=\"camera\"".to_owned(),
    ));
    response
        .headers
        .push(("www-authenticate".to_owned(), value));
    response
}

/// Checks that no request contains the password in any readable form.
fn assert_secret(requests: &Requests) {
    for request in requests.borrow().iter() {
        let text = format!(
            "{:?} {}",
            request.headers,
            String::from_utf8_lossy(&request.body)
        );
        assert!(
            !text.contains("hunter2") && !text.contains("Basic") && !text.contains("PasswordText"),
            "{text}"
        );
    }
}

#[test]
fn a_camera_that_wants_no_credentials_is_sent_none() {
    let (host, requests) = mk_camera(|_| true, |_| not_authorized());
    let reply = ask(&host, Ok(())).unwrap();
    assert_eq!(reply.info.manufacturer, "Example");
    assert!(reply.info.trouble.is_empty());
    assert_eq!(requests.borrow().len(), 4);
    let is_plain = |request: &http::Request| {
        request.headers.len() == 1 && !String::from_utf8_lossy(&request.body).contains("Header>")
    };
    assert!(requests.borrow().iter().all(is_plain));
}

#[test]
fn a_token_uses_the_cameras_time() {
    let (host, requests) = mk_camera(has_token, |_| not_authorized());
    let reply = ask(&host, Ok(())).unwrap();
    assert_eq!(reply.info.manufacturer, "Example");
    // One ping and one refusal come first, then each request succeeds at once.
    assert_eq!(requests.borrow().len(), 5);
    let body = String::from_utf8_lossy(&requests.borrow()[2].body).into_owned();
    assert!(
        body.contains("<wsu:Created>2010-09-16T07:50:45Z</wsu:Created>"),
        "{body}"
    );
    assert!(
        body.contains("<wsse:Username>admin</wsse:Username>"),
        "{body}"
    );
    let nonce = |at: usize| {
        let body = String::from_utf8_lossy(&requests.borrow()[at].body).into_owned();
        body.split("#Base64Binary\">")
            .nth(1)
            .unwrap()
            .get(..24)
            .unwrap()
            .to_owned()
    };
    assert_ne!(nonce(2), nonce(3));
    assert_secret(&requests);
}

#[test]
fn a_challenge_is_answered_with_a_digest() {
    for (algorithm, word) in [
        ("", "response="),
        (", algorithm=SHA-256", "algorithm=SHA-256"),
    ] {
        let (host, requests) = mk_camera(
            move |request| {
                let answer = request
                    .headers
                    .iter()
                    .find(|(name, _)| name == "Authorization");
                answer
                    .is_some_and(|(_, value)| value.starts_with("Digest ") && value.contains(word))
            },
            move |_| challenge("n1", algorithm),
        );
        let reply = ask(&host, Ok(())).unwrap();
        assert_eq!(
            reply.info.manufacturer, "Example",
            "{:?}",
            reply.info.trouble
        );
        assert_eq!(requests.borrow().len(), 5);
        let said = |at: usize| requests.borrow()[at].headers[1].1.clone();
        for (at, count) in [(2, "nc=00000001"), (3, "nc=00000002"), (4, "nc=00000003")] {
            assert!(
                said(at).contains(count) && said(at).contains("uri=\"/onvif/device_service\""),
                "{}",
                said(at)
            );
        }
        assert_secret(&requests);
    }
}

#[test]
fn an_expired_nonce_is_renewed_once_per_request() {
    for more in [", stale=true", ""] {
        let seen = Rc::new(RefCell::new(Vec::<String>::new()));
        let (host, requests) = mk_camera(
            move |request| {
                let answer = request
                    .headers
                    .iter()
                    .find(|(name, _)| name == "Authorization");
                let nonce = answer.and_then(|(_, value)| value.split("nonce=\"").nth(1)?.get(..2));
                let Some(nonce) = nonce.map(str::to_owned) else {
                    return false;
                };
                let is_new = !seen.borrow().contains(&nonce);
                seen.borrow_mut().push(nonce);
                is_new
            },
            move |count| challenge(&format!("{count:02}"), more),
        );
        let reply = ask(&host, Ok(())).unwrap();
        assert_eq!(
            (
                reply.info.manufacturer.as_str(),
                reply.info.trouble.as_str()
            ),
            ("Example", "")
        );
        assert_eq!(requests.borrow().len(), 1 + 2 + 2 + 2);
    }
}

#[test]
fn a_camera_that_always_refuses_gets_few_requests() {
    for (stale, sends) in [("", 1 + 3 + 1 + 1), (", stale=true", 1 + 4 + 1 + 1)] {
        let (host, requests) = mk_camera(
            |_| false,
            move |count| challenge(&format!("n{count}"), stale),
        );
        let reply = ask(&host, Ok(())).unwrap();
        assert_eq!(
            reply.info.trouble,
            "GetNetworkInterfaces: wants credentials: it refuses those given"
        );
        assert!(!reply.is_cut_short);
        assert_eq!(requests.borrow().len(), sends, "{stale}");
        assert_secret(&requests);
    }
}

#[test]
fn a_camera_that_offers_only_basic_gets_a_token() {
    let (host, requests) = mk_camera(has_token, |_| {
        let mut response = http::Response::new(401, "");
        response.headers.push((
            "www-authenticate".to_owned(),
            "Basic realm=\"c\"".to_owned(),
        ));
        response
    });
    assert_eq!(ask(&host, Ok(())).unwrap().info.manufacturer, "Example");
    assert_secret(&requests);
}

#[test]
fn no_credentials_are_sent_where_they_are_not_allowed() {
    let (host, requests) = mk_camera(has_token, |_| not_authorized());
    let reply = ask(&host, Err("they are withheld")).unwrap();
    assert_eq!(
        reply.info.trouble,
        "GetNetworkInterfaces: wants credentials: they are withheld"
    );
    assert!(!requests.borrow().iter().any(has_token));
}

#[test]
fn a_hidden_time_is_read_from_the_date_header() {
    let host = FakeHost::new().http_server("http://192.168.7.9:80", |request| {
        let mut response = if has_token(request) {
            let body = String::from_utf8_lossy(&request.body).into_owned();
            assert!(body.contains("2026-11-20T08:58:44Z"), "{body}");
            http::Response::new(200, mk_soap(DATE))
        } else {
            not_authorized()
        };
        response.headers.push((
            "date".to_owned(),
            "Fri, 20 Nov 2026 08:58:44 GMT".to_owned(),
        ));
        response.into()
    });
    // Only the first token uses the header's time.
    let call = host.host();
    let credentials = mk_credentials();
    let xaddr = XAddr::new(URL).unwrap();
    let asker = Asker {
        host: &call,
        credentials: &credentials,
    };
    let mut exchange = asker.exchange(&xaddr, credentials.get("uuid").ok_or("none"), LIMIT);
    call.block_on(exchange.ping()).unwrap();
    assert_eq!(exchange.now().unwrap().xml(), "2010-09-16T07:50:45Z");
}

#[test]
fn a_redirect_is_not_followed() {
    let (host, requests) = mk_camera(
        |_| false,
        |_| {
            let mut response = http::Response::new(302, "");
            response
                .headers
                .push(("location".to_owned(), "http://192.168.7.66/".to_owned()));
            response
        },
    );
    let reply = ask(&host, Ok(())).unwrap();
    assert!(
        reply.info.trouble.contains("redirect (302)"),
        "{}",
        reply.info.trouble
    );
    assert_eq!(requests.borrow().len(), 4);
    assert!(
        host.contacts()
            .iter()
            .all(|contact| !contact.to.contains("192.168.7.66"))
    );
}

#[test]
fn an_error_tells_its_cause_and_whether_it_shows_absence() {
    for (cause, shows_absence) in [
        (net::Error::TimedOut, true),
        (net::Error::Refused, true),
        (net::Error::Unreachable, true),
        (net::Error::Closed, true),
        (net::Error::Denied("x".to_owned()), false),
        (net::Error::TooLarge(9), false),
    ] {
        let answer = cause.clone();
        let host = FakeHost::new().http_server("http://192.168.7.9:80", move |_| HttpAnswer {
            after: Duration::ZERO,
            result: Err(answer.clone()),
        });
        let error = ask(&host, Ok(())).unwrap_err();
        assert_eq!(error.shows_absence(), shows_absence, "{error}");
        assert_eq!(
            error.to_string(),
            format!("does not answer GetSystemDateAndTime: {cause}")
        );
    }
}

#[test]
fn a_camera_that_answers_byte_by_byte_is_stopped_at_its_time_limit() {
    let host = FakeHost::new().http_server("http://192.168.7.9:80", |request| {
        let asked = String::from_utf8_lossy(&request.body).into_owned();
        let is_greeting = asked.contains("<GetSystemDateAndTime ");
        HttpAnswer {
            after: if is_greeting {
                Duration::ZERO
            } else {
                Duration::from_hours(1)
            },
            result: Ok(http::Response::new(200, mk_soap(DATE))),
        }
    });
    let reply = ask(&host, Ok(())).unwrap();
    assert!(reply.is_cut_short);
    assert_eq!(reply.info.trouble, "GetNetworkInterfaces: timed out");
    assert_eq!(host.now(), LIMIT);
}

//! Tests of cameras that lack `GetSystemDateAndTime`, or refuse it.

use super::*;

const LACKING: &str = "<s:Fault><s:Code><s:Value>s:Sender</s:Value></s:Code><s:Reason><s:Text>Method 'tds:GetSystemDateAndTime' not implemented: method name or namespace not recognized</s:Text></s:Reason></s:Fault>";
const NOT_AUTHORIZED: &str = "<s:Fault><s:Code><s:Value>s:Sender</s:Value><s:Subcode><s:Value>ter:NotAuthorized</s:Value></s:Subcode></s:Code></s:Fault>";

/// Creates a camera that answers the request for its time with `fault`, and others as `lets` decides.
fn mk_camera(
    fault: &'static str,
    lets: impl Fn(&str) -> Option<&'static str> + 'static,
) -> FakeHost {
    let host = announced(mk_network(), 9);
    host.http_server("http://192.168.7.9:80", move |request| {
        let asked = String::from_utf8_lossy(&request.body).into_owned();
        let refusal = if asked.contains("<GetSystemDateAndTime ") {
            Some(fault)
        } else {
            lets(&asked)
        };
        let mut response = match refusal {
            Some(fault) => http::Response::new(400, mk_soap(fault)),
            None => answer(9, request),
        };
        let date = "Fri, 20 Nov 2026 08:58:44 GMT".to_owned();
        response.headers.push(("date".to_owned(), date));
        response.into()
    })
}

#[test]
fn a_camera_without_the_time_is_a_device_if_it_answers_anything_else() {
    let bare = "<s:Fault><s:Code><s:Value>s:Sender</s:Value></s:Code></s:Fault>";
    for fault in [LACKING, bare, NOT_AUTHORIZED] {
        let host = mk_camera(fault, |_| None);
        let mut found = call("").run(&host).unwrap();
        assert_eq!(ids(&found), [id(9)], "{fault}: {:?}", host.skipped());
        let device = &found.devices()[0];
        assert_eq!(
            device.get_attribute("manufacturer"),
            Some(&"Example".into())
        );
        assert!(
            !host
                .skipped()
                .iter()
                .any(|one| one.reason.contains("credentials"))
        );
        // The camera is still checked in later calls.
        for _ in 0..20 {
            host.pass(Duration::from_secs(10));
            found = next(&found, "", vec![Event::Timer]).run(&host).unwrap();
            assert_eq!(found.devices, Devices::Unchanged, "{:?}", host.skipped());
        }
    }
    // One other request is enough.
    let host = mk_camera(LACKING, |asked| {
        (!asked.contains("<GetScopes ")).then_some(LACKING)
    });
    assert_eq!(ids(&call("").run(&host).unwrap()), [id(9)]);
    // A service that knows no request at all is not a camera.
    let host = mk_camera(LACKING, |_| Some(LACKING));
    let found = call("").run(&host).unwrap();
    assert!(found.devices().is_empty());
    let told = reasons(&host, &url(9));
    assert!(
        told[0].contains("not implemented") && !told[0].contains("credentials"),
        "{told:?}"
    );
}

#[test]
fn a_camera_without_the_time_is_sent_a_token_with_the_time_of_its_answers() {
    let tokens = Rc::new(Cell::new(0));
    let counted = Rc::clone(&tokens);
    let host = mk_camera(LACKING, move |asked| {
        let has_token = asked.contains("PasswordDigest") && asked.contains("2026-11-20T08:58:44Z");
        counted.set(counted.get() + usize::from(has_token));
        (!has_token).then_some(NOT_AUTHORIZED)
    });
    let found = call("")
        .secret("username_default", "u")
        .secret("password_default", "hunter2-hunter2")
        .run(&host)
        .unwrap();
    assert_eq!(ids(&found), [id(9)], "{:?}", host.skipped());
    assert!(found.devices()[0].get_attribute("manufacturer").is_some());
    assert_eq!(tokens.get(), 3);
    // Without credentials it is a device that reports less, like a camera that reports the time.
    let host = mk_camera(LACKING, |_| Some(NOT_AUTHORIZED));
    let found = call("").run(&host).unwrap();
    assert_eq!(ids(&found), [id(9)], "{:?}", host.skipped());
    assert!(reasons(&host, &url(9))[0].contains("wants credentials"));
}

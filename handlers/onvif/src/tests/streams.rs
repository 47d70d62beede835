//! Tests of the URLs of streams and snapshots.

use super::*;

const DETAILS: &str = "streams: true";
const PROFILES: &str = "<trt:Profiles token='main'><tt:Name>Main</tt:Name><tt:VideoEncoderConfiguration><tt:Encoding>H264</tt:Encoding>\
    <tt:Resolution><tt:Width>1920</tt:Width><tt:Height>1080</tt:Height></tt:Resolution></tt:VideoEncoderConfiguration>\
    <tt:PTZConfiguration token='p'/></trt:Profiles>\
    <trt:Profiles token='sub'><tt:Name>Sub</tt:Name><tt:VideoEncoderConfiguration><tt:Encoding>JPEG</tt:Encoding></tt:VideoEncoderConfiguration></trt:Profiles>";

/// URLs that a camera returns, by profile.
type Uris = dyn Fn(&str, usize) -> (String, String);

/// Returns the camera's usual URLs.
fn usual(token: &str, _: usize) -> (String, String) {
    (
        format!("rtsp://192.168.7.9:554/{token}?unicast=1"),
        format!("http://192.168.7.9/snap/{token}.jpg"),
    )
}

fn mk_response(name: &str, inside: &str) -> http::Response {
    let body = format!("<trt:{name}Response>{inside}</trt:{name}Response>");
    http::Response::new(200, mk_soap(&body))
}

/// Returns the answer of camera 9 to a request; `count` is the number of requests so far.
fn media_answer(request: &http::Request, count: usize, uris: &Uris) -> http::Response {
    let asked = String::from_utf8_lossy(&request.body).into_owned();
    let token = asked.split_once("<ProfileToken>");
    let token = token.and_then(|(_, rest)| rest.split_once('<'));
    let (stream, snapshot) = uris(token.map_or("", |(token, _)| token), count);
    let uri = |uri: String| {
        let uri = uri.replace('&', "&amp;");
        format!("<trt:MediaUri><tt:Uri>{uri}</tt:Uri></trt:MediaUri>")
    };
    if asked.contains("<GetCapabilities ") {
        let service = "<Capabilities><tt:Media><tt:XAddr>http://10.0.0.9/onvif/media</tt:XAddr></tt:Media></Capabilities>";
        mk_response("GetCapabilities", service)
    } else if asked.contains("<GetProfiles ") {
        mk_response("GetProfiles", PROFILES)
    } else if asked.contains("<GetStreamUri ") {
        mk_response("GetStreamUri", &uri(stream))
    } else if asked.contains("<GetSnapshotUri ") {
        mk_response("GetSnapshotUri", &uri(snapshot))
    } else {
        answer(9, request)
    }
}

/// Adds camera 9 with these URLs.
fn with_streams(uris: impl Fn(&str, usize) -> (String, String) + 'static) -> FakeHost {
    let count = Cell::new(0);
    announced(mk_network(), 9).http_server("http://192.168.7.9:80", move |request| {
        count.set(count.get() + 1);
        media_answer(request, count.get(), &uris).into()
    })
}

fn values<'a>(found: &'a Discovery, names: &[&str]) -> Vec<Option<&'a str>> {
    let device = &found.devices()[0];
    names.iter().map(|name| device.get_property(name)).collect()
}

const URIS: [&str; 3] = [
    "ONVIF_DEVICE_STREAM_URI",
    "ONVIF_DEVICE_SNAPSHOT_URI",
    "ONVIF_DEVICE_PROFILE_1_STREAM_URI",
];

#[test]
fn streams_and_snapshots_are_properties_if_the_details_want_them() {
    let host = with_streams(usual);
    let found = call(DETAILS).run(&host).unwrap();
    assert!(host.skipped().is_empty(), "{:?}", host.skipped());
    let device = &found.devices()[0];
    let streams: Vec<(&str, &str)> = device
        .properties
        .iter()
        .skip(4)
        .map(|(name, value)| (name.as_str(), value.as_str()))
        .collect();
    assert_eq!(
        streams,
        [
            ("ONVIF_DEVICE_PROFILE_0_NAME", "Main"),
            (
                "ONVIF_DEVICE_PROFILE_0_STREAM_URI",
                "rtsp://192.168.7.9:554/main?unicast=1"
            ),
            (
                "ONVIF_DEVICE_PROFILE_0_SNAPSHOT_URI",
                "http://192.168.7.9/snap/main.jpg"
            ),
            ("ONVIF_DEVICE_PROFILE_0_RESOLUTION", "1920x1080"),
            ("ONVIF_DEVICE_PROFILE_0_CODEC", "H264"),
            ("ONVIF_DEVICE_PROFILE_1_NAME", "Sub"),
            (
                "ONVIF_DEVICE_PROFILE_1_STREAM_URI",
                "rtsp://192.168.7.9:554/sub?unicast=1"
            ),
            (
                "ONVIF_DEVICE_PROFILE_1_SNAPSHOT_URI",
                "http://192.168.7.9/snap/sub.jpg"
            ),
            ("ONVIF_DEVICE_PROFILE_1_CODEC", "JPEG"),
            (
                "ONVIF_DEVICE_STREAM_URI",
                "rtsp://192.168.7.9:554/main?unicast=1"
            ),
            (
                "ONVIF_DEVICE_SNAPSHOT_URI",
                "http://192.168.7.9/snap/main.jpg"
            ),
        ]
    );
    for (name, value) in [
        ("resolution", "1920x1080".into()),
        ("codec", "H264".into()),
        ("ptz", true.into()),
    ] {
        assert_eq!(device.get_attribute(name), Some(&value), "{name}");
    }
    // The media service is asked at the camera's own address, and nothing else is.
    let media = requests(&host);
    assert!(media.contains(&"http POST http://192.168.7.9/onvif/media".to_owned()));
    assert!(
        media.iter().all(|to| to.contains("192.168.7.9")),
        "{media:?}"
    );
    host.pass(Duration::from_mins(16));
    let again = next(&found, DETAILS, vec![Event::Timer])
        .run(&host)
        .unwrap();
    assert_eq!(again.devices, Devices::Unchanged);
    assert!(requests(&host).len() > media.len() + 8);
}

#[test]
fn without_the_detail_no_streams_are_asked_for() {
    let host = with_streams(usual);
    let found = call("").run(&host).unwrap();
    assert_eq!(found.devices()[0].properties.len(), 4);
    assert_eq!(found.devices()[0].get_attribute("ptz"), None);
    assert_eq!(requests(&host).len(), 4);
}

#[test]
fn no_password_and_no_other_host_is_handed_out() {
    let host = with_streams(|token, _| {
        (
            format!("rtsp://admin:hunter2@10.0.0.66:8554/{token}"),
            format!("http://192.168.7.9/{token}?user=admin&pwd=hunter2&q=1"),
        )
    });
    let found = call(DETAILS).run(&host).unwrap();
    assert_eq!(
        values(&found, &URIS),
        [
            Some("rtsp://192.168.7.9:8554/main"),
            Some("http://192.168.7.9/main?q=1"),
            Some("rtsp://192.168.7.9:8554/sub"),
        ]
    );
    assert_eq!(
        reasons(&host, &url(9)),
        [
            "streams: GetStreamUri: the user in the camera's URL is left out",
            "streams: GetStreamUri: the camera's URL names the host 10.0.0.66, and is given with the camera's address 192.168.7.9",
            "streams: GetSnapshotUri: the user and password in the camera's URL are left out",
        ]
    );
    let cursor = String::from_utf8_lossy(found.cursor.as_deref().unwrap()).into_owned();
    let all = format!("{:?} {:?} {cursor}", found.devices, host.skipped());
    assert!(!all.contains("hunter2"), "{all}");
}

#[test]
fn values_that_change_with_each_answer_change_no_device() {
    let host = with_streams(|token, count| {
        (
            format!("rtsp://192.168.7.9/{token}?token={count}&a=1"),
            format!("http://192.168.7.9/{count}.jpg"),
        )
    });
    let found = call(DETAILS).run(&host).unwrap();
    assert_eq!(
        values(&found, &URIS),
        [
            Some("rtsp://192.168.7.9/main?a=1"),
            None,
            Some("rtsp://192.168.7.9/sub?a=1"),
        ]
    );
    assert_eq!(
        reasons(&host, &url(9)),
        [
            "streams: GetStreamUri: the camera changes token each time, which is left out",
            "streams: GetSnapshotUri: the camera gives another URL each time, so none is given",
        ]
    );
    host.pass(Duration::from_mins(16));
    let again = next(&found, DETAILS, vec![Event::Timer])
        .run(&host)
        .unwrap();
    assert_eq!(again.devices, Devices::Unchanged);
}

#[test]
fn a_changing_value_is_left_out_if_the_first_profile_has_no_url() {
    let host = with_streams(|token, count| {
        let stream = match token {
            "main" => String::new(),
            token => format!("rtsp://192.168.7.9/{token}?token={count}&a=1"),
        };
        (stream, format!("http://192.168.7.9/{token}"))
    });
    let found = call(DETAILS).run(&host).unwrap();
    assert_eq!(
        values(&found, &URIS),
        [
            None,
            Some("http://192.168.7.9/main"),
            Some("rtsp://192.168.7.9/sub?a=1"),
        ]
    );
}

/// Adds camera 9, which gives its streams only with a password.
fn with_locked_streams() -> (FakeHost, Rc<Cell<usize>>) {
    with_digests(|request, body, has_token| {
        let is_media = ["<GetProfiles ", "<GetStreamUri ", "<GetSnapshotUri "]
            .iter()
            .any(|name| body.contains(name));
        if is_media && !has_token {
            http::Response::new(401, "")
        } else {
            media_answer(request, 0, &usual)
        }
    })
}

#[test]
fn a_camera_that_refuses_its_streams_is_a_device_with_an_explanation() {
    let (host, _) = with_locked_streams();
    let found = call(DETAILS).run(&host).unwrap();
    assert_eq!(ids(&found), [id(9)]);
    assert_eq!(values(&found, &URIS), [None, None, None]);
    assert_eq!(
        reasons(&host, &url(9)),
        ["streams: GetProfiles: wants credentials: none are given for its UUID, nor default ones"]
    );
}

#[test]
fn credentials_are_used_for_streams() {
    let (host, proofs) = with_locked_streams();
    let secretive = |call: Call<Onvif>| {
        call.secret("username_default", "u")
            .secret("password_default", "hunter2-hunter2")
    };
    let found = secretive(call(DETAILS)).run(&host).unwrap();
    assert_eq!(
        values(&found, &URIS)[0],
        Some("rtsp://192.168.7.9:554/main?unicast=1")
    );
    // The profiles; each kind of URL for two profiles, and again for the first.
    assert_eq!(proofs.get(), 7);
    assert!(host.skipped().is_empty(), "{:?}", host.skipped());
    // If the password is missing later, the URLs stay.
    host.pass(Duration::from_mins(16));
    let again = next(&found, DETAILS, vec![Event::Timer])
        .run(&host)
        .unwrap();
    assert_eq!(again.devices, Devices::Unchanged);
}

#[test]
fn a_camera_without_snapshots_has_streams() {
    let host = announced(mk_network(), 9);
    let host = host.http_server("http://192.168.7.9:80", |request| {
        let body = String::from_utf8_lossy(&request.body).into_owned();
        if body.contains("<GetSnapshotUri ") {
            let fault = "<s:Fault><s:Code><s:Value>s:Receiver</s:Value></s:Code></s:Fault>";
            return http::Response::new(500, mk_soap(fault)).into();
        }
        media_answer(request, 0, &usual).into()
    });
    let found = call(DETAILS).run(&host).unwrap();
    let [stream, snapshot, _] = values(&found, &URIS)[..] else {
        unreachable!()
    };
    assert!(stream.is_some() && snapshot.is_none());
    assert_eq!(
        reasons(&host, &url(9)),
        ["streams: GetSnapshotUri: answers with a fault: s:Receiver"]
    );
}

#[test]
fn more_cameras_than_a_call_asks_are_asked_for_streams_later() {
    let mut host = mk_network();
    for n in 10..110 {
        host = announced(host, n);
        host = host.http_server(&format!("http://192.168.7.{n}:80"), move |request| {
            let body = String::from_utf8_lossy(&request.body).into_owned();
            let is_media = ["<GetCapabilities ", "<GetProfiles ", "Uri "];
            if is_media.iter().any(|name| body.contains(name)) {
                let uris = move |token: &str, _| {
                    let stream = format!("rtsp://192.168.7.{n}/{token}");
                    (stream, format!("http://192.168.7.{n}/{token}"))
                };
                media_answer(request, 0, &uris).into()
            } else {
                answer(n, request).into()
            }
        });
    }
    let with_stream = |found: &Discovery| {
        let devices = found.devices().iter();
        devices
            .filter(|device| device.get_property("ONVIF_DEVICE_STREAM_URI").is_some())
            .count()
    };
    let mut found = call(DETAILS).run(&host).unwrap();
    let mut known = found.clone();
    assert_eq!((known.devices().len(), with_stream(&known)), (100, 64));
    for _ in 0..8 {
        host.pass(Duration::from_secs(9));
        found = next(&found, DETAILS, vec![Event::Timer])
            .run(&host)
            .unwrap();
        if found.devices != Devices::Unchanged {
            known = found.clone();
        }
    }
    assert_eq!(with_stream(&known), 100);
}

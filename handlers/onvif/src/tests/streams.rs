//! Tests of the URLs of streams and snapshots.

use leafhost_sdk::testing::budget;

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
        ["streams: GetProfiles: wants credentials: none for its UUID, and no default ones"]
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

/// Adds 100 cameras with streams.
fn with_crowd() -> FakeHost {
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
    host
}

/// Makes twelve more calls of the session; returns the last answer with devices.
fn later(host: &FakeHost, details: &str, first: &Discovery) -> Discovery {
    let (mut found, mut known) = (first.clone(), first.clone());
    for _ in 0..12 {
        host.pass(Duration::from_secs(9));
        found = next(&found, details, vec![Event::Timer]).run(host).unwrap();
        if found.devices != Devices::Unchanged {
            known = found.clone();
        }
    }
    known
}

#[test]
fn more_cameras_than_a_call_asks_are_asked_for_streams_later() {
    let host = with_crowd();
    let with_stream = |found: &Discovery| {
        let devices = found.devices().iter();
        devices
            .filter(|device| device.get_property("ONVIF_DEVICE_STREAM_URI").is_some())
            .count()
    };
    let found = call(DETAILS).run(&host).unwrap();
    assert_eq!((found.devices().len(), with_stream(&found)), (100, 64));
    assert_eq!(with_stream(&later(&host, DETAILS, &found)), 100);
}

/// Tokens of a camera's profiles, each with that of its video source.
type Profiles = &'static [(&'static str, &'static str)];
/// Profiles that a recorder reports; nothing if that request times out.
type Reported = Rc<Cell<Option<Profiles>>>;

const CHANNELS: &str = "channels: devices";
const TWO: Profiles = &[("m1", "1"), ("m2", "2"), ("s1", "1")];

fn mk_reported(profiles: Option<Profiles>) -> Reported {
    Rc::new(Cell::new(profiles))
}

/// Returns the answer to `GetProfiles`.
fn mk_profiles(profiles: Profiles) -> http::Response {
    let profiles = profiles.iter().map(|(token, source)| {
        format!(
            "<trt:Profiles token='{token}'><tt:VideoSourceConfiguration><tt:SourceToken>{source}</tt:SourceToken></tt:VideoSourceConfiguration></trt:Profiles>"
        )
    });
    mk_response("GetProfiles", &profiles.collect::<String>())
}

/// Adds camera 9, which reports these profiles, and is off if there are none.
fn with_recorder(reported: &Reported) -> FakeHost {
    let reported = Rc::clone(reported);
    announced(mk_network(), 9).http_server("http://192.168.7.9:80", move |request| {
        let is_question = String::from_utf8_lossy(&request.body).contains("<GetProfiles ");
        match reported.get() {
            Some([]) => fails(net::Error::Refused),
            None if is_question => fails(net::Error::TimedOut),
            Some(profiles) if is_question => mk_profiles(profiles).into(),
            _ => media_answer(request, 0, &usual).into(),
        }
    })
}

/// Returns the ids of the devices of camera 9 for these video sources.
fn of_sources<const N: usize>(sources: [&str; N]) -> [String; N] {
    sources.map(|source| format!("{}#VideoSource={source}", id(9)))
}

#[test]
fn each_video_source_is_a_device_if_the_details_want_that() {
    let host = with_recorder(&mk_reported(Some(TWO)));
    let found = call(CHANNELS).run(&host).unwrap();
    assert!(host.skipped().is_empty(), "{:?}", host.skipped());
    assert_eq!(ids(&found), of_sources(["1", "2"]));
    let [first, second] = found.devices() else {
        unreachable!()
    };
    for (name, one, other) in [
        ("ONVIF_DEVICE_VIDEO_SOURCE", Some("1"), Some("2")),
        (
            "ONVIF_DEVICE_STREAM_URI",
            Some("rtsp://192.168.7.9:554/m1?unicast=1"),
            Some("rtsp://192.168.7.9:554/m2?unicast=1"),
        ),
        (
            "ONVIF_DEVICE_PROFILE_1_SNAPSHOT_URI",
            Some("http://192.168.7.9/snap/s1.jpg"),
            None,
        ),
    ] {
        assert_eq!(first.get_property(name), one, "{name}");
        assert_eq!(second.get_property(name), other, "{name}");
    }
    assert_eq!(second.get_attribute("video_source"), Some(&"2".into()));
    assert_eq!(second.physical_id, first.physical_id);
    // All of them are one device otherwise.
    let found = call(DETAILS).run(&host).unwrap();
    assert_eq!(ids(&found), [id(9)]);
    assert_eq!(
        values(&found, &["ONVIF_DEVICE_PROFILE_2_STREAM_URI"]),
        [Some("rtsp://192.168.7.9:554/s1?unicast=1")]
    );
}

#[test]
fn a_camera_with_one_video_source_keeps_its_id() {
    let sources: [Profiles; 2] = [&[("m", "1"), ("s", "1")], &[("m", ""), ("s", "")]];
    for profiles in sources {
        let host = with_recorder(&mk_reported(Some(profiles)));
        let found = call(CHANNELS).run(&host).unwrap();
        assert_eq!(ids(&found), [id(9)], "{profiles:?}");
        assert_eq!(
            values(&found, &["ONVIF_DEVICE_VIDEO_SOURCE", URIS[2]]),
            [None, Some("rtsp://192.168.7.9:554/s?unicast=1")]
        );
    }
}

#[test]
fn channels_stay_until_the_recorder_reports_others() {
    let reported = mk_reported(Some(TWO));
    let host = with_recorder(&reported);
    let found = call(CHANNELS).run(&host).unwrap();
    let report = |profiles: Option<Profiles>, found: &Discovery| {
        reported.set(profiles);
        host.pass(Duration::from_mins(16));
        next(found, CHANNELS, vec![Event::Timer])
            .run(&host)
            .unwrap()
    };
    let found = report(None, &found);
    assert_eq!(found.devices, Devices::Unchanged);
    // The only channel that is left keeps its id.
    let found = report(Some(&[("m2", "2")]), &found);
    assert!(is_complete(&found));
    assert_eq!(ids(&found), of_sources(["2"]));
    let found = report(Some(TWO), &found);
    assert_eq!(ids(&found), of_sources(["1", "2"]));
}

#[test]
fn a_channel_that_is_missing_after_a_hello_is_withdrawn_and_soon_asked_for_again() {
    let reported = mk_reported(Some(TWO));
    let host = with_recorder(&reported);
    let found = call(CHANNELS).run(&host).unwrap();
    let after = |seconds, event, found: &Discovery| {
        host.pass(Duration::from_secs(seconds));
        next(found, CHANNELS, vec![event]).run(&host).unwrap()
    };
    reported.set(Some(&[("m2", "2")]));
    let found = after(6, mk_hello(9), &found);
    assert_eq!(found.devices, Devices::Unchanged);
    let found = after(9, Event::Timer, &found);
    assert!(is_complete(&found));
    assert_eq!(ids(&found), of_sources(["2"]));
    let found = after(30, Event::Timer, &found);
    assert_eq!(found.devices, Devices::Unchanged);
    reported.set(Some(TWO));
    let found = after(60, Event::Timer, &found);
    assert_eq!(ids(&found), of_sources(["1", "2"]));
}

#[test]
fn a_recorder_at_another_address_keeps_its_channels() {
    const FOLLOWED: &str = "channels: devices\nleafhost.dev/identity: endpoint-reference";
    let at = Rc::new(Cell::new(9));
    let mut host = mk_network();
    for n in [9, 10] {
        let (heard, asked) = (Rc::clone(&at), Rc::clone(&at));
        let from = format!("192.168.7.{n}:3702").parse().unwrap();
        host = host.udp_peer(GROUP, move |_, _| {
            let answer = UdpAnswer {
                after: Duration::from_millis(30),
                from,
                payload: mk_match(&uuid(9), &url(n)),
            };
            (heard.get() == n).then_some(answer).into_iter().collect()
        });
        host = host.http_server(&format!("http://192.168.7.{n}:80"), move |request| {
            let is_question = String::from_utf8_lossy(&request.body).contains("<GetProfiles ");
            match (asked.get(), is_question) {
                (9, true) => mk_profiles(TWO).into(),
                (at, false) if at == n => media_answer(request, 0, &usual).into(),
                _ => fails(net::Error::TimedOut),
            }
        });
    }
    let channels = ["1", "2"].map(|one| format!("urn:uuid:{}#VideoSource={one}", uuid(9)));
    let found = call(FOLLOWED).run(&host).unwrap();
    assert_eq!(ids(&found), channels);
    at.set(10);
    host.pass(Duration::from_secs(9));
    let next = next(&found, FOLLOWED, vec![Event::Timer]);
    let found = next.run(&host).unwrap();
    assert!(is_complete(&found));
    assert_eq!(ids(&found), channels);
    let url = url(10);
    let told = values(&found, &["ONVIF_DEVICE_SERVICE_URL", URIS[0]]);
    assert_eq!(told, [Some(url.as_str()), None]);
}

#[test]
fn a_recorder_is_no_device_until_its_video_sources_are_known() {
    let reported = mk_reported(None);
    let host = with_recorder(&reported);
    let found = call(CHANNELS).run(&host).unwrap();
    assert!(found.devices().is_empty());
    let said = reasons(&host, &url(9));
    assert_eq!(
        said[0],
        "channels: is no device until it reports its video sources"
    );
    assert!(said[1].starts_with("streams: GetProfiles: "), "{said:?}");
    reported.set(Some(TWO));
    let found = later(&host, CHANNELS, &found);
    assert_eq!(ids(&found), of_sources(["1", "2"]));
}

#[test]
fn channels_without_a_usable_token_and_beyond_the_limit_are_explained() {
    let host = with_recorder(&mk_reported(Some(&[
        ("a", "1"),
        ("b", "2"),
        ("c", "\u{e4}"),
        ("d", ""),
    ])));
    let found = call(CHANNELS).run(&host).unwrap();
    assert_eq!(ids(&found), of_sources(["1", "2"]));
    assert_eq!(
        reasons(&host, &url(9)),
        [
            "streams: a profile is in no channel: its video source has no token of 1 to 64 printable ASCII characters"
        ]
    );
    let many: Vec<(&str, &str)> = (0..80)
        .map(|n| {
            let token: &str = format!("p{n}").leak();
            let source: &str = format!("{}", n / 2).leak();
            (token, source)
        })
        .collect();
    let host = with_recorder(&mk_reported(Some(many.leak())));
    let found = call(CHANNELS).run(&host).unwrap();
    assert_eq!(found.devices().len(), 32);
    assert_eq!(
        reasons(&host, &url(9)),
        ["streams: the camera has 80 profiles; the first 32 are given"]
    );
    assert!(requests(&host).len() < 80);
}

#[test]
fn a_recorder_that_leaves_takes_its_channels_along() {
    let reported = mk_reported(Some(TWO));
    let host = with_recorder(&reported);
    let found = call(CHANNELS).run(&host).unwrap();
    host.pass(Duration::from_secs(3));
    reported.set(Some(&[]));
    let bye = || next(&found, CHANNELS, vec![mk_bye(9, "192.168.7.9:3702")]);
    let departed = |call: Call<Onvif>| call.run(&host).unwrap().departed;
    assert_eq!(departed(bye()), of_sources(["1", "2"]));
    let mut few = budget();
    few.devices = 1;
    assert_eq!(departed(bye().budget(few)), of_sources(["1"]));
}

#[test]
fn recorders_that_are_asked_later_withdraw_no_channels() {
    let host = with_crowd();
    let found = call(CHANNELS).run(&host).unwrap();
    assert!(is_partial(&found));
    assert!((1..100).contains(&found.devices().len()));
    let found = later(&host, CHANNELS, &found);
    assert!(is_complete(&found));
    assert_eq!(found.devices().len(), 100);
}

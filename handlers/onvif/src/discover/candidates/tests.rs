use super::*;
use crate::discover::cursor::Camera;

fn mk_received(source: &str, uuid: &str, xaddrs: &str) -> ReceivedAnnouncement {
    ReceivedAnnouncement {
        source: source.parse().unwrap(),
        announcement: Announcement {
            endpoint: format!("urn:uuid:{uuid}"),
            is_onvif: true,
            xaddrs: xaddrs.split(' ').map(str::to_owned).collect(),
            ..Announcement::default()
        },
    }
}

fn mk_details(text: &str) -> Details {
    serde_yaml_ng::from_str(text).unwrap()
}

fn urls(collected: &Collected) -> Vec<&str> {
    collected
        .candidates
        .iter()
        .map(|one| one.xaddr.url.as_str())
        .collect()
}

fn reasons(collected: &Collected) -> Vec<String> {
    let say = |one: &LeftOut| format!("{}: {}: {}", one.subject, one.rule, one.reason);
    collected.left_out.iter().map(say).collect()
}

fn run(received: &[ReceivedAnnouncement]) -> Collected {
    collect(&mk_details("{}"), &Cursor::default(), received)
}

const BOTH: &str = "http://192.168.7.9/a http://[2001:db8::9]/a";

#[test]
fn repeated_answers_of_one_camera_are_one_candidate() {
    let collected = run(&[
        mk_received("192.168.7.9", "a", BOTH),
        mk_received("192.168.7.9", "A", BOTH),
        mk_received("fe80::9", "a", BOTH),
    ]);
    assert_eq!(urls(&collected), ["http://192.168.7.9/a"]);
    assert!(collected.candidates[0].is_own);
    assert!(collected.left_out.is_empty());
}

#[test]
fn each_address_is_a_candidate_if_the_details_say_all() {
    let received = [mk_received(
        "192.168.7.9",
        "a",
        &format!("{BOTH} http://[fe80::9]/a http://192.168.7.9:81/"),
    )];
    let collected = collect(
        &mk_details("leafhost.dev/xaddrs: all"),
        &Cursor::default(),
        &received,
    );
    assert_eq!(
        urls(&collected),
        [
            "http://192.168.7.9/a",
            "http://192.168.7.9:81/",
            "http://[2001:db8::9]/a"
        ]
    );
    assert_eq!(
        reasons(&collected),
        [
            "a at http://[fe80::9]/a: XAddrs: is a link-local IPv6 address, which is another machine on each network"
        ]
    );
}

#[test]
fn both_claimants_of_an_endpoint_reference_are_asked_and_explained() {
    let collected = run(&[
        mk_received("192.168.7.9", "a", "http://192.168.7.9/a"),
        mk_received("192.168.7.66", "a", "http://192.168.7.66/a"),
    ]);
    assert_eq!(
        urls(&collected),
        ["http://192.168.7.66/a", "http://192.168.7.9/a"]
    );
    assert_eq!(
        reasons(&collected),
        [
            "a: endpoint reference: is claimed by http://192.168.7.66/a and http://192.168.7.9/a; each that answers is a device of its own"
        ]
    );
}

#[test]
fn no_host_displaces_a_camera() {
    let own = mk_received("192.168.7.9", "b", "http://192.168.7.9/b");
    // Another endpoint reference at its address, and another address for its endpoint reference.
    let url = mk_received("192.168.7.66", "a", "http://192.168.7.9/b");
    let port = mk_received("192.168.7.66", "b", "http://192.168.7.9/a");
    for received in [[own.clone(), url.clone(), port.clone()], [port, url, own]] {
        let collected = run(&received);
        assert_eq!(urls(&collected), ["http://192.168.7.9/b"]);
        assert_eq!(collected.candidates[0].uuid, "b");
        assert_eq!(collected.left_out.len(), 2, "{:?}", reasons(&collected));
    }
}

#[test]
fn known_cameras_come_before_sources_with_many_announcements() {
    let mut cursor = Cursor::default();
    let camera = Camera {
        uuid: "known".to_owned(),
        ..Camera::default()
    };
    cursor
        .cameras
        .insert("http://192.168.7.250/".to_owned(), camera);
    let mut received = Vec::new();
    for source in 1..20 {
        for n in 0..600 {
            let source = format!("10.0.0.{source}");
            received.push(mk_received(
                &source,
                &format!("{source}-{n}"),
                &format!("http://{source}:{}/", 8_000 + n),
            ));
        }
    }
    received.push(mk_received("192.168.7.9", "new", "http://192.168.7.9/"));
    received.push(mk_received(
        "192.168.7.250",
        "known",
        "http://192.168.7.250/",
    ));
    let collected = collect(&mk_details("{}"), &cursor, &received);
    assert_eq!(collected.candidates.len(), MAX_CAMERAS);
    assert_eq!(urls(&collected)[0], "http://192.168.7.250/");
    let place = urls(&collected)
        .iter()
        .position(|url| *url == "http://192.168.7.9/");
    assert!(place.is_some_and(|place| place <= 20), "{place:?}");
    let all = reasons(&collected).join("\n");
    assert!(
        all.contains("10.0.0.7: announcement: announces more than 512 cameras"),
        "{all}"
    );
    assert!(
        all.contains("more than 1000 cameras are announced"),
        "{all}"
    );
}

#[test]
fn left_out_announcements_are_explained() {
    let mut computer = mk_received("192.168.7.5", "pc", "");
    computer.announcement.is_onvif = false;
    computer.announcement.types = vec!["wsdp:Device".to_owned(), "pub:Computer".to_owned()];
    let mut nothing = mk_received("192.168.7.6", "none", "");
    nothing.announcement.xaddrs.clear();
    let mut nameless = mk_received("192.168.7.7", "", "http://192.168.7.7/");
    nameless.announcement.endpoint = "urn:uuid:".to_owned();
    let mut many = mk_received("192.168.7.8", "many", "http://192.168.7.8/");
    many.announcement.more_xaddrs = 9_999;
    let collected = run(&[
        computer,
        nothing,
        nameless,
        many,
        mk_received(
            "192.168.7.10",
            "loop",
            "http://127.0.0.1/onvif http://[fe80::1]/onvif",
        ),
    ]);
    assert_eq!(urls(&collected), ["http://192.168.7.8/"]);
    assert_eq!(
        reasons(&collected),
        [
            "pc at 192.168.7.5: types: is not an ONVIF device, but wsdp:Device pub:Computer",
            "none at 192.168.7.6: XAddrs: announces no address, and names none when it is asked",
            "192.168.7.7: announcement: has no endpoint reference of a usable length",
            "many at 192.168.7.8: XAddrs: announces 10000 addresses, 16 are tried",
            "loop at http://127.0.0.1/onvif: XAddrs: does not lead to a device",
            "loop at http://[fe80::1]/onvif: XAddrs: is a link-local IPv6 address, which is another machine on each network",
        ]
    );
}

#[test]
fn announcements_are_filtered_before_any_request() {
    let mut received = mk_received("192.168.7.9", "a", BOTH);
    received.announcement.scopes = vec!["onvif://www.onvif.org/name/Cam".to_owned()];
    for (details, reason) in [
        (
            "scopes: {items: ['onvif://www.onvif.org/name/other']}",
            "scopes: has onvif://www.onvif.org/name/Cam, and only listed ones are included",
        ),
        (
            "uuids: {action: Exclude, items: [A]}",
            "uuids: has A, which is excluded",
        ),
    ] {
        let collected = collect(
            &mk_details(details),
            &Cursor::default(),
            &[received.clone()],
        );
        assert!(collected.candidates.is_empty());
        assert_eq!(reasons(&collected), [format!("a at 192.168.7.9: {reason}")]);
        assert_eq!(collected.dropped, [("a".to_owned(), received.source)]);
    }
}

#[test]
fn the_digest_depends_only_on_the_announcement() {
    let received = |xaddrs: &str, version: &str| {
        let mut received = mk_received("192.168.7.9", "a", xaddrs);
        received.announcement.metadata_version = version.to_owned();
        run(&[received]).candidates[0].announced
    };
    let before = received("http://192.168.7.9/ http://10.0.0.1/", "1");
    assert_ne!(
        before,
        received("http://192.168.7.9/ http://10.0.0.2/", "1")
    );
    assert_ne!(
        before,
        received("http://192.168.7.9/ http://10.0.0.1/", "2")
    );
    assert_eq!(
        before,
        received("http://192.168.7.9/ http://10.0.0.1/", "1")
    );
}

#[test]
fn long_texts_of_hosts_are_shortened() {
    let mut types = mk_received("192.168.7.5", "pc", "");
    types.announcement.is_onvif = false;
    types.announcement.types = vec!["t".repeat(60_000)];
    let url = mk_received("192.168.7.6", "url", &"u".repeat(60_000));
    let mut scopes = mk_received("192.168.7.7", "scopes", BOTH);
    scopes.announcement.scopes = vec!["s".repeat(60_000)];
    let details = mk_details("scopes: {items: [a]}");
    let collected = collect(&details, &Cursor::default(), &[types, url.clone(), scopes]);
    assert_eq!(collected.left_out.len(), 3);
    let others = run(&[url]);
    for said in reasons(&collected).into_iter().chain(reasons(&others)) {
        assert!(said.len() < 512, "{}", said.len());
    }
}

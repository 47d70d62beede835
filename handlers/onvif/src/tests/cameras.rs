//! Tests of typical cameras and the devices they become.

use leafhost_sdk::Budget;
use leafhost_sdk::testing::budget;

use super::*;

/// Returns the URLs found for a camera at 192.168.7.9 that announces these addresses.
fn found_with(details: &str, xaddrs: &str) -> (Vec<String>, FakeHost) {
    let host = answering(mk_network(), "192.168.7.9:3702", mk_match(&uuid(9), xaddrs));
    let host = with_service(host, 9);
    let found = call(details).run(&host).unwrap();
    let urls = found.devices().iter().map(|device| {
        device
            .get_property("ONVIF_DEVICE_SERVICE_URL")
            .unwrap()
            .to_owned()
    });
    (urls.collect(), host)
}

#[test]
fn replies_from_any_port_late_or_repeated_are_accepted() {
    let host = mk_network().udp_peer(GROUP, |_, _| {
        [(0, 3702), (480, 40_000), (700, 50_000)]
            .map(|(after, port)| UdpAnswer {
                after: Duration::from_millis(after),
                from: format!("192.168.7.9:{port}").parse().unwrap(),
                payload: mk_match(&uuid(9), &url(9)),
            })
            .into()
    });
    let host = with_service(host, 9);
    let found = call("").run(&host).unwrap();
    assert_eq!(ids(&found), [id(9)]);
    assert_eq!(requests(&host).len(), 4);
}

#[test]
fn a_reply_after_the_longest_allowed_delay_is_accepted() {
    let host = mk_network().udp_peer(GROUP, |_, _| {
        vec![UdpAnswer {
            after: Duration::from_millis(1_490),
            from: "192.168.7.9:3702".parse().unwrap(),
            payload: mk_match(&uuid(9), &url(9)),
        }]
    });
    let found = call("").run(&with_service(host, 9)).unwrap();
    assert_eq!(ids(&found), [id(9)]);
}

#[test]
fn a_camera_that_answers_only_probes_for_its_type_is_found() {
    for types in ["dn:NetworkVideoTransmitter", "tds:Device"] {
        let host = mk_network().udp_peer(GROUP, move |_, payload| {
            let asked = String::from_utf8_lossy(payload).into_owned();
            let answer = UdpAnswer {
                after: Duration::ZERO,
                from: "192.168.7.9:3702".parse().unwrap(),
                payload: mk_match(&uuid(9), &url(9)),
            };
            asked
                .contains(&format!(">{types}</d:Types>"))
                .then_some(answer)
                .into_iter()
                .collect()
        });
        let found = call("").run(&with_service(host, 9)).unwrap();
        assert_eq!(ids(&found), [id(9)], "{types}");
    }
}

#[test]
fn each_network_is_probed_over_ipv4_and_ipv6() {
    let host = FakeHost::new()
        .interface(
            "eth0",
            2,
            ["192.168.7.2/24", "fe80::2/64", "2001:db8::2/64"],
        )
        .interface("eth1", 3, ["10.0.0.2/8", "fe80::3/64"]);
    let peer = |host: FakeHost, group: &str, from: &str, n: u32| {
        let from = from.parse().unwrap();
        host.udp_peer(group, move |_, _| {
            vec![UdpAnswer {
                after: Duration::ZERO,
                from,
                payload: mk_match(&uuid(n), &url(n)),
            }]
        })
    };
    let host = peer(host, "[ff02::c%3]:3702", "[fe80::9%3]:3702", 9);
    let host = peer(host, GROUP, "192.168.7.10:3702", 10);
    let host = with_service(with_service(host, 9), 10);
    let found = call("").run(&host).unwrap();
    assert_eq!(ids(&found), [id(10), id(9)]);
    let mut from: Vec<_> = host
        .contacts()
        .iter()
        .filter_map(|contact| contact.from)
        .map(|from| from.ip().to_string())
        .collect();
    from.sort();
    from.dedup();
    assert_eq!(from, ["10.0.0.2", "192.168.7.2", "fe80::2", "fe80::3"]);
}

#[test]
fn probes_are_repeated_after_the_standard_delay() {
    let host = with_camera(mk_network(), 9);
    call("").run(&host).unwrap();
    let times: Vec<_> = host
        .contacts()
        .iter()
        .filter(|contact| contact.to == "udp 239.255.255.250:3702")
        .map(|contact| contact.at)
        .collect();
    assert_eq!(times.len(), 4);
    assert_eq!(times[0], Duration::ZERO);
    assert!(
        times.iter().all(|time| *time <= Duration::from_millis(350)),
        "{times:?}"
    );
}

#[test]
fn a_node_without_a_network_is_explained() {
    let host = FakeHost::new();
    let found = call("").run(&host).unwrap();
    assert!(is_complete(&found) && found.devices().is_empty());
    assert_eq!(
        reasons(&host, "network"),
        ["network.interfaces: no granted interface is up and has an address to probe from"]
    );
}

#[test]
fn one_address_identifies_the_camera_whichever_of_them_answer() {
    let both = format!(
        "http://[2001:db8::9]{SERVICE} {} https://192.168.7.9{SERVICE}",
        url(9)
    );
    assert_eq!(found_with("", &both).0, [url(9)]);
    // If the first address does not answer, only the announcement's source is tried, announced or not.
    let dead = format!("http://192.168.7.77{SERVICE} {}", url(10));
    let (urls, host) = found_with("", &dead);
    assert_eq!(urls, [url(9)]);
    assert_eq!(
        reasons(&host, "192.168.7.77"),
        [
            "answer: does not answer GetSystemDateAndTime: unreachable; it was announced from 192.168.7.9"
        ]
    );
    let dead = format!("http://192.168.7.77{SERVICE} {}", url(9));
    assert_eq!(found_with("", &dead).0, [url(9)]);
    assert_eq!(found_with("leafhost.dev/xaddrs: all", &dead).0, [url(9)]);
}

#[test]
fn a_camera_that_tells_little_is_a_device() {
    for (status, body) in [
        (
            500,
            mk_soap(
                "<s:Fault><s:Code><s:Value>s:Receiver</s:Value></s:Code><s:Reason><s:Text>method is not a function</s:Text></s:Reason></s:Fault>",
            ),
        ),
        (200, mk_soap("")),
        (200, Vec::new()),
        (404, b"<html>".to_vec()),
    ] {
        let host =
            announced(mk_network(), 9).http_server("http://192.168.7.9:80", move |request| {
                if String::from_utf8_lossy(&request.body).contains("<GetSystemDateAndTime ") {
                    answer(9, request).into()
                } else {
                    http::Response::new(status, body.clone()).into()
                }
            });
        let found = call("").run(&host).unwrap();
        let device = &found.devices()[0];
        assert_eq!(
            device.get_property("ONVIF_DEVICE_IP_ADDRESS"),
            Some("192.168.7.9")
        );
        assert_eq!(device.get_property("ONVIF_DEVICE_MAC_ADDRESS"), None);
    }
}

#[test]
fn a_host_that_does_not_tell_the_time_is_no_camera() {
    for (status, body, reason) in [
        (200, &b""[..], "no XML"),
        (404, b"", "HTTP status 404"),
        (401, b"<html>", "none for its UUID"),
        (200, b"<!DOCTYPE html><html></html>", "document type"),
    ] {
        let host = announced(mk_network(), 9);
        let host = host.http_server("http://192.168.7.9:80", move |_| {
            http::Response::new(status, body).into()
        });
        let found = call("").run(&host).unwrap();
        assert!(found.devices().is_empty());
        assert!(
            reasons(&host, &url(9))[0].contains(reason),
            "{:?}",
            host.skipped()
        );
    }
}

#[test]
fn a_computer_that_answers_probes_is_explained_and_not_asked() {
    let payload = include_bytes!("../../fixtures/wsdd-match.xml");
    let payload = String::from_utf8_lossy(payload)
        .replace("wsa:RelatesTo", "wsa:Related")
        .into_bytes();
    let host = answering(mk_network(), "192.168.7.5:3702", payload);
    let found = call("").run(&host).unwrap();
    assert!(found.devices().is_empty() && requests(&host).is_empty());
    assert_eq!(
        reasons(&host, "192.168.7.5"),
        ["types: is not an ONVIF device, but wsdp:Device pub:Computer"]
    );
}

#[test]
fn filters_work_as_in_akri_and_explain_what_they_drop() {
    for (details, kept, reason) in [
        ("ipAddresses: {items: [192.168.7.9]}", true, ""),
        (
            "ipAddresses: {items: [192.168.7.10]}",
            false,
            "ipAddresses: has 192.168.7.9, and only listed ones are included",
        ),
        (
            "macAddresses: {action: Exclude, items: ['00:11:22:33:44:09']}",
            false,
            "macAddresses: has 00:11:22:33:44:09, which is excluded",
        ),
        ("macAddresses: {items: ['00:11:22:33:44:09']}", true, ""),
        (
            "scopes: {items: ['onvif://www.onvif.org/type/ptz']}",
            true,
            "",
        ),
        (
            "scopes: {items: ['onvif://www.onvif.org/Profile/T']}",
            false,
            "only listed ones are included",
        ),
        (
            "uuids: {items: ['urn:uuid:00000000-0000-4000-8000-000000000009']}",
            true,
            "",
        ),
        ("uuids: {items: []}", false, "uuids: has"),
    ] {
        let host = with_camera(mk_network(), 9);
        let mut found = call(details).run(&host).unwrap();
        assert_eq!(found.devices().len(), usize::from(kept), "{details}");
        let said = reasons(&host, "");
        assert_eq!(said.is_empty(), kept, "{said:?}");
        assert!(said.iter().all(|one| one.contains(reason)), "{said:?}");
        // A filtered camera is not even pinged again, but still explained.
        let asked = requests(&host).len();
        host.pass(Duration::from_secs(9));
        found = next(&found, details, vec![Event::Timer])
            .run(&host)
            .unwrap();
        assert_eq!(
            (requests(&host).len(), reasons(&host, "").len()),
            (asked + usize::from(kept), 2 * said.len())
        );
        assert_eq!(found.devices, Devices::Unchanged);
    }
}

#[test]
fn a_camera_that_hides_an_address_is_dropped_by_a_filter_on_it() {
    let host = announced(mk_network(), 9).http_server("http://192.168.7.9:80", |request| {
        if String::from_utf8_lossy(&request.body).contains("<GetSystemDateAndTime ") {
            answer(9, request).into()
        } else {
            http::Response::new(401, "").into()
        }
    });
    let found = call("macAddresses: {action: Exclude, items: [a]}")
        .run(&host)
        .unwrap();
    assert!(found.devices().is_empty());
    let said = reasons(&host, &url(9));
    assert!(said[0].starts_with("macAddresses: the camera does not report it, or not without credentials (GetNetworkInterfaces: wants credentials: none for"), "{said:?}");
}

#[test]
fn a_camera_that_ignores_one_probe_is_found_by_the_other() {
    // Hikvision's answer to a probe that it considers invalid.
    let fault = mk_message(
        "fault",
        "<E:Fault><E:Code><E:Value>E:Sender</E:Value><E:Subcode><E:Value>d:MatchingRuleNotSupported</E:Value></E:Subcode></E:Code><E:Reason><E:Text>the xml format error</E:Text></E:Reason></E:Fault>",
    );
    let host = mk_network().udp_peer(GROUP, move |_, payload| {
        let is_liked = String::from_utf8_lossy(payload).contains("<d:Types>tds:Device</d:Types>");
        vec![UdpAnswer {
            after: Duration::ZERO,
            from: "192.168.7.9:3702".parse().unwrap(),
            payload: if is_liked {
                mk_match(&uuid(9), &url(9))
            } else {
                fault.clone()
            },
        }]
    });
    let host = with_service(host, 9);
    let found = call("").run(&host).unwrap();
    assert_eq!(ids(&found), [id(9)]);
    assert_eq!(
        reasons(&host, "192.168.7.9"),
        ["announcement: answers the probe with \"Fault\""]
    );
}

#[test]
fn cameras_with_one_hardware_address_are_two_cameras() {
    let mut host = mk_network();
    for n in [9, 10] {
        host = announced(host, n);
        host = host.http_server(&format!("http://192.168.7.{n}:80"), |request| {
            answer(77, request).into()
        });
    }
    let found = call("").run(&host).unwrap();
    assert_eq!(ids(&found), [id(10), id(9)]);
    let same = |index: usize| found.devices()[index].get_property("ONVIF_DEVICE_MAC_ADDRESS");
    assert_eq!(
        (same(0), same(1)),
        (Some("00:11:22:33:44:4d"), Some("00:11:22:33:44:4d"))
    );
}

#[test]
fn a_timeout_longer_than_a_call_allows_is_shortened_with_a_warning() {
    let host = with_camera(mk_network(), 9);
    let found = call("discoveryTimeoutSeconds: 60").run(&host).unwrap();
    assert_eq!(ids(&found), [id(9)]);
    assert!(host.now() < Duration::from_secs(11));
    assert_eq!(
        host.log()[0].1,
        "discoveryTimeoutSeconds: 60 is reduced to 10, the maximum for a call"
    );
}

#[test]
fn an_answer_has_at_most_the_allowed_number_of_devices() {
    let mut host = mk_network();
    for n in 10..20 {
        host = with_camera(host, n);
    }
    let budget = Budget {
        devices: 4,
        ..budget()
    };
    let found = call("").budget(budget).run(&host).unwrap();
    assert_eq!(found.devices().len(), 4);
    assert!(reasons(&host, "cameras")[0].starts_with("limits.devices"));
}

//! Tests of cameras that are probed one by one.

use super::*;

fn far_url(address: &str) -> String {
    format!("http://{address}{SERVICE}")
}

/// Adds a camera at an address that only a probe to the address reaches.
fn with_far(host: FakeHost, address: &str, n: u32, from: &str) -> FakeHost {
    let answer_from = format!("{from}:3702").parse().unwrap();
    let payload = mk_match(&uuid(n), &far_url(address));
    host.udp_peer(format!("{address}:3702"), move |_, _| {
        vec![UdpAnswer {
            after: Duration::from_millis(30),
            from: answer_from,
            payload: payload.clone(),
        }]
    })
    .http_server(&format!("http://{address}:80"), move |request| {
        answer(n, request).into()
    })
}

/// Returns the targets of the datagrams that were sent to no group.
fn unicasts(host: &FakeHost) -> Vec<String> {
    let contacts = host.contacts().into_iter().map(|contact| contact.to);
    let groups = ["udp 239.", "udp [ff02"];
    contacts
        .filter(|to| to.starts_with("udp ") && !groups.iter().any(|group| to.starts_with(group)))
        .collect()
}

#[test]
fn listed_addresses_are_probed() {
    let host = with_far(mk_network(), "10.20.0.5", 9, "10.20.0.5");
    let details = "addresses: [10.20.0.5, 10.20.0.6]";
    let found = call(details).run(&host).unwrap();
    let expected = format!("{}-{}", far_url("10.20.0.5"), uuid(9));
    assert_eq!(ids(&found), [expected], "{:?}", host.skipped());
    let probed: Vec<String> = ["10.20.0.5", "10.20.0.5", "10.20.0.6", "10.20.0.6"]
        .map(|address| format!("udp {address}:3702"))
        .into();
    assert_eq!(unicasts(&host), probed);
    host.pass(Duration::from_secs(9));
    let again = next(&found, details, vec![Event::Timer])
        .run(&host)
        .unwrap();
    assert_eq!(again.devices, Devices::Unchanged);
    let found = call("").run(&host).unwrap();
    assert!(found.devices().is_empty());
}

#[test]
fn an_answer_of_another_host_does_not_count() {
    let host = with_far(mk_network(), "10.20.0.5", 9, "10.20.0.66");
    let found = call("addresses: [10.20.0.5]").run(&host).unwrap();
    assert!(found.devices().is_empty());
    assert_eq!(
        reasons(&host, "10.20.0.66"),
        ["addresses: answers a probe that was sent to another address"]
    );
}

#[test]
fn a_network_is_probed_in_parts_and_slowly() {
    let mut host = mk_network();
    for n in [1, 200] {
        let address = format!("10.20.1.{n}");
        host = with_far(host, &address, n, &address);
    }
    let details = "addresses: [10.20.0.0/23]";
    let mut found = call(details).run(&host).unwrap();
    assert_eq!(unicasts(&host).len(), 512);
    assert!(host.now() > Duration::from_secs(2));
    assert!(host.now() < Duration::from_secs(9), "{:?}", host.now());
    let mut known = found.clone();
    for _ in 0..2 {
        host.pass(Duration::from_secs(9));
        found = next(&found, details, vec![Event::Timer])
            .run(&host)
            .unwrap();
        if found.devices != Devices::Unchanged {
            known = found.clone();
        }
    }
    let first = host.contacts();
    let has = |address: &str| {
        first
            .iter()
            .any(|one| one.to == format!("udp {address}:3702"))
    };
    assert!(has("10.20.0.1") && has("10.20.1.254") && !has("10.20.1.255"));
    assert_eq!(known.devices().len(), 2, "{:?}", ids(&known));
}

#[test]
fn an_address_that_is_not_granted_is_explained_with_the_grants() {
    let host = mk_network();
    let host = (1..255).fold(host, |host, n| host.deny(format!("10.20.0.{n}:3702")));
    let found = call("addresses: [10.20.0.0/24]").run(&host).unwrap();
    assert!(found.devices().is_empty());
    assert_eq!(
        reasons(&host, "10.20.0.0/24"),
        [
            "addresses: the grants do not allow a probe to 10.20.0.1:3702: add \"10.20.0.0/24:3702\" to network.udp, and \"10.20.0.0/24:*\" to network.http"
        ]
    );
}

#[test]
fn a_camera_behind_address_translation_is_found_at_the_address_that_was_asked() {
    let host = mk_network().udp_peer("10.20.0.5:13702", |_, _| {
        vec![UdpAnswer {
            after: Duration::ZERO,
            from: "10.20.0.5:13702".parse().unwrap(),
            payload: mk_match(&uuid(9), "http://192.168.1.5:8080/onvif/device_service"),
        }]
    });
    let host = host.http_server("http://10.20.0.5:8080", |request| answer(9, request).into());
    let found = call("addresses: ['10.20.0.5:13702']").run(&host).unwrap();
    let url = "http://10.20.0.5:8080/onvif/device_service";
    assert_eq!(ids(&found), [format!("{url}-{}", uuid(9))]);
}

#[test]
fn an_included_address_that_no_probe_reaches_is_reported() {
    let include = "ipAddresses: {items: [10.20.0.5, 192.168.7.9, 10.20.0.0/24]}";
    for (more, count) in [("", 1), ("\naddresses: [10.20.0.5]", 0)] {
        let host = mk_network();
        call(&format!("{include}{more}")).run(&host).unwrap();
        let said = reasons(&host, "10.20.0.5");
        assert_eq!(said.len(), count, "{said:?}");
        assert!(
            said.iter()
                .all(|one| one.contains("list it in `addresses`"))
        );
    }
    let host = mk_network();
    call("ipAddresses: {action: Exclude, items: [10.20.0.5]}")
        .run(&host)
        .unwrap();
    assert!(reasons(&host, "10.20.0.5").is_empty());
}

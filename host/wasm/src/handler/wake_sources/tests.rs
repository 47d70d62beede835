use std::sync::Arc;

use leafhost_grants::Grants;
use leafhost_net::{Interfaces, Network};
use tokio::sync::watch;

use super::*;

fn rule(value: &str) -> types::Wake {
    types::Wake::Udev(vec![udev_types::Term {
        field: udev_types::Field::Subsystem,
        key: None,
        negated: false,
        value: value.to_owned(),
    }])
}

fn sources(devices: DeviceEvents) -> WakeSources {
    WakeSources {
        devices,
        network: Err("no netlink".into()),
    }
}

/// Returns sources with device events and two multicast groups.
fn granted() -> WakeSources {
    let grants = Grants::parse("network: {multicast: ['239.255.255.250:3702', '[ff02::c]:3702']}");
    let (_, interfaces) = watch::channel(Arc::new(Interfaces::default()));
    let grants = Arc::new(grants.unwrap().network.unwrap());
    WakeSources {
        devices: DeviceEvents::Available,
        network: Ok(Policy::new(grants, Network::fixed(interfaces))),
    }
}

fn multicast(group: &str, port: u16, contains: &[&[u8]]) -> types::Wake {
    types::Wake::Multicast(types::MulticastFilter {
        group: group.into(),
        port,
        contains: contains.iter().map(|string| string.to_vec()).collect(),
    })
}

#[test]
fn wakes_with_a_source_are_served_and_the_rest_named() {
    let list = || {
        vec![
            types::Wake::After(9000),
            types::Wake::After(5000),
            rule("usb"),
            rule("block"),
            rule(&"x".repeat(2000)),
            types::Wake::Network,
            types::Wake::Network,
            multicast("239.255.255.250", 3702, &[b"Hello"]),
        ]
    };
    let unavailable = || sources(DeviceEvents::Unavailable("no netlink".into()));
    for (sources, rules, words) in [
        (sources(DeviceEvents::Available), 2, "bytes"),
        (
            sources(DeviceEvents::NotGranted),
            0,
            "the grant `udev` is missing",
        ),
        (unavailable(), 0, "no netlink; called every 60 s instead"),
    ] {
        let wakes = sources.wakes(list(), &Secrets::default());
        assert_eq!(wakes.after, Some(Duration::from_secs(5)));
        assert_eq!(wakes.udev.len(), rules);
        assert!(!wakes.network && wakes.multicast.is_empty());
        let refused = wakes.refused.join("\n");
        assert!(refused.contains(words), "{refused}");
        assert!(refused.contains("multicast 239.255.255.250:3702: no netlink"));
        assert_eq!(refused.matches("network: ").count(), 1, "{refused}");
    }
    let wakes = unavailable().wakes(vec![rule("usb")], &Secrets::default());
    assert_eq!(wakes.after, Some(INSTEAD_OF_EVENTS));
}

#[test]
fn the_rules_of_all_wakes_are_bounded_together() {
    let types::Wake::Udev(rule) = rule("usb") else {
        panic!("a rule");
    };
    let long = types::Wake::Udev(vec![rule[0].clone(); 30]);
    let wakes = sources(DeviceEvents::Available).wakes(vec![long; 10], &Secrets::default());
    assert_eq!(wakes.udev.len(), 8);
    assert_eq!(wakes.refused.len(), 1);
    assert!(wakes.refused[0].contains("more than 256 terms"));
}

#[test]
fn a_group_wakes_if_it_is_granted_and_the_filter_within_its_bounds() {
    let long = [b'x'; 65];
    for (wake, words) in [
        (multicast("239.255.255.250", 3702, &[b"Hello"]), ""),
        (multicast("ff02:0::c", 3702, &[b"Hello", b"dn:"]), ""),
        (multicast("::ffff:239.255.255.250", 3702, &[b"a"]), ""),
        (
            multicast("239.255.255.250", 1900, &[b"a"]),
            "multicast 239.255.255.250:1900: listen to 239.255.255.250:1900: no entry of `network.multicast`",
        ),
        (multicast("224.0.0.251", 5353, &[b"a"]), "no entry of"),
        (multicast("10.0.0.1", 3702, &[b"a"]), "not a multicast"),
        (multicast("cameras", 3702, &[b"a"]), "not an IP address"),
        (multicast("239.255.255.250", 3702, &[]), "1 to 8 strings"),
        (multicast("239.255.255.250", 3702, &[b""]), "1 to 64 bytes"),
        (
            multicast("239.255.255.250", 3702, &[&long]),
            "1 to 64 bytes",
        ),
        (
            multicast("239.255.255.250", 3702, &[&b"a"[..]; 9]),
            "1 to 8 strings",
        ),
    ] {
        let wakes = granted().wakes(vec![wake], &Secrets::default());
        let refused = wakes.refused.join("\n");
        assert!(refused.contains(words), "{refused}");
        assert_eq!(wakes.multicast.len(), usize::from(words.is_empty()));
    }
    let many = vec![multicast("239.255.255.250", 3702, &[&b"a"[..]; 8]); 20];
    let wakes = granted().wakes(many, &Secrets::default());
    assert_eq!(wakes.multicast.len(), 8);
    assert!(wakes.refused[0].contains("more than 64 strings"));
    let wakes = granted().wakes(vec![types::Wake::Network], &Secrets::default());
    assert!(wakes.network && wakes.refused.is_empty());
}

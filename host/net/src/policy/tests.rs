mod ended;

use std::net::SocketAddr;
use std::sync::Arc;

use tokio::sync::watch;

use super::{Denied, Policy, ranges};
use crate::grants::NetworkGrants;
use crate::{Interface, Interfaces, Network};

/// Builds an interface that is up and can multicast, except for `lo`.
fn mk_interface(name: &str, index: u32, addresses: &[&str]) -> Interface {
    Interface {
        name: name.to_owned(),
        index,
        addresses: addresses.iter().map(|net| net.parse().unwrap()).collect(),
        up: true,
        multicast: name != "lo",
        loopback: name == "lo",
    }
}

/// Builds a node with two LANs and Docker.
fn mk_node() -> Interfaces {
    Interfaces {
        list: vec![
            mk_interface("lo", 1, &["127.0.0.1/8", "::1/128"]),
            mk_interface(
                "eth0",
                2,
                &["192.168.7.20/24", "fe80::20/64", "2001:db8:7::20/64"],
            ),
            mk_interface("eth1", 3, &["10.1.0.20/16", "fe80::21/64"]),
            mk_interface("docker0", 4, &["172.17.0.1/16", "fe80::1/64"]),
            mk_interface("br-0123456789ab", 5, &["172.18.0.1/16"]),
            mk_interface("tailscale0", 6, &["100.64.0.7/32"]),
        ],
        local: [
            "127.0.0.0/8",
            "10.5.0.0/24",
            "2001:db8:5::/64",
            "fe80::77/128",
        ]
        .map(|net| net.parse().unwrap())
        .into(),
    }
}

fn mk_sender(interfaces: Interfaces) -> (watch::Sender<Arc<Interfaces>>, Network) {
    let (sender, receiver) = watch::channel(Arc::new(interfaces));
    (sender, Network::fixed(receiver))
}

fn mk_policy(grants: NetworkGrants) -> Policy {
    Policy::new(Arc::new(grants), mk_sender(mk_node()).1)
}

fn parsed<T: std::str::FromStr<Err = String>>(entries: &[&str]) -> Vec<T> {
    entries.iter().map(|entry| entry.parse().unwrap()).collect()
}

fn tcp(entries: &[&str]) -> Policy {
    mk_policy(NetworkGrants {
        tcp: parsed(entries),
        ..NetworkGrants::default()
    })
}

fn udp(entries: &[&str]) -> Policy {
    mk_policy(NetworkGrants {
        udp: parsed(entries),
        ..NetworkGrants::default()
    })
}

fn http(entries: &[&str]) -> Policy {
    mk_policy(NetworkGrants {
        http: parsed(entries),
        ..NetworkGrants::default()
    })
}

fn at(address: &str) -> SocketAddr {
    address.parse().unwrap()
}

fn is_ok(result: &Result<(), Denied>) -> bool {
    result.is_ok()
}

/// Checks connections; columns: entries, address, expected permission.
fn connects(table: &[(&[&str], &str, bool)]) {
    for (entries, address, allowed) in table {
        let result = tcp(entries).connect(at(address));
        assert_eq!(
            is_ok(&result),
            *allowed,
            "{entries:?} {address}: {result:?}"
        );
    }
}

#[test]
fn an_entry_allows_its_network_and_its_ports() {
    connects(&[
        (&["10.9.0.0/16:4840-4850"], "10.9.1.2:4840", true),
        (&["10.9.0.0/16:4840-4850"], "10.9.1.2:4850", true),
        (&["10.9.0.0/16:4840-4850"], "10.9.1.2:4851", false),
        (&["10.9.0.0/16:4840-4850"], "10.8.1.2:4840", false),
        (&["10.8.1.2:80", "10.9.0.0/16:*"], "10.9.1.2:1", true),
        (&["10.9.0.0/16:*"], "10.9.1.2:0", false),
        (&["[2001:db8::]/32:80"], "[2001:db8:1::5]:80", true),
        (&["0.0.0.0/0:80"], "[2001:db8:1::5]:80", false),
        (&[], "10.9.1.2:80", false),
    ]);
}

#[test]
fn a_kind_of_entry_allows_nothing_of_another_kind() {
    let address = at("192.168.7.9:80");
    assert!(tcp(&["lan:80"]).send(address).is_err());
    assert!(tcp(&["lan:80"]).request("192.168.7.9", address).is_err());
    assert!(udp(&["lan:80"]).connect(address).is_err());
    assert!(http(&["lan:80"]).connect(address).is_err());
}

#[test]
fn lan_is_what_the_granted_interfaces_are_attached_to() {
    connects(&[
        (&["lan:80"], "192.168.7.9:80", true),
        (&["lan:80"], "10.1.255.9:80", true),
        (&["lan:80"], "[2001:db8:7::9]:80", true),
        (&["lan:80"], "192.168.8.9:80", false),
        (&["lan:80"], "8.8.8.8:80", false),
        (&["lan:80"], "172.17.0.2:80", false),
        (&["lan:80"], "172.18.0.2:80", false),
        (&["lan:80"], "100.64.0.8:80", false),
        (&["lan:80"], "[fe80::9%2]:80", false),
        (&["lan:80"], "192.168.7.9:81", false),
    ]);
}

#[test]
fn lan_follows_the_interfaces() {
    let (sender, network) = mk_sender(Interfaces::default());
    let grants = NetworkGrants {
        tcp: parsed(&["lan:80"]),
        ..NetworkGrants::default()
    };
    let policy = Policy::new(Arc::new(grants), network);
    let camera = at("192.168.7.9:80");
    assert!(policy.connect(camera).is_err());
    sender.send_replace(Arc::new(mk_node()));
    assert_eq!(policy.connect(camera), Ok(()));
    let mut down = mk_node();
    down.list[1].up = false;
    sender.send_replace(Arc::new(down));
    assert!(policy.connect(camera).is_err());
}

#[test]
fn interfaces_are_chosen_by_name_else_by_what_they_are() {
    let names = |patterns: &[&str]| -> Vec<String> {
        let mut node = mk_node();
        let extra = [
            ("br0", &["10.2.0.1/24"][..]),
            ("br-lan", &["10.3.0.1/24"]),
            ("bridged", &[]),
            ("vethd34db33f", &["10.4.0.1/24"]),
            ("cni0", &["10.5.0.1/24"]),
            ("calid00dfeed123", &["10.6.0.1/24"]),
            ("virbr0", &["192.168.122.1/24"]),
        ];
        for (index, (name, addresses)) in (7..).zip(extra) {
            node.list.push(mk_interface(name, index, addresses));
        }
        let mut point = mk_interface("ppp0", 20, &["10.7.0.1/32"]);
        point.multicast = false;
        node.list.push(point);
        let mut unplugged = mk_interface("eth2", 21, &["10.8.0.1/24"]);
        unplugged.up = false;
        node.list.push(unplugged);
        let grants = NetworkGrants {
            interfaces: patterns.iter().map(|p| (*p).to_owned()).collect(),
            ..NetworkGrants::default()
        };
        let policy = Policy::new(Arc::new(grants), mk_sender(node).1);
        policy.interfaces().into_iter().map(|i| i.name).collect()
    };
    assert_eq!(names(&[]), ["eth0", "eth1", "tailscale0", "br0", "br-lan"]);
    assert_eq!(names(&["eth*"]), ["eth0", "eth1"]);
    assert_eq!(
        names(&["eth1", "docker*", "ppp?"]),
        ["eth1", "docker0", "ppp0"]
    );
    assert_eq!(names(&["wlan*"]), Vec::<String>::new());
    assert_eq!(names(&["[", "***"]), Vec::<String>::new());
}

#[test]
fn every_fixed_range_is_a_network() {
    assert_eq!(ranges::fixed().len(), ranges::FIXED.len());
}

#[test]
fn a_wide_network_has_no_special_address() {
    let everything: &[&str] = &["0.0.0.0/0:*", "[::]/0:*", "lan:*"];
    for address in [
        "0.0.0.0:80",
        "0.1.2.3:80",
        "127.0.0.1:80",
        "127.9.9.9:80",
        "[::1]:80",
        "[::]:80",
        "169.254.3.4:80",
        "[fe80::9%2]:80",
        "169.254.169.254:80",
        "168.63.129.16:80",
        "100.100.100.200:80",
        "[fd00:ec2::254]:80",
        "[fd20:ce::254]:80",
        "239.255.255.250:80",
        "[ff02::c%2]:80",
        "255.255.255.255:80",
        "192.168.7.255:80",
        "192.168.7.0:80",
        "192.168.7.20:80",
        "[2001:db8:7::20]:80",
        "100.64.0.7:80",
        "172.17.0.1:80",
        "172.17.0.2:80",
        "172.18.255.254:80",
        // The node itself, if it forwards, and by its local routes.
        "[2001:db8:7::]:80",
        "10.5.0.1:80",
        "[2001:db8:5::1]:80",
        "[64:ff9b::10.5.0.1]:80",
        // IPv4 addresses behind NAT64, 6to4 and automatic tunnels.
        "[64:ff9b::127.0.0.1]:80",
        "[64:ff9b::169.254.169.254]:80",
        "[64:ff9b::192.168.7.20]:80",
        "[64:ff9b::172.18.0.2]:80",
        "[64:ff9b:1::169.254.169.254]:80",
        // Only the gateway knows where these contain the IPv4 address.
        "[64:ff9b:1::8.8.8.8]:80",
        "[64:ff9b:1:a9fe:a9:fe00::]:80",
        "[64:ff9b:1:7700::7]:80",
        "[2002:7f00:1::1]:80",
        "[2002:a9fe:a9fe::9]:80",
        "[::ffff:0:127.0.0.1]:80",
        "[::127.0.0.1]:80",
        "[::169.254.169.254]:80",
    ] {
        let result = tcp(everything).connect(at(address));
        assert!(result.is_err(), "{address}");
        let result = udp(everything).send(at(address));
        assert!(result.is_err(), "{address}");
        let result = http(everything).request("camera", at(address));
        assert!(result.is_err(), "{address}");
    }
    for address in ["8.8.8.8:80", "[2001:db8:7::9]:80", "[64:ff9b::8.8.8.8]:80"] {
        assert_eq!(tcp(everything).connect(at(address)), Ok(()), "{address}");
    }
}

#[test]
fn an_entry_inside_a_special_range_allows_what_it_has_of_it() {
    connects(&[
        (&["127.0.0.0/8:4840"], "127.0.0.1:4840", true),
        (&["127.0.0.1:4840"], "127.0.0.2:4840", false),
        (&["126.0.0.0/7:4840"], "127.0.0.1:4840", false),
        (&["[::1]:4840"], "[::1]:4840", true),
        (&["169.254.3.0/24:80"], "169.254.3.4:80", true),
        (&["169.254.0.0/16:80"], "169.254.169.254:80", false),
        (&["169.254.169.254:80"], "169.254.169.254:80", true),
        (&["192.168.7.0/24:80"], "192.168.7.20:80", false),
        (&["192.168.7.20:80"], "192.168.7.20:80", true),
        (&["172.16.0.0/12:80"], "172.17.0.2:80", false),
        (&["172.17.0.0/16:80"], "172.17.0.2:80", true),
        (&["172.17.0.0/16:80"], "172.17.0.1:80", false),
        (&["172.17.0.0/16:80"], "172.18.0.2:80", false),
        (&["[64:ff9b::]/96:80"], "[64:ff9b::127.0.0.1]:80", false),
        (&["10.5.0.0/16:80"], "10.5.0.1:80", false),
        (&["10.5.0.0/25:80"], "10.5.0.1:80", true),
        (&["[fe80::]/10:80"], "[fe80::77%2]:80", true),
        (&["[64:ff9b::]/47:80"], "[64:ff9b:1:2::7]:80", false),
        (&["[64:ff9b:1:2::]/64:80"], "[64:ff9b:1:2::7]:80", true),
        (&["[64:ff9b:1::]/96:80"], "[64:ff9b:1::127.0.0.1]:80", false),
        (
            &["[64:ff9b::7f00:0]/104:80"],
            "[64:ff9b::127.0.0.1]:80",
            true,
        ),
    ]);
    let groups = udp(&["239.0.0.0/8:3702", "192.168.7.255:9", "255.255.255.255:9"]);
    assert_eq!(groups.send(at("239.255.255.250:3702")), Ok(()));
    assert_eq!(groups.send(at("192.168.7.255:9")), Ok(()));
    assert_eq!(groups.send(at("255.255.255.255:9")), Ok(()));
    assert!(groups.send(at("224.0.0.251:3702")).is_err());
}

#[test]
fn a_containers_network_is_lan_once_its_interface_is_named() {
    let grants = NetworkGrants {
        interfaces: vec!["docker0".to_owned()],
        tcp: parsed(&["lan:80"]),
        ..NetworkGrants::default()
    };
    let policy = mk_policy(grants);
    assert_eq!(policy.connect(at("172.17.0.2:80")), Ok(()));
    assert!(policy.connect(at("172.17.0.1:80")).is_err());
    assert!(policy.connect(at("172.18.0.2:80")).is_err());
    assert!(policy.connect(at("192.168.7.9:80")).is_err());
}

#[test]
fn an_address_of_one_link_needs_the_scope_of_a_granted_interface() {
    connects(&[
        (&["[fe80::]/10:80"], "[fe80::9%2]:80", true),
        (&["[fe80::]/10:80"], "[fe80::9%3]:80", true),
        (&["[fe80::]/10:80"], "[fe80::9%4]:80", false),
        (&["[fe80::]/10:80"], "[fe80::9%99]:80", false),
        (&["[fe80::]/10:80"], "[fe80::9]:80", false),
    ]);
    let groups = udp(&["[ff02::c]:3702"]);
    assert_eq!(groups.send(at("[ff02::c%3]:3702")), Ok(()));
    assert!(groups.send(at("[ff02::c%4]:3702")).is_err());
    let denied = groups.send(at("[ff02::c]:3702")).unwrap_err();
    assert_eq!(
        denied.0,
        "send to [ff02::c]:3702: needs the scope id of an interface that is up and granted"
    );
}

#[test]
fn a_wrapped_ipv4_address_is_that_address() {
    connects(&[
        (&["lan:80"], "[::ffff:192.168.7.9]:80", true),
        (&["[::]/0:80"], "[::ffff:8.8.8.8]:80", false),
        (&["[::ffff:0:0]/96:80"], "[::ffff:127.0.0.1]:80", false),
        (&["0.0.0.0/0:80"], "[::ffff:127.0.0.1]:80", false),
        (&["0.0.0.0/0:80"], "[::ffff:169.254.169.254]:80", false),
        (&["127.0.0.1:80"], "[::ffff:127.0.0.1]:80", true),
    ]);
    let policy = udp(&["lan:*"]);
    assert_eq!(policy.bind(at("[::ffff:192.168.7.20]:0")), Ok(()));
    assert!(policy.bind(at("[::ffff:127.0.0.1]:0")).is_err());
}

#[test]
fn a_free_port_of_an_own_address_can_be_bound() {
    let policy = udp(&["lan:*"]);
    for (address, allowed) in [
        ("0.0.0.0:0", true),
        ("[::]:0", true),
        ("192.168.7.20:0", true),
        ("[2001:db8:7::20]:0", true),
        ("[fe80::20%2]:0", true),
        ("[fe80::20%3]:0", false),
        ("[fe80::20]:0", false),
        ("[fe80::1%4]:0", false),
        ("172.17.0.1:0", false),
        ("127.0.0.1:0", false),
        ("192.168.7.9:0", false),
        ("0.0.0.0:3702", false),
        ("192.168.7.20:80", false),
    ] {
        assert_eq!(is_ok(&policy.bind(at(address))), allowed, "{address}");
    }
    assert!(tcp(&["lan:80"]).bind(at("0.0.0.0:0")).is_ok());
    let denied = http(&["lan:80"]).bind(at("0.0.0.0:0")).unwrap_err();
    assert_eq!(
        denied.0,
        "bind to 0.0.0.0:0: neither `network.udp` nor `network.tcp` has entries"
    );
}

#[test]
fn without_a_bound_address_a_group_is_asked_where_no_interface_leads_elsewhere() {
    let policy = |interfaces: &[&str]| {
        mk_policy(NetworkGrants {
            interfaces: interfaces.iter().map(|name| (*name).to_owned()).collect(),
            udp: parsed(&["239.255.255.250:3702", "lan:*"]),
            ..NetworkGrants::default()
        })
    };
    let group = at("239.255.255.250:3702");
    assert_eq!(policy(&["*"]).send_unbound(group), Ok(()));
    let denied = policy(&["eth*"]).send_unbound(group).unwrap_err();
    assert_eq!(
        denied.0,
        "send to 239.255.255.250:3702 from 0.0.0.0: it may leave on docker0, which `network.interfaces` does not grant; \
         the handler must bind its sockets to addresses of granted interfaces only"
    );
    for other in ["192.168.7.9:3702", "[ff02::c%2]:3702"] {
        assert_eq!(policy(&["eth*"]).send_unbound(at(other)), Ok(()), "{other}");
    }
    let mut node = mk_node();
    node.list
        .retain(|i| ["lo", "eth0"].contains(&i.name.as_str()));
    let mut down = mk_interface("eth1", 3, &["10.1.0.20/16"]);
    down.up = false;
    node.list.push(down);
    node.list.push(mk_interface("cali0", 4, &["fe80::9/64"]));
    let grants = NetworkGrants {
        interfaces: vec!["eth0".to_owned()],
        ..NetworkGrants::default()
    };
    let usual = Policy::new(Arc::new(grants), mk_sender(node).1);
    assert_eq!(usual.send_unbound(group), Ok(()));
}

/// Checks receiving; columns: entries, addresses sent to, sender, expected permission.
fn receives(table: &[(&[&str], &[&str], &str, bool)]) {
    for (entries, asked, from, allowed) in table {
        let asked_addresses: Vec<_> = asked.iter().map(|address| at(address)).collect();
        let result = udp(entries).receive(at(from), &asked_addresses);
        assert_eq!(is_ok(&result), *allowed, "{entries:?} {asked:?} {from}");
    }
}

#[test]
fn what_a_group_was_asked_anybody_in_lan_may_answer_from_any_port() {
    let v4: &[&str] = &["239.255.255.250:3702"];
    let v6: &[&str] = &["[ff02::c]:3702"];
    receives(&[
        (v4, &["239.255.255.250:3702"], "192.168.7.9:3702", true),
        (v4, &["239.255.255.250:3702"], "10.1.0.9:49152", true),
        (v4, &[], "192.168.7.9:3702", false),
        (v4, &["239.255.255.250:3702"], "8.8.8.8:3702", false),
        (v4, &["239.255.255.250:3702"], "172.17.0.2:3702", false),
        (v4, &["239.255.255.250:3702"], "127.0.0.1:3702", false),
        (v4, &["239.255.255.250:3702"], "192.168.7.20:3702", false),
        (v4, &["239.255.255.250:3702"], "[fe80::9%2]:3702", false),
        (v4, &["239.255.255.250:3702"], "[2001:db8:7::9]:3702", false),
        (v6, &["[ff02::c%2]:3702"], "[fe80::9%2]:49152", true),
        (v6, &["[ff02::c%2]:3702"], "[2001:db8:7::9]:49152", true),
        (v6, &["[ff02::c%2]:3702"], "[fe80::9%3]:49152", false),
        (v6, &["[ff02::c%2]:3702"], "[fe80::9]:49152", false),
        (v6, &["[ff02::c%3]:3702"], "[2001:db8:7::9]:49152", false),
        (v6, &["[ff02::c%4]:3702"], "[fe80::9%4]:49152", false),
        (v6, &["[ff02::c%2]:3702"], "192.168.7.9:3702", false),
        (v6, &[], "[fe80::9%2]:3702", false),
    ]);
}

#[test]
fn a_peer_may_answer_if_it_was_asked_or_is_granted() {
    let lan: &[&str] = &["lan:161"];
    receives(&[
        (lan, &[], "192.168.7.9:161", true),
        (lan, &[], "192.168.7.9:49152", false),
        (lan, &["192.168.7.9:161"], "192.168.7.9:49152", true),
        (lan, &["192.168.7.8:161"], "192.168.7.9:49152", false),
        (
            lan,
            &["192.168.7.9:161"],
            "[::ffff:192.168.7.9]:49152",
            true,
        ),
        (lan, &["[fe80::9%2]:161"], "[fe80::9%3]:161", false),
    ]);
}

#[test]
fn a_request_goes_by_address_or_by_name() {
    let policy = http(&[
        "lan:80",
        "api.example.com:443",
        "127.0.0.0/8:8443",
        "local.example:*",
    ]);
    for (host, address, allowed) in [
        ("192.168.7.9", "192.168.7.9:80", true),
        ("camera", "192.168.7.9:80", true),
        ("192.168.7.9", "192.168.7.9:443", false),
        ("api.example.com", "93.184.216.34:443", true),
        ("API.example.COM.", "93.184.216.34:443", true),
        ("api.example.com", "[2606:2800::1]:443", true),
        ("api.example.com", "93.184.216.34:80", false),
        ("example.com", "93.184.216.34:443", false),
        ("evil.api.example.com", "93.184.216.34:443", false),
        ("93.184.216.34", "93.184.216.34:443", false),
        ("api.example.com", "127.0.0.1:443", false),
        ("api.example.com", "[::ffff:127.0.0.1]:443", false),
        ("api.example.com", "169.254.169.254:443", false),
        ("api.example.com", "192.168.7.20:443", false),
        ("api.example.com", "172.17.0.2:443", false),
        ("api.example.com", "192.168.7.9:443", true),
        ("local.example", "127.0.0.1:8443", true),
        ("local.example", "127.0.0.1:8444", false),
        ("local.example", "93.184.216.34:0", false),
    ] {
        let result = policy.request(host, at(address));
        assert_eq!(is_ok(&result), allowed, "{host} {address}: {result:?}");
    }
}

#[test]
fn a_name_is_looked_up_if_a_pattern_or_a_request_has_it() {
    let policy = mk_policy(NetworkGrants {
        names: vec!["plc*".to_owned(), "*.Site.example".to_owned()],
        http: parsed(&["api.example.com:443"]),
        ..NetworkGrants::default()
    });
    let long = format!("plc{}", "a".repeat(61));
    let longest = ["plc", &"a".repeat(60), ".", &"b".repeat(63)].concat();
    let too_long = format!("plc.{}", "a.".repeat(130));
    for (name, allowed) in [
        ("plc1", true),
        ("PLC1.", true),
        ("plc_1.factory", true),
        ("a.b.site.EXAMPLE", true),
        ("site.example", false),
        ("api.example.com", true),
        ("Api.Example.com.", true),
        ("example.com", false),
        ("localhost", false),
        ("a.localhost", false),
        ("192.168.7.9", true),
        ("[2001:db8::1]", true),
        ("", false),
        (".", false),
        ("plc1..", false),
        ("plc 1", false),
        ("plc1\0.site.example", false),
        (&long, false),
        (&longest, true),
        (&too_long, false),
    ] {
        let result = policy.look_up(name);
        assert_eq!(is_ok(&result), allowed, "{name}: {result:?}");
    }
    assert!(mk_policy(NetworkGrants::default()).look_up("plc1").is_err());
}

#[test]
fn a_group_wakes_if_it_is_granted_with_its_port() {
    let policy = mk_policy(NetworkGrants {
        multicast: parsed(&["239.255.255.250:3702", "[ff02::c]:3702", "10.0.0.1:80"]),
        ..NetworkGrants::default()
    });
    for (group, port, allowed) in [
        ("239.255.255.250", 3702, true),
        ("ff02::c", 3702, true),
        ("239.255.255.250", 3703, false),
        ("239.255.255.251", 3702, false),
        ("10.0.0.1", 80, false),
    ] {
        let result = policy.listen(group.parse().unwrap(), port);
        assert_eq!(is_ok(&result), allowed, "{group} {port}");
    }
    assert!(
        udp(&["239.255.255.250:3702"])
            .listen("239.255.255.250".parse().unwrap(), 3702)
            .is_err()
    );
}

#[test]
fn a_denial_says_what_was_attempted_and_what_would_allow_it() {
    let wide = tcp(&["0.0.0.0/0:80"]);
    for (denied, text) in [
        (
            wide.connect(at("10.0.0.5:81")),
            "connect to 10.0.0.5:81: no entry of `network.tcp` has it",
        ),
        (
            wide.connect(at("127.0.0.1:80")),
            "connect to 127.0.0.1:80: loopback is in no wide network; an entry of `network.tcp` inside 127.0.0.0/8 \
             would allow it",
        ),
        (
            wide.connect(at("[::ffff:169.254.169.254]:80")),
            "connect to 169.254.169.254:80: a cloud's metadata service is in no wide network; an entry of \
             `network.tcp` inside 169.254.169.254/32 would allow it",
        ),
        (
            wide.connect(at("172.18.0.9:80")),
            "connect to 172.18.0.9:80: the containers' network on br-0123456789ab is in no wide network; an entry of \
             `network.tcp` inside 172.18.0.0/16 would allow it",
        ),
        (
            wide.request("camera.example", at("10.0.0.5:80")),
            "send a request for \"camera.example\" to 10.0.0.5:80: no entry of `network.http` has it",
        ),
        (
            wide.look_up("camera.example"),
            "look up \"camera.example\": no entry of `network.names` or `network.http` has it",
        ),
        (
            wide.listen("239.255.255.250".parse().unwrap(), 3702),
            "listen to 239.255.255.250:3702: no entry of `network.multicast` has it",
        ),
    ] {
        assert_eq!(denied.unwrap_err().0, text);
    }
}

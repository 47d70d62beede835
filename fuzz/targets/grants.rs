//! Fuzzes grants files: whatever is accepted allows no more than it says.
#![no_main]

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use leafhost_fuzz::glob::{Dialect, fits};
use leafhost_fuzz::within;
use leafhost_grants::{DeviceGrants, Grants, MAX_TEXT, NetworkGrants};
use leafhost_net::grants::{HostPorts, NetPorts};
use leafhost_net::{Interface, Interfaces, Network, Policy};
use libfuzzer_sys::fuzz_target;
use tokio::sync::watch;

fuzz_target!(|data: &[u8]| {
    let Ok(text) = std::str::from_utf8(data) else {
        return;
    };
    match within(Duration::from_secs(1), || Grants::parse(text)) {
        Ok(grants) => {
            assert!(text.len() <= MAX_TEXT);
            limits(&grants);
            absent(text, &grants);
            within(Duration::from_secs(1), || devices(&grants.devices));
            if let Some(network) = &grants.network {
                within(Duration::from_secs(1), || reach(network));
            }
        }
        Err(problems) => {
            assert!(!problems.is_empty());
            let words: usize = problems
                .iter()
                .map(|p| p.path.len() + p.message.len())
                .sum();
            assert!(
                words <= 4096 + 256 * text.len().min(MAX_TEXT),
                "{words} bytes of problems"
            );
        }
    }
});

fn limits(grants: &Grants) {
    let limits = &grants.limits;
    assert!((64 << 20..=1024 << 20).contains(&limits.memory));
    assert!((2..=60).contains(&limits.cpu.as_secs()));
    assert!((30..=600).contains(&limits.wall.as_secs()));
    assert!((4096..=65_536).contains(&limits.devices));
    assert_eq!(limits.answer, 8 << 20);
}

/// Asserts that nothing is granted that the file does not mention.
fn absent(text: &str, grants: &Grants) {
    if text.contains('\\') {
        return;
    }
    let devices = &grants.devices;
    let has = |word: &str| text.contains(word);
    assert!(has("subsystems") || grants.udev.is_none());
    assert!(has("network") || grants.network.is_none());
    assert!(has("nodes") || (devices.nodes.is_empty() && !devices.udev_nodes));
    assert!(has("mounts") || devices.mounts.is_empty());
    assert!(has("env") || devices.env.is_empty());
    assert!(has("rw") || devices.mounts.iter().all(|mount| !mount.write));
}

fn devices(grants: &DeviceGrants) {
    let paths = [
        "/",
        "/dev",
        "/dev/",
        "/dev/sda",
        "/dev/vfio/7",
        "/dev/vfio/7/8",
        "/dev/../etc/shadow",
        "/devil",
        "/proc",
        "/proc/1/mem",
        "/sys/class",
        "/etc",
        "/etc/shadow",
        "/run/udev",
        "/srv/data",
        "/srv/data/a/b",
        "",
        "dev/sda",
        "/run/.hidden",
        "/a",
    ];
    for path in paths {
        let nodes = grants
            .nodes
            .iter()
            .map(|pattern| fits(Dialect::Paths, pattern.as_str(), path));
        if let Some(expected) = any(nodes) {
            assert_eq!(grants.allows_node(path), expected, "{path}");
        }
        let own = path.starts_with("/dev/") && !path.contains("..");
        assert!(own || !grants.allows_node(path), "{path}");
        let never = ["/", "/dev", "/proc", "/sys", ""].contains(&path)
            || ["/dev/", "/proc/", "/sys/"]
                .iter()
                .any(|root| path.starts_with(root));
        assert!(!never || !grants.allows_mount(path, true), "{path}");
        assert!(
            !grants.allows_mount(path, false) || grants.allows_mount(path, true),
            "{path}"
        );
        for read_only in [true, false] {
            let mounts = grants
                .mounts
                .iter()
                .filter(|grant| read_only || grant.write);
            let mounts = mounts.map(|grant| fits(Dialect::Paths, grant.path.as_str(), path));
            if let Some(expected) = any(mounts) {
                assert_eq!(
                    grants.allows_mount(path, read_only),
                    expected && !never,
                    "{path}"
                );
            }
        }
    }
    for name in [
        "PATH",
        "LD_PRELOAD",
        "LD_",
        "BASH_ENV",
        "no_proxy",
        "KUBERNETES_SERVICE_HOST",
    ] {
        assert!(!grants.allows_env(name), "{name}");
    }
    let long = "a".repeat(500);
    assert!(!grants.env.is_empty() || !grants.allows_env(&long));
}

/// Returns true if one pattern matches, and `None` if none does but some are undecided.
fn any(all: impl Iterator<Item = Option<bool>>) -> Option<bool> {
    let all: Vec<_> = all.collect();
    if all.contains(&Some(true)) {
        return Some(true);
    }
    (!all.contains(&None)).then_some(false)
}

/// Addresses that no wide network includes, each with the range inside which an entry must lie to allow it.
const SPECIAL: [(&str, &str); 16] = [
    ("127.0.0.1", "127.0.0.0/8"),
    ("0.0.0.0", "0.0.0.0/8"),
    ("169.254.1.1", "169.254.0.0/16"),
    ("169.254.169.254", "169.254.169.254"),
    ("168.63.129.16", "168.63.129.16"),
    ("100.100.100.200", "100.100.100.200"),
    ("224.0.0.1", "224.0.0.0/4"),
    ("255.255.255.255", "255.255.255.255"),
    ("192.168.7.20", "192.168.7.20"),
    ("172.17.0.2", "172.17.0.0/16"),
    ("::1", "[::1]"),
    ("::", "[::]"),
    ("ff02::1", "[ff00::]/8"),
    ("fd00:ec2::254", "[fd00:ec2::]/32"),
    ("64:ff9b::7f00:1", "[64:ff9b::7f00:0]/104"),
    ("2002:7f00:1::", "[2002:7f00::]/24"),
];
const ORDINARY: [&str; 5] = [
    "192.168.7.9",
    "10.1.2.3",
    "8.8.8.8",
    "2001:db8:7::9",
    "2001:4860::8888",
];

fn node() -> Network {
    let interface = |name: &str, index, nets: &[&str]| Interface {
        name: name.to_owned(),
        index,
        addresses: nets.iter().filter_map(|net| net.parse().ok()).collect(),
        up: true,
        multicast: name != "lo",
        loopback: name == "lo",
    };
    let list = vec![
        interface("lo", 1, &["127.0.0.1/8", "::1/128"]),
        interface(
            "eth0",
            2,
            &["192.168.7.20/24", "fe80::20/64", "2001:db8:7::20/64"],
        ),
        interface("docker0", 3, &["172.17.0.1/16"]),
    ];
    Network::fixed(
        watch::channel(Arc::new(Interfaces {
            list,
            ..Interfaces::default()
        }))
        .1,
    )
}

/// Entries, and the check that tells which addresses they allow.
type Way<'a> = (&'a [NetPorts], &'a dyn Fn(SocketAddr) -> bool);

fn reach(grants: &NetworkGrants) {
    let policy = Policy::new(Arc::new(grants.clone()), node());
    let http: Vec<NetPorts> = grants
        .http
        .iter()
        .filter_map(|entry| match entry {
            HostPorts::Net(net) => Some(net.clone()),
            HostPorts::Name(name, _) => {
                assert_eq!(*name, name.to_ascii_lowercase());
                assert!(name.parse::<IpAddr>().is_err());
                None
            }
        })
        .collect();
    for entry in grants
        .udp
        .iter()
        .chain(&grants.tcp)
        .chain(&http)
        .chain(&grants.multicast)
    {
        assert!(entry.ports.first > 0 && entry.ports.first <= entry.ports.last);
        assert!(entry.net.is_none_or(|net| net.addr() == net.network()));
    }
    let groups = grants.multicast.iter().filter_map(|entry| entry.net);
    assert!(
        groups
            .clone()
            .all(|net| net.addr().is_multicast() && net.prefix_len() == net.max_prefix_len())
    );
    let ways: [Way<'_>; 3] = [
        (&grants.udp, &|to| policy.send(to).is_ok()),
        (&grants.tcp, &|to| policy.connect(to).is_ok()),
        (&http, &|to| {
            policy.request(&to.ip().to_string(), to).is_ok()
        }),
    ];
    // A grant for the interface of containers includes their network.
    let of_containers = policy
        .interfaces()
        .iter()
        .any(|interface| interface.name == "docker0");
    for (entries, allows) in ways {
        for port in [1, 80, 4840, 65_535] {
            for (address, range) in SPECIAL {
                if of_containers && address == "172.17.0.2" {
                    continue;
                }
                let to = SocketAddr::new(address.parse().expect("an address"), port);
                let range: NetPorts = format!("{range}:*").parse().expect("a range");
                let range = range.net.expect("a range");
                let inside = |entries: &[NetPorts]| {
                    entries.iter().any(|entry| {
                        let own = entry
                            .net
                            .is_some_and(|net| range.contains(&net) && net.contains(&to.ip()));
                        own && entry.ports.contain(port)
                    })
                };
                assert!(inside(entries) || !allows(to), "{to}");
                let named = policy.request("camera.example", to).is_ok();
                assert!(inside(&http) || !named, "{to} by a name");
            }
            for address in ORDINARY {
                let to = SocketAddr::new(address.parse().expect("an address"), port);
                let in_net = |entry: &NetPorts| entry.net.is_none_or(|net| net.contains(&to.ip()));
                let inside = entries
                    .iter()
                    .any(|entry| in_net(entry) && entry.ports.contain(port));
                assert!(inside || !allows(to), "{to}");
                let given = entries.iter().any(|entry| {
                    entry.net.is_some_and(|net| net.contains(&to.ip())) && entry.ports.contain(port)
                });
                assert!(!given || allows(to), "{to}");
            }
            let bound = policy.bind(SocketAddr::new([0, 0, 0, 0].into(), port));
            assert!(bound.is_err(), "no port of its choice");
        }
    }
    if grants.names.is_empty()
        && grants
            .http
            .iter()
            .all(|entry| matches!(entry, HostPorts::Net(_)))
    {
        assert!(policy.look_up("camera.example").is_err());
    }
    for group in ["239.255.255.250", "ff02::c", "192.168.7.9"] {
        let group: IpAddr = group.parse().expect("an address");
        let has = grants.multicast.iter().any(|entry| {
            entry.net.is_some_and(|net| net.contains(&group)) && entry.ports.contain(3702)
        });
        assert_eq!(policy.listen(group, 3702).is_ok(), has);
    }
}

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::timeout;

use self::namespace::{ip, with_namespace};
use super::{Interface, Interfaces, Network, publish};

pub(crate) mod namespace;

/// Returns the first state for which `holds` is true.
async fn eventually(
    network: &Network,
    what: &str,
    holds: impl Fn(&Interfaces) -> bool,
) -> Arc<Interfaces> {
    let mut changes = network.changes();
    let found = timeout(Duration::from_secs(10), changes.wait_for(|now| holds(now))).await;
    match found {
        Ok(now) => now.unwrap().clone(),
        Err(elapsed) => panic!("{what} {elapsed}: {:#?}", network.interfaces()),
    }
}

fn named<'a>(interfaces: &'a Interfaces, name: &str) -> Option<&'a Interface> {
    interfaces
        .list
        .iter()
        .find(|interface| interface.name == name)
}

fn addresses(interfaces: &Interfaces, name: &str) -> Vec<String> {
    let interface = named(interfaces, name);
    let list = interface.map(|interface| interface.addresses.as_slice());
    list.unwrap_or_default()
        .iter()
        .map(ToString::to_string)
        .collect()
}

#[test]
fn links_and_addresses_are_followed() {
    with_namespace(|| async {
        let network = Network::start().unwrap();
        assert!(!named(&network.interfaces().unwrap(), "lo").unwrap().up);

        ip("link set lo up");
        let now = eventually(&network, "lo is up", |now| {
            addresses(now, "lo") == ["127.0.0.1/8", "::1/128"]
        })
        .await;
        let lo = named(&now, "lo").unwrap();
        assert!(lo.up && lo.loopback && !lo.multicast);

        ip("link add eth0 type veth peer name far0");
        ip("address add 192.168.7.2/24 dev eth0");
        ip("address add 2001:db8::2/64 dev eth0 nodad");
        ip("address add 10.0.0.1 peer 10.9.0.0/16 dev eth0");
        let now = eventually(&network, "eth0 has addresses", |now| {
            addresses(now, "eth0") == ["10.0.0.1/32", "192.168.7.2/24", "2001:db8::2/64"]
        })
        .await;
        let eth0 = named(&now, "eth0").unwrap();
        assert!(!eth0.up && eth0.multicast && !eth0.loopback);

        ip("link set eth0 up");
        ip("link set far0 up");
        eventually(&network, "both ends are up", |now| {
            named(now, "eth0").unwrap().up && named(now, "far0").unwrap().up
        })
        .await;

        ip("link set far0 down");
        eventually(&network, "the carrier is gone", |now| {
            !named(now, "eth0").unwrap().up
        })
        .await;

        ip("address del 192.168.7.2/24 dev eth0");
        eventually(&network, "the address is gone", |now| {
            !addresses(now, "eth0").contains(&"192.168.7.2/24".to_owned())
        })
        .await;

        ip("link del eth0");
        let now = eventually(&network, "eth0 is gone", |now| named(now, "eth0").is_none()).await;
        assert_eq!(now.list.len(), 1);
    });
}

#[test]
fn local_routes_are_followed() {
    with_namespace(|| async {
        let network = Network::start().unwrap();
        assert_eq!(network.interfaces().unwrap().local, []);
        ip("link set lo up");
        let lines = |now: &Interfaces| {
            let nets = now.local.iter().map(ToString::to_string);
            nets.collect::<Vec<_>>().join(" ")
        };
        // Routes to addresses of the interfaces are not listed.
        eventually(&network, "lo is up", |now| lines(now) == "127.0.0.0/8").await;
        ip("route add local 10.5.0.0/24 dev lo");
        eventually(&network, "one of IPv4", |now| {
            lines(now) == "10.5.0.0/24 127.0.0.0/8"
        })
        .await;
        // A transparent proxy's route is not an address of the node.
        ip("route add local default dev lo table 100");
        ip("-6 route add local 2001:db8:5::/64 dev lo");
        eventually(&network, "one of IPv6", |now| {
            lines(now) == "10.5.0.0/24 127.0.0.0/8 2001:db8:5::/64"
        })
        .await;
        ip("route del local 10.5.0.0/24 dev lo");
        eventually(&network, "one less", |now| {
            lines(now) == "127.0.0.0/8 2001:db8:5::/64"
        })
        .await;
    });
}

#[test]
fn a_link_local_address_comes_when_it_is_known_to_be_unique() {
    with_namespace(|| async {
        let network = Network::start().unwrap();
        ip("link add eth0 type veth peer name far0");
        ip("link set eth0 up");
        ip("link set far0 up");
        let now = eventually(&network, "eth0 is up", |now| {
            named(now, "eth0").is_some_and(|eth0| eth0.up)
        })
        .await;
        assert_eq!(addresses(&now, "eth0"), Vec::<String>::new());
        eventually(&network, "eth0 has its own address", |now| {
            addresses(now, "eth0")
                .iter()
                .any(|address| address.starts_with("fe80:"))
        })
        .await;
    });
}

#[test]
fn the_same_interfaces_are_not_told_twice() {
    with_namespace(|| async {
        let (sender, mut receiver) = watch::channel(Arc::new(Interfaces::default()));
        publish(&sender).unwrap();
        assert!(receiver.has_changed().unwrap());
        receiver.mark_unchanged();
        publish(&sender).unwrap();
        assert!(!receiver.has_changed().unwrap());
    });
}

#[test]
fn the_last_clone_ends_the_task_that_follows() {
    with_namespace(|| async {
        let tasks = || {
            tokio::runtime::Handle::current()
                .metrics()
                .num_alive_tasks()
        };
        let network = Network::start().unwrap();
        let clone = network.clone();
        drop(network);
        tokio::task::yield_now().await;
        assert_eq!(tasks(), 1);
        drop(clone);
        while tasks() > 0 {
            tokio::task::yield_now().await;
        }
    });
}

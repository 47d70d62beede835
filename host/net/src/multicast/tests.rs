use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, timeout};

use super::{Datagram, Listener, Received};
use crate::grants::NetworkGrants;
use crate::interfaces::tests::namespace::{Far, ip, with_namespace};
use crate::{Network, Policy};

const V4: &str = "239.255.255.250:3702";
const V6: &str = "[ff02::c]:3702";
const SITE: &str = "[ff05::c]:3702";

fn mk_policy(network: &Network, interfaces: &[&str]) -> Policy {
    let grants = NetworkGrants {
        interfaces: interfaces.iter().map(|name| (*name).to_owned()).collect(),
        multicast: [V4, V6, SITE].map(|group| group.parse().unwrap()).to_vec(),
        ..NetworkGrants::default()
    };
    Policy::new(Arc::new(grants), network.clone())
}

/// Sends from an address to a group; the scope id selects the interface of an IPv6 group.
fn send(from: &str, to: &str, payload: &[u8]) {
    let from: SocketAddr = from.parse().unwrap();
    let socket = socket2::Socket::new(
        socket2::Domain::for_address(from),
        socket2::Type::DGRAM,
        None,
    )
    .unwrap();
    if let SocketAddr::V4(from) = from {
        socket.set_multicast_if_v4(from.ip()).unwrap();
    }
    socket.bind(&from.into()).unwrap();
    let to: SocketAddr = to.parse().unwrap();
    if let SocketAddr::V6(to) = to {
        socket.set_multicast_if_v6(to.scope_id()).unwrap();
    }
    // The kernel adds the multicast route shortly after the link is up.
    let end = Instant::now() + Duration::from_secs(10);
    while let Err(error) = socket.send_to(payload, &to.into()) {
        assert!(Instant::now() < end, "{to}: {error}");
        std::thread::yield_now();
    }
}

async fn heard(listener: &mut Listener) -> Received {
    let heard = timeout(Duration::from_secs(10), listener.next()).await;
    heard.expect("nothing is heard")
}

async fn datagram(listener: &mut Listener) -> Arc<Datagram> {
    match heard(listener).await {
        Received::Datagram(datagram) => datagram,
        Received::Lost => panic!("lost"),
    }
}

async fn payload(listener: &mut Listener) -> String {
    String::from_utf8(datagram(listener).await.payload.clone()).unwrap()
}

/// Waits until the network has a usable interface of that name, or has none.
async fn eventually(network: &Network, name: &str, there: bool) {
    let mut changes = network.changes();
    let is_there = |now: &Arc<crate::Interfaces>| {
        let mut named = now.list.iter().filter(|interface| interface.name == name);
        named.any(|interface| interface.up && interface.addresses.len() > 1) == there
    };
    let result = timeout(Duration::from_secs(10), changes.wait_for(is_there)).await;
    result.expect("the interface does not change").unwrap();
}

fn index(network: &Network, name: &str) -> u32 {
    let now = network.interfaces().unwrap();
    let interface = now.list.iter().find(|interface| interface.name == name);
    interface.unwrap().index
}

/// Returns a network with `eth0` connected to `192.168.7.9` and `2001:db8:7::9`.
async fn mk_lan() -> (Far, Network) {
    let far = Far::new();
    let here = ["192.168.7.2/24", "2001:db8:7::2/64"];
    far.cable("eth0", &here, &["192.168.7.9/24", "2001:db8:7::9/64"]);
    let network = Network::start().unwrap();
    eventually(&network, "eth0", true).await;
    (far, network)
}

fn sockets(network: &Network) -> usize {
    let sockets = network.groups().sockets.lock().unwrap();
    sockets
        .values()
        .filter(|group_socket| group_socket.strong_count() > 0)
        .count()
}

#[test]
fn what_others_send_to_a_group_is_heard_and_nothing_else() {
    with_namespace(|| async {
        let (far, network) = mk_lan().await;
        let eth0 = index(&network, "eth0");
        let there = far.run(|| nix::net::if_::if_nametoindex("eth0").unwrap());
        let mut listener = Listener::new(&mk_policy(&network, &[]));
        assert_eq!(listener.problems(), Vec::<String>::new());

        send("192.168.7.2:40000", V4, b"own");
        far.run(|| {
            send("192.168.7.9:40000", "239.255.255.250:3703", b"other port");
            send("192.168.7.9:40000", "239.255.255.251:3702", b"other group");
            send("192.168.7.9:40000", "192.168.7.2:3702", b"to one");
            send("192.168.7.9:40000", V4, b"v4");
        });
        let v4 = datagram(&mut listener).await;
        assert_eq!(v4.payload, b"v4");
        assert_eq!(v4.source, "192.168.7.9:40000".parse().unwrap());
        assert_eq!(
            (v4.group.ip().to_string().as_str(), v4.group.port()),
            ("239.255.255.250", 3702)
        );
        assert_eq!(v4.interface, eth0);

        send(
            "[2001:db8:7::2]:40000",
            &format!("[ff02::c%{eth0}]:3702"),
            b"own",
        );
        far.run(|| {
            send(
                "[2001:db8:7::9]:40000",
                &format!("[ff02::c%{there}]:3702"),
                b"v6",
            );
        });
        let v6 = datagram(&mut listener).await;
        assert_eq!((v6.payload.as_slice(), v6.interface), (&b"v6"[..], eth0));
        assert_eq!(v6.source, "[2001:db8:7::9]:40000".parse().unwrap());

        far.run(|| {
            send(
                "[2001:db8:7::9]:40000",
                &format!("[ff05::c%{there}]:3702"),
                b"site",
            );
        });
        assert_eq!(payload(&mut listener).await, "site");
    });
}

#[test]
fn what_is_too_long_is_lost() {
    with_namespace(|| async {
        let (far, network) = mk_lan().await;
        let mut listener = Listener::new(&mk_policy(&network, &[]));
        far.run(|| send("192.168.7.9:40000", V4, &[b'a'; 4097]));
        assert_eq!(heard(&mut listener).await, Received::Lost);
        far.run(|| send("192.168.7.9:40000", V4, &[b'a'; 4096]));
        assert_eq!(payload(&mut listener).await.len(), 4096);
    });
}

#[test]
fn a_listener_hears_only_the_interfaces_it_is_granted() {
    with_namespace(|| async {
        let (far, network) = mk_lan().await;
        far.cable(
            "eth1",
            &["10.1.0.2/16", "2001:db8:1::2/64"],
            &["10.1.0.9/16", "2001:db8:1::9/64"],
        );
        eventually(&network, "eth1", true).await;
        let mut both = Listener::new(&mk_policy(&network, &[]));
        let mut second = Listener::new(&mk_policy(&network, &["eth1"]));
        let (eth0, eth1) = (index(&network, "eth0"), index(&network, "eth1"));
        let there = |name: &str| far.run(|| nix::net::if_::if_nametoindex(name).unwrap());
        let (far0, far1) = (there("eth0"), there("eth1"));
        for (from0, from1, to0, to1) in [
            (
                "192.168.7.9:40000",
                "10.1.0.9:40000",
                V4.to_owned(),
                V4.to_owned(),
            ),
            (
                "[2001:db8:7::9]:40000",
                "[2001:db8:1::9]:40000",
                format!("[ff02::c%{far0}]:3702"),
                format!("[ff02::c%{far1}]:3702"),
            ),
            (
                "[2001:db8:7::9]:40000",
                "[2001:db8:1::9]:40000",
                format!("[ff05::c%{far0}]:3702"),
                format!("[ff05::c%{far1}]:3702"),
            ),
        ] {
            far.run(|| send(from0, &to0, b"first"));
            let first = datagram(&mut both).await;
            assert_eq!(
                (first.payload.as_slice(), first.interface),
                (&b"first"[..], eth0)
            );
            far.run(|| send(from1, &to1, b"second"));
            let first = datagram(&mut both).await;
            assert_eq!(
                (first.payload.as_slice(), first.interface),
                (&b"second"[..], eth1)
            );
            let only = datagram(&mut second).await;
            assert_eq!(
                (only.payload.as_slice(), only.interface),
                (&b"second"[..], eth1)
            );
        }
    });
}

#[test]
fn listeners_share_their_sockets_and_the_last_closes_them() {
    with_namespace(|| async {
        let (far, network) = mk_lan().await;
        let policy = mk_policy(&network, &[]);
        let mut first = Listener::new(&policy);
        let mut second = Listener::new(&policy);
        assert_eq!(sockets(&network), 3);
        far.run(|| send("192.168.7.9:40000", V4, b"hello"));
        assert_eq!(payload(&mut first).await, "hello");
        assert_eq!(payload(&mut second).await, "hello");
        drop(first);
        far.run(|| send("192.168.7.9:40000", V4, b"again"));
        assert_eq!(payload(&mut second).await, "again");
        drop(second);
        assert_eq!(sockets(&network), 0);
        let open = || std::fs::read_to_string("/proc/thread-self/net/udp").unwrap();
        while open().lines().count() > 1 {
            tokio::task::yield_now().await;
        }
    });
}

#[test]
fn a_new_interface_is_joined_and_one_that_is_gone_is_left() {
    with_namespace(|| async {
        let far = Far::new();
        let network = Network::start().unwrap();
        let mut listener = Listener::new(&mk_policy(&network, &[]));
        assert_eq!(sockets(&network), 0);
        for round in ["once", "twice"] {
            far.cable(
                "eth0",
                &["192.168.7.2/24", "2001:db8:7::2/64"],
                &["192.168.7.9/24"],
            );
            let hear = async {
                while sockets(&network) < 3 {
                    let heard = timeout(Duration::from_millis(20), listener.next()).await;
                    assert!(heard.is_err(), "{heard:?}");
                }
            };
            timeout(Duration::from_secs(10), hear).await.unwrap();
            far.run(|| send("192.168.7.9:40000", V4, round.as_bytes()));
            assert_eq!(payload(&mut listener).await, round);
            ip("link del eth0");
            let leave = async {
                while sockets(&network) > 0 {
                    let heard = timeout(Duration::from_millis(20), listener.next()).await;
                    assert!(heard.is_err(), "{heard:?}");
                }
            };
            timeout(Duration::from_secs(10), leave).await.unwrap();
        }
    });
}

#[test]
fn a_group_that_cannot_be_joined_is_reported_and_tried_again() {
    with_namespace(|| async {
        let (far, network) = mk_lan().await;
        // Without SO_REUSEADDR it shares its port with no other socket.
        let exclusive = UdpSocket::bind("0.0.0.0:3702").unwrap();
        let mut listener = Listener::new(&mk_policy(&network, &[]));
        assert_eq!(
            listener.problems(),
            [
                "cannot join 239.255.255.250:3702 on eth0: another program of this node uses port 3702 exclusively"
            ]
        );
        drop(exclusive);
        // Only the passing of time leads to another attempt.
        tokio::time::pause();
        let heard = timeout(Duration::from_secs(31), listener.next()).await;
        assert!(heard.is_err(), "{heard:?}");
        assert_eq!(listener.problems(), Vec::<String>::new());
        tokio::time::resume();
        far.run(|| send("192.168.7.9:40000", V4, b"hello"));
        assert_eq!(payload(&mut listener).await, "hello");
    });
}

#[test]
fn a_group_that_could_not_be_joined_is_tried_again_when_the_interfaces_change() {
    with_namespace(|| async {
        let (far, network) = mk_lan().await;
        let exclusive = UdpSocket::bind("0.0.0.0:3702").unwrap();
        let mut listener = Listener::new(&mk_policy(&network, &[]));
        assert_eq!(listener.problems().len(), 1);
        drop(exclusive);
        ip("address add 192.168.7.3/24 dev eth0");
        let hear = async {
            while !listener.problems().is_empty() {
                let heard = timeout(Duration::from_millis(20), listener.next()).await;
                assert!(heard.is_err(), "{heard:?}");
            }
        };
        timeout(Duration::from_secs(10), hear).await.unwrap();
        far.run(|| send("192.168.7.9:40000", V4, b"hello"));
        assert_eq!(payload(&mut listener).await, "hello");
    });
}

#[test]
fn of_a_flood_only_so_much_is_read_and_a_voice_behind_it_is_heard() {
    const FLOOD: u32 = 20_000;
    with_namespace(|| async {
        let (far, network) = mk_lan().await;
        let mut listener = Listener::new(&mk_policy(&network, &[]));
        let flooder = far.run(|| UdpSocket::bind("192.168.7.9:40000").unwrap());
        let start = Instant::now();
        let flood = std::thread::spawn(move || {
            for _ in 0..FLOOD {
                flooder.send_to(b"flood", V4).unwrap();
            }
        });
        let (mut read, mut lost) = (0, 0);
        while !flood.is_finished() {
            match timeout(Duration::from_millis(5), listener.next()).await {
                Ok(Received::Datagram(_)) => read += 1,
                Ok(Received::Lost) => lost += 1,
                Err(_) => {}
            }
        }
        flood.join().unwrap();
        let most = 2_000.0 * start.elapsed().as_secs_f64() + 256.0;
        assert!(f64::from(read) <= most, "{read} of at most {most}");
        assert!(0 < read && 0 < lost, "{read} {lost}");

        // The part of the flood that the kernel queued comes first.
        let voice = async {
            loop {
                far.run(|| send("192.168.7.9:40001", V4, b"hello"));
                let until = timeout(Duration::from_millis(100), async {
                    while payload_or_lost(&mut listener).await != b"hello" {}
                });
                if until.await.is_ok() {
                    break;
                }
            }
        };
        timeout(Duration::from_secs(10), voice).await.unwrap();
    });
}

async fn payload_or_lost(listener: &mut Listener) -> Vec<u8> {
    match listener.next().await {
        Received::Datagram(datagram) => datagram.payload.clone(),
        Received::Lost => Vec::new(),
    }
}

use leafhost_grants::Grants;
use leafhost_net::{Interface, Interfaces, Network};
use tokio::sync::watch;

use super::*;

/// Returns the access on a node with one interface, `192.168.7.2/24`.
fn reach(section: &str) -> NetworkAccess {
    let interface = Interface {
        name: "eth0".into(),
        index: 2,
        addresses: vec!["192.168.7.2/24".parse().unwrap()],
        up: true,
        multicast: true,
        loopback: false,
    };
    let interfaces = Interfaces {
        list: vec![interface],
        ..Interfaces::default()
    };
    let (_, receiver) = watch::channel(Arc::new(interfaces));
    let grants = Grants::parse(&format!("network: {section}")).unwrap();
    let policy = Policy::new(Arc::new(grants.network.unwrap()), Network::fixed(receiver));
    let names = Names::with(|name| match name {
        "plc1" => Ok(vec!["192.168.7.9:0".parse().unwrap()]),
        "both" => Ok(vec![
            "127.0.0.1:0".parse().unwrap(),
            "192.168.7.9:0".parse().unwrap(),
            "[::ffff:192.168.7.9]:0".parse().unwrap(),
        ]),
        _ => Ok(vec!["127.0.0.1:0".parse().unwrap()]),
    });
    NetworkAccess::new(Ok(policy), names, Arc::default())
}

fn at(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

fn denied(reach: &NetworkAccess) -> Vec<String> {
    reach.record.take().denied.into_iter().collect()
}

#[tokio::test]
async fn a_name_has_the_addresses_that_may_be_reached() {
    let reach = reach("{names: ['*'], tcp: ['lan:4840']}");
    let plc: Vec<IpAddr> = vec!["192.168.7.9".parse().unwrap()];
    assert_eq!(reach.addresses("plc1").await.unwrap(), plc);
    assert_eq!(denied(&reach), Vec::<String>::new());
    assert_eq!(reach.addresses("both").await.unwrap(), plc);
    assert_eq!(reach.addresses("192.168.7.9").await.unwrap(), plc);
    let left_out = denied(&reach);
    assert!(left_out[0].contains("both at 127.0.0.1"), "{left_out:?}");
    for name in ["localhost", "127.0.0.1", "::ffff:127.0.0.1"] {
        let answer = reach.addresses(name).await;
        assert!(matches!(answer, Err(HttpError::Denied(_))), "{name}");
        assert_eq!(denied(&reach).len(), 1, "{name}");
    }
}

#[tokio::test]
async fn a_call_looks_up_sixty_four_names() {
    let reach = reach("{names: ['plc*'], tcp: ['lan:4840']}");
    for _ in 0..LOOK_UPS {
        reach.addresses("plc1").await.unwrap();
    }
    assert!(reach.addresses("other").await.is_err());
    for _ in 0..100 {
        assert!(reach.addresses("plc1").await.is_err());
    }
    let denied = denied(&reach);
    assert_eq!(denied.len(), 2, "{denied:?}");
    let denied = denied.join("\n");
    assert!(denied.contains("more than 64 names"), "{denied}");
}

#[tokio::test]
async fn a_call_sends_so_many_datagrams_and_no_more() {
    let reach = reach("{udp: ['lan:1-9']}");
    for _ in 0..SENDS {
        reach.send(at("192.168.7.9:9")).unwrap();
    }
    assert!(reach.send(at("192.168.7.9:9")).is_err());
    let denied = denied(&reach);
    assert!(denied[0].contains("more than 4096"), "{denied:?}");
}

#[tokio::test]
async fn a_call_begins_so_many_connections_requests_included() {
    let reach = reach("{tcp: ['lan:1-9'], http: ['lan:1-9']}");
    for _ in 0..CONNECTS / 2 {
        reach.connect(at("192.168.7.9:9")).unwrap();
        RequestPolicy::request(&reach, "192.168.7.9", at("192.168.7.9:9")).unwrap();
    }
    assert!(reach.connect(at("192.168.7.9:9")).is_err());
    assert!(RequestPolicy::request(&reach, "192.168.7.9", at("192.168.7.9:9")).is_err());
    let denied = denied(&reach);
    assert!(denied[0].contains("more than 4096"), "{denied:?}");
}

#[tokio::test]
async fn senders_that_are_denied_do_not_hide_other_denials() {
    let reach = reach("{udp: ['192.168.7.9/32:9']}");
    for last in 1..=60 {
        for port in 1..3 {
            let from = SocketAddr::new(IpAddr::from([10, 0, 0, last]), port);
            assert!(reach.receive(from).await.is_err());
        }
    }
    assert_eq!(denied(&reach).len(), NAMED);
}

#[tokio::test(start_paused = true)]
async fn denied_datagrams_are_read_slowly_on_all_sockets_together() {
    let reach = Arc::new(reach("{udp: ['192.168.7.9/32:9']}"));
    let begin = Instant::now();
    let sockets = (0..4).map(|_| {
        let reach = reach.clone();
        tokio::spawn(async move {
            for port in 1..=1000 {
                let from = SocketAddr::new("10.0.0.1".parse().unwrap(), port);
                assert!(reach.receive(from).await.is_err());
            }
        })
    });
    for socket in sockets.collect::<Vec<_>>() {
        socket.await.unwrap();
    }
    // 4,000 datagrams, 64 in 10 ms.
    let took = begin.elapsed();
    assert!(took >= Duration::from_millis(600), "{took:?}");
    let begin = Instant::now();
    reach.receive(at("192.168.7.9:9")).await.unwrap();
    assert_eq!(
        begin.elapsed(),
        Duration::ZERO,
        "a granted one waits for none"
    );
}

#[tokio::test]
async fn whoever_was_asked_may_answer_from_any_port() {
    let reach = reach("{udp: ['239.255.255.250/32:3702']}");
    let camera = at("192.168.7.9:50000");
    assert!(reach.receive(camera).await.is_err());
    reach.send(at("239.255.255.250:3702")).unwrap();
    reach.receive(camera).await.unwrap();
    assert!(reach.receive(at("10.1.1.1:50000")).await.is_err());
}

#[tokio::test]
async fn an_address_of_a_name_is_denied_with_its_own_reason() {
    let reach = reach("{names: ['*'], tcp: ['lan:4840']}");
    assert!(reach.addresses("localhost").await.is_err());
    let denied = denied(&reach).join("\n");
    assert!(
        denied.starts_with("reach localhost at 127.0.0.1: ")
            && denied.contains("an entry of `network.tcp` inside 127.0.0.0/8"),
        "{denied}"
    );
}

#[test]
fn without_a_bound_address_a_call_asks_no_group_that_may_lie_elsewhere() {
    let group = at("239.255.255.250:3702");
    let section = |interfaces: &str| {
        format!("{{interfaces: [{interfaces}], udp: ['239.255.255.250/32:3702', 'lan:*']}}")
    };
    let alone = reach(&section("eth0"));
    alone.bind_udp(at("0.0.0.0:0")).unwrap();
    assert_eq!(alone.send(group), Ok(()));
    let other = reach(&section("eth1"));
    other.bind_udp(at("[::]:0")).unwrap();
    assert_eq!(other.send(group), Ok(()));
    other.bind_udp(at("0.0.0.0:0")).unwrap();
    assert!(other.send(group).is_err());
    let denied = denied(&other).join("\n");
    assert!(denied.contains("it may leave on eth0"), "{denied}");
}

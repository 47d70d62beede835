use std::time::Duration;

use super::*;
use crate::Level;
use crate::testing::{FakeHost, UdpAnswer};

const GROUP: &str = "239.255.255.250:3702";

fn ms(milliseconds: u64) -> Duration {
    Duration::from_millis(milliseconds)
}

fn address(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

fn mk_probe(from: &[&str], sends: &[(u64, &str)]) -> Probe {
    let sends = sends.iter();
    let sends = sends.map(|(after, to)| (ms(*after), address(to), b"who".to_vec()));
    Probe {
        from: from.iter().map(|text| address(text)).collect(),
        sends: sends.collect(),
        window: ms(1_000),
        max_replies: 100,
    }
}

fn mk_host() -> FakeHost {
    FakeHost::new()
        .interface("eth0", 2, ["192.168.7.2/24", "fe80::7/64"])
        .interface("eth1", 3, ["10.0.0.2/8", "fe80::8/64"])
}

fn answers_after(times: &[u64]) -> impl FnMut(SocketAddr, &[u8]) -> Vec<UdpAnswer> + 'static {
    let times = times.to_vec();
    move |_, _| {
        let answer = |after: &u64| UdpAnswer {
            after: ms(*after),
            from: address("192.168.7.9:50000"),
            payload: after.to_string().into_bytes(),
        };
        times.iter().map(answer).collect()
    }
}

fn run_probe(host: &FakeHost, probe: Probe) -> Vec<Reply> {
    let host = host.host();
    host.block_on(host.probe(probe))
}

/// Returns time, source and target of each contact.
fn sent(host: &FakeHost) -> Vec<(u128, String, String)> {
    let contacts = host.contacts().into_iter();
    let sent = contacts.map(|contact| {
        let from = contact.from.unwrap().ip().to_string();
        (contact.at.as_millis(), from, contact.to)
    });
    sent.collect()
}

#[test]
fn every_address_sends_by_the_schedule() {
    let host = mk_host();
    let from = ["192.168.7.2:0", "10.0.0.2:0", "192.168.7.2:0"];
    let probe = mk_probe(&from, &[(250, GROUP), (0, GROUP), (1_500, GROUP)]);
    assert_eq!(run_probe(&host, probe), []);
    assert_eq!(host.now(), ms(1_000));
    let group = format!("udp {GROUP}");
    let row = |at, from: &str| (at, from.to_owned(), group.clone());
    assert_eq!(
        sent(&host),
        [
            row(0, "192.168.7.2"),
            row(0, "10.0.0.2"),
            row(250, "192.168.7.2"),
            row(250, "10.0.0.2"),
        ]
    );
}

#[test]
fn without_addresses_the_probe_uses_the_default_route_of_each_family() {
    let host = mk_host();
    let probe = mk_probe(&[], &[(0, GROUP), (0, "[2001:db8::1]:5"), (9, GROUP)]);
    run_probe(&host, probe);
    let to: Vec<_> = host.contacts().into_iter().map(|c| c.to).collect();
    let group = format!("udp {GROUP}");
    assert_eq!(to, [group.clone(), "udp [2001:db8::1]:5".to_owned(), group]);
}

#[test]
fn an_address_without_sends_is_not_bound() {
    let probe = mk_probe(
        &["[fe80::7%2]:0", "10.0.0.2:0", "[fe80::8%3]:0", "10.0.0.2:0"],
        &[(0, "[ff02::c%3]:1"), (0, GROUP), (5, GROUP)],
    );
    assert_eq!(
        senders(&probe),
        [address("10.0.0.2:0"), address("[fe80::8%3]:0")]
    );
}

#[test]
fn a_send_leaves_only_from_addresses_that_reach_the_target() {
    for (local, to, goes) in [
        ("1.2.3.4:0", "1.2.3.5:1", Some("1.2.3.5:1")),
        ("1.2.3.4:0", "[ff02::c]:1", None),
        ("[fe80::1%2]:0", "1.2.3.5:1", None),
        ("[fe80::1%2]:0", "[ff02::c]:1", Some("[ff02::c%2]:1")),
        ("[fe80::1%2]:0", "[ff02::c%2]:1", Some("[ff02::c%2]:1")),
        ("[fe80::1%2]:0", "[ff02::c%3]:1", None),
        ("[2001:db8::1]:0", "[ff02::c%3]:1", Some("[ff02::c%3]:1")),
        ("[fe80::1%2]:0", "[fe80::2]:1", Some("[fe80::2%2]:1")),
        ("[fe80::1%2]:0", "[2001:db8::1]:1", Some("[2001:db8::1]:1")),
        ("[fe80::1%2]:0", "[ff05::c]:1", Some("[ff05::c]:1")),
    ] {
        let goes = goes.map(address);
        assert_eq!(target(address(local), address(to)), goes, "{local} {to}");
    }
}

#[test]
fn answers_in_the_window_are_kept_in_order_of_arrival() {
    let host = mk_host().udp_peer(GROUP, answers_after(&[999, 0, 500, 1_000, 1_001]));
    let replies = run_probe(&host, mk_probe(&["192.168.7.2:0"], &[(0, GROUP)]));
    let payloads: Vec<_> = replies.iter().map(|reply| &reply.payload[..]).collect();
    assert_eq!(payloads[..3], [&b"0"[..], b"500", b"999"]);
    assert!(replies.len() <= 4, "{replies:?}");
    for reply in replies {
        assert_eq!(reply.from, address("192.168.7.9:50000"));
        assert_eq!(reply.local.ip(), address("192.168.7.2:0").ip());
        assert_ne!(reply.local.port(), 0);
    }
    assert_eq!(host.now(), ms(1_000));
}

#[test]
fn a_flood_fills_only_the_replies_and_the_schedule_continues() {
    let flood: Vec<u64> = (0..500).collect();
    let host = mk_host().udp_peer(GROUP, answers_after(&flood));
    let mut probe = mk_probe(
        &["192.168.7.2:0", "10.0.0.2:0"],
        &[(0, GROUP), (600, GROUP)],
    );
    probe.max_replies = 7;
    assert_eq!(run_probe(&host, probe).len(), 7);
    assert_eq!(host.now(), ms(1_000));
    assert_eq!(host.contacts().len(), 4);
}

#[test]
fn an_unusable_address_is_left_out() {
    let host = mk_host()
        .udp_peer(GROUP, answers_after(&[1]))
        .deny("10.0.0.2");
    let from = ["10.0.0.2:0", "172.16.0.1:0", "192.168.7.2:0"];
    assert_eq!(run_probe(&host, mk_probe(&from, &[(0, GROUP)])).len(), 1);
    let log = host.log();
    assert_eq!(log.len(), 2);
    for ((level, line), local) in log.iter().zip(from) {
        assert_eq!(*level, Level::Debug);
        assert!(line.contains(local), "{line}");
    }
}

#[test]
fn a_probe_that_cannot_be_sent_causes_a_warning() {
    for (from, sends) in [
        (&["172.16.0.1:0"][..], &[(0, GROUP)][..]),
        (&["192.168.7.2:0", "10.0.0.2:0"], &[(0, GROUP), (5, GROUP)]),
    ] {
        let host = mk_host().deny(GROUP);
        assert_eq!(run_probe(&host, mk_probe(from, sends)), []);
        assert!(host.contacts().is_empty());
        let warnings = host.log().into_iter();
        let warnings: Vec<_> = warnings
            .filter(|(level, _)| *level == Level::Warn)
            .collect();
        let [(_, line)] = &warnings[..] else {
            panic!("{warnings:?}");
        };
        assert!(
            line.starts_with("no probe could be sent: not granted: udp"),
            "{line}"
        );
    }
}

/// Adds a peer that answers each datagram with `many` datagrams of `bytes` bytes from each of the senders.
fn flooding(host: FakeHost, senders: &'static [&str], many: usize, bytes: usize) -> FakeHost {
    host.udp_peer(GROUP, move |_, _| {
        let answers = |from: &&str| {
            let answer = UdpAnswer {
                after: ms(1),
                from: address(from),
                payload: vec![b'x'; bytes],
            };
            vec![answer; many]
        };
        senders.iter().flat_map(answers).collect()
    })
}

#[test]
fn a_flooding_sender_displaces_no_other() {
    let host = flooding(mk_host(), &["192.168.7.66:1", "192.168.7.67:1"], 300, 10);
    let host = flooding(host, &["192.168.7.9:1", "192.168.7.10:1"], 2, 10);
    let replies = run_probe(&host, mk_probe(&["192.168.7.2:0"], &[(0, GROUP)]));
    assert_eq!(replies.len(), 100);
    let of = |sender: &str| {
        let from = address(sender);
        replies.iter().filter(|reply| reply.from == from).count()
    };
    assert_eq!((of("192.168.7.9:1"), of("192.168.7.10:1")), (2, 2));
    assert_eq!((of("192.168.7.66:1"), of("192.168.7.67:1")), (48, 48));
}

#[test]
fn the_memory_of_answers_is_bounded() {
    let host = flooding(mk_host(), &["192.168.7.66:1"], 200, 60_000);
    let host = flooding(host, &["192.168.7.9:1"], 1, 60_000);
    let replies = run_probe(&host, mk_probe(&["192.168.7.2:0"], &[(0, GROUP)]));
    let bytes: usize = replies.iter().map(|reply| reply.payload.len()).sum();
    assert!(bytes <= 100 * MEAN_BYTES, "{bytes}");
    assert!(
        replies
            .iter()
            .any(|reply| reply.from == address("192.168.7.9:1"))
    );
}

#[test]
fn the_number_of_answers_read_is_bounded() {
    let host = flooding(mk_host(), &["192.168.7.66:1"], 800, 1);
    let host = flooding(host, &["192.168.7.9:1"], 1, 1);
    let replies = run_probe(&host, mk_probe(&["192.168.7.2:0"], &[(0, GROUP)]));
    assert!(
        replies
            .iter()
            .all(|reply| reply.from == address("192.168.7.66:1"))
    );
}

#[test]
fn other_tasks_run_during_a_flood() {
    let fake = flooding(mk_host(), &["192.168.7.66:1"], 640, 1);
    let host = fake.host();
    let probe = mk_probe(&["192.168.7.2:0"], &[(0, GROUP)]);
    let mut probe = Box::pin(host.probe(probe));
    let mut polls = 0;
    host.block_on(std::future::poll_fn(|context| {
        polls += 1;
        std::future::Future::poll(probe.as_mut(), context)
    }));
    assert!(polls >= 10, "{polls}");
}

#[test]
fn answers_that_arrive_one_by_one_are_read_together() {
    let answers: Vec<u64> = (1..=900).collect();
    let fake = mk_host().udp_peer(GROUP, answers_after(&answers));
    let host = fake.host();
    let mut probe = mk_probe(&["192.168.7.2:0"], &[(0, GROUP)]);
    probe.max_replies = 1_000;
    let mut probe = Box::pin(host.probe(probe));
    let mut polls = 0;
    let replies = host.block_on(std::future::poll_fn(|context| {
        polls += 1;
        std::future::Future::poll(probe.as_mut(), context)
    }));
    assert_eq!(replies.len(), 900);
    assert!(polls < 450, "{polls}");
}

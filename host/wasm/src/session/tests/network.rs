//! Wakes of the network.

use leafhost_grants::Grants;
use leafhost_net::{Group, Interface, Interfaces, Network, Policy};
use tokio::sync::{mpsc, watch};

use super::super::subscriptions::GroupSubscription;
use super::*;

const GROUP: Group = Group::new(
    std::net::IpAddr::V4(std::net::Ipv4Addr::new(239, 255, 255, 250)),
    3702,
);

/// Receives what the test sends.
struct FakeSubscription(mpsc::UnboundedReceiver<leafhost_net::Received>);

#[async_trait]
impl GroupSubscription for FakeSubscription {
    async fn next(&mut self) -> leafhost_net::Received {
        match self.0.recv().await {
            Some(heard) => heard,
            None => std::future::pending().await,
        }
    }

    fn problems(&self) -> Vec<String> {
        vec!["cannot hear 239.255.255.250:3702 on eth0: no buffer space".into()]
    }
}

type Groups = mpsc::UnboundedSender<leafhost_net::Received>;

fn in_group(caller: &Arc<Scripted>) -> (mpsc::UnboundedReceiver<Report>, Groups) {
    let (sender, receiver) = mpsc::unbounded_channel();
    let subscriptions = Subscriptions {
        groups: Some(Box::new(FakeSubscription(receiver))),
        ..Subscriptions::default()
    };
    let session = WakingSession::new(
        caller.clone(),
        Opening::First,
        subscriptions,
        Arc::default(),
    );
    (run(session), sender)
}

fn datagram(source: &str, payload: &str) -> leafhost_net::Received {
    leafhost_net::Received::Datagram(Arc::new(Datagram {
        group: GROUP,
        source: format!("{source}:3702").parse().unwrap(),
        interface: 2,
        payload: payload.into(),
    }))
}

fn answer(filters: &[&[&str]]) -> CallResult {
    let filter = |strings: &&[&str]| {
        let strings: Vec<Vec<u8>> = strings.iter().map(|text| (*text).into()).collect();
        Filter::new(GROUP, "239.255.255.250", &strings)
    };
    waking(WakeConditions {
        multicast: filters.iter().map(filter).collect(),
        ..WakeConditions::default()
    })
}

fn datagrams(ask: &CallInput) -> usize {
    let events = ask.events.iter();
    events
        .filter(|why| matches!(why, CallReason::Multicast(..)))
        .count()
}

#[tokio::test(start_paused = true)]
async fn a_datagram_wakes_if_it_has_all_strings_of_one_filter() {
    let filters: &[&[&str]] = &[&["Hello", "dn:"], &["Bye"]];
    let other = Group::new(GROUP.ip(), 1900);
    for (group, payload, wakes) in [
        (GROUP, "a Hello of dn:NetworkVideoTransmitter", true),
        (GROUP, "dn: Hello Bye", true),
        (GROUP, "Hello of a printer", false),
        (GROUP, "Bye", true),
        (GROUP, "", false),
        (other, "Bye", false),
    ] {
        let caller = at_once([answer(filters), answer(filters)]);
        let (mut reports, groups) = in_group(&caller);
        reports.recv().await;
        pass(Duration::from_secs(5)).await;
        let leafhost_net::Received::Datagram(datagram) = datagram("192.168.7.9", payload) else {
            panic!("a datagram");
        };
        let datagram = Datagram {
            group,
            ..Datagram::clone(&datagram)
        };
        groups
            .send(leafhost_net::Received::Datagram(Arc::new(datagram)))
            .unwrap();
        pass(Duration::from_secs(5)).await;
        let calls = caller.calls();
        if wakes {
            assert_eq!(calls[1..], [(5000, vec!["multicast"])], "{payload}");
            assert_eq!(datagrams(&caller.last()), 1);
        } else {
            assert_eq!(calls.len(), 1, "{payload}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_datagram_since_the_start_of_a_call_is_matched_against_its_answer() {
    let slow = Duration::from_secs(3);
    let caller = Scripted::new([(slow, answer(&[&["Hello"]])), (MILLI, answer(&[]))]);
    let (mut reports, groups) = in_group(&caller);
    pass(Duration::from_secs(1)).await;
    groups.send(datagram("192.168.7.9", "Hello")).unwrap();
    groups.send(datagram("192.168.7.9", "Bye")).unwrap();
    reports.recv().await;
    reports.recv().await;
    assert_eq!(caller.calls()[1], (3100, vec!["multicast"]));
    groups.send(datagram("192.168.7.9", "Hello")).unwrap();
    pass(Duration::from_mins(1)).await;
    assert_eq!(caller.calls().len(), 2, "nobody waits for it any more");
}

#[tokio::test(start_paused = true)]
async fn one_source_does_not_take_the_place_of_others() {
    let slow = Duration::from_secs(1);
    for (of_one, of_others, told, lost) in [
        (8, 0, 8, false),
        (9, 3, 11, true),
        (100, 56, 64, true),
        (0, 64, 64, false),
        (0, 300, 64, true),
    ] {
        let caller = Scripted::new([(slow, answer(&[&["Hello"]])), (slow, answer(&[]))]);
        let (mut reports, groups) = in_group(&caller);
        pass(MILLI).await;
        for _ in 0..of_one {
            groups.send(datagram("192.168.7.9", "Hello")).unwrap();
        }
        for n in 0..of_others {
            let source = format!("10.0.{}.{}", n / 200, n % 200);
            groups.send(datagram(&source, "Hello")).unwrap();
        }
        reports.recv().await;
        reports.recv().await;
        let ask = caller.last();
        assert_eq!(datagrams(&ask), told, "{of_one} {of_others}");
        assert_eq!(ask.events_lost, lost, "{of_one} {of_others}");
    }
}

#[tokio::test(start_paused = true)]
async fn lost_datagrams_wake_a_session_that_waits_for_some() {
    for (answer, calls) in [(answer(&[&["Hello"]]), 2), (found(None, &["usb"]), 1)] {
        let caller = at_once([answer]);
        let (mut reports, groups) = in_group(&caller);
        reports.recv().await;
        groups.send(leafhost_net::Received::Lost).unwrap();
        pass(Duration::from_secs(1)).await;
        assert_eq!(caller.calls().len(), calls);
        assert_eq!(caller.last().events_lost, calls == 2);
    }
}

#[tokio::test(start_paused = true)]
async fn after_an_error_the_last_filters_stay_in_force() {
    let caller = at_once([answer(&[&["Hello"]]), unavailable(), answer(&[&["Hello"]])]);
    let (mut reports, groups) = in_group(&caller);
    reports.recv().await;
    groups.send(datagram("192.168.7.9", "Hello 1")).unwrap();
    reports.recv().await;
    pass(500 * MILLI).await;
    groups.send(datagram("192.168.7.9", "Hello 2")).unwrap();
    reports.recv().await;
    let ask = caller.last();
    assert_eq!(datagrams(&ask), 2, "told again with the new one");
}

#[tokio::test(start_paused = true)]
async fn a_flood_wakes_once_a_second_until_it_is_over() {
    let answers = std::iter::repeat_n(answer(&[&["Hello"]]), 1000);
    let caller = at_once(answers);
    let (_reports, groups) = in_group(&caller);
    pass(MILLI).await;
    for _ in 0..6000 {
        groups.send(datagram("192.168.7.9", "Hello")).unwrap();
        pass(10 * MILLI).await;
    }
    let calls = caller.calls();
    let within = |from: u128, to: u128| {
        let calls = calls.iter().filter(|(at, _)| (from..to).contains(at));
        calls.count()
    };
    assert!(within(0, 2_000) >= 15, "{calls:?}");
    assert!(within(10_000, 60_000) <= 55, "{calls:?}");
    // After a calm, the first datagram wakes at once and the second a tenth of a second later.
    pass(Duration::from_secs(30)).await;
    let before = caller.calls().len();
    groups.send(datagram("192.168.7.9", "Hello")).unwrap();
    pass(20 * MILLI).await;
    assert_eq!(caller.calls().len(), before + 1);
    groups.send(datagram("192.168.7.9", "Hello")).unwrap();
    pass(200 * MILLI).await;
    assert_eq!(caller.calls().len(), before + 2);
}

#[tokio::test(start_paused = true)]
async fn slow_calls_of_a_flood_leave_half_of_the_time_free() {
    let slow = Duration::from_secs(2);
    let answers = std::iter::repeat_n((slow, answer(&[&["Hello"]])), 1000);
    let caller = Scripted::new(answers);
    let (_reports, groups) = in_group(&caller);
    pass(MILLI).await;
    for _ in 0..2400 {
        groups.send(datagram("192.168.7.9", "Hello")).unwrap();
        pass(50 * MILLI).await;
    }
    let calls = caller.calls();
    let flooded = calls.iter().filter(|(at, _)| *at >= 60_000).count();
    assert!((14..=16).contains(&flooded), "{calls:?}");
    // After a calm, the handler is called at once.
    pass(Duration::from_secs(30)).await;
    let before = caller.calls().len();
    groups.send(datagram("192.168.7.9", "Hello")).unwrap();
    pass(20 * MILLI).await;
    assert_eq!(caller.calls().len(), before + 1);
    pass(Duration::from_secs(2)).await;
    groups.send(datagram("192.168.7.9", "Hello")).unwrap();
    pass(200 * MILLI).await;
    assert_eq!(caller.calls().len(), before + 2);
}

#[tokio::test(start_paused = true)]
async fn a_group_that_cannot_be_heard_is_named_where_it_is_waited_for() {
    for (answer, named) in [(answer(&[&["Hello"]]), 1), (found(None, &["usb"]), 0)] {
        let (mut reports, _groups) = in_group(&at_once([answer]));
        let report = reports.recv().await.unwrap();
        let refused = report.call.wakes_refused;
        assert_eq!(refused.len(), named);
        assert!(refused.iter().all(|text| text.contains("cannot hear")));
    }
}

fn interface(name: &str, address: &str) -> Interface {
    Interface {
        name: name.into(),
        index: 2,
        addresses: vec![address.parse().unwrap()],
        up: true,
        multicast: true,
        loopback: false,
    }
}

#[tokio::test(start_paused = true)]
async fn a_change_of_granted_interfaces_wakes() {
    let snapshot = |list: &[Interface]| {
        Arc::new(Interfaces {
            list: list.to_vec(),
            ..Interfaces::default()
        })
    };
    let (sender, receiver) = watch::channel(snapshot(&[]));
    let grants = Grants::parse("network: {interfaces: ['eth*']}").unwrap();
    let policy = Policy::new(Arc::new(grants.network.unwrap()), Network::fixed(receiver));
    let wants = || {
        waking(WakeConditions {
            network: true,
            ..WakeConditions::default()
        })
    };
    let caller = at_once([wants(), found(None, &[])]);
    let subscriptions = Subscriptions {
        network: Some(NetworkSubscription::new(policy)),
        ..Subscriptions::default()
    };
    let session = WakingSession::new(
        caller.clone(),
        Opening::First,
        subscriptions,
        Arc::default(),
    );
    let mut reports = run(session);
    reports.recv().await;
    pass(Duration::from_secs(1)).await;
    // Not granted.
    sender.send_replace(snapshot(&[interface("veth1", "10.0.0.1/24")]));
    pass(Duration::from_secs(1)).await;
    assert_eq!(caller.calls().len(), 1);
    sender.send_replace(snapshot(&[interface("eth0", "192.168.7.2/24")]));
    pass(Duration::from_secs(1)).await;
    assert_eq!(caller.calls()[1..], [(2000, vec!["network"])]);
    // The last answer asked for no wake.
    sender.send_replace(snapshot(&[]));
    pass(Duration::from_mins(1)).await;
    assert_eq!(caller.calls().len(), 2);
}

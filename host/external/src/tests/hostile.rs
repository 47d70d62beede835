//! Handlers that break the rules: each ends in a fault or at a bound, and the others keep serving.

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::task::JoinSet;

use super::*;

#[tokio::test]
async fn sets_come_at_the_agents_pace_and_the_newest_counts() {
    let mut node = Node::start();
    let _fake = Fake::serve(&node.path("a.sock"), |_| {
        let sets = futures::stream::unfold(0, async |number| {
            tokio::time::sleep(Duration::from_millis(10)).await;
            Some((Ok(set(&[&number.to_string()])), number + 1))
        });
        Ok(sets.boxed())
    });
    node.register_socket("a", "a.sock").await.unwrap();
    let mut session = node.open("a@a.sock").await;
    let begun = std::time::Instant::now();
    let (mut taken, mut last) = (0, 0);
    while begun.elapsed() < Duration::from_secs(5) {
        last = ids(&mut session).await[0].parse::<u32>().unwrap();
        taken += 1;
    }
    assert!(taken <= 12, "{taken}");
    // A hundred sets per second are sent; the machine may be slow.
    assert!(last > 5 * taken, "{last} of {taken}");
}

#[tokio::test]
async fn sets_larger_than_a_stream_buffers_are_not_taken_one_by_one() {
    let mut node = Node::start();
    let _fake = Fake::serve(&node.path("a.sock"), |_| {
        let sets = futures::stream::iter(0..60).map(|number| {
            let ids = (0..1_000).map(|index| format!("{number}-{index}-{:0>100}", ""));
            let ids: Vec<String> = ids.collect();
            let ids: Vec<&str> = ids.iter().map(String::as_str).collect();
            Ok(set(&ids))
        });
        Ok(sets.chain(futures::stream::pending()).boxed())
    });
    node.register_socket("a", "a.sock").await.unwrap();
    let mut session = node.open("a@a.sock").await;
    let mut taken = 0;
    loop {
        taken += 1;
        if ids(&mut session).await[0].starts_with("59-") {
            break;
        }
    }
    assert!(taken < 50, "{taken}");
}

/// Returns the report of a handler that stays silent for its 30 s.
async fn after_30_seconds(session: &mut Box<dyn Session>) -> Report {
    tokio::time::pause();
    let waits = Duration::from_secs(30);
    let report = tokio::time::timeout(waits + LIMIT, session.next()).await;
    tokio::time::resume();
    report.unwrap()
}

#[tokio::test]
async fn what_has_not_begun_to_answer_in_time_has_failed_and_its_answer_counts_when_it_comes() {
    let mut node = Node::start();
    let (gate, is_open) = watch::channel(false);
    let _fake = Fake::serve_behind(is_open, &node.path("a.sock"), always(&["one"]));
    node.register_socket("a", "a.sock").await.unwrap();
    let mut session = node.open("a@a.sock").await;
    let report = after_30_seconds(&mut session).await;
    let Outcome::Faulted(fault) = report.outcome else {
        panic!("no fault");
    };
    assert_eq!(fault.reason, FaultReason::WallTimeout, "{fault}");
    assert!(
        fault.to_string().contains("an empty set if there are none"),
        "{fault}"
    );
    gate.send_replace(true);
    assert_eq!(ids(&mut session).await, ["one"]);
}

#[tokio::test]
async fn a_set_that_is_too_large_is_a_fault_that_says_what_is_too_large() {
    let mut node = Node::start();
    let many: Vec<String> = (0..100_000).map(|number| number.to_string()).collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    let texts = DiscoverResponse {
        devices: vec![Device {
            id: "x".repeat(13 << 20),
            ..Device::default()
        }],
    };
    // Each device takes two bytes on the wire.
    let empty = DiscoverResponse {
        devices: vec![Device::default(); 1 << 19],
    };
    for (name, set, words) in [
        ("many", set(&many), "100000 devices, at most 4096"),
        ("texts", texts, "let the handler report fewer"),
        ("empty", empty, "MiB of memory"),
    ] {
        let path = node.path(&format!("{name}.sock"));
        let _fake = Fake::serve(&path, move |_| {
            let first = futures::stream::once(std::future::ready(Ok(set.clone())));
            Ok(first.chain(futures::stream::pending()).boxed())
        });
        node.register_socket(name, &format!("{name}.sock"))
            .await
            .unwrap();
        let mut session = node.open(&format!("{name}@{name}.sock")).await;
        let fault = fault(&mut session).await;
        assert_eq!(fault.reason, FaultReason::AnswerTooLarge, "{fault}");
        assert!(fault.message.contains(words), "{fault}");
    }
}

#[tokio::test]
async fn a_check_that_hangs_is_a_fault_of_that_handler_alone() {
    let mut node = Node::start();
    let sets = Sets::serve(&node.path("a.sock"));
    node.register_socket("a", "a.sock").await.unwrap();
    let mut session = node.open("a@a.sock").await;
    sets.send(&["one"]);
    assert_eq!(ids(&mut session).await, ["one"]);
    // Stand-ins for two path checks that hang.
    let quota = node.external.shared.threads.of("a@a.sock");
    let mut ends = Vec::new();
    for _ in 0..2 {
        let (end, ended) = std::sync::mpsc::channel::<()>();
        let hangs = quota.run(move || {
            let _ = ended.recv();
        });
        assert!(futures::FutureExt::now_or_never(hangs).is_none());
        ends.push(end);
    }
    sets.send(&["two"]);
    let report = after_30_seconds(&mut session).await;
    let Outcome::Faulted(fault) = report.outcome else {
        panic!("no fault");
    };
    assert_eq!(fault.reason, FaultReason::WallTimeout, "{fault}");
    assert!(fault.message.contains("may hang"), "{fault}");

    let _fake = Fake::serve(&node.path("b.sock"), always(&["three"]));
    node.register_socket("b", "b.sock").await.unwrap();
    let mut other = node.open("b@b.sock").await;
    assert_eq!(ids(&mut other).await, ["three"]);
    drop(ends);
    assert_eq!(quota.run(|| 1).await, Ok(1));
}

#[tokio::test]
async fn what_is_no_set_is_a_fault_that_says_so() {
    let mut node = Node::start();
    let path = node.path("a.sock");
    let listener = UnixListener::bind(&path).unwrap();
    let mut task = JoinSet::new();
    task.spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        // An answer that comes before its request would be an error of the connection.
        let mut preface = [0; leafhost_uds::authority::PREFACE];
        stream.read_exact(&mut preface).await.unwrap();
        loop {
            let mut head = [0; 9];
            stream.read_exact(&mut head).await.unwrap();
            let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
            let mut frame = vec![0; length as usize];
            stream.read_exact(&mut frame).await.unwrap();
            let is_request = head[3] == 1;
            if is_request {
                break;
            }
        }
        // Settings, then the head of an answer and a message that ends a group that never began.
        let frames: &[u8] = b"\x00\x00\x00\x04\x00\x00\x00\x00\x00\
              \x00\x00\x13\x01\x04\x00\x00\x00\x01\x88\x5f\x10application/grpc\
              \x00\x00\x06\x00\x00\x00\x00\x00\x01\x00\x00\x00\x00\x01\x0c";
        let _ = stream.write_all(frames).await;
        std::future::pending::<()>().await;
    });
    node.register_socket("a", "a.sock").await.unwrap();
    let mut session = node.open("a@a.sock").await;
    let fault = fault(&mut session).await;
    assert_eq!(fault.reason, FaultReason::ConnectionLost, "{fault}");
    assert!(fault.message.contains("no set of devices"), "{fault}");
}

#[tokio::test]
async fn half_a_message_and_no_grpc_are_lost_connections() {
    let mut node = Node::start();
    let path = node.path("a.sock");
    let listener = UnixListener::bind(&path).unwrap();
    let mut task = JoinSet::new();
    task.spawn(async move {
        for number in 0.. {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut read = [0; 4096];
            let _ = stream.read(&mut read).await;
            // Settings, then the head of an answer and a message of a hundred bytes of which two come; or no HTTP at all.
            let frames: &[u8] = if number % 2 == 0 {
                b"\x00\x00\x00\x04\x00\x00\x00\x00\x00\
                  \x00\x00\x13\x01\x04\x00\x00\x00\x01\x88\x5f\x10application/grpc\
                  \x00\x00\x07\x00\x01\x00\x00\x00\x01\x00\x00\x00\x00\x64\x0a\x02"
            } else {
                b"HTTP/1.1 200 OK\r\n\r\n"
            };
            let _ = stream.write_all(frames).await;
            let _ = stream.read(&mut read).await;
        }
    });
    node.register_socket("a", "a.sock").await.unwrap();
    let mut session = node.open("a@a.sock").await;
    for _ in 0..2 {
        let fault = fault(&mut session).await;
        assert_eq!(fault.reason, FaultReason::ConnectionLost, "{fault}");
    }
    let _fake = Fake::serve(&node.path("b.sock"), always(&["one"]));
    node.register_socket("a", "b.sock").await.unwrap();
    let mut other = node.open("a@b.sock").await;
    assert_eq!(ids(&mut other).await, ["one"]);
}

#[tokio::test]
async fn a_stream_that_says_nothing_is_told_and_kept() {
    let mut node = Node::start();
    let sets = Sets::serve(&node.path("a.sock"));
    node.register_socket("a", "a.sock").await.unwrap();
    let mut session = node.open("a@a.sock").await;
    let report = after_30_seconds(&mut session).await;
    match report.outcome {
        Outcome::Unavailable(what) => assert!(what.contains("within 30 s"), "{what}"),
        other => panic!("{other:?}"),
    }
    sets.send(&["one"]);
    assert_eq!(ids(&mut session).await, ["one"]);
}

#[tokio::test]
async fn a_thousand_names_and_idle_connections_keep_no_other_handler_out() {
    let mut node = Node::start();
    let _bad = Fake::serve(&node.path("bad.sock"), always(&[]));
    let _good = Fake::serve(&node.path("good.sock"), always(&["one"]));
    let mut refused = 0;
    for number in 0..1000 {
        let registered = node
            .register_socket(&format!("n{number}"), "bad.sock")
            .await;
        refused += u32::from(registered.is_err());
    }
    assert_eq!(refused, 996);
    // Fewer than the permitted connections.
    let idle = (0..8).map(|_| tokio::net::UnixStream::connect(node.path(SOCKET)));
    let _idle = futures::future::join_all(idle).await;
    node.register_socket("good", "good.sock").await.unwrap();
    let set = node
        .sources(|set| set.files.contains_key("good@good.sock"))
        .await;
    assert_eq!(set.files.len(), 5);
    assert!(set.problems.len() <= 16, "{}", set.problems.len());
    let mut session = node.open("good@good.sock").await;
    assert_eq!(ids(&mut session).await, ["one"]);
}

//! Checks of addresses, and the address of the connection.

use std::net::SocketAddrV6;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::*;

const OK: &str = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";

fn at(ip: &str, port: u16) -> SocketAddr {
    SocketAddr::new(ip.parse().unwrap(), port)
}

/// Returns a resolver that gives every name these addresses.
fn names(ips: &'static [&'static str]) -> Names {
    Names::with(move |_| Ok(ips.iter().map(|ip| at(ip, 0)).collect()))
}

async fn ask_name(gate: &Guard, names: &Names, port: u16) -> Result<Response<Bytes>, HttpError> {
    let request = get(format!("http://Cam.Example:{port}/"));
    whole(send(gate, names, &Arc::default(), request, LIMITS).await?).await
}

#[tokio::test]
async fn every_address_of_a_name_is_checked_and_only_granted_ones_are_tried() {
    let port = answering(OK).await.port();
    let gate = Guard {
        denied: vec![at("127.0.0.2", port)],
        ..Guard::default()
    };
    // Denied; granted without a listener; the right one in its IPv6 form; the same again; unspecified.
    let names = names(&[
        "127.0.0.2",
        "127.0.0.3",
        "::ffff:127.0.0.1",
        "127.0.0.1",
        "0.0.0.0",
    ]);
    assert_eq!(*ask_name(&gate, &names, port).await.unwrap().body(), "ok");
    let asked = ["127.0.0.2", "127.0.0.3", "127.0.0.1"];
    let asked = asked.map(|ip| ("cam.example".to_owned(), at(ip, port)));
    assert_eq!(*gate.asked.lock().unwrap(), asked);
}

#[tokio::test]
async fn a_name_with_denied_addresses_alone_reaches_nobody_and_names_them() {
    let (listener, address) = listen().await;
    let port = address.port();
    let gate = Guard {
        denied: vec![address, at("::1", port)],
        ..Guard::default()
    };
    let error = ask_name(&gate, &names(&["127.0.0.1", "::1"]), port).await;
    assert_eq!(
        describe(&error.unwrap_err()),
        format!("not granted: send a request to 127.0.0.1:{port}; send a request to [::1]:{port}")
    );
    assert!(nobody_came(&listener).await);
}

#[tokio::test]
async fn a_name_that_changes_its_address_is_checked_anew() {
    let port = answering(OK).await.port();
    let gate = Guard {
        denied: vec![at("127.0.0.66", port)],
        ..Guard::default()
    };
    let asked = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&asked);
    let changing = Names::with(move |_| {
        let first = count.fetch_add(1, Ordering::Relaxed) == 0;
        Ok(vec![at(if first { "127.0.0.1" } else { "127.0.0.66" }, 0)])
    });
    assert_eq!(
        *ask_name(&gate, &changing, port).await.unwrap().body(),
        "ok"
    );
    assert_eq!(asked.load(Ordering::Relaxed), 1);
    let error = ask_name(&gate, &changing, port).await.unwrap_err();
    assert!(
        matches!(error, HttpError::Denied(_)),
        "{}",
        describe(&error)
    );
}

#[tokio::test]
async fn a_denied_name_is_not_looked_up() {
    let gate = Guard {
        denied_names: vec!["cam.example".into()],
        ..Guard::default()
    };
    let error = ask_name(&gate, &no_names(), 80).await.unwrap_err();
    assert_eq!(describe(&error), "not granted: look up cam.example");
}

#[tokio::test]
async fn a_name_without_an_address_is_named() {
    let cases = [
        (
            no_names(),
            "look up \"cam.example\": cam.example was looked up",
        ),
        (
            names(&["0.0.0.0"]),
            "look up \"cam.example\": it has no address of a peer",
        ),
    ];
    for (names, text) in cases {
        let error = ask_name(&Guard::default(), &names, 80).await.unwrap_err();
        assert_eq!(describe(&error), text);
    }
}

#[tokio::test]
async fn four_granted_addresses_are_tried_and_the_last_error_is_told() {
    let port = answering(OK).await.port();
    let five = names(&[
        "127.0.0.2",
        "127.0.0.3",
        "127.0.0.4",
        "127.0.0.5",
        "127.0.0.1",
    ]);
    let error = ask_name(&Guard::default(), &five, port).await.unwrap_err();
    let text = format!("connect to 127.0.0.5:{port}: connection refused");
    assert_eq!(describe(&error), text);
}

#[tokio::test]
async fn a_link_local_peer_is_checked_with_its_zone() {
    let peer = SocketAddrV6::new("fe80::1".parse().unwrap(), 81, 0, 1).into();
    let gate = Guard {
        denied: vec![peer],
        ..Guard::default()
    };
    let error = send_to(&gate, get("http://[fe80::1%25lo]:81/"), LIMITS).await;
    assert!(matches!(error, Err(HttpError::Denied(_))));
    let asked = gate.asked.into_inner().unwrap();
    assert_eq!(asked, [("fe80::1".to_owned(), peer)]);
}

#[tokio::test]
async fn four_look_ups_run_at_once_even_if_nobody_waits_for_them() {
    let most = Arc::new(AtomicUsize::new(0));
    let (finish, until_then) = std::sync::mpsc::channel::<()>();
    let (running, until_then) = (AtomicUsize::new(0), Mutex::new(until_then));
    let (started, mut starts) = tokio::sync::mpsc::unbounded_channel();
    let highest = Arc::clone(&most);
    let stuck = Names::with(move |_| {
        let now = running.fetch_add(1, Ordering::SeqCst) + 1;
        highest.fetch_max(now, Ordering::SeqCst);
        started.send(()).unwrap();
        // Ends when the test drops the other side.
        assert!(until_then.lock().unwrap().recv().is_err());
        running.fetch_sub(1, Ordering::SeqCst);
        Err(io::Error::other("late"))
    });
    let guard = Guard::default();
    // Polled once and dropped, as by callers whose time is over.
    for n in 0..20 {
        if n == 4 {
            for _ in 0..4 {
                starts.recv().await.unwrap();
            }
        }
        tokio::select! {
            biased;
            _ = stuck.look_up(&guard, "cam.example") => panic!("it is stuck"),
            () = std::future::ready(()) => {}
        }
    }
    assert_eq!(stuck.free(), 0);
    drop(finish);
    let late = stuck.look_up(&guard, "cam.example").await.unwrap_err();
    assert_eq!(describe(&late), "look up \"cam.example\": late");
    assert!(most.load(Ordering::SeqCst) <= 4);
}

#[tokio::test]
async fn names_that_nobody_answers_for_delay_no_other_handler() {
    let (finish, until_then) = std::sync::mpsc::channel::<()>();
    let until_then = Mutex::new(until_then);
    let (started, mut starts) = tokio::sync::mpsc::unbounded_channel();
    let one = Names::with(move |name| {
        if name == "cam.example" {
            return Ok(vec![at("192.168.7.9", 0)]);
        }
        started.send(()).unwrap();
        assert!(until_then.lock().unwrap().recv().is_err());
        Err(io::Error::other("late"))
    });
    let guard = Guard::default();
    let other = one.of_another();
    for _ in 0..20 {
        tokio::select! {
            biased;
            _ = one.look_up(&guard, "dead.example") => panic!("it is stuck"),
            () = std::future::ready(()) => {}
        }
    }
    for _ in 0..4 {
        starts.recv().await.unwrap();
    }
    assert_eq!((one.free(), other.free()), (0, 4));
    let found = other.look_up(&guard, "cam.example").await.unwrap();
    assert_eq!(found, [at("192.168.7.9", 0)]);
    drop(finish);
}

#[tokio::test]
async fn all_handlers_together_have_so_many_look_ups_at_once() {
    let (finish, until_then) = std::sync::mpsc::channel::<()>();
    let until_then = Mutex::new(until_then);
    let (started, mut starts) = tokio::sync::mpsc::unbounded_channel();
    let first = Names::with(move |_| {
        started.send(()).unwrap();
        assert!(until_then.lock().unwrap().recv().is_err());
        Err(io::Error::other("late"))
    });
    let guard = Guard::default();
    let handlers: Vec<Names> = (0..20).map(|_| first.of_another()).collect();
    for names in handlers.iter().flat_map(|names| [names; 4]) {
        tokio::select! {
            biased;
            _ = names.look_up(&guard, "dead.example") => panic!("it is stuck"),
            () = std::future::ready(()) => {}
        }
    }
    for _ in 0..64 {
        starts.recv().await.unwrap();
    }
    assert_eq!(first.of_another().free(), 0);
    drop(finish);
}

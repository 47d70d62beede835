use std::cell::Cell;
use std::rc::Rc;

use super::*;
use crate::Host;
use crate::http::{Request, Response};
use crate::net::CONNECTIONS;
use crate::testing::{HttpAnswer, TcpReaction, UdpAnswer};

fn ms(milliseconds: u64) -> Duration {
    Duration::from_millis(milliseconds)
}

fn address(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

/// Creates a server that echoes the first bytes after 10 ms and the second after 5 ms, then closes.
fn mk_echo() -> FakeHost {
    FakeHost::new().tcp_server("192.168.7.9:4840", || {
        let mut calls = 0;
        Box::new(move |bytes| {
            calls += 1;
            TcpReaction {
                send: bytes.to_vec(),
                close: calls == 3,
                after: ms(15 - 5 * calls),
            }
        })
    })
}

async fn connected(host: &Host) -> crate::tcp::Stream {
    let stream = host.connect(address("192.168.7.9:4840")).await;
    stream.unwrap()
}

#[test]
fn interfaces_and_addresses_are_sorted() {
    let fake = FakeHost::new()
        .interface("eth1", 3, ["fe80::1/64", "10.0.0.2/8"])
        .interface("eth0", 2, ["192.168.7.2/24"]);
    let interfaces = fake.host().interfaces();
    let names: Vec<_> = interfaces.iter().map(|i| (i.index, &i.name[..])).collect();
    assert_eq!(names, [(2, "eth0"), (3, "eth1")]);
    let ten = Address {
        ip: "10.0.0.2".parse().unwrap(),
        prefix: 8,
    };
    assert_eq!(interfaces[1].addresses[0], ten);
}

#[test]
#[should_panic(expected = "cannot read \"10.0.0.300\" as")]
fn an_invalid_address_panics_with_a_message() {
    drop(FakeHost::new().interface("eth0", 2, ["10.0.0.300/8"]));
}

#[test]
fn a_connection_receives_the_servers_reaction() {
    let fake = mk_echo();
    let host = fake.host();
    host.block_on(async {
        let mut stream = connected(&host).await;
        stream.write_all(b"hello").await.unwrap();
        assert_eq!(stream.read(3).await.unwrap(), b"hel");
        assert_eq!(fake.now(), ms(5));
        assert_eq!(stream.read(3).await.unwrap(), b"lo");
        stream.write_all(b"bye").await.unwrap();
        assert_eq!(stream.read(100).await.unwrap(), b"bye");
        assert_eq!(stream.read(100).await.unwrap(), b"");
        assert_eq!(stream.write_all(b"more").await, Err(Error::Closed));
    });
    assert_eq!(fake.contacts()[0].to, "tcp 192.168.7.9:4840");
}

#[test]
fn every_connection_has_its_own_handler() {
    let fake = mk_echo();
    let host = fake.host();
    let works = (0..3).map(|_| async {
        let mut stream = connected(&host).await;
        stream.write_all(b"hello").await.unwrap();
        stream.read(100).await.unwrap()
    });
    assert_eq!(host.block_on(host.all(3, works)), [b"hello"; 3]);
}

#[test]
fn the_result_of_a_connect_depends_on_the_address() {
    let fake = FakeHost::new()
        .tcp_silent("10.0.0.1:1")
        .tcp_silent("10.0.0.2:1")
        .deny("10.0.0.2");
    let host = fake.host();
    for (remote, end) in [
        ("10.0.0.1:1", None),
        ("10.0.0.1:2", Some(Error::Unreachable)),
        ("10.0.0.2:1", Some(Error::Denied("tcp 10.0.0.2:1".into()))),
    ] {
        let connect = host.within(ms(10), host.connect(address(remote)));
        let result = host.block_on(connect);
        assert_eq!(result.map(Result::unwrap_err), end, "{remote}");
    }
    assert_eq!(fake.contacts().len(), 2);
}

#[test]
fn a_limit_on_the_whole_stops_a_dripping_server() {
    let fake = FakeHost::new().tcp_dripping("10.0.0.1:1", "x".repeat(100), ms(1_000));
    let host = fake.host();
    let read = Cell::new(0);
    let work = async {
        let mut stream = host.connect(address("10.0.0.1:1")).await.unwrap();
        loop {
            read.set(read.get() + stream.read(100).await.unwrap().len());
        }
    };
    let ended: Option<()> = host.block_on(host.within(ms(5_500), work));
    assert_eq!((ended, read.get(), fake.now()), (None, 5, ms(5_500)));
}

#[test]
fn names_resolve_and_addresses_resolve_to_themselves() {
    let fake = FakeHost::new()
        .name("plc1", ["192.168.7.9", "fe80::9"])
        .name("secret", ["10.0.0.1"])
        .deny("secret");
    let host = fake.host();
    let resolve = |name| host.block_on(host.resolve(name));
    assert_eq!(resolve("plc1").unwrap().len(), 2);
    assert_eq!(resolve("::1").unwrap(), ["::1".parse::<IpAddr>().unwrap()]);
    assert_eq!(resolve("secret"), Err(Error::Denied("name secret".into())));
    assert!(matches!(resolve("plc2"), Err(Error::Name(why)) if why.contains("plc2")));
}

fn mk_http() -> FakeHost {
    FakeHost::new().name("camera", ["192.168.7.9"]).http_server(
        "http://192.168.7.9:80",
        |request| {
            let mut response = Response::new(200, request.body.clone());
            let method = ("X-Method".to_owned(), request.method.clone());
            response.headers.push(method);
            HttpAnswer {
                after: ms(100),
                result: Ok(response),
            }
        },
    )
}

#[test]
fn a_request_is_answered_by_the_server_at_its_url() {
    let fake = mk_http().deny("10.0.0.1:80").deny("192.168.7.10");
    let host = fake.host();
    let unreachable = Err(Error::Unreachable);
    for (url, status) in [
        ("http://192.168.7.9/onvif", Ok(200)),
        ("http://192.168.7.9:80/onvif?a", Ok(200)),
        ("http://camera/onvif", Ok(200)),
        ("https://192.168.7.9:80/", unreachable.clone()),
        ("http://192.168.7.9:81/", unreachable.clone()),
        ("http://192.168.7.8/", unreachable.clone()),
        ("http://[fe80::1]/", unreachable),
        (
            "http://10.0.0.1/",
            Err(Error::Denied("http 10.0.0.1:80".into())),
        ),
        (
            "http://192.168.7.10:8080/",
            Err(Error::Denied("http 192.168.7.10:8080".into())),
        ),
        (
            "http://plc1/",
            Err(Error::Name("\"plc1\": no such name".into())),
        ),
        (
            "ftp://a",
            Err(Error::Other(
                "URL \"ftp://a\" is neither http nor https".into(),
            )),
        ),
    ] {
        let response = host.block_on(host.http(Request::post(url, "hi")));
        assert_eq!(
            response.as_ref().map(|r| r.status).map_err(Clone::clone),
            status,
            "{url}"
        );
        if let Ok(response) = response {
            assert_eq!(response.body, b"hi");
            assert_eq!(
                response.headers,
                [("x-method".to_owned(), "POST".to_owned())]
            );
        }
    }
    assert_eq!(fake.now(), ms(300));
    assert_eq!(fake.contacts()[0].to, "http POST http://192.168.7.9/onvif");
    assert!(
        fake.contacts()
            .iter()
            .all(|contact| !contact.to.contains("10.0.0.1"))
    );
}

#[test]
fn a_request_has_a_limit_in_time_and_in_size() {
    let fake = mk_http();
    let host = fake.host();
    let request = || Request::post("http://camera", "12345");
    for (request, error) in [
        (request().limit(ms(99)), Some(Error::TimedOut)),
        (request().limit(ms(101)), None),
        (request().max_body(4), Some(Error::TooLarge(4))),
        (request().max_body(5), None),
    ] {
        let response = host.block_on(host.http(request.clone()));
        assert_eq!(response.err(), error, "{request:?}");
    }
}

#[test]
fn a_retry_waits_longer_each_time_and_ends_with_the_calls_time() {
    let failing = |times: u32, left_ms: u32, error: Error| {
        let fake = FakeHost::new();
        let mut budget = crate::testing::budget();
        budget.wall_ms = left_ms;
        let host = Host::new(fake.imports(), &budget);
        let tries = std::cell::Cell::new(0);
        let end = host.block_on(host.retry(times, || {
            tries.set(tries.get() + 1);
            let error = error.clone();
            async move { Err::<(), _>(error) }
        }));
        assert_eq!(end, Err(error));
        (tries.get(), fake.now())
    };
    assert_eq!(failing(3, 30_000, Error::Refused), (3, ms(200 + 400)));
    assert_eq!(
        failing(9, 1_000, Error::TimedOut),
        (3, ms(200 + 400)),
        "800 ms of a second are for the call's work"
    );
    let denied = Error::Denied("udp".to_owned());
    assert_eq!(failing(3, 30_000, denied), (1, ms(0)));
    let fake = FakeHost::new();
    let host = fake.host();
    let mut answers = [Err(Error::Closed), Ok(7)].into_iter();
    let end = host.block_on(host.retry(3, || std::future::ready(answers.next().unwrap())));
    assert_eq!((end, fake.now()), (Ok(7), ms(200)));
}

#[test]
fn a_socket_is_bound_only_to_an_address_of_the_host() {
    let fake = FakeHost::new()
        .interface("eth0", 2, ["192.168.7.2/24"])
        .udp_peer("192.168.7.9:53", |_, _| Vec::new());
    let host = fake.host();
    for (local, from) in [
        ("0.0.0.0:0", Some("192.168.7.2")),
        ("192.168.7.2:0", Some("192.168.7.2")),
        ("192.168.7.3:0", None),
        ("192.168.7.2:68", None),
    ] {
        let socket = host.udp(address(local)).ok();
        let sent = socket.map(|socket| {
            let sent = host.block_on(socket.send_to(b"x", address("192.168.7.9:53")));
            sent.unwrap();
            let last = fake.contacts().pop().unwrap();
            last.from.unwrap().ip().to_string()
        });
        assert_eq!(sent.as_deref(), from, "{local}");
    }
}

#[test]
fn a_datagram_that_arrives_earlier_is_received_first() {
    let delays = Rc::new(Cell::new(100));
    let next = Rc::clone(&delays);
    let fake = FakeHost::new().udp_peer("10.0.0.1:1", move |_, payload| {
        let after = ms(next.replace(10));
        let from = address("10.0.0.1:1");
        let payload = payload.to_vec();
        vec![UdpAnswer {
            after,
            from,
            payload,
        }]
    });
    let host = fake.host();
    let socket = host.udp(address("0.0.0.0:0")).unwrap();
    let to = address("10.0.0.1:1");
    let asks = async {
        socket.send_to(b"slow", to).await.unwrap();
        host.sleep(ms(20)).await;
        socket.send_to(b"quick", to).await.unwrap();
        std::future::pending::<()>().await;
    };
    let first = async {
        let (payload, _) = socket.receive().await.unwrap();
        payload
    };
    let work = futures_util::future::select(Box::pin(first), Box::pin(asks));
    let first = match host.block_on(work) {
        futures_util::future::Either::Left((payload, _)) => payload,
        futures_util::future::Either::Right(_) => unreachable!(),
    };
    assert_eq!(first, b"quick");
    assert_eq!(fake.now(), ms(30));
}

#[test]
fn what_a_denied_address_sends_does_not_arrive() {
    let fake = FakeHost::new()
        .udp_peer("239.1.1.1:1", |_, _| {
            let answer = |from: &str| UdpAnswer {
                after: ms(1),
                from: address(from),
                payload: from.as_bytes().to_vec(),
            };
            vec![answer("10.0.0.1:5"), answer("10.0.0.2:5")]
        })
        .deny("10.0.0.1");
    let host = fake.host();
    let socket = host.udp(address("0.0.0.0:0")).unwrap();
    let work = async {
        socket.send_to(b"x", address("239.1.1.1:1")).await.unwrap();
        let (_, from) = socket.receive().await.unwrap();
        let more = host.within(ms(100), socket.receive()).await;
        (from, more.is_some())
    };
    assert_eq!(host.block_on(work), (address("10.0.0.2:5"), false));
    let denied = host.block_on(socket.send_to(b"x", address("10.0.0.1:5")));
    assert_eq!(denied, Err(Error::Denied("udp 10.0.0.1:5".into())));
}

#[test]
fn a_peer_without_a_scope_receives_from_all_scopes() {
    for (peer, asked, hears) in [
        ("[ff02::c]:3702", "[ff02::c%2]:3702", true),
        ("[ff02::c%2]:3702", "[ff02::c%2]:3702", true),
        ("[ff02::c%3]:3702", "[ff02::c%2]:3702", false),
        ("[ff02::c]:3703", "[ff02::c%2]:3702", false),
    ] {
        assert_eq!(answers_to(address(peer), address(asked)), hears, "{peer}");
    }
}

#[test]
fn a_call_has_the_real_limits_of_lookups_and_connections() {
    let fake = FakeHost::new().name("plc1", ["192.168.7.9"]);
    let host = fake.host();
    let refused = |error: Error, words: &str| {
        assert!(
            matches!(&error, Error::Denied(why) if why.contains(words)),
            "{error}"
        );
    };
    // Lookups of an earlier call do not count.
    for _ in 0..2 {
        fake.0.begin_call();
        for _ in 0..LOOK_UPS {
            assert!(host.block_on(host.resolve("plc1")).is_ok());
        }
        refused(
            host.block_on(host.resolve("plc1")).unwrap_err(),
            "more than 64 names",
        );
    }
    let nobody = address("192.168.7.9:9");
    for _ in 0..CONNECTIONS {
        let error = host.block_on(host.connect(nobody)).unwrap_err();
        assert_eq!(error, Error::Unreachable);
    }
    let error = host.block_on(host.connect(nobody)).unwrap_err();
    refused(error, "more than 4096 connections"); // Requests count as connections.
    let request = Request::get("http://192.168.7.9:9/");
    let error = host.block_on(host.http(request)).unwrap_err();
    refused(error, "more than 4096 connections");
}

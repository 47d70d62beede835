//! Guests that use the network, within and beyond their grants.

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};

use leafhost_net::{Interface, Interfaces};
use tokio::sync::watch;

use super::*;

/// 127.0.0.1, in the form that the guests' functions take.
const HOME: u32 = 0x0100_007f;
/// Return values of the guests' functions for access-denied, new-socket-limit, invalid-argument; and for a denied request.
const DENIED: i32 = -2;
const NO_MORE_SOCKETS: i32 = -11;
const INVALID: i32 = -4;
const REQUEST_DENIED: i32 = -16;

/// Creates a bench whose node has its loopback interface and `192.168.7.2/24`.
fn bench() -> Bench {
    let interface = |name: &str, index, net: &str, loopback: bool| Interface {
        name: name.into(),
        index,
        addresses: vec![net.parse().unwrap()],
        up: true,
        multicast: !loopback,
        loopback,
    };
    let list = vec![
        interface("lo", 1, "127.0.0.1/8", true),
        interface("eth0", 2, "192.168.7.2/24", false),
    ];
    let (_, interfaces) = watch::channel(Arc::new(Interfaces {
        list,
        ..Interfaces::default()
    }));
    let network = Network::fixed(interfaces);
    let folder = tempfile::tempdir().unwrap();
    let runtime = runtime(&folder.path().join("cache"), compiler(), Ok(network));
    Bench { folder, runtime }
}

/// Builds a guest that runs `does`, with the text at 1152.
fn guest(text: &str, does: &str) -> Guest {
    Guest {
        data: format!("(data (i32.const 1152) {text:?})"),
        discover: format!("(local $n i32) (local $count i32) {does} {ANSWER}"),
        ..Guest::default()
    }
}

/// Ends the call if `what` does not return `expected`.
fn is(what: &str, expected: i32) -> String {
    format!("(call $is {what} (i32.const {expected}))")
}

fn send(port: u16) -> String {
    format!("(call $send (i32.const {HOME}) (i32.const {port}))")
}

fn connect(port: u16) -> String {
    format!("(call $connect (i32.const {HOME}) (i32.const {port}))")
}

/// Calls `function` with a text that lies at 1152 + `start`.
fn of_text(function: &str, start: usize, text: &str) -> String {
    let (at, length) = (1152 + start, text.len());
    format!("(call ${function} (i32.const {at}) (i32.const {length}))")
}

/// Counts in ten thousand tries how often `what` returns more than minus one, and compares that with `count`.
fn ten_thousand(what: &str, count: i32) -> String {
    format!(
        "(loop $l
          (if (i32.ge_s {what} (i32.const 0)) (then (local.set $count (i32.add (local.get $count) (i32.const 1)))))
          (br_if $l (i32.lt_u (local.tee $n (i32.add (local.get $n) (i32.const 1))) (i32.const 10000))))
        {}",
        is("(local.get $count)", count)
    )
}

impl Bench {
    /// Returns what a guest was denied; its call must succeed, and so must a call of a good guest after it.
    async fn denied(&self, guest: &Guest, network: &str) -> String {
        let grants = match network {
            "" => String::new(),
            network => format!("network: {network}"),
        };
        let report = self.first(guest, &grants).await;
        let Outcome::Discovered(_) = &report.outcome else {
            panic!("{}: {report:?}", guest.discover);
        };
        assert!(report.call.wall < Duration::from_secs(20), "{report:?}");
        assert!(report.call.denied.len() <= 64);
        let good = self.first(&Guest::default(), "").await;
        assert!(matches!(good.outcome, Outcome::Discovered(_)), "{good:?}");
        report.call.denied.join("\n")
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_not_granted_is_denied_and_named() {
    let bench = bench();
    let udp = is("(call $open (call $udp))", 0) + &is(&send(9), DENIED);
    let tcp = is(&connect(9), DENIED);
    let look_up = is(&of_text("look-up", 0, "localhost"), DENIED);
    let get = |authority: &str| is(&of_text("get", 0, authority), REQUEST_DENIED);
    let mapped = "[::ffff:127.0.0.1]:9";
    for (text, does, network, named) in [
        (
            "",
            &udp,
            "{udp: ['10.0.0.0/8:9', 'lan:9', '0.0.0.0/0:*']}",
            "send to 127.0.0.1:9",
        ),
        (
            "",
            &tcp,
            "{tcp: ['10.0.0.0/8:9', 'lan:9', '0.0.0.0/0:*']}",
            "connect to 127.0.0.1:9",
        ),
        (
            "",
            &tcp,
            "{tcp: ['127.0.0.0/8:10']}",
            "connect to 127.0.0.1:9",
        ),
        (
            "localhost",
            &look_up,
            "{tcp: ['127.0.0.0/8:9']}",
            "look up \"localhost\"",
        ),
        (
            "localhost",
            &look_up,
            "{names: ['*'], tcp: ['lan:*', '0.0.0.0/0:*']}",
            "localhost at 127.0.0.1",
        ),
        (
            "127.0.0.1:9",
            &get("127.0.0.1:9"),
            "{http: ['lan:*', '0.0.0.0/0:*']}",
            "127.0.0.1:9",
        ),
        (
            "localhost:9",
            &get("localhost:9"),
            "{http: ['localhost:*']}",
            "127.0.0.1:9",
        ),
        (
            mapped,
            &get(mapped),
            "{http: ['lan:*', '0.0.0.0/0:*']}",
            "127.0.0.1:9",
        ),
        (
            "",
            &is("(call $udp)", DENIED),
            "",
            "a UDP socket: the grant `network` is missing",
        ),
        ("", &tcp, "", "a TCP socket: the grant `network` is missing"),
        (
            "localhost",
            &look_up,
            "",
            "look up localhost: the grant `network` is missing",
        ),
        (
            "127.0.0.1:9",
            &get("127.0.0.1:9"),
            "",
            "the grant `network` is missing",
        ),
    ] {
        let denied = bench.denied(&guest(text, does), network).await;
        assert!(denied.contains(named), "{network} {text}: {denied}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_ipv4_address_in_ipv6_form_is_none_for_a_socket() {
    let peer = UdpSocket::bind("127.0.0.1:0").unwrap();
    let port = peer.local_addr().unwrap().port();
    let does = is("(call $connect-mapped (i32.const 9))", INVALID)
        + &is(&format!("(call $send-mapped (i32.const {port}))"), INVALID);
    let bench = bench();
    for grants in ["127.0.0.0/8:*", "lan:*", "[::ffff:0:0]/96:*"] {
        let grants = format!("{{tcp: ['{grants}'], udp: ['{grants}']}}");
        bench.denied(&guest("", &does), &grants).await;
    }
    peer.set_nonblocking(true).unwrap();
    let nothing = peer.recv(&mut [0; 64]).unwrap_err();
    assert_eq!(nothing.kind(), std::io::ErrorKind::WouldBlock);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_granted_group_is_not_asked_where_routes_alone_lead() {
    let does = is("(call $open (call $udp))", 0)
        + &is(
            "(call $send (i32.const 0xfaffffef) (i32.const 3702))",
            DENIED,
        );
    let denied = bench()
        .denied(
            &guest("", &does),
            "{interfaces: [eth1], udp: ['239.255.255.250/32:3702']}",
        )
        .await;
    assert!(denied.contains("it may leave on eth0"), "{denied}");
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_view_of_the_network_the_reason_is_named() {
    let does = is(&connect(9), DENIED);
    let denied = Bench::new()
        .denied(&guest("", &does), "{tcp: ['127.0.0.0/8:9']}")
        .await;
    assert!(
        denied.contains("a TCP socket: no network in this test"),
        "{denied}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_granted_server_is_connected_to() {
    let server = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = server.local_addr().unwrap().port();
    let denied = bench()
        .denied(
            &guest("", &is(&connect(port), 0)),
            &format!("{{tcp: ['127.0.0.0/8:{port}']}}"),
        )
        .await;
    assert_eq!(denied, "");
    server.accept().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn sockets_that_are_never_closed_end_with_the_call() {
    let bench = bench();
    let does = ten_thousand("(call $udp)", 128) + &is("(call $udp)", NO_MORE_SOCKETS);
    let handler = bench
        .load(&guest("", &does).wasm(), "network: {udp: ['lan:9']}")
        .await
        .unwrap();
    // More sockets in total than a process may have open by default.
    for _ in 0..10 {
        let report = handler.open(spec()).next().await;
        assert!(
            matches!(report.outcome, Outcome::Discovered(_)),
            "{report:?}"
        );
        assert_eq!(report.call.denied, ["more than 128 sockets at once"]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn ten_thousand_look_ups_are_sixty_four() {
    let does = ten_thousand(&of_text("look-up", 0, "localhost"), 64);
    let denied = bench()
        .denied(
            &guest("localhost", &does),
            "{names: [localhost], tcp: ['127.0.0.0/8:9']}",
        )
        .await;
    assert!(denied.contains("look up more than 64 names"), "{denied}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_flood_of_datagrams_ends_after_so_many() {
    let peer = UdpSocket::bind("127.0.0.1:0").unwrap();
    let port = peer.local_addr().unwrap().port();
    let does = is("(call $open (call $udp))", 0) + &ten_thousand(&send(port), 4096);
    let denied = bench()
        .denied(
            &guest("", &does),
            &format!("{{udp: ['127.0.0.1/32:{port}']}}"),
        )
        .await;
    assert_eq!(denied, "send more than 4096 datagrams in one call");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_denied_senders_flood_keeps_no_answer_away() {
    let peer = UdpSocket::bind("127.0.0.1:0").unwrap();
    let stranger = UdpSocket::bind("127.0.0.2:0").unwrap();
    let port = peer.local_addr().unwrap().port();
    let over = Arc::new(AtomicBool::new(false));
    let ended = over.clone();
    let sending = std::thread::spawn(move || {
        let mut asked = [0; 64];
        let (length, from) = peer.recv_from(&mut asked).unwrap();
        assert_eq!(&asked[..length], b"textual");
        let pace = Duration::from_millis(20);
        peer.set_read_timeout(Some(pace)).unwrap();
        for _ in 0..50_000 {
            stranger.send_to(&[0; 1400], from).unwrap();
        }
        while !ended.load(Ordering::Relaxed) {
            peer.send_to(b"answer", from).unwrap();
            // Nothing more arrives, so this paces the loop.
            assert!(peer.recv(&mut asked).is_err());
        }
    });
    let does = is("(call $open (call $udp))", 0) + &is(&send(port), 1) + &is("(call $hear)", 1);
    let bench = bench();
    let grants = format!("network: {{udp: ['127.0.0.1/32:{port}']}}");
    let report = bench.first(&guest("", &does), &grants).await;
    over.store(true, Ordering::Relaxed);
    sending.join().unwrap();
    assert!(
        matches!(report.outcome, Outcome::Discovered(_)),
        "{report:?}"
    );
    assert!(report.call.wall < Duration::from_secs(20), "{report:?}");
    assert!(report.call.cpu < Duration::from_secs(1), "{report:?}");
    let denied = report.call.denied.join("\n");
    assert!(denied.contains("receive from 127.0.0.2:"), "{denied}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_redirect_is_shown_and_not_followed() {
    let server = TcpListener::bind("127.0.0.1:0").unwrap();
    let elsewhere = TcpListener::bind("127.0.0.2:0").unwrap();
    let (here, there) = (
        server.local_addr().unwrap(),
        elsewhere.local_addr().unwrap(),
    );
    let serving = std::thread::spawn(move || {
        let (mut client, _) = server.accept().unwrap();
        let mut request = [0; 4096];
        let length = client.read(&mut request).unwrap();
        let answer =
            format!("HTTP/1.1 302 Found\r\nLocation: http://{there}/\r\nContent-Length: 0\r\n\r\n");
        client.write_all(answer.as_bytes()).unwrap();
        String::from_utf8_lossy(&request[..length]).into_owned()
    });
    let (first, second) = (here.to_string(), there.to_string());
    let does = is(&of_text("get", 0, &first), 302)
        + &is(&of_text("get", first.len(), &second), REQUEST_DENIED);
    let denied = bench()
        .denied(
            &guest(&format!("{first}{second}"), &does),
            &format!("{{http: ['127.0.0.1/32:{}']}}", here.port()),
        )
        .await;
    let request = serving.join().unwrap();
    assert!(request.starts_with("GET / HTTP/1.1\r\n"), "{request}");
    assert!(denied.contains(&second), "{denied}");
    elsewhere.set_nonblocking(true).unwrap();
    let nobody = elsewhere.accept().unwrap_err();
    assert_eq!(nobody.kind(), std::io::ErrorKind::WouldBlock);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_group_that_nobody_granted_wakes_nobody() {
    let bench = bench();
    // multicast("239.255.255.250", 3702, ["a"])
    let data = r#"(data (i32.const 640) "\03\00\00\00\80\04\00\00\0f\00\00\00\76\0e\00\00\a0\04\00\00\01\00\00\00")
        (data (i32.const 1184) "\80\04\00\00\01\00\00\00")"#;
    let mut guest = guest("239.255.255.250", "");
    guest.data.push_str(data);
    for (grants, refused) in [
        ("", "the grant `network` is missing"),
        (
            "network: {udp: ['239.255.255.250/32:3702']}",
            "no entry of `network.multicast`",
        ),
        (
            "network: {multicast: ['239.255.255.250:3703']}",
            "no entry of `network.multicast`",
        ),
    ] {
        let report = bench.first(&guest, grants).await;
        let named = report.call.wakes_refused.join("\n");
        assert!(
            named.starts_with("multicast 239.255.255.250:3702: "),
            "{named}"
        );
        assert!(named.contains(refused), "{named}");
        assert_eq!(report.call.next, None);
    }
}

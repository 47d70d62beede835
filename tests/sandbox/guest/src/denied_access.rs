//! Attempts at everything that is not granted. They panic if one succeeds.
#![allow(
    clippy::expect_used,
    clippy::panic,
    reason = "whoever made the test is told by a panic"
)]

use std::io::ErrorKind;
use std::net::{TcpListener, TcpStream, ToSocketAddrs as _, UdpSocket};

use wasip2::http::outgoing_handler::handle;
use wasip2::http::types::{ErrorCode, Fields, OutgoingRequest, Scheme};

/// Runs the action; `argument` is the address of a listener. Returns false if the action is not known.
pub fn run(action: &str, argument: &str) -> bool {
    match action {
        "reach" => {
            connect(argument);
            send(argument);
            listen();
            ask(argument);
            request(argument);
        }
        "files" => files(),
        _ => return false,
    }
    true
}

fn refused<T>(what: &str, result: Result<T, std::io::Error>) {
    let kind = result.err().map(|error| error.kind());
    assert_eq!(kind, Some(ErrorKind::PermissionDenied), "{what}");
}

fn connect(address: &str) {
    refused("connect", TcpStream::connect(address));
    for other in ["[::1]:22", "169.254.169.254:80"] {
        refused(other, TcpStream::connect(other));
    }
    // An IPv4-mapped IPv6 address must not work either.
    let mapped = TcpStream::connect(format!(
        "[::ffff:127.0.0.1]:{}",
        address.rsplit_once(':').expect("a port").1
    ));
    assert!(mapped.is_err(), "connected by a mapped address");
}

fn send(address: &str) {
    let sent = UdpSocket::bind("0.0.0.0:0").and_then(|socket| socket.send_to(b"hello", address));
    refused("send", sent);
    let sent = UdpSocket::bind("0.0.0.0:0").and_then(|socket| {
        socket.connect(address)?;
        socket.send(b"hello")
    });
    refused("send to a peer", sent);
    let bound = UdpSocket::bind("0.0.0.0:5353");
    refused("bind to a port", bound);
}

fn listen() {
    refused("listen", TcpListener::bind("0.0.0.0:0"));
}

/// Tries name lookups: a DNS query can leak data, too.
fn ask(address: &str) {
    for name in ["localhost:80", "secret.example.com:80"] {
        assert!(name.to_socket_addrs().is_err(), "{name} was looked up");
    }
    // An address needs no name server.
    assert!(address.to_socket_addrs().is_ok());
}

fn request(address: &str) {
    for authority in [address, "localhost:80", "example.com"] {
        let request = OutgoingRequest::new(Fields::new());
        request.set_scheme(Some(&Scheme::Http)).expect("a scheme");
        request.set_authority(Some(authority)).expect("a place");
        request.set_path_with_query(Some("/")).expect("a path");
        let code = match handle(request, None) {
            Err(code) => code,
            Ok(response) => {
                response.subscribe().block();
                match response.get() {
                    Some(Ok(Err(code))) => code,
                    other => panic!("{authority} was asked: {other:?}"),
                }
            }
        };
        let denied = matches!(code, ErrorCode::HttpRequestDenied);
        assert!(denied, "{authority}: {code:?}");
    }
}

/// Checks that a guest has no files, arguments or variables.
fn files() {
    for path in ["/", ".", "/etc/passwd", "/proc/self/environ", "/dev/null"] {
        assert!(std::fs::metadata(path).is_err(), "{path} is there");
        assert!(std::fs::read(path).is_err(), "{path} was read");
    }
    assert!(std::fs::write("/tmp/made", "x").is_err(), "a file was made");
    assert!(std::env::args_os().len() <= 1, "there are arguments");
    assert_eq!(std::env::vars_os().count(), 0, "there are variables");
    assert!(std::process::Command::new("/bin/sh").spawn().is_err());
    assert!(std::thread::Builder::new().spawn(|| ()).is_err());
}

//! Slow peers. The clock is paused and advances only for timers.

use tokio::time::{Instant, sleep};

use super::*;

const SECOND: Duration = Duration::from_secs(1);

/// Limits with a different duration each.
const SHORT: Limits = Limits {
    connect: Duration::from_secs(3),
    first_byte: Duration::from_secs(5),
    between_bytes: Duration::from_secs(7),
    total: Duration::from_secs(20),
};

/// Serves one connection: sends `at_once`, then `then` every second for ever.
async fn dripping(at_once: &'static str, then: &'static str) -> SocketAddr {
    let (address, _) = server(move |mut stream| async move {
        first_read(&mut stream).await;
        stream.write_all(at_once.as_bytes()).await.unwrap();
        while stream.write_all(then.as_bytes()).await.is_ok() {
            sleep(SECOND).await;
        }
    })
    .await;
    address
}

/// Serves one connection: sends `at_once`, then nothing.
async fn silent(at_once: &'static str) -> SocketAddr {
    let (address, _) = server(move |mut stream| async move {
        stream.write_all(at_once.as_bytes()).await.unwrap();
        stream.read_to_end(&mut Vec::new()).await
    })
    .await;
    address
}

#[tokio::test(start_paused = true)]
async fn a_slow_peer_ends_at_the_limit_of_what_it_delays() {
    let body = "HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n";
    let interim = "HTTP/1.1 100 C\r\n\r\n";
    let cases = [
        ("silent", silent("").await, Stage::Head, 5),
        (
            "drips its head",
            dripping("HTTP/1.1 200 OK\r\nX: ", "y").await,
            Stage::Head,
            5,
        ),
        (
            "drips interim answers",
            dripping("", interim).await,
            Stage::Head,
            5,
        ),
        ("stops in its body", silent(body).await, Stage::Body, 7),
        ("drips its body", dripping(body, "x").await, Stage::Body, 20),
    ];
    for (name, address, stage, seconds) in cases {
        let start = Instant::now();
        let error = ask(address, SHORT).await.unwrap_err();
        let took = start.elapsed();
        let expected = Duration::from_secs(seconds);
        match error {
            HttpError::Timeout { stage: s, limit } => {
                assert_eq!((s, limit), (stage, expected), "{name}");
            }
            other => panic!("{name}: {}", describe(&other)),
        }
        assert!(
            expected <= took && took < expected + SECOND,
            "{name}: {took:?}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_peer_that_never_runs_dry_ends_at_the_total_limit() {
    let (address, _) = server(|mut stream| async move {
        first_read(&mut stream).await;
        stream.write_all(b"HTTP/1.1 200 OK\r\n\r\n").await.unwrap();
        while stream.write_all(&[b'x'; 4096]).await.is_ok() {}
    })
    .await;
    let request = get(format!("http://{address}/"));
    let answer = send_to(&Guard::default(), request, SHORT).await;
    let mut body = answer.unwrap().into_body();
    body.frame().await.unwrap().unwrap();
    tokio::time::advance(21 * SECOND).await;
    let error = body.frame().await.unwrap().unwrap_err();
    let right = matches!(
        error,
        HttpError::Timeout {
            stage: Stage::Body,
            ..
        }
    );
    assert!(right, "{}", describe(&error));
    assert!(body.frame().await.is_none());
}

#[tokio::test(start_paused = true)]
async fn a_peer_that_never_speaks_tls_ends_at_the_connect_limit() {
    let gate = Guard {
        tls: Tls::Insecure,
        ..Guard::default()
    };
    let request = get(format!("https://{}/", silent("").await));
    let error = send_to(&gate, request, SHORT).await.unwrap_err();
    assert_eq!(describe(&error), "the TLS handshake took longer than 3s");
}

#[tokio::test(start_paused = true)]
async fn a_peer_that_takes_no_connection_ends_at_the_connect_limit() {
    let socket = tokio::net::TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let listener = socket.listen(1).unwrap();
    let address = listener.local_addr().unwrap();
    // The kernel accepts a few connections for a peer that accepts none, then keeps the next one waiting.
    let mut taken = Vec::new();
    while let Ok(stream) = tokio::time::timeout(SECOND, TcpStream::connect(address)).await {
        taken.push(stream.unwrap());
    }
    let error = ask(address, SHORT).await.unwrap_err();
    assert_eq!(describe(&error), "the connection took longer than 3s");
}

#[tokio::test(start_paused = true)]
async fn a_handler_that_never_ends_its_body_ends_at_the_total_limit() {
    struct Never;
    impl http_body::Body for Never {
        type Data = Bytes;
        type Error = HttpError;
        fn poll_frame(
            self: std::pin::Pin<&mut Self>,
            _: &mut std::task::Context<'_>,
        ) -> std::task::Poll<Option<Result<http_body::Frame<Bytes>, HttpError>>> {
            std::task::Poll::Pending
        }
    }
    let request = Request::post("http://127.0.0.1/").body(Never).unwrap();
    let (gate, budget) = (Guard::default(), Arc::default());
    let error = send(&gate, &no_names(), &budget, request, SHORT).await;
    assert_eq!(
        describe(&error.unwrap_err()),
        "the request's body took longer than 20s"
    );
}

#[tokio::test(start_paused = true)]
async fn limits_longer_than_the_clock_are_no_limits() {
    let limits = Limits {
        connect: Duration::MAX,
        first_byte: Duration::MAX,
        between_bytes: Duration::MAX,
        total: Duration::MAX,
    };
    let address = answering("HTTP/1.1 200 OK\r\n\r\nhello").await;
    assert_eq!(*ask(address, limits).await.unwrap().body(), "hello");
}

//! Answers that must be understood, however they are written.

use super::*;

#[tokio::test]
async fn answers_of_old_and_careless_servers_are_understood() {
    let cases = [
        (
            "until close",
            200,
            "HTTP/1.0 200 OK\r\nServer: gSOAP\r\n\r\nhello",
        ),
        (
            "no reason",
            200,
            "HTTP/1.1 200\r\nContent-Length: 5\r\n\r\nhello",
        ),
        (
            "empty reason",
            200,
            "HTTP/1.1 200 \r\nContent-Length: 5\r\n\r\nhello",
        ),
        ("1.1 until close", 500, "HTTP/1.1 500 Oops\r\n\r\nhello"),
        (
            "more than told",
            200,
            "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello and more",
        ),
        (
            "bare line feeds",
            200,
            "HTTP/1.1 200 OK\nContent-Length: 5\n\nhello",
        ),
        (
            "folded",
            200,
            "HTTP/1.1 200 OK\r\nX-Long: one\r\n two\r\n\tthree\r\nContent-Length: 5\r\n\r\nhello",
        ),
        (
            "space behind the name",
            200,
            "HTTP/1.1 200 OK\r\nContent-Length : 5\r\nConnection : keep-alive\r\n\r\nhello",
        ),
        (
            "a line that is not a header",
            200,
            "HTTP/1.1 200 OK\r\nwhat is this\r\nContent-Length: 5\r\n\r\nhello",
        ),
        (
            "chunked",
            401,
            "HTTP/1.1 401 Unauthorized\r\nTransfer-Encoding: chunked\r\n\r\n\
             2\r\nhe\r\n3;x=y\r\nllo\r\n0\r\n\r\n",
        ),
        (
            "chunked with trailers",
            200,
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\nX: y\r\n\r\n",
        ),
        (
            "keeps the connection",
            200,
            "HTTP/1.1 200 OK\r\nConnection: Keep-Alive\r\nContent-Length: 5\r\n\r\nhello",
        ),
        (
            "interim answers first",
            200,
            "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 102 Processing\r\nX: y\r\n\r\n\
             HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello",
        ),
    ];
    for (name, status, answer) in cases {
        let found = ask(answering(answer).await, LIMITS).await;
        let found = found.unwrap_or_else(|error| panic!("{name}: {}", describe(&error)));
        assert_eq!(found.status().as_u16(), status, "{name}");
        assert_eq!(*found.body(), "hello", "{name}");
    }
}

#[tokio::test]
async fn a_folded_header_keeps_all_its_lines() {
    let answer = "HTTP/1.1 200 OK\r\nX-Long: one\r\n two\r\nContent-Length: 0\r\n\r\n";
    let found = ask(answering(answer).await, LIMITS).await.unwrap();
    let value = found.headers()["x-long"].to_str().unwrap();
    assert!(value.split_whitespace().eq(["one", "two"]), "{value:?}");
}

#[tokio::test]
async fn a_redirect_is_an_answer_and_is_not_followed() {
    let (listener, other) = listen().await;
    let address = answering(format!(
        "HTTP/1.1 302 Found\r\nLocation: http://{other}/\r\nContent-Length: 0\r\n\r\n"
    ))
    .await;
    let gate = Guard::default();
    let answer = send_to(&gate, get(format!("http://{address}/")), LIMITS).await;
    let answer = whole(answer.unwrap()).await.unwrap();
    assert_eq!(answer.status(), 302);
    assert_eq!(answer.headers()["location"], format!("http://{other}/"));
    let asked = gate.asked.into_inner().unwrap();
    assert_eq!(asked, [("127.0.0.1".to_owned(), address)]);
    assert!(nobody_came(&listener).await);
}

#[tokio::test]
async fn a_packed_body_stays_packed() {
    let packed = b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\x03";
    let head = b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 10\r\n\r\n";
    let answer = [head.as_slice(), packed].concat();
    let found = ask(answering(answer).await, LIMITS).await.unwrap();
    assert_eq!(found.body().as_ref(), packed);
    assert_eq!(found.headers()["content-encoding"], "gzip");
}

#[tokio::test]
async fn a_head_of_256_headers_is_read_in_full() {
    let headers: String = (0..255).map(|n| format!("X-{n}: y\r\n")).collect();
    let answer = format!("HTTP/1.1 200 OK\r\n{headers}Content-Length: 5\r\n\r\nhello");
    let found = ask(answering(answer).await, LIMITS).await.unwrap();
    assert_eq!(found.headers().len(), 256);
    assert_eq!(*found.body(), "hello");
}

#[tokio::test]
async fn a_body_is_read_even_in_small_chunks() {
    let body = "x".repeat(100_000);
    let told = format!("HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n{body}");
    let chunks = "a\r\nxxxxxxxxxx\r\n".repeat(10_000);
    let chunked = format!("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n{chunks}0\r\n\r\n");
    for answer in [told, chunked] {
        let found = ask(answering(answer).await, LIMITS).await.unwrap();
        assert_eq!(*found.body(), body);
    }
}

#[tokio::test]
async fn a_body_comes_while_the_peer_still_writes() {
    let (read, rest) = tokio::sync::oneshot::channel::<()>();
    let (address, _) = server(|mut stream| async move {
        first_read(&mut stream).await;
        let head = b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhello";
        stream.write_all(head).await.unwrap();
        rest.await.unwrap();
        stream.write_all(b"world").await.unwrap();
        stream.read_to_end(&mut Vec::new()).await
    })
    .await;
    let request = get(format!("http://{address}/"));
    let answer = send_to(&Guard::default(), request, LIMITS).await;
    let mut body = answer.unwrap().into_body();
    let mut next = async || body.frame().await.unwrap().unwrap().into_data().unwrap();
    assert_eq!(next().await, "hello");
    read.send(()).unwrap();
    assert_eq!(next().await, "world");
}

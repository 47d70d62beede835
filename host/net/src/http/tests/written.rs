//! Bytes that are written to the wire.

use std::error::Error;
use std::pin::Pin;
use std::task::{Context, Poll};

use http::Method;
use http_body::Frame;

use super::*;

const OK: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";

/// Returns the first read of a peer.
async fn first_read_of<B>(request: impl FnOnce(SocketAddr) -> Request<B>) -> (String, Bytes)
where
    B: http_body::Body<Data = Bytes> + Send,
    B::Error: Into<Box<dyn Error + Send + Sync>>,
{
    let (address, read) = server(|mut stream| async move {
        let read = first_read(&mut stream).await;
        stream.write_all(OK).await.unwrap();
        String::from_utf8(read).unwrap()
    })
    .await;
    let (gate, budget) = (Guard::default(), Arc::default());
    let answer = send(&gate, &no_names(), &budget, request(address), LIMITS).await;
    let answer = whole(answer.unwrap()).await.unwrap();
    let read = read.await.unwrap();
    let read = read.replace(&address.to_string(), "IP:PORT");
    (read, answer.into_body())
}

#[tokio::test]
async fn a_post_leaves_in_one_write_with_title_case_names_and_host_first() {
    let (read, answer) = first_read_of(|address| {
        let mut request = post(format!("http://{address}/onvif/device_service?x"), "<a/>");
        let headers = request.headers_mut();
        headers.insert("content-type", "application/soap+xml".parse().unwrap());
        headers.insert("host", "other.example".parse().unwrap());
        headers.append("x-two", "1".parse().unwrap());
        headers.append("x-two", "2".parse().unwrap());
        *request.version_mut() = http::Version::HTTP_2;
        request
    })
    .await;
    assert_eq!(
        read,
        "POST /onvif/device_service?x HTTP/1.1\r\nHost: IP:PORT\r\n\
         Content-Type: application/soap+xml\r\nX-Two: 1\r\nX-Two: 2\r\n\
         Content-Length: 4\r\nConnection: close\r\n\r\n<a/>"
    );
    assert_eq!(answer, "ok");
}

#[tokio::test]
async fn the_length_is_always_told_and_nothing_is_chunked() {
    let cases = [
        (Method::GET, "", None),
        (Method::HEAD, "", None),
        (Method::DELETE, "", None),
        (Method::GET, "x", Some("1")),
        (Method::POST, "", Some("0")),
        (Method::PUT, "", Some("0")),
        (Method::PATCH, "abc", Some("3")),
    ];
    for (method, body, length) in cases {
        let (read, answer) = first_read_of(|address| {
            let mut request = post(format!("http://{address}"), body);
            *request.method_mut() = method.clone();
            request
        })
        .await;
        let told = read.split("Content-Length: ").nth(1);
        let told = told.and_then(|rest| rest.split("\r\n").next());
        assert_eq!(told, length, "{read}");
        assert!(!read.contains("Transfer-Encoding"), "{read}");
        assert!(
            read.starts_with(&format!("{method} / HTTP/1.1\r\nHost: ")),
            "{read}"
        );
        assert!(read.ends_with(&format!("\r\n\r\n{body}")), "{read}");
        assert_eq!(answer, if method == Method::HEAD { "" } else { "ok" });
    }
}

/// A body in pieces, last one first, without a known length, like the bodies of guests.
struct Pieces(Vec<&'static str>);

impl http_body::Body for Pieces {
    type Data = Bytes;
    type Error = HttpError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, HttpError>>> {
        let piece = self.0.pop().map(Bytes::from);
        Poll::Ready(piece.map(|piece| Ok(Frame::data(piece))))
    }
}

#[tokio::test]
async fn a_body_in_pieces_leaves_in_one_write_with_its_length() {
    let (read, _) = first_read_of(|address| {
        Request::post(format!("http://{address}/"))
            .body(Pieces(vec!["three", "two", "one"]))
            .unwrap()
    })
    .await;
    assert!(read.contains("\r\nContent-Length: 11\r\n"), "{read}");
    assert!(read.ends_with("\r\n\r\nonetwothree"), "{read}");
}

#[tokio::test]
async fn a_body_of_one_mebibyte_arrives_and_one_byte_more_is_refused() {
    let (address, read) = server(|mut stream| async move {
        let mut read = Vec::new();
        while !read.ends_with(b"end") {
            stream.read_buf(&mut read).await.unwrap();
        }
        stream.write_all(OK).await.unwrap();
        read
    })
    .await;
    let mut body = vec![b'x'; MAX_REQUEST_BODY - 3];
    body.extend(b"end");
    let url = format!("http://{address}/");
    let gate = Guard::default();
    let answer = send_to(&gate, post(&url, body.clone()), LIMITS).await;
    assert_eq!(*whole(answer.unwrap()).await.unwrap().body(), "ok");
    let read = read.await.unwrap();
    assert!(read.ends_with(&body));
    let head = String::from_utf8_lossy(&read[..200]);
    assert!(head.contains("Content-Length: 1048576\r\n"), "{head}");

    body.push(b'x');
    let refused = send_to(&gate, post(&url, body), LIMITS).await;
    let why = refused.unwrap_err().to_string();
    assert!(why.contains("its body exceeds 1048576 bytes"), "{why}");
}

#[tokio::test]
async fn what_must_not_be_sent_is_refused_before_a_name_is_looked_up() {
    type Change = fn(&mut Request<Full<Bytes>>);
    fn header(request: &mut Request<Full<Bytes>>, name: &'static str, value: &str) {
        request.headers_mut().append(name, value.parse().unwrap());
    }
    let cases: [(&str, Change); 11] = [
        ("header connection", |r| header(r, "connection", "x")),
        ("header keep-alive", |r| header(r, "keep-alive", "1")),
        ("header transfer-encoding", |r| {
            header(r, "transfer-encoding", "chunked");
        }),
        ("header te", |r| header(r, "te", "trailers")),
        ("header trailer", |r| header(r, "trailer", "x")),
        ("header upgrade", |r| header(r, "upgrade", "websocket")),
        ("header expect", |r| header(r, "expect", "100-continue")),
        ("header proxy-authorization", |r| {
            header(r, "proxy-authorization", "x");
        }),
        ("Content-Length", |r| header(r, "content-length", "5")),
        ("Content-Length", |r| header(r, "content-length", "x")),
        ("tunnel", |r| *r.method_mut() = Method::CONNECT),
    ];
    for (reason, change) in cases {
        let mut request = post("http://cam.example/", "four");
        change(&mut request);
        let refused = send_to(&Guard::default(), request, LIMITS)
            .await
            .unwrap_err();
        let text = describe(&refused);
        assert!(matches!(refused, HttpError::Request(_)), "{reason}: {text}");
        assert!(text.contains(reason), "{reason}: {text}");
    }
}

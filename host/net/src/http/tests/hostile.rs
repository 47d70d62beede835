//! Answers made to waste resources: each ends in an error that names the violated rule.

use super::*;

/// Serves one connection: sends `first`, then `then` without end, until the peer hangs up. Returns the number of bytes written.
async fn endless(first: &'static str, then: &'static str) -> (SocketAddr, JoinHandle<usize>) {
    server(move |mut stream| async move {
        first_read(&mut stream).await;
        let many = then.repeat(4096 / then.len());
        let mut next = first;
        let mut written = 0;
        while stream.write_all(next.as_bytes()).await.is_ok() {
            written += next.len();
            next = &many;
        }
        written
    })
    .await
}

#[tokio::test]
async fn an_answer_without_end_is_cut_off_with_its_reason() {
    let chunked = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
    let trailers = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n";
    let head = "exceeds 65536 bytes or 256 headers";
    let cases = [
        ("HTTP/1.1 200 OK\r\n", "X: y\r\n", head),
        ("HTTP/1.1 200 OK\r\nX: ", "y", head),
        ("HTTP/1.1 200 OK\r\n", "X: y\r\n z\r\n", head),
        ("HTTP/1.1 200 ", "O", head),
        ("", "HTTP/1.1 100 Continue\r\n\r\n", "interim answers (1xx)"),
        (
            "",
            "HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n",
            "interim answers (1xx)",
        ),
        (
            "HTTP/1.1 200 OK\r\n\r\n",
            "x",
            "used up their 2000000 bytes",
        ),
        (chunked, "1\r\nx\r\n", "used up their 2000000 bytes"),
        (chunked, "1;x=y\r\nx\r\n", "chunk"),
        (trailers, "X: y\r\n", "trailer"),
    ];
    for (first, then, reason) in cases {
        let (address, written) = endless(first, then).await;
        let budget = Arc::new(Budget::new(1, 2_000_000));
        let (gate, before) = (Guard::default(), budget.left());
        let request = get(format!("http://{address}/"));
        let found = match send(&gate, &no_names(), &budget, request, LIMITS).await {
            Ok(answer) => whole(answer).await,
            Err(error) => Err(error),
        };
        let text = describe(&found.unwrap_err());
        assert!(text.contains(reason), "{first:?} {then:?}: {text}");
        let moved = before - budget.left();
        assert!(moved < 2_500_000, "{first:?} {then:?}: {moved}");
        // Bytes that were written and not read are in the kernel's buffers.
        let written = written.await.unwrap();
        assert!(written < 16 * 1024 * 1024, "{first:?} {then:?}: {written}");
    }
}

#[tokio::test]
async fn an_answer_that_breaks_a_rule_is_an_error_that_names_it() {
    let many: String = (0..300).map(|n| format!("X-{n}: y\r\n")).collect();
    let many = format!("HTTP/1.1 200 OK\r\n{many}Content-Length: 0\r\n\r\n");
    let long = format!("HTTP/1.1 200 OK\r\nX: {}\r\n\r\n", "y".repeat(MAX_HEAD));
    let over = "x".repeat(1_500_000);
    let interim = "HTTP/1.1 100 Continue\r\n\r\n".repeat(9);
    let interim = format!("{interim}HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n");
    let chunked =
        |body: &str| format!("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n{body}");
    let length = |text: &str| format!("HTTP/1.1 200 OK\r\nContent-Length: {text}\r\n\r\nhello");
    let cases = [
        (many, "exceeds 65536 bytes or 256 headers"),
        (long, "exceeds 65536 bytes or 256 headers"),
        (interim, "more than 8 interim answers"),
        (
            format!("HTTP/1.0 200 OK\r\n\r\n{over}"),
            "used up their 1500000 bytes",
        ),
        (
            chunked(&format!("{:x}\r\n{over}\r\n0\r\n\r\n", over.len())),
            "used up their 1500000 bytes",
        ),
        (length("18446744073709551615"), "impossible length"),
        (length("99999999999999999999999"), "breaks HTTP"),
        (length("-1"), "breaks HTTP"),
        (length("5\r\nContent-Length: 6"), "breaks HTTP"),
        (length("6"), "closed early: the answer's body"),
        (chunked("5\r\nhello\r\n"), "closed early: the answer's body"),
        (chunked("6\r\nhello"), "closed early: the answer's body"),
        (chunked("5\r\nhelloo\r\n0\r\n\r\n"), "breaks HTTP"),
        (chunked("zz\r\nhello"), "breaks HTTP"),
        (chunked("fffffffffffffffff\r\nhello"), "breaks HTTP"),
        (
            String::new(),
            "closed early: the wait for the answer's head",
        ),
        (
            "HTTP/1.1 200 OK\r\nX:".into(),
            "closed early: the wait for the answer's head",
        ),
        ("RTSP/1.0 200 OK\r\n\r\n".into(), "breaks HTTP"),
        ("SSH-2.0-dropbear\r\n".into(), "breaks HTTP"),
        ("HTTP/2.0 200 OK\r\n\r\n".into(), "breaks HTTP"),
        ("HTTP/1.1 99999 OK\r\n\r\n".into(), "breaks HTTP"),
        ("<html>hello</html>".into(), "breaks HTTP"),
        (
            "HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n".into(),
            "another protocol (101)",
        ),
    ];
    for (answer, reason) in cases {
        let text = match ask(answering(answer.clone()).await, LIMITS).await {
            Ok(found) => panic!("{answer:.90}: {found:?}"),
            Err(error) => describe(&error),
        };
        assert!(text.contains(reason), "{answer:.90}: {text}");
    }
}

#[tokio::test]
async fn a_reset_connection_is_closed_early() {
    let (address, _) = server(|stream| async move {
        // A connection closed with unread data is reset.
        stream.readable().await.unwrap();
    })
    .await;
    let error = ask(address, LIMITS).await.unwrap_err();
    let right = matches!(
        error,
        HttpError::Closed {
            stage: Stage::Head,
            ..
        }
    );
    assert!(right, "{}", describe(&error));
}

#[tokio::test]
async fn a_call_has_so_many_requests_at_once_and_no_more() {
    let budget = Arc::new(Budget::new(2, MOST));
    let (gate, names) = (Guard::default(), no_names());
    let next = async || {
        let address = answering("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello").await;
        let request = get(format!("http://{address}/"));
        send(&gate, &names, &budget, request, LIMITS).await
    };
    let first = next().await.unwrap();
    let second = next().await.unwrap();
    let third = next().await.unwrap_err();
    assert!(matches!(third, HttpError::Busy(2)));

    // A dropped body and one read to its end release their permits, even if the latter is kept.
    drop(first);
    let fourth = next().await.unwrap();
    let mut body = second.into_body();
    while let Some(frame) = body.frame().await {
        frame.unwrap();
    }
    let fifth = next().await.unwrap();
    drop((body, fourth, fifth));
}

#[tokio::test]
async fn an_answer_without_a_body_gives_its_place_back_at_once() {
    let budget = Arc::new(Budget::new(1, MOST));
    let (gate, names) = (Guard::default(), no_names());
    let mut kept = Vec::new();
    for _ in 0..2 {
        let address = answering("HTTP/1.1 204 No Content\r\n\r\n").await;
        let request = get(format!("http://{address}/"));
        kept.push(send(&gate, &names, &budget, request, LIMITS).await.unwrap());
    }
}

#[tokio::test]
async fn a_call_moves_so_many_bytes_and_no_more() {
    let budget = Arc::new(Budget::new(1, 100_000));
    let (gate, names) = (Guard::default(), no_names());
    let next = async || {
        let body = "x".repeat(60_000);
        let answer = format!("HTTP/1.1 200 OK\r\nContent-Length: 60000\r\n\r\n{body}");
        let request = get(format!("http://{}/", answering(answer).await));
        whole(send(&gate, &names, &budget, request, LIMITS).await?).await
    };
    assert_eq!(next().await.unwrap().body().len(), 60_000);
    let left = budget.left();
    assert!(39_000 < left && left < 40_000, "{left}");
    for _ in 0..2 {
        let error = next().await.unwrap_err();
        let right = matches!(error, HttpError::Spent(100_000));
        assert!(right, "{}", describe(&error));
    }
}

#[tokio::test]
async fn what_requests_hold_until_they_are_answered_is_told_and_in_the_budget_once() {
    let body = vec![b'x'; 600_000];
    let post = |address: SocketAddr| {
        Request::post(format!("http://{address}/"))
            .body(Full::new(Bytes::from(body.clone())))
            .unwrap()
    };
    let (gate, names) = (Guard::default(), no_names());
    let budget = Arc::new(Budget::new(8, 1_000_000));
    let reading = async || {
        let script = |mut stream: TcpStream| async move {
            let mut seen = vec![0; 1 << 20];
            let mut all = 0;
            while all < 600_000 {
                match stream.read(&mut seen).await {
                    Ok(read) if read > 0 => all += read,
                    _ => return,
                }
            }
            let answer = b"HTTP/1.1 204 No Content\r\n\r\n";
            stream.write_all(answer).await.unwrap();
        };
        let (address, _) = server(script).await;
        address
    };
    let request = post(reading().await);
    let answer = send(&gate, &names, &budget, request, LIMITS).await;
    assert_eq!(answer.unwrap().status(), 204);
    let left = budget.left();
    assert!((399_000..400_000).contains(&left), "{left}");
    assert_eq!((budget.most_kept(), budget.most_kept()), (600_000, 0));
    let request = post(reading().await);
    let error = send(&gate, &names, &budget, request, LIMITS).await;
    assert!(describe(&error.unwrap_err()).contains("used up their 1000000 bytes"));
}

//! Sends one request and reads the head of its answer on a fresh connection. The connection makes progress only while it is polled here or
//! by the body: there is no task to join.

use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::Full;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::OwnedSemaphorePermit;

use super::body::{Body, Driver};
use super::until::Until;
use super::wire::Meter;
use super::{HttpError, Limits, MAX_HEAD, MAX_HEADERS, Stage};

pub(super) async fn exchange(
    wire: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
    mut request: Request<Full<Bytes>>,
    meter: Arc<Meter>,
    permit: OwnedSemaphorePermit,
    limits: Limits,
    total: Until,
) -> Result<Response<Body>, HttpError> {
    let counted = Arc::clone(&meter);
    hyper::ext::on_informational(&mut request, move |_| counted.interim());
    let (mut sender, connection) = http1::Builder::new()
        .title_case_headers(true)
        // Head and body are copied together and sent in one write: some cameras read only once.
        .writev(false)
        .max_headers(MAX_HEADERS)
        .max_header_size(MAX_HEAD)
        .max_buf_size(MAX_HEAD)
        .allow_spaces_after_header_name_in_responses(true)
        .allow_obsolete_multiline_headers_in_responses(true)
        .ignore_invalid_headers_in_responses(true)
        .handshake(TokioIo::new(wire))
        .await
        .map_err(|error| meter.explain(&error, Stage::Head))?;
    let mut driver = Driver(Some(Box::pin(connection)));

    let answer = async {
        let mut answer = pin!(sender.send_request(request));
        std::future::poll_fn(|cx| {
            if let Poll::Ready(answer) = answer.as_mut().poll(cx) {
                return Poll::Ready(answer);
            }
            driver.drive(cx);
            answer.as_mut().poll(cx)
        })
        .await
    };
    let head = Until::after(limits.first_byte).or(total);
    let answer = head.run(Stage::Head, answer).await?;
    if let Some(error) = meter.error() {
        return Err(error);
    }
    let answer = answer.map_err(|error| meter.explain(&error, Stage::Head))?;
    if answer.status() == StatusCode::SWITCHING_PROTOCOLS {
        return Err(HttpError::Protocol(
            "it switches to another protocol (101)".into(),
        ));
    }
    let (parts, incoming) = answer.into_parts();
    let body = Body::new(incoming, driver, meter, permit, limits, total);
    Ok(Response::from_parts(parts, body))
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::pin::Pin;
    use std::sync::Mutex;
    use std::task::Context;
    use std::time::Duration;

    use tokio::io::ReadBuf;

    use super::super::Budget;
    use super::*;

    /// Records each write as one entry, and answers.
    struct Recorder {
        writes: Arc<Mutex<Vec<Vec<u8>>>>,
        answer: &'static [u8],
    }

    impl AsyncRead for Recorder {
        fn poll_read(
            mut self: Pin<&mut Self>,
            cx: &mut Context<'_>,
            buf: &mut ReadBuf<'_>,
        ) -> Poll<io::Result<()>> {
            if self.writes.lock().unwrap().is_empty() {
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
            buf.put_slice(std::mem::take(&mut self.answer));
            Poll::Ready(Ok(()))
        }
    }

    impl AsyncWrite for Recorder {
        fn poll_write(
            self: Pin<&mut Self>,
            _: &mut Context<'_>,
            buf: &[u8],
        ) -> Poll<io::Result<usize>> {
            self.writes.lock().unwrap().push(buf.to_vec());
            Poll::Ready(Ok(buf.len()))
        }

        fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }

        fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }
    }

    #[tokio::test]
    async fn head_and_body_are_one_write_however_long_the_body_is() {
        let minute = Duration::from_mins(1);
        let limits = Limits {
            connect: minute,
            first_byte: minute,
            between_bytes: minute,
            total: minute,
        };
        for size in [1, 100, 10_000, 1_000_000] {
            let budget = Arc::new(Budget::default());
            let permit = budget.enter().unwrap();
            let meter = Meter::new("127.0.0.1:80".parse().unwrap(), budget);
            let writes = Arc::default();
            let recorder = Recorder {
                writes: Arc::clone(&writes),
                answer: b"HTTP/1.1 204 No Content\r\n\r\n",
            };
            let request = Request::post("/")
                .header("content-length", size)
                .body(Full::from(vec![b'x'; size]))
                .unwrap();
            let total = Until::after(minute);
            let answer = exchange(recorder, request, Arc::new(meter), permit, limits, total).await;
            assert_eq!(answer.unwrap().status(), 204);
            let sizes: Vec<usize> = writes.lock().unwrap().iter().map(Vec::len).collect();
            let head = format!("POST / HTTP/1.1\r\nContent-Length: {size}\r\n\r\n");
            assert_eq!(sizes, [head.len() + size]);
        }
    }
}

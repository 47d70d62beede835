//! Tests over real sockets on loopback; the peers are written by hand, byte for byte.

mod answers;
mod hostile;
mod reach;
mod slow;
mod tls;
mod written;

use std::error::Error as _;
use std::future::Future;
use std::io;
use std::sync::Mutex;

use http_body_util::{BodyExt, Full};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

use super::*;

const MINUTE: Duration = Duration::from_mins(1);

/// Number of bytes that one request of a test may move.
const MOST: u64 = 1_500_000;

const LIMITS: Limits = Limits {
    connect: MINUTE,
    first_byte: MINUTE,
    between_bytes: MINUTE,
    total: MINUTE,
};

/// Grants everything except the given denials; records each question.
#[derive(Default)]
struct Guard {
    tls: Tls,
    denied: Vec<SocketAddr>,
    denied_names: Vec<String>,
    asked: Mutex<Vec<(String, SocketAddr)>>,
}

impl RequestPolicy for Guard {
    fn look_up(&self, name: &str) -> Result<(), Denied> {
        if self.denied_names.iter().any(|denied| denied == name) {
            return Err(Denied(format!("look up {name}")));
        }
        Ok(())
    }

    fn request(&self, host: &str, address: SocketAddr) -> Result<(), Denied> {
        self.asked.lock().unwrap().push((host.to_owned(), address));
        if self.denied.contains(&address) {
            return Err(Denied(format!("send a request to {address}")));
        }
        Ok(())
    }

    fn tls(&self) -> &Tls {
        &self.tls
    }
}

async fn listen() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    (listener, address)
}

/// Serves one connection.
async fn server<F, T>(
    script: impl FnOnce(TcpStream) -> F + Send + 'static,
) -> (SocketAddr, JoinHandle<T>)
where
    F: Future<Output = T> + Send + 'static,
    T: Send + 'static,
{
    let (listener, address) = listen().await;
    let task = tokio::spawn(async move {
        let (stream, _) = listener.accept().await.unwrap();
        script(stream).await
    });
    (address, task)
}

/// Serves one connection: reads the request, answers with these bytes and closes.
async fn answering(answer: impl Into<Vec<u8>>) -> SocketAddr {
    let answer = answer.into();
    let (address, _) = server(|mut stream| async move {
        first_read(&mut stream).await;
        // A peer that has read enough hangs up.
        let _ = stream.write_all(&answer).await;
        let _ = stream.shutdown().await;
        let _ = stream.read_to_end(&mut Vec::new()).await;
    })
    .await;
    address
}

async fn first_read(stream: &mut TcpStream) -> Vec<u8> {
    let mut bytes = vec![0; 256 * 1024];
    let read = stream.read(&mut bytes).await.unwrap();
    bytes.truncate(read);
    bytes
}

/// Returns true if no connection has come in.
async fn nobody_came(listener: &TcpListener) -> bool {
    tokio::select! {
        biased;
        _ = listener.accept() => false,
        () = std::future::ready(()) => true,
    }
}

fn get(url: impl AsRef<str>) -> Request<Full<Bytes>> {
    Request::get(url.as_ref()).body(Full::default()).unwrap()
}

fn post(url: impl AsRef<str>, body: impl Into<Bytes>) -> Request<Full<Bytes>> {
    let body = Full::new(body.into());
    Request::post(url.as_ref()).body(body).unwrap()
}

/// Returns a resolver that must not be used.
fn no_names() -> Names {
    Names::with(|name| Err(io::Error::other(format!("{name} was looked up"))))
}

async fn send_to(
    gate: &Guard,
    request: Request<Full<Bytes>>,
    limits: Limits,
) -> Result<Response<Body>, HttpError> {
    let budget = Arc::new(Budget::new(1, MOST));
    send(gate, &no_names(), &budget, request, limits).await
}

async fn whole(response: Response<Body>) -> Result<Response<Bytes>, HttpError> {
    let (parts, body) = response.into_parts();
    let body = body.collect().await?.to_bytes();
    Ok(Response::from_parts(parts, body))
}

/// Sends a GET request and reads the whole answer.
async fn ask(address: SocketAddr, limits: Limits) -> Result<Response<Bytes>, HttpError> {
    let request = get(format!("http://{address}/"));
    whole(send_to(&Guard::default(), request, limits).await?).await
}

/// Formats the error with its causes, as it is logged.
fn describe(error: &HttpError) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        text = format!("{text}: {cause}");
        next = cause.source();
    }
    text
}

#[test]
fn a_request_may_be_sent_by_any_thread_and_needs_no_lifetime() {
    fn movable(_: impl Future + Send + 'static) {}
    fn body(_: impl http_body::Body<Data = Bytes, Error = HttpError> + Send + Unpin + 'static) {}
    movable(async move {
        let budget = Arc::default();
        let request = get("http://127.0.0.1/");
        let sent = send(&Guard::default(), &no_names(), &budget, request, LIMITS).await;
        body(sent.unwrap().into_body());
    });
}

//! HTTP server with scripted answers, for tests of situations that a real API server cannot be made to produce.

use std::sync::{Arc, Mutex};

use kube::{Client, Config};
use leafhost_core::tasks::Tasks;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

/// Answer to a request.
pub enum Answer {
    /// A status code and an object.
    Object(u16, Value),
    /// Events of a watch as they are sent; the watch ends with the sender.
    Events(mpsc::UnboundedReceiver<Value>),
}

/// Script that answers a method and a path with its query, such as `GET /api/v1/nodes?limit=1`.
type Script = dyn Fn(&str) -> Answer + Send + Sync;

/// A running server, which stops when it is dropped.
pub struct Stub {
    /// Client of the server.
    pub client: Client,
    requests: Arc<Mutex<Vec<String>>>,
    /// Tasks that a test spawns with the client.
    pub tasks: Tasks,
    _server: Tasks,
}

impl Stub {
    /// Starts a server.
    pub async fn start(script: impl Fn(&str) -> Answer + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let mut config = Config::new(format!("http://{address}").parse().unwrap());
        config.default_retry = false;
        let requests: Arc<Mutex<Vec<String>>> = Arc::default();
        let script: Arc<Script> = Arc::new(script);
        let log = Arc::clone(&requests);
        let mut server = Tasks::default();
        server.add_loop("server", async move {
            let mut connections = JoinSet::new();
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                connections.spawn(serve(stream, Arc::clone(&script), Arc::clone(&log)));
            }
        });
        Self {
            client: crate::client::client(config).unwrap(),
            requests,
            tasks: Tasks::default(),
            _server: server,
        }
    }

    /// Counts the requests that contain a text.
    pub fn requests(&self, text: &str) -> usize {
        let requests = self.requests.lock().unwrap();
        requests
            .iter()
            .filter(|request| request.contains(text))
            .count()
    }
}

/// Returns a failure as the API server reports it.
pub fn failure(code: u16, message: &str) -> Answer {
    let reason = match code {
        403 => "Forbidden",
        404 => "NotFound",
        _ => "InternalError",
    };
    Answer::Object(
        code,
        json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "reason": reason,
            "message": message}),
    )
}

/// Returns a list of objects.
pub fn list(version: &str, items: &[Value]) -> Answer {
    Answer::Object(
        200,
        json!({"kind": "List", "apiVersion": "v1", "metadata": {"resourceVersion": version}, "items": items}),
    )
}

async fn serve(stream: TcpStream, script: Arc<Script>, log: Arc<Mutex<Vec<String>>>) {
    let mut stream = BufReader::new(stream);
    while let Some(request) = request(&mut stream).await {
        log.lock().unwrap().push(request.clone());
        match script(&request) {
            Answer::Object(status, object) => {
                let body = object.to_string();
                let head = format!(
                    "HTTP/1.1 {status} Status\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
                    body.len()
                );
                stream.write_all((head + &body).as_bytes()).await.unwrap();
            }
            Answer::Events(mut events) => {
                let head = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n";
                stream.write_all(head.as_bytes()).await.unwrap();
                while let Some(event) = events.recv().await {
                    let line = format!("{event}\n");
                    let chunk = format!("{:x}\r\n{line}\r\n", line.len());
                    if stream.write_all(chunk.as_bytes()).await.is_err() {
                        return;
                    }
                }
                stream.write_all(b"0\r\n\r\n").await.unwrap();
            }
        }
    }
}

/// Reads the next request and returns its first line without the protocol, or `None` at the end.
async fn request(stream: &mut BufReader<TcpStream>) -> Option<String> {
    let (mut first, mut length) = (String::new(), 0);
    loop {
        let mut line = String::new();
        if stream.read_line(&mut line).await.ok()? == 0 {
            return None;
        }
        let line = line.trim_end();
        if line.is_empty() {
            break;
        }
        if first.is_empty() {
            line.trim_end_matches(" HTTP/1.1").clone_into(&mut first);
        } else if let Some((name, value)) = line.split_once(':')
            && name.eq_ignore_ascii_case("content-length")
        {
            length = value.trim().parse().unwrap();
        }
    }
    let mut body = vec![0; length];
    stream.read_exact(&mut body).await.ok()?;
    Some(first)
}

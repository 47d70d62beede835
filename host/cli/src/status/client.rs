//! Finds the running agent and asks it for its status.

use std::fmt;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Result, bail};
use axum::body::{Body, Bytes, to_bytes};
use axum::http::header::HOST;
use axum::http::{HeaderMap, Request, StatusCode};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use leafhost_agent::admin::VERSION_HEADER;
use leafhost_agent::status::Status;
use leafhost_core::text;
use tokio::net::{TcpStream, UnixStream};
use tokio::time::{Instant, timeout, timeout_at};
use tokio_util::either::Either;

use crate::folders::{SYSTEM_STATE, User, socket_in};
use crate::listen::DEFAULT_LISTEN;

/// Time limit for an answer; an agent that takes longer is reported as slow.
const ANSWER: Duration = Duration::from_secs(10);
/// Maximum time for which the agent holds back its answer until something changes.
const LONG_POLL: Duration = Duration::from_secs(30);
/// Maximum number of bytes of a status document; 100,000 Instances fit.
const LARGEST: usize = 512 << 20;
/// Maximum number of bytes shown of a reason.
const MAX_WHY: usize = 256;

#[derive(Debug, Clone)]
pub struct Answer {
    pub status: Status,
    /// Version of the document, for the next request.
    pub version: Option<String>,
}

/// Places to look for the agent, in this order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Search(Vec<Endpoint>);

impl Search {
    /// Creates a search from the flags; without any, the user's own agent comes before the system's.
    pub fn new(address: Option<&str>, state_dir: Option<&Path>, user: &User) -> Self {
        if let Some(address) = address {
            let address = address.strip_prefix("http://").unwrap_or(address);
            let address = address.trim_end_matches('/').to_owned();
            return Self(vec![Endpoint::Address(address)]);
        }
        if let Some(dir) = state_dir {
            return Self(vec![Endpoint::Socket(socket_in(dir))]);
        }
        let mut dirs: Vec<PathBuf> = user.state_dir().into_iter().collect();
        if dirs.iter().all(|dir| dir != Path::new(SYSTEM_STATE)) {
            dirs.push(SYSTEM_STATE.into());
        }
        let sockets = dirs.iter().map(|dir| Endpoint::Socket(socket_in(dir)));
        let address = Endpoint::Address(DEFAULT_LISTEN.to_owned());
        Self(sockets.chain([address]).collect())
    }

    /// Returns the status of the first agent that answers, or an error that lists the places tried. A slow agent is an
    /// error; the search does not skip it. With `after`, the version of an earlier answer, the agent waits up to half a
    /// minute for a change; returns `None` if there is none.
    pub async fn status(&self, after: Option<&str>) -> Result<Option<Answer>> {
        self.status_within(after, ANSWER).await
    }

    /// Does the same as [`status`](Self::status), with this time limit for an answer.
    pub async fn status_within(
        &self,
        after: Option<&str>,
        limit: Duration,
    ) -> Result<Option<Answer>> {
        self.ask(async |endpoint: &Endpoint| fetch(endpoint, after, limit).await)
            .await
    }

    /// Fails if the first agent that answers is not ready; the error says what it waits for.
    pub async fn ready(&self) -> Result<()> {
        let fetched = self.ask(async |endpoint: &Endpoint| {
            let (status, _, body) = get(endpoint, "/readyz", ANSWER).await?;
            match status {
                StatusCode::OK => Ok(None),
                StatusCode::SERVICE_UNAVAILABLE => Ok(Some(reason(&body))),
                status => Err(foreign(status)),
            }
        });
        match fetched.await? {
            None => Ok(()),
            Some(why) => bail!("the agent is not ready: {why}"),
        }
    }

    /// Fails if an agent listens but does not answer. An agent that has not started yet is not a failure.
    pub async fn live(&self) -> Result<()> {
        self.ask(
            async |endpoint: &Endpoint| match get(endpoint, "/healthz", ANSWER).await {
                Err(error @ FetchError::Slow(_)) => Err(error),
                _ => Ok(()),
            },
        )
        .await
    }

    /// Returns the answer of the first agent that answers.
    async fn ask<T>(&self, request: impl AsyncFn(&Endpoint) -> Result<T, FetchError>) -> Result<T> {
        let mut tried = Vec::new();
        for endpoint in &self.0 {
            match request(endpoint).await {
                Ok(answer) => return Ok(answer),
                Err(error @ (FetchError::Slow(_) | FetchError::Starting(_))) => {
                    bail!(error.at(endpoint))
                }
                // An agent may have no socket, or the user no permission for it.
                Err(error) => tried.push(error.at(endpoint)),
            }
        }
        bail!(
            "no running agent found: {}; start one with `leafhost agent --standalone`, or say where it is with --agent ADDR:PORT or --state-dir DIR",
            tried.join(", ")
        )
    }
}

/// Error of a request to one endpoint.
#[derive(Debug)]
enum FetchError {
    /// No process listens there.
    Absent(String),
    /// No answer within this time.
    Slow(Duration),
    /// Agent that waits for something before it is ready.
    Starting(String),
    /// Answer that is not an agent's.
    Other(String),
}

impl FetchError {
    /// Formats the message for an endpoint.
    fn at(&self, place: &Endpoint) -> String {
        match self {
            Self::Absent(why) => format!("no agent answers at {place}: {why}"),
            Self::Slow(timeout) => format!(
                "the agent at {place} has not answered within {} s: it is busy or hangs; try again, and read its log (`journalctl -u leafhost`, or where its stderr goes) before you restart it",
                timeout.as_secs_f64()
            ),
            Self::Starting(why) => format!("the agent at {place} is not ready: {why}"),
            Self::Other(why) => {
                format!("the program that answers at {place} is not a leafhost agent: {why}")
            }
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Endpoint {
    Address(String),
    Socket(PathBuf),
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Address(address) => f.write_str(address),
            Self::Socket(path) => write!(f, "{}", path.display()),
        }
    }
}

impl Endpoint {
    async fn connect(&self) -> io::Result<Either<TcpStream, UnixStream>> {
        Ok(match self {
            Self::Address(address) => Either::Left(TcpStream::connect(address).await?),
            Self::Socket(path) => Either::Right(UnixStream::connect(path).await?),
        })
    }
}

/// Requests a path; any HTTP status counts as an answer. Uses no proxy: the agent is on this machine or named by the user.
async fn get(
    endpoint: &Endpoint,
    path: &str,
    limit: Duration,
) -> Result<(StatusCode, HeaderMap, Bytes), FetchError> {
    let end = Instant::now() + limit;
    let stream = match timeout(limit / 2, endpoint.connect()).await {
        Ok(Ok(stream)) => stream,
        // The queue of the socket is full.
        Ok(Err(error)) if error.kind() == ErrorKind::WouldBlock => {
            return Err(FetchError::Slow(limit));
        }
        Ok(Err(error)) => return Err(FetchError::Absent(error.to_string())),
        Err(_) => {
            let why = "nothing answers; a firewall may drop the packets";
            return Err(FetchError::Absent(why.to_owned()));
        }
    };
    let host = match endpoint {
        Endpoint::Address(address) => address,
        Endpoint::Socket(_) => "127.0.0.1",
    };
    let exchange = async {
        let request = Request::get(path).header(HOST, host).body(Body::empty())?;
        let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
        tokio::spawn(connection);
        let (head, body) = sender.send_request(request).await?.into_parts();
        let body = to_bytes(Body::new(body), LARGEST).await?;
        anyhow::Ok((head.status, head.headers, body))
    };
    match timeout_at(end, exchange).await {
        Ok(answer) => answer.map_err(|error| {
            FetchError::Other(format!(
                "the answer is incomplete, too large or not HTTP: {}",
                text::chain(error.as_ref())
            ))
        }),
        Err(_) => Err(FetchError::Slow(limit)),
    }
}

/// Returns the reason in the answer of an agent that is not ready.
fn reason(body: &[u8]) -> String {
    text::abridge(String::from_utf8_lossy(body).trim_end(), 4 * MAX_WHY)
}

/// Returns the error for an HTTP status that no agent answers with.
fn foreign(status: StatusCode) -> FetchError {
    FetchError::Other(format!("http status: {}", status.as_u16()))
}

async fn fetch(
    endpoint: &Endpoint,
    after: Option<&str>,
    limit: Duration,
) -> Result<Option<Answer>, FetchError> {
    let (path, limit) = match after {
        Some(version) => (format!("/status?after={version}"), limit + LONG_POLL),
        None => ("/status".to_owned(), limit),
    };
    let (status, headers, body) = get(endpoint, &path, limit).await?;
    match status {
        StatusCode::NOT_MODIFIED => return Ok(None),
        StatusCode::SERVICE_UNAVAILABLE => return Err(FetchError::Starting(reason(&body))),
        status if !status.is_success() => return Err(foreign(status)),
        _ => {}
    }
    let not_a_status = |why: &str| {
        FetchError::Other(format!(
            "the answer is not a status of a leafhost agent: {why}"
        ))
    };
    let status: Status = serde_json::from_slice(&body)
        .map_err(|error| not_a_status(&text::abridge(&error.to_string(), MAX_WHY)))?;
    // Every field is optional, so any JSON object would parse; an agent always reports a node.
    if status.node.is_empty() {
        return Err(not_a_status("it names no node"));
    }
    let version = headers.get(VERSION_HEADER);
    let version = version.and_then(|value| Some(value.to_str().ok()?.to_owned()));
    Ok(Some(Answer { status, version }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::block_on;

    #[test]
    fn the_users_agent_is_tried_before_the_systems() {
        let user = User::new(false, |name| (name == "HOME").then(|| "/home/a".into()));
        let own = Endpoint::Socket("/home/a/.local/state/leafhost/agent.sock".into());
        let system = Endpoint::Socket("/var/lib/leafhost/agent.sock".into());
        let address = Endpoint::Address(DEFAULT_LISTEN.into());
        let found = Search::new(None, None, &user);
        assert_eq!(found.0, [own, system.clone(), address.clone()]);
        let root = User {
            is_root: true,
            ..User::default()
        };
        assert_eq!(Search::new(None, None, &root).0, [system, address]);
    }

    #[test]
    fn an_agent_that_listens_and_does_not_answer_is_not_alive() {
        let dir = tempfile::tempdir().unwrap();
        let search = Search::new(None, Some(dir.path()), &User::default());
        block_on(search.live()).unwrap();
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let search = Search::new(Some(&address), None, &User::default());
        let error = format!("{:#}", block_on(search.live()).unwrap_err());
        assert!(error.contains("has not answered"), "{error}");
        drop(listener);
        block_on(search.live()).unwrap();
    }

    #[test]
    fn the_error_lists_what_was_tried_and_the_remedy() {
        let dir = tempfile::tempdir().unwrap();
        let search = Search::new(None, Some(dir.path()), &User::default());
        let error = format!("{:#}", block_on(search.status(None)).unwrap_err());
        for words in ["no running agent", "agent.sock", "--agent ADDR:PORT"] {
            assert!(error.contains(words), "{error}");
        }
    }

    #[test]
    fn the_socket_of_a_killed_agent_is_no_running_agent() {
        let dir = tempfile::tempdir().unwrap();
        let listener = std::os::unix::net::UnixListener::bind(socket_in(dir.path())).unwrap();
        drop(listener);
        let search = Search::new(None, Some(dir.path()), &User::default());
        let error = format!("{:#}", block_on(search.status(None)).unwrap_err());
        assert!(error.contains("no agent answers"), "{error}");
        assert!(error.contains("refused"), "{error}");
    }

    #[test]
    fn an_address_may_be_a_url() {
        let search = Search::new(Some("http://127.0.0.1:1/"), None, &User::default());
        assert_eq!(search.0, [Endpoint::Address("127.0.0.1:1".into())]);
    }

    /// Answers requests with these texts in turn; the thread returns the request lines.
    fn serve(answers: Vec<String>) -> (String, std::thread::JoinHandle<Vec<String>>) {
        use std::io::{BufRead as _, BufReader, Write as _};
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let server = std::thread::spawn(move || {
            let mut asked = Vec::new();
            for answer in answers {
                let (mut stream, _) = listener.accept().unwrap();
                let mut lines = BufReader::new(stream.try_clone().unwrap()).lines();
                asked.push(lines.next().unwrap().unwrap());
                while !lines.next().unwrap().unwrap().is_empty() {}
                stream.write_all(answer.as_bytes()).unwrap();
            }
            asked
        });
        (address, server)
    }

    #[test]
    fn an_agent_is_found_by_its_socket() {
        use std::io::{Read as _, Write as _};
        let dir = tempfile::tempdir().unwrap();
        let listener = std::os::unix::net::UnixListener::bind(socket_in(dir.path())).unwrap();
        let server = std::thread::spawn(move || {
            let (mut slow, _) = listener.accept().unwrap();
            let _ = slow.read(&mut [0; 1024]).unwrap();
            let (mut stream, _) = listener.accept().unwrap();
            let _ = stream.read(&mut [0; 1024]).unwrap();
            let body = r#"{"node":"edge-1"}"#;
            write!(
                stream,
                "HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{body}",
                body.len()
            )
            .unwrap();
            drop(slow);
        });
        let search = Search::new(None, Some(dir.path()), &User::default());
        let error = block_on(search.status_within(None, Duration::from_millis(300))).unwrap_err();
        let error = error.to_string();
        assert!(
            error.contains("agent.sock") && error.contains("has not answered"),
            "{error}"
        );
        let answer = block_on(search.status(None)).unwrap().unwrap();
        assert_eq!(answer.status.node, "edge-1");
        server.join().unwrap();
    }

    #[test]
    fn an_agent_that_is_not_ready_says_why() {
        let answer = |status: &str, body: &str| {
            let length = body.len();
            format!(
                "HTTP/1.1 {status}\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n{body}"
            )
        };
        let answers = [
            answer("503 Service Unavailable", "starting: waits for Instances\n"),
            answer("404 Not Found", ""),
            answer("200 OK", "ok\n"),
        ];
        let (address, server) = serve(answers.to_vec());
        let search = Search::new(Some(&address), None, &User::default());
        let error = block_on(search.ready()).unwrap_err().to_string();
        assert_eq!(
            error,
            "the agent is not ready: starting: waits for Instances"
        );
        let error = block_on(search.ready()).unwrap_err().to_string();
        assert!(error.contains("not a leafhost agent"), "{error}");
        block_on(search.ready()).unwrap();
        let asked = server.join().unwrap();
        assert_eq!(asked, ["GET /readyz HTTP/1.1"; 3]);
        let waits = "starting: the API server does not say which node this is: no answer\n";
        let (address, server) = serve(vec![answer("503 Service Unavailable", waits)]);
        let search = Search::new(Some(&address), None, &User::default());
        let error = block_on(search.status(None)).unwrap_err().to_string();
        assert!(
            error.contains(" is not ready: starting: the API"),
            "{error}"
        );
        server.join().unwrap();
    }

    #[test]
    fn slow_absent_and_foreign_servers_are_distinguished() {
        let answer = |body: &str| {
            format!(
                "HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: {}\r\n\r\n{body}",
                body.len()
            )
        };
        let slow = ["has not answered within 0.3 s", "read its log"];
        for (text, named) in [
            (None, slow),
            (
                Some("HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n{".to_owned()),
                slow,
            ),
            (
                Some(answer("{}")),
                ["is not a leafhost agent", "names no node"],
            ),
            (
                Some(answer("<html>")),
                ["is not a leafhost agent", "not a status"],
            ),
            (
                Some("HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n".into()),
                ["is not a leafhost agent", "404"],
            ),
            (
                Some("SSH-2.0-x\r\n".into()),
                ["is not a leafhost agent", "the program that answers at 127"],
            ),
        ] {
            let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
            let address = listener.local_addr().unwrap();
            let server = std::thread::spawn(move || {
                use std::io::{Read as _, Write as _};
                let (mut stream, _) = listener.accept().unwrap();
                let _ = stream.read(&mut [0; 1024]).unwrap();
                stream
                    .write_all(text.unwrap_or_default().as_bytes())
                    .unwrap();
                stream
            });
            let limit = Duration::from_millis(if named == slow { 300 } else { 30_000 });
            let asked = Search::new(Some(&address.to_string()), None, &User::default());
            let error = format!(
                "{:#}",
                block_on(asked.status_within(None, limit)).unwrap_err()
            );
            assert!(named.iter().all(|words| error.contains(words)), "{error}");
            assert_eq!(error.contains("no running agent"), named != slow, "{error}");
            assert!(error.contains(&address.to_string()), "{error}");
            drop(server.join().unwrap());
        }
    }

    #[test]
    fn the_version_is_used_for_the_next_request() {
        let status = serde_json::to_string(&Status {
            node: "edge-1".into(),
            ..Status::default()
        })
        .unwrap();
        let (address, server) = serve(vec![
            format!(
                "HTTP/1.1 200 OK\r\nleafhost-status-version: 7\r\nconnection: close\r\ncontent-length: {}\r\n\r\n{status}",
                status.len()
            ),
            "HTTP/1.1 304 Not Modified\r\nconnection: close\r\n\r\n".into(),
            "HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 2\r\n\r\n{}".into(),
        ]);
        let search = Search::new(Some(&address), None, &User::default());
        let answer = block_on(search.status(None)).unwrap().unwrap();
        assert_eq!(answer.status.node, "edge-1");
        assert_eq!(answer.version.as_deref(), Some("7"));
        assert!(block_on(search.status(Some("7"))).unwrap().is_none());
        let other = format!("{:#}", block_on(search.status(None)).unwrap_err());
        assert!(
            other.contains("not a status of a leafhost agent"),
            "{other}"
        );
        let asked = server.join().unwrap();
        assert!(asked[0].starts_with("GET /status HTTP"), "{asked:?}");
        assert!(
            asked[1].starts_with("GET /status?after=7 HTTP"),
            "{asked:?}"
        );
    }
}

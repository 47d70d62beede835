//! Gate before the API server that passes reads and answers writes as the test sets it.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use leafhost_tests::cluster::Cluster;

/// Treatment of a request that writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Writes {
    Pass,
    /// Answered with this status; 429 with `Retry-After`.
    Refused(u16),
    /// Not answered; the connection stays open.
    Silent,
}

/// Gate, which ends with the test's process.
pub struct Gate {
    pub kubeconfig: String,
    state: Arc<Mutex<State>>,
}

struct State {
    writes: Writes,
    /// Method, path and time of the requests that did not pass.
    held: Vec<(String, Instant)>,
    /// Connections that stay open without an answer.
    silent: Vec<TcpStream>,
}

impl Gate {
    /// Starts a gate. Agents that use its kubeconfig have all rights.
    pub fn start(cluster: &Cluster) -> Result<Self> {
        let admin = std::fs::read_to_string(cluster.kubeconfig())?;
        let server = admin
            .lines()
            .find_map(|line| line.trim().strip_prefix("server: https://"));
        let server = server.context("no server in the kubeconfig")?;
        let (gateway, _) = server.split_once(':').context("no port")?;
        let listener = TcpListener::bind((gateway, 0))?;
        let address = listener.local_addr()?;
        let kubeconfig = admin.replace(&format!("https://{server}"), &format!("http://{address}"));
        let kubeconfig = kubeconfig
            .lines()
            .filter(|line| !line.contains("certificate-authority"))
            .collect::<Vec<_>>()
            .join("\n");
        let state = Arc::new(Mutex::new(State {
            writes: Writes::Pass,
            held: Vec::new(),
            silent: Vec::new(),
        }));
        let (shared, upstream) = (Arc::clone(&state), cluster.api().address().parse()?);
        thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let state = Arc::clone(&shared);
                thread::spawn(move || serve(client, upstream, &state));
            }
        });
        Ok(Self { kubeconfig, state })
    }

    /// Sets the treatment of writes and closes silent connections.
    pub fn set(&self, writes: Writes) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.writes = writes;
        state.held.clear();
        for silent in state.silent.drain(..) {
            let _ = silent.shutdown(Shutdown::Both);
        }
    }

    /// Returns the times between the requests for this kind of object that did not pass since [`Self::set`].
    pub fn pauses(&self, kind: &str) -> Vec<Duration> {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let times: Vec<Instant> = state
            .held
            .iter()
            .filter(|(request, _)| request.contains(kind))
            .map(|(_, at)| *at)
            .collect();
        times
            .iter()
            .zip(times.iter().skip(1))
            .map(|(first, next)| next.duration_since(*first))
            .collect()
    }
}

/// Serves one request; the connection ends with its answer.
fn serve(client: TcpStream, upstream: SocketAddr, state: &Mutex<State>) -> io::Result<()> {
    let mut reader = BufReader::new(client.try_clone()?);
    let (mut first, mut head, mut length) = (String::new(), String::new(), 0);
    reader.read_line(&mut first)?;
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line)? == 0 || line == "\r\n" {
            break;
        }
        let lower = line.to_lowercase();
        if let Some(value) = lower.strip_prefix("content-length:") {
            length = value.trim().parse().unwrap_or_default();
        }
        // kubectl proxy answers only for a known host, and adds the credentials.
        if !["connection:", "authorization:"]
            .iter()
            .any(|name| lower.starts_with(name))
        {
            head += &line;
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body)?;
    let is_write = !first.starts_with("GET") && !first.contains("selfsubjectreviews");
    let writes = {
        let mut state = state.lock().unwrap_or_else(PoisonError::into_inner);
        if is_write && state.writes != Writes::Pass {
            state.held.push((first.clone(), Instant::now()));
        }
        if is_write && state.writes == Writes::Silent {
            state.silent.push(client.try_clone()?);
        }
        state.writes
    };
    let mut client = client;
    match writes {
        Writes::Refused(status) if is_write => {
            // Same text as the API server's when it is overloaded.
            let text = "Too many requests, please try again later.";
            write!(
                client,
                "HTTP/1.1 {status} Refused\r\nretry-after: 1\r\ncontent-type: text/plain\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{text}",
                text.len()
            )
        }
        Writes::Silent if is_write => Ok(()),
        _ => {
            let mut server = TcpStream::connect(upstream)?;
            write!(server, "{first}{head}connection: close\r\n\r\n")?;
            server.write_all(&body)?;
            io::copy(&mut server, &mut client)?;
            client.shutdown(Shutdown::Both)
        }
    }
}

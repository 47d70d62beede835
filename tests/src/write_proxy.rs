//! Proxy between a program and the API server that kills the program at a chosen one of its writes. Knows HTTP/1.1 as far as a client of Kubernetes
//! uses it: sequential requests on a connection, each with its length.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use anyhow::{Context, Result, bail};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::cluster::Api;

/// API groups whose writes count.
const GROUPS: [&str; 5] = [
    "/apis/akri.sh/",
    "/apis/leafhost.dev/",
    // Only `leafhost migrate` writes these.
    "/apis/apps/",
    "/apis/apiextensions.k8s.io/",
    "/apis/admissionregistration.k8s.io/",
];
/// Maximum size of a request's head and of its body, in bytes.
const MOST: u64 = 8 << 20;

/// Time of the kill.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cut {
    /// Before the API server gets the write.
    Before,
    /// After the API server has answered, before the program has the answer.
    After,
}

#[derive(Debug, Clone, Copy)]
struct Aim {
    pid: Pid,
    /// Number of writes before the chosen one.
    before: u64,
    cut: Cut,
}

#[derive(Debug)]
struct State {
    server: String,
    aim: Mutex<Option<Aim>>,
    has_struck: AtomicBool,
    is_over: AtomicBool,
    answered: AtomicU64,
    /// Number of requests for single Instances.
    looks: AtomicU64,
}

/// Proxy, which ends when this is dropped.
#[derive(Debug)]
pub struct WriteProxy {
    address: SocketAddr,
    state: Arc<State>,
    thread: Option<JoinHandle<()>>,
}

impl WriteProxy {
    /// Starts a proxy in front of that API server.
    pub fn start(api: &Api) -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").context("cannot listen")?;
        let state = Arc::new(State {
            server: api.address().to_owned(),
            aim: Mutex::default(),
            has_struck: AtomicBool::default(),
            is_over: AtomicBool::default(),
            answered: AtomicU64::default(),
            looks: AtomicU64::default(),
        });
        let (address, shared) = (listener.local_addr()?, Arc::clone(&state));
        let thread = std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                if shared.is_over.load(Ordering::Acquire) {
                    return;
                }
                let state = Arc::clone(&shared);
                // The thread ends with its connection.
                std::thread::spawn(move || drop(state.forward(&client)));
            }
        });
        Ok(Self {
            address,
            state,
            thread: Some(thread),
        })
    }

    /// Returns a kubeconfig by which a program reaches the API server through the proxy.
    pub fn kubeconfig(&self) -> String {
        format!(
            "apiVersion: v1\nkind: Config\ncurrent-context: proxy\nclusters:\n- name: proxy\n  cluster: {{server: \"http://{}\"}}\n\
             users:\n- name: proxy\n  user: {{}}\ncontexts:\n- name: proxy\n  context: {{cluster: proxy, user: proxy}}\n",
            self.address
        )
    }

    /// Chooses the process to kill and the number of its writes before that.
    pub fn aim(&self, pid: u32, before: u64, cut: Cut) -> Result<()> {
        let pid = Pid::from_raw(i32::try_from(pid)?);
        self.state.has_struck.store(false, Ordering::Release);
        *self.state.aim() = Some(Aim { pid, before, cut });
        Ok(())
    }

    /// Cancels the kill; returns true if it had happened already.
    pub fn rest(&self) -> bool {
        *self.state.aim() = None;
        self.has_struck()
    }

    /// Returns the number of bytes that the API server has answered.
    pub fn answered(&self) -> u64 {
        self.state.answered.load(Ordering::Relaxed)
    }

    /// Returns the number of requests for single Instances.
    pub fn looks(&self) -> u64 {
        self.state.looks.load(Ordering::Relaxed)
    }

    /// Returns true if the process was killed since [`Self::aim`].
    pub fn has_struck(&self) -> bool {
        self.state.has_struck.load(Ordering::Acquire)
    }
}

impl Drop for WriteProxy {
    fn drop(&mut self) {
        self.state.is_over.store(true, Ordering::Release);
        drop(TcpStream::connect(self.address));
        if let Some(thread) = self.thread.take() {
            drop(thread.join());
        }
    }
}

impl State {
    fn aim(&self) -> MutexGuard<'_, Option<Aim>> {
        self.aim.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts a write; returns the process to kill if it is the chosen one.
    fn count(&self) -> Option<Aim> {
        let mut aim = self.aim();
        let now = aim.as_mut()?;
        if now.before > 0 {
            now.before -= 1;
            return None;
        }
        aim.take()
    }

    fn strike(&self, pid: Pid) {
        if kill(pid, Signal::SIGKILL).is_ok() {
            self.has_struck.store(true, Ordering::Release);
        }
    }

    fn forward(self: Arc<Self>, client: &TcpStream) -> Result<()> {
        let server = TcpStream::connect(&self.server)?;
        for stream in [client, &server] {
            stream.set_nodelay(true)?;
        }
        let waits = Arc::<Mutex<Option<Pid>>>::default();
        let back = (server.try_clone()?, client.try_clone()?);
        let (state, shared) = (Arc::clone(&self), Arc::clone(&waits));
        std::thread::spawn(move || drop(state.answer(&back.0, &back.1, &shared)));
        let sent = self.requests(client, &server, &waits);
        drop(server.shutdown(Shutdown::Both));
        drop(client.shutdown(Shutdown::Both));
        sent
    }

    fn requests(
        &self,
        client: &TcpStream,
        mut server: &TcpStream,
        waits: &Mutex<Option<Pid>>,
    ) -> Result<()> {
        let mut reader = BufReader::new(client);
        loop {
            let mut head = Vec::new();
            while !head.ends_with(b"\r\n\r\n") {
                let most = MOST.saturating_sub(head.len().try_into()?);
                if reader.by_ref().take(most).read_until(b'\n', &mut head)? == 0 {
                    return Ok(());
                }
            }
            let text = String::from_utf8_lossy(&head).to_ascii_lowercase();
            if text.contains("\r\ntransfer-encoding:") {
                bail!("a request without a length: {text}");
            }
            let length = text
                .lines()
                .find_map(|line| line.strip_prefix("content-length:"));
            let length: u64 = length.map_or(Ok(0), |length| length.trim().parse())?;
            let mut request = head;
            reader
                .by_ref()
                .take(length.min(MOST))
                .read_to_end(&mut request)?;
            if is_look(&text) {
                self.looks.fetch_add(1, Ordering::Relaxed);
            }
            if is_write(&text)
                && let Some(aim) = self.count()
            {
                match aim.cut {
                    Cut::Before => {
                        self.strike(aim.pid);
                        return Ok(());
                    }
                    Cut::After => {
                        *waits.lock().unwrap_or_else(PoisonError::into_inner) = Some(aim.pid);
                    }
                }
            }
            server.write_all(&request)?;
        }
    }

    fn answer(
        &self,
        mut server: &TcpStream,
        mut client: &TcpStream,
        waits: &Mutex<Option<Pid>>,
    ) -> Result<()> {
        let mut bytes = vec![0; 1 << 16];
        loop {
            let count = server.read(&mut bytes)?;
            self.answered
                .fetch_add(count.try_into()?, Ordering::Relaxed);
            if let Some(pid) = waits.lock().unwrap_or_else(PoisonError::into_inner).take() {
                self.strike(pid);
                return Ok(client.shutdown(Shutdown::Both)?);
            }
            if count == 0 {
                return Ok(client.shutdown(Shutdown::Both)?);
            }
            client.write_all(bytes.get(..count).unwrap_or_default())?;
        }
    }
}

/// Returns true if a request head asks for one Instance.
fn is_look(head: &str) -> bool {
    let mut words = head.split_whitespace();
    words.next() == Some("get")
        && words
            .next()
            .is_some_and(|path| path.contains("/instances/"))
}

/// Returns true if a request head, in lower case, changes an object of [`GROUPS`].
fn is_write(head: &str) -> bool {
    let mut words = head.split(' ');
    let method = words.next().unwrap_or_default();
    let path = words.next().unwrap_or_default();
    ["post", "put", "patch", "delete"].contains(&method)
        && GROUPS.iter().any(|group| path.starts_with(group))
}

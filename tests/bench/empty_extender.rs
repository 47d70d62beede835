//! Extender of a kube-scheduler that decides nothing: it accepts all nodes with the same score. Its Bind is one Binding, or one patch of some Instance
//! and one Binding.
//!
//! Knows HTTP/1.1 as far as kube-scheduler uses it: sequential requests on a connection, each with its length.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};
use tokio::runtime::Runtime;

use crate::joined::client_of;

/// Upper bound of a request in bytes: a pod and the names of all nodes.
const MOST: u64 = 4 << 20;

/// Extender that ends when this is dropped; its connections end with the kube-scheduler.
pub struct EmptyExtender {
    address: SocketAddr,
    is_over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

/// Client and runtime that write Bindings.
struct Answering {
    client: kube::Client,
    runtime: Runtime,
    /// Names of Instances with one free slot, of which each Bind takes one; `None` if it writes the Binding alone.
    instances: Option<Mutex<Vec<String>>>,
}

impl EmptyExtender {
    /// Starts an extender that writes Bindings with this kubeconfig, and before each one takes the slot of one of these `instances`, if there are any.
    pub fn start(kubeconfig: &Path, instances: Option<Vec<String>>) -> Result<Self> {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()?;
        let client = runtime.block_on(client_of(kubeconfig))?;
        let answering = Arc::new(Answering {
            client,
            runtime,
            instances: instances.map(Mutex::new),
        });
        let listener = TcpListener::bind("127.0.0.1:0").context("cannot listen")?;
        let (address, is_over) = (listener.local_addr()?, Arc::new(AtomicBool::default()));
        let shared = Arc::clone(&is_over);
        let thread = std::thread::spawn(move || {
            for scheduler in listener.incoming().flatten() {
                if shared.load(Ordering::Acquire) {
                    return;
                }
                let answering = Arc::clone(&answering);
                // The thread ends with its connection.
                std::thread::spawn(move || {
                    if let Err(error) = answering.serve(&scheduler) {
                        eprintln!("the empty extender: {error:#}");
                    }
                });
            }
        });
        Ok(Self {
            address,
            is_over,
            thread: Some(thread),
        })
    }

    /// Returns the `urlPrefix` of the extender.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }
}

impl Drop for EmptyExtender {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Release);
        drop(TcpStream::connect(self.address));
        if let Some(thread) = self.thread.take() {
            drop(thread.join());
        }
    }
}

impl Answering {
    fn serve(&self, mut scheduler: &TcpStream) -> Result<()> {
        scheduler.set_nodelay(true)?;
        let mut reader = BufReader::new(scheduler);
        loop {
            let mut head = Vec::new();
            while !head.ends_with(b"\r\n\r\n") {
                match reader.by_ref().take(MOST).read_until(b'\n', &mut head) {
                    Ok(0) => return Ok(()),
                    Ok(_) => {}
                    // The kube-scheduler was killed.
                    Err(_) if head.is_empty() => return Ok(()),
                    Err(error) => return Err(error.into()),
                }
            }
            let head = String::from_utf8_lossy(&head).to_ascii_lowercase();
            let length = head
                .lines()
                .find_map(|line| line.strip_prefix("content-length:"));
            let length: u64 = length
                .context("a request without a length")?
                .trim()
                .parse()?;
            let mut body = Vec::new();
            reader
                .by_ref()
                .take(length.min(MOST))
                .read_to_end(&mut body)?;
            let verb = head.split_whitespace().nth(1).unwrap_or_default();
            let answer = self.answer(verb, &serde_json::from_slice(&body)?)?;
            let answer = answer.to_string();
            let whole = format!(
                "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{answer}",
                answer.len()
            );
            scheduler.write_all(whole.as_bytes())?;
        }
    }

    fn answer(&self, verb: &str, question: &Value) -> Result<Value> {
        let nodes = question.get("NodeNames");
        match verb {
            "/filter" => Ok(json!({"NodeNames": nodes, "Error": ""})),
            "/prioritize" => {
                let nodes = nodes.and_then(Value::as_array).context("no nodes")?;
                let each = nodes.iter().map(|node| json!({"Host": node, "Score": 0}));
                Ok(each.collect())
            }
            "/bind" => {
                let error = self.bind(question).err();
                let error = error.map(|error| format!("{error:#}"));
                Ok(json!({"Error": error.unwrap_or_default()}))
            }
            other => bail!("nobody asks for {other}"),
        }
    }

    fn bind(&self, question: &Value) -> Result<()> {
        let text = |field: &str| {
            let value = question.get(field).and_then(Value::as_str);
            value.with_context(|| format!("no {field}"))
        };
        let (space, name) = (text("PodNamespace")?, text("PodName")?);
        if let Some(instances) = &self.instances {
            let instance = instances
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .pop()
                .context("no Instance is left")?;
            let slot = format!("/spec/deviceUsage/{instance}-0");
            let usage = format!("P:{}:{}", text("PodUID")?, text("Node")?);
            let operations = json!([{"op": "test", "path": slot, "value": ""}, {"op": "add", "path": slot, "value": usage}]);
            let path = format!("/apis/akri.sh/v0/namespaces/{space}/instances/{instance}");
            let request = http::Request::patch(path)
                .header("content-type", "application/json-patch+json")
                .body(serde_json::to_vec(&operations)?)?;
            let written = self.client.request::<Value>(request);
            self.runtime.block_on(written)?;
        }
        let binding = json!({
            "apiVersion": "v1", "kind": "Binding",
            "metadata": {"name": name, "namespace": space, "uid": text("PodUID")?},
            "target": {"apiVersion": "v1", "kind": "Node", "name": text("Node")?},
        });
        let path = format!("/api/v1/namespaces/{space}/pods/{name}/binding");
        let request = http::Request::post(path)
            .header("content-type", "application/json")
            .body(serde_json::to_vec(&binding)?)?;
        let written = self.client.request::<Value>(request);
        self.runtime.block_on(written)?;
        Ok(())
    }
}

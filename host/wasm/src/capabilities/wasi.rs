//! WASI 0.2, linked because the libraries of all languages import it. Needs no grant, and gives only clocks and random numbers: no files,
//! arguments or environment. The module `sockets` decides what sockets may reach. Standard output and error become log lines.

use std::sync::{Arc, LazyLock, Mutex, PoisonError};

use bytes::Bytes;
use leafhost_grants::LONGEST_PIECE;
use tokio::time::Instant;
use wasmtime_wasi::cli::{IsTerminal, StdoutStream};
use wasmtime_wasi::p2::{OutputStream, Pollable, StreamResult};
use wasmtime_wasi::{HostMonotonicClock, WasiCtx, WasiCtxBuilder};

use super::log::{Level, LogSink};
use super::reach::NetworkAccess;
use super::sockets;
use crate::record::Record;

/// Maximum length of a piece of an unfinished line, in bytes.
const MAX_LINE: usize = 4096;
/// Maximum number of random bytes per request.
const MAX_RANDOM: u64 = 64 << 10;

/// Rust's advice after a panic, which is useless here: guests have no environment.
const ADVICE: &str = "note: run with `RUST_BACKTRACE=1`";

/// Origin of every guest's monotonic clock.
static START: LazyLock<Instant> = LazyLock::new(Instant::now);

/// Clock shared by all calls: a handler stores times in its cursor and compares them in the next call.
struct AgentClock;

impl HostMonotonicClock for AgentClock {
    fn resolution(&self) -> u64 {
        1
    }

    fn now(&self) -> u64 {
        u64::try_from(START.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }
}

pub(super) fn context(
    sink: &Arc<LogSink>,
    record: &Arc<Record>,
    reach: &Arc<NetworkAccess>,
) -> WasiCtx {
    let line = |level, stderr_tail| Lines {
        shared: Arc::new(Shared {
            sink: sink.clone(),
            record: record.clone(),
            level,
            stderr_tail,
            begun: Mutex::default(),
        }),
    };
    let mut builder = WasiCtxBuilder::new();
    sockets::open(&mut builder, reach);
    builder
        .stdout(line(Level::INFO, false))
        .stderr(line(Level::WARN, true))
        .max_random_size(MAX_RANDOM)
        .monotonic_clock(AgentClock)
        .build()
}

/// A stream whose lines become log lines.
#[derive(Clone)]
struct Lines {
    shared: Arc<Shared>,
}

struct Shared {
    sink: Arc<LogSink>,
    record: Arc<Record>,
    level: Level,
    stderr_tail: bool,
    /// Line that has not ended yet.
    begun: Mutex<Vec<u8>>,
}

impl Shared {
    fn take(&self, bytes: &[u8]) {
        let mut begun = self.begun.lock().unwrap_or_else(PoisonError::into_inner);
        for piece in bytes.split_inclusive(|byte| *byte == b'\n') {
            for part in piece.chunks(MAX_LINE) {
                begun.extend_from_slice(part);
                if begun.ends_with(b"\n") {
                    self.write_whole(&mut begun);
                } else {
                    // A secret may begin at the end of the part.
                    self.write_pieces(&mut begun, LONGEST_PIECE);
                }
            }
        }
    }

    fn write_whole(&self, line: &mut Vec<u8>) {
        self.write_pieces(line, 0);
        self.write(line);
        line.clear();
    }

    /// Writes pieces of [`MAX_LINE`] bytes until at most `kept` bytes more than that are left. A piece that would split
    /// a secret is longer.
    fn write_pieces(&self, line: &mut Vec<u8>, kept: usize) {
        while line.len() > MAX_LINE + kept {
            let end = self.sink.secrets.cut_at(line, MAX_LINE);
            let rest = line.split_off(end.min(line.len()));
            self.write(line);
            *line = rest;
        }
    }

    fn write(&self, line: &[u8]) {
        let text = String::from_utf8_lossy(line);
        let text = text.trim_end();
        if text.is_empty() || text.starts_with(ADVICE) {
            return;
        }
        if self.stderr_tail {
            self.record.stderr_tail(text);
        }
        self.sink.write(&self.record, self.level, text);
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        let begun = std::mem::take(&mut self.begun);
        let mut begun = begun.into_inner().unwrap_or_else(PoisonError::into_inner);
        self.write_whole(&mut begun);
    }
}

impl IsTerminal for Lines {
    fn is_terminal(&self) -> bool {
        false
    }
}

impl StdoutStream for Lines {
    fn async_stream(&self) -> Box<dyn tokio::io::AsyncWrite + Send + Sync> {
        Box::new(tokio::io::sink())
    }

    fn p2_stream(&self) -> Box<dyn OutputStream> {
        Box::new(self.clone())
    }
}

#[async_trait::async_trait]
impl Pollable for Lines {
    async fn ready(&mut self) {}
}

#[async_trait::async_trait]
impl OutputStream for Lines {
    fn write(&mut self, bytes: Bytes) -> StreamResult<()> {
        self.shared.take(&bytes);
        Ok(())
    }

    fn flush(&mut self) -> StreamResult<()> {
        Ok(())
    }

    fn check_write(&mut self) -> StreamResult<usize> {
        Ok(64 << 10)
    }
}

#[cfg(test)]
mod tests {
    use leafhost_core::session::Property;
    use leafhost_grants::Secrets;

    use super::*;

    /// Returns the standard error of a call that has access to this secret.
    fn standard_error(secret: &str) -> (Shared, Arc<Record>) {
        let secret = Property {
            name: "key".into(),
            value: Some(secret.as_bytes().into()),
            secret: true,
        };
        let secrets = Arc::new(Secrets::new(&[secret]));
        let sink = Arc::new(LogSink {
            handler: "h".into(),
            source: "h.wasm".into(),
            configuration: String::new(),
            secrets: secrets.clone(),
            rate: Arc::default(),
        });
        let record = Arc::new(Record::new(secrets));
        let shared = Shared {
            sink,
            record: record.clone(),
            level: Level::WARN,
            stderr_tail: true,
            begun: Mutex::default(),
        };
        (shared, record)
    }

    #[test]
    fn a_secret_is_masked_however_the_guest_and_the_host_cut_its_line() {
        let secret = "0123456789abcdefghijklmnopqrstuvwxyz";
        for before in MAX_LINE - 40..MAX_LINE + 4 {
            for chunk in [1, 7, 1000, 10_000] {
                let (shared, record) = standard_error(secret);
                let line = format!("{}{secret}{}", "-".repeat(before), "-".repeat(900));
                for chunk in line.as_bytes().chunks(chunk) {
                    shared.take(chunk);
                }
                drop(shared);
                let words = record.take().stderr_tail;
                let is_masked = !words.contains(char::is_alphanumeric);
                assert!(is_masked, "{before} {chunk}: {words}");
            }
        }
    }

    #[test]
    fn standard_error_is_kept_line_by_line() {
        let (shared, record) = standard_error("");
        shared.take(b"panicked at ");
        assert_eq!(record.kept().stderr_tail, "");
        shared.take(b"src/lib.rs:7:\nboom\n");
        assert_eq!(record.kept().stderr_tail, "panicked at src/lib.rs:7: boom");
        shared.take(b"no end");
        drop(shared);
        assert!(record.kept().stderr_tail.ends_with("no end"));
    }
}

//! What offering devices to a kubelet costs: a table of values, targets and what to compare them with.
//!
//! Run by `make bench`. Without root or the cluster's programs only what needs no real kubelet is measured.
#![allow(missing_docs, reason = "a benchmark")]

mod allocate;
mod register;
mod table;

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::Duration;

use anyhow::{Context as _, Result};

fn main() -> Result<()> {
    let mut lines = allocate::measure()?;
    lines.extend(register::measure()?);
    table::print(&lines);
    Ok(())
}

/// The time below which that share of the sorted times lies.
pub fn quantile(sorted: &[Duration], share: f64) -> Duration {
    let last = sorted.len().saturating_sub(1);
    #[expect(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "an index among some thousand times"
    )]
    let index = (last as f64 * share).ceil() as usize;
    sorted.get(index).copied().unwrap_or_default()
}

/// Milliseconds with two digits.
pub fn ms(time: Duration) -> String {
    format!("{:.2} ms", time.as_secs_f64() * 1e3)
}

/// The first metric whose line begins so.
pub fn metric(address: &str, name: &str) -> Result<f64> {
    let mut stream = TcpStream::connect(address)?;
    stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")?;
    let mut text = String::new();
    stream.read_to_string(&mut text)?;
    let line = text.lines().find(|line| line.starts_with(name));
    let value = line.and_then(|line| line.rsplit(' ').next());
    Ok(value.with_context(|| format!("no {name}"))?.parse()?)
}

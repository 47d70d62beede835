//! Quantiles, formatted times, and values of metrics.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::Duration;

use anyhow::{Context as _, Result};

/// Returns the quantile `share` of sorted times.
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

/// Formats milliseconds with two decimals.
pub fn ms(time: Duration) -> String {
    format!("{:.2} ms", time.as_secs_f64() * 1e3)
}

/// Returns the sum of the metrics with this prefix.
pub fn metric(address: &str, name: &str) -> Result<f64> {
    let mut stream = TcpStream::connect(address)?;
    stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")?;
    let mut text = String::new();
    stream.read_to_string(&mut text)?;
    let lines = text.lines().filter(|line| line.starts_with(name));
    let values: Vec<&str> = lines.filter_map(|line| line.rsplit(' ').next()).collect();
    values.first().with_context(|| format!("no {name}"))?;
    Ok(values
        .into_iter()
        .map(str::parse::<f64>)
        .sum::<Result<_, _>>()?)
}

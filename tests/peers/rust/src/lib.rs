//! Common code of the peers: a peer prints `ready` when it serves, executes the lines of its input and ends with it.

use std::io::{self, BufRead as _, Write as _};
use std::net::SocketAddr;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};

/// Prints `ready`.
pub fn ready() -> Result<()> {
    say("ready")
}

/// Prints a line.
pub fn say(line: &str) -> Result<()> {
    let mut out = io::stdout().lock();
    writeln!(out, "{line}")
        .and_then(|()| out.flush())
        .context("nobody listens")
}

/// Executes each line of the input until it ends. Blocks.
pub fn obey(mut command: impl FnMut(&str) -> Result<()>) -> Result<()> {
    for line in io::stdin().lock().lines() {
        command(line.context("cannot read the input")?.trim())?;
    }
    Ok(())
}

/// Blocks until something accepts connections at the address and, if given, this network namespace has joined the
/// group.
pub fn until_served(address: SocketAddr, group: Option<std::net::Ipv4Addr>) -> Result<()> {
    let start = Instant::now();
    while start.elapsed() < Duration::from_secs(20) {
        if std::net::TcpStream::connect_timeout(&address, Duration::from_secs(1)).is_ok()
            && group.is_none_or(joined)
        {
            return Ok(());
        }
        thread::park_timeout(Duration::from_millis(10));
    }
    bail!("nothing serves {address} after 20 s")
}

/// Returns true if this network namespace has joined the group. The kernel prints it as a native-endian hexadecimal number.
fn joined(group: std::net::Ipv4Addr) -> bool {
    let wanted = format!("{:08X}", u32::from_ne_bytes(group.octets()));
    std::fs::read_to_string("/proc/self/net/igmp").is_ok_and(|text| {
        text.lines()
            .filter_map(|line| line.split_whitespace().next())
            .any(|word| word == wanted)
    })
}

//! Connects to a target: every address is checked, and the checked address is the one connected to.

use std::io;
use std::net::SocketAddr;

use tokio::net::TcpStream;
use tokio::time::{Instant, timeout_at};

use super::target::{Host, Target};
use super::until::Until;
use super::{HttpError, Names, RequestPolicy, Stage};

/// Maximum number of granted addresses per name that are tried.
const MAX_TRIED: usize = 4;

pub(super) async fn connect(
    gate: &impl RequestPolicy,
    names: &Names,
    target: &Target,
    until: Until,
) -> Result<(TcpStream, SocketAddr), HttpError> {
    let found = match &target.host {
        Host::Name(name) => {
            let look_up = names.look_up(gate, name);
            until.run(Stage::LookUp, look_up).await??
        }
        Host::Address(address) => vec![*address],
    };
    let host = target.host.to_string();
    let mut granted = Vec::new();
    let mut denied = Vec::new();
    for mut address in found {
        address.set_port(target.port);
        match gate.request(&host, address) {
            Ok(()) => granted.push(address),
            Err(reason) => denied.push(reason),
        }
    }
    if granted.is_empty() {
        return Err(HttpError::Denied(denied));
    }
    granted.truncate(MAX_TRIED);
    one_of(&granted, until).await
}

/// Tries the addresses in order, each with its share of the time left, so that a dead one does not use it up.
async fn one_of(
    addresses: &[SocketAddr],
    until: Until,
) -> Result<(TcpStream, SocketAddr), HttpError> {
    let mut last = until.error(Stage::Connect);
    let mut left = u32::try_from(addresses.len()).unwrap_or(u32::MAX);
    for address in addresses {
        let now = Instant::now();
        let share = until.at.saturating_duration_since(now) / left.max(1);
        left = left.saturating_sub(1);
        match timeout_at(now + share, TcpStream::connect(*address)).await {
            Ok(Ok(stream)) => {
                // Nagle's algorithm would only delay the request.
                let _ = stream.set_nodelay(true);
                return Ok((stream, *address));
            }
            Ok(Err(source)) => last = failed(*address, source),
            Err(_) => last = until.error(Stage::Connect),
        }
    }
    Err(last)
}

fn failed(address: SocketAddr, source: io::Error) -> HttpError {
    match source.kind() {
        io::ErrorKind::ConnectionRefused => HttpError::Refused(address),
        _ => HttpError::Unreachable { address, source },
    }
}

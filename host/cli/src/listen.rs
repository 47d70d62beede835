//! Listeners at the addresses that flags name.

use std::net::SocketAddr;

use anyhow::{Context as _, Result};
use tokio::net::TcpListener;

/// Default of `--listen` of an agent.
pub const DEFAULT_LISTEN: &str = "127.0.0.1:9478";

/// Listens at the address of a flag.
pub async fn bind(address: SocketAddr, flag: &str) -> Result<TcpListener> {
    let error = match TcpListener::bind(address).await {
        Ok(listener) => return Ok(listener),
        Err(error) => error,
    };
    let remedy = match error.kind() {
        std::io::ErrorKind::AddrInUse => {
            "another program uses it, perhaps another agent; stop that program, or choose another port (0 takes any free port)"
        }
        _ => "choose another address",
    };
    Err(error).with_context(|| format!("cannot listen on {address} ({flag}): {remedy}"))
}

/// Listens at the address of a flag, if it is given.
pub async fn bind_if(address: Option<SocketAddr>, flag: &str) -> Result<Option<TcpListener>> {
    match address {
        Some(address) => Ok(Some(bind(address, flag).await?)),
        None => Ok(None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_port_in_use_is_reported_with_the_flag_and_the_remedy() {
        let taken = bind("127.0.0.1:0".parse().unwrap(), "--listen")
            .await
            .unwrap();
        let address = taken.local_addr().unwrap();
        let error = format!("{:#}", bind(address, "--listen").await.unwrap_err());
        for words in [
            &address.to_string(),
            "--listen",
            "another agent",
            "0 takes any",
        ] {
            assert!(error.contains(words), "{error}");
        }
    }
}

//! An OPC UA server, played by the crate `async-opcua`: discovery services and one endpoint without security.
#![allow(missing_docs, reason = "a binary")]

use std::net::Ipv4Addr;

use anyhow::{Context as _, Result};
use clap::Parser;
use opcua_server::{ANONYMOUS_USER_TOKEN_ID, ServerBuilder, ServerEndpoint};
use tokio::net::TcpListener;

#[derive(Debug, Parser)]
struct Arguments {
    /// Its address.
    #[arg(long)]
    address: Ipv4Addr,
    #[arg(long, default_value_t = 4840)]
    port: u16,
    /// Its application's name.
    #[arg(long)]
    name: String,
    /// Its application's URI.
    #[arg(long)]
    uri: String,
}

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() -> Result<()> {
    let Arguments {
        address,
        port,
        name,
        uri,
    } = Arguments::parse();
    let folder = std::env::temp_dir().join(format!("leafhost-opcua-{}", std::process::id()));
    let anonymous = [ANONYMOUS_USER_TOKEN_ID.to_owned()];
    let (server, handle) = ServerBuilder::new()
        .application_name(name)
        .application_uri(uri)
        .product_uri("urn:leafhost:peer")
        .host(address.to_string())
        .port(port)
        .pki_dir(folder.clone())
        .add_endpoint("none", ServerEndpoint::new_none("/", &anonymous))
        .discovery_urls(vec![format!("opc.tcp://{address}:{port}/")])
        .build()
        .map_err(anyhow::Error::msg)?;
    let listener = TcpListener::bind((address, port))
        .await
        .with_context(|| format!("cannot listen on {address}:{port}"))?;
    leafhost_peers::ready()?;
    let server = tokio::spawn(server.run_with(listener));
    tokio::task::spawn_blocking(|| {
        leafhost_peers::obey(|line| anyhow::bail!("knows no command, not even {line:?}"))
    })
    .await??;
    handle.cancel();
    server.await?.map_err(anyhow::Error::msg)?;
    // It may never have written any.
    let _ = std::fs::remove_dir_all(folder);
    Ok(())
}

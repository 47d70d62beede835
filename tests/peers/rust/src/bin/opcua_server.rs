//! An OPC UA server, played by the crate `async-opcua`: discovery services and one endpoint without security.
#![allow(missing_docs, reason = "a binary")]

use std::net::Ipv4Addr;

use anyhow::{Context as _, Result};
use clap::Parser;
use opcua_server::diagnostics::NamespaceMetadata;
use opcua_server::node_manager::memory::simple_node_manager;
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
    let folder = tempfile::tempdir().context("cannot make a folder")?;
    let anonymous = [ANONYMOUS_USER_TOKEN_ID.to_owned()];
    let (server, handle) = ServerBuilder::new()
        .application_name(name)
        .application_uri(uri.clone())
        .product_uri("urn:leafhost:peer")
        .host(address.to_string())
        .port(port)
        // It wants one, even if it has nothing to show.
        .with_node_manager(simple_node_manager(
            NamespaceMetadata {
                namespace_uri: uri,
                ..NamespaceMetadata::default()
            },
            "peer",
        ))
        .pki_dir(folder.path())
        .add_endpoint("none", ServerEndpoint::new_none("/", &anonymous))
        .discovery_urls(vec![format!("opc.tcp://{address}:{port}/")])
        .build()
        .map_err(anyhow::Error::msg)?;
    let listener = TcpListener::bind((address, port))
        .await
        .with_context(|| format!("cannot listen on {address}:{port}"))?;
    leafhost_peers::ready()?;
    let serving = tokio::spawn(server.run_with(listener));
    let stay = tokio::task::spawn_blocking(|| {
        leafhost_peers::obey(|line| anyhow::bail!("knows no command, not even {line:?}"))
    });
    tokio::select! {
        served = serving => served?.map_err(anyhow::Error::msg)?,
        stayed = stay => stayed??,
    }
    handle.cancel();
    Ok(())
}

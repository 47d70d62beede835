//! One OPC UA server or many, played by the crate `async-opcua`: discovery services and one endpoint without security.
#![allow(missing_docs, reason = "a binary")]

use std::net::Ipv4Addr;
use std::path::Path;

use anyhow::{Context as _, Result};
use clap::Parser;
use opcua_server::diagnostics::NamespaceMetadata;
use opcua_server::node_manager::memory::simple_node_manager;
use opcua_server::{ANONYMOUS_USER_TOKEN_ID, Server, ServerBuilder, ServerEndpoint, ServerHandle};
use tokio::net::TcpListener;
use tokio::task::JoinSet;

#[derive(Debug, Clone, Parser)]
struct Arguments {
    /// IP address of the server.
    #[arg(long)]
    address: Ipv4Addr,
    #[arg(long, default_value_t = 4840)]
    port: u16,
    /// Name of the application.
    #[arg(long)]
    name: String,
    /// URI of the application.
    #[arg(long)]
    uri: String,
    /// Number of servers, on consecutive ports; name and URI then end with a number.
    #[arg(long, default_value_t = 1)]
    count: u16,
}

impl Arguments {
    fn of(&self, number: u16) -> Self {
        let mut one = self.clone();
        if self.count > 1 {
            one.port = self.port.saturating_add(number);
            one.name = format!("{}{number}", self.name);
            one.uri = format!("{}{number}", self.uri);
        }
        one
    }

    /// Returns a listening server and its handle.
    async fn listen(&self, folder: &Path) -> Result<(Server, ServerHandle, TcpListener)> {
        let Self { address, port, .. } = self;
        let anonymous = [ANONYMOUS_USER_TOKEN_ID.to_owned()];
        let namespace = NamespaceMetadata {
            namespace_uri: self.uri.clone(),
            ..NamespaceMetadata::default()
        };
        let (server, handle) = ServerBuilder::new()
            .application_name(&self.name)
            .application_uri(&self.uri)
            .product_uri("urn:leafhost:peer")
            .host(address.to_string())
            .port(*port)
            // The library requires a node manager.
            .with_node_manager(simple_node_manager(namespace, "peer"))
            .pki_dir(folder)
            .add_endpoint("none", ServerEndpoint::new_none("/", &anonymous))
            .discovery_urls(vec![format!("opc.tcp://{address}:{port}/")])
            .build()
            .map_err(anyhow::Error::msg)?;
        let listener = TcpListener::bind((*address, *port))
            .await
            .with_context(|| format!("cannot listen on {address}:{port}"))?;
        Ok((server, handle, listener))
    }
}

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() -> Result<()> {
    let arguments = Arguments::parse();
    let folder = tempfile::tempdir().context("cannot create a folder")?;
    let (mut serving, mut handles) = (JoinSet::new(), Vec::new());
    for number in 0..arguments.count {
        let (server, handle, listener) = arguments.of(number).listen(folder.path()).await?;
        serving.spawn(server.run_with(listener));
        handles.push(handle);
    }
    leafhost_peers::ready()?;
    let stay = tokio::task::spawn_blocking(|| {
        leafhost_peers::obey(|line| anyhow::bail!("knows no command, not even {line:?}"))
    });
    tokio::select! {
        Some(served) = serving.join_next() => served?.map_err(anyhow::Error::msg)?,
        stayed = stay => stayed??,
    }
    for handle in handles {
        handle.cancel();
    }
    Ok(())
}

//! Serves the two sockets of a driver: the socket for calls starts before the one by which the kubelet discovers the driver.

use std::convert::Infallible;
use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt as _;
use std::sync::Arc;
use std::time::Duration;

use futures::{Stream, TryStreamExt as _};
use leafhost_uds::authority::Localhost;
use leafhost_uds::{Accepting, Connection, RemovedOnDrop, bind};
use tokio::io::{Join, join};
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{UnixListener, UnixStream};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tonic::body::Body;
use tonic::codegen::http::Request;
use tonic::transport::{self, Server};
use tower::util::MapRequestLayer;

use super::registration::{self, Open, RegistrationState};
use super::{DraTask, health, service};
use crate::proto::dra::dra_plugin_server::DraPluginServer;
use crate::proto::dra_health::dra_resource_health_server::DraResourceHealthServer;
use crate::proto::plugin_registration::registration_server::RegistrationServer;

/// Maximum number of concurrent calls of one connection. The kubelet prepares pods in parallel.
const MAX_CALLS: u32 = 256;
/// Paths of the services in the previous version, and in the current one. Both have the same messages.
const EARLIER: [(&str, &str); 2] = [
    (
        "/k8s.io.kubelet.pkg.apis.dra.v1beta1.DRAPlugin/",
        "/k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin/",
    ),
    ("/v1alpha1.DRAResourceHealth/", "/v1.DRAResourceHealth/"),
];

/// Servers of both sockets.
pub struct Serving {
    end: CancellationToken,
    servers: JoinSet<Result<(), transport::Error>>,
    files: [RemovedOnDrop; 2],
}

impl Serving {
    /// Serves both sockets.
    ///
    /// # Errors
    /// Returns the reason, with the remedy, if a folder is missing or a socket cannot be created.
    pub async fn start(task: &DraTask) -> Result<Self, String> {
        let (registry, plugin) = (
            task.config.registration_socket(),
            task.config.plugin_socket(),
        );
        if let Some(folder) = registry.parent().filter(|folder| !folder.is_dir()) {
            return Err(format!(
                "cannot register the DRA driver: {} does not exist; mount it into the agent's container, or name the kubelet's folder with --kubelet-dir",
                folder.display()
            ));
        }
        if let Some(folder) = plugin.parent() {
            let created = DirBuilder::new().recursive(true).mode(0o750).create(folder);
            created.map_err(|error| {
                let folder = folder.display();
                format!("cannot create the folder {folder} ({error}); run as root")
            })?;
        }
        let (called, called_file) = bind(&plugin).await.map_err(|error| error.to_string())?;
        let (registered, registered_file) =
            bind(&registry).await.map_err(|error| error.to_string())?;
        let end = CancellationToken::new();
        let service = service::Service {
            preparer: Arc::clone(&task.preparer),
            calls: task.calls.clone(),
        };
        let health = health::Service {
            health: task.health.clone(),
            end: end.clone(),
        };
        let mut servers = JoinSet::new();
        let server = Server::builder()
            .max_concurrent_streams(MAX_CALLS)
            .layer(MapRequestLayer::new(current))
            .add_service(DraPluginServer::new(service))
            .add_service(DraResourceHealthServer::new(health))
            .serve_with_incoming_shutdown(
                counted(called, Arc::clone(&task.state)),
                end.clone().cancelled_owned(),
            );
        servers.spawn(server);
        let service = registration::Service {
            driver: task.config.driver.clone(),
            endpoint: plugin.display().to_string(),
            state: Arc::clone(&task.state),
        };
        let server = Server::builder()
            .add_service(RegistrationServer::new(service))
            .serve_with_incoming_shutdown(localhost(registered), end.clone().cancelled_owned());
        servers.spawn(server);
        Ok(Self {
            end,
            servers,
            files: [registered_file, called_file],
        })
    }

    /// Serves until `stop`, or until a server ends or a socket file is gone. Then accepts no more connections, and waits for running calls
    /// for at most `drain`.
    pub async fn until(mut self, stop: &CancellationToken, drain: Duration) {
        let [registered, called] = &self.files;
        tokio::select! {
            () = stop.cancelled() => {}
            ended = self.servers.join_next() => {
                tracing::warn!(?ended, "a socket of the DRA driver is served again");
            }
            () = registered.0.gone() => {}
            () = called.0.gone() => {}
        }
        self.end.cancel();
        let ended = async { while self.servers.join_next().await.is_some() {} };
        if tokio::time::timeout(drain, ended).await.is_err() {
            tracing::warn!("the kubelet does not close its connection to the DRA driver");
        }
        self.servers.shutdown().await;
    }
}

/// Converts a call of the previous version to one of the current version.
fn current(mut call: Request<Body>) -> Request<Body> {
    let path = call.uri().path();
    let renamed = EARLIER.iter().find_map(|(earlier, current)| {
        let method = path.strip_prefix(earlier)?;
        format!("{current}{method}").parse().ok()
    });
    if let Some(path) = renamed {
        *call.uri_mut() = path;
    }
    call
}

/// Returns the connections of clients that send the socket's path as the host, as the kubelet does.
fn localhost(
    listener: UnixListener,
) -> impl Stream<Item = Result<Connection<Join<Localhost<OwnedReadHalf>, OwnedWriteHalf>, ()>, Infallible>>
{
    let connections = Accepting::new(listener, "the kubelet").connections();
    connections.map_ok(|stream| {
        let (read, write) = stream.into_split();
        Connection::new(join(Localhost::new(read), write), ())
    })
}

/// Returns connections that `state` counts while they are open.
fn counted(
    listener: UnixListener,
    state: Arc<RegistrationState>,
) -> impl Stream<Item = Result<Connection<UnixStream, Arc<Open>>, Infallible>> {
    let connections = Accepting::new(listener, "the kubelet").connections();
    connections.map_ok(move |stream| Connection::new(stream, state.connected()))
}

//! Serves the two sockets of a driver: the socket for calls starts before the one by which the kubelet discovers the driver.

use std::convert::Infallible;
use std::fs::DirBuilder;
use std::io;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use futures::{Stream, StreamExt as _};
use leafhost_uds::authority::Localhost;
use leafhost_uds::{Accepting, MAX_PATH, MORE_FILES, RemovedOnDrop};
use tokio::net::UnixListener;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tonic::transport::{self, Server};

use super::connection::Connection;
use super::registration::{self, RegistrationState};
use super::{DraTask, health, service};
use crate::proto::dra::dra_plugin_server::DraPluginServer;
use crate::proto::dra_health::dra_resource_health_server::DraResourceHealthServer;
use crate::proto::plugin_registration::registration_server::RegistrationServer;
use crate::proto::{dra_health_v1alpha1, dra_v1beta1};

/// Upper bound of concurrent calls of one connection. The kubelet prepares pods in parallel.
const MAX_CALLS: u32 = 256;

/// Reason why the sockets are not served.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The kubelet's folder of plugins does not exist.
    #[error("cannot register the DRA driver: {} is not there; mount it into the agent's container, or name the kubelet's folder with --kubelet-dir", .0.display())]
    NoFolder(PathBuf),
    /// The driver's own folder cannot be created.
    #[error("cannot make the folder {} ({source}): run as root", path.display())]
    Folder {
        /// Path of the folder.
        path: PathBuf,
        /// Cause.
        source: io::Error,
    },
    /// A socket cannot be created.
    #[error("{}", describe(path, why))]
    Socket {
        /// Path of the socket.
        path: PathBuf,
        /// Cause.
        why: leafhost_uds::Error,
    },
}

fn describe(path: &Path, why: &leafhost_uds::Error) -> String {
    use leafhost_uds::Error as Why;
    let path = path.display();
    match why {
        Why::Foreign => format!("{path} exists and is not a socket: remove it"),
        Why::Served => format!(
            "another process serves {path}: only one agent may run on a node; stop the other one"
        ),
        Why::TooLong => {
            format!(
                "{path} has more than {MAX_PATH} bytes and can be no socket: choose a shorter folder"
            )
        }
        Why::Files(error) => format!("cannot make the socket {path} ({error}): {MORE_FILES}"),
        Why::Refused(error) => format!(
            "cannot make the socket {path} ({error}): the folder must be writable, run as root"
        ),
    }
}

/// Servers of both sockets.
pub struct Serving {
    end: CancellationToken,
    servers: JoinSet<Result<(), transport::Error>>,
    files: [RemovedOnDrop; 2],
}

impl Serving {
    pub async fn start(task: &DraTask) -> Result<Self, Error> {
        let (registry, plugin) = (
            task.config.registration_socket(),
            task.config.plugin_socket(),
        );
        if let Some(folder) = registry.parent().filter(|folder| !folder.is_dir()) {
            return Err(Error::NoFolder(folder.to_owned()));
        }
        if let Some(folder) = plugin.parent() {
            let made = DirBuilder::new().recursive(true).mode(0o750).create(folder);
            made.map_err(|source| Error::Folder {
                path: folder.to_owned(),
                source,
            })?;
        }
        let (called, called_file) = bind(&plugin).await?;
        let (registered, registered_file) = bind(&registry).await?;
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
            .add_service(DraPluginServer::new(service.clone()))
            .add_service(dra_v1beta1::dra_plugin_server::DraPluginServer::new(
                service,
            ))
            .add_service(DraResourceHealthServer::new(health.clone()))
            .add_service(
                dra_health_v1alpha1::dra_resource_health_server::DraResourceHealthServer::new(
                    health,
                ),
            )
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
            files: [RemovedOnDrop(registered_file), RemovedOnDrop(called_file)],
        })
    }

    /// Serves until `stop`, or until a server ends or a socket file is gone. Then accepts no more connections, and waits for running calls
    /// for at most `drain`.
    pub async fn until(mut self, stop: &CancellationToken, drain: Duration) {
        let [registered, called] = &self.files;
        tokio::select! {
            () = stop.cancelled() => {}
            ended = self.servers.join_next() => {
                tracing::warn!(?ended, "a socket of the DRA driver is served anew");
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

async fn bind(path: &Path) -> Result<(UnixListener, leafhost_uds::SocketFile), Error> {
    let bound = leafhost_uds::bind(path).await;
    bound.map_err(|why| Error::Socket {
        path: path.to_owned(),
        why,
    })
}

/// Returns the connections of clients that send the socket's path as the host, as the kubelet does.
fn localhost(listener: UnixListener) -> impl Stream<Item = Result<impl Client, Infallible>> {
    let connections = Accepting::new(listener, "the kubelet").connections();
    connections.map(|stream| stream.map(|stream| Connection::new(Localhost::new(stream), ())))
}

/// Returns connections that `state` counts while they are open.
fn counted(
    listener: UnixListener,
    state: Arc<RegistrationState>,
) -> impl Stream<Item = Result<impl Client, Infallible>> {
    let connections = Accepting::new(listener, "the kubelet").connections();
    connections.map(move |stream| stream.map(|stream| Connection::new(stream, state.connected())))
}

/// Connection that tonic can serve.
trait Client:
    tokio::io::AsyncRead
    + tokio::io::AsyncWrite
    + transport::server::Connected<ConnectInfo = ()>
    + Unpin
    + Send
    + 'static
{
}

impl<T> Client for T where
    T: tokio::io::AsyncRead
        + tokio::io::AsyncWrite
        + transport::server::Connected<ConnectInfo = ()>
        + Unpin
        + Send
        + 'static
{
}

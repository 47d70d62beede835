//! Serves a handler with the protocol of Akri's handlers, so that it can run in a separate pod, for Leafhost's agent or for Akri's.
//!
//! Does not depend on the kind of handler; each stream is a session of it.

use std::convert::Infallible;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use futures::StreamExt as _;
use futures::stream::BoxStream;
use leafhost_core::names::ConfigurationKey;
use leafhost_core::ports::Handler;
use leafhost_core::session::{Opening, Property, SessionSpec};
use leafhost_core::text::chain;
use leafhost_core::timeouts::BACKOFF_LAST;
use leafhost_uds::{Accepting, SocketFile, bind, names_of};
use tokio::net::UnixStream;
use tokio::sync::{Notify, watch};
use tonic::transport::Server;
use tonic::{Request, Response, Status};

use crate::paced::paced;
use crate::proto::discovery_handler_server::{DiscoveryHandler, DiscoveryHandlerServer};
use crate::proto::register_discovery_handler_request::EndpointType;
use crate::proto::registration_client::RegistrationClient;
use crate::proto::{DiscoverRequest, DiscoverResponse, RegisterDiscoveryHandlerRequest};
use crate::timeouts::{CONNECT, REGISTER_AGAIN};
use crate::{OTHER_FOLDER, SOCKET, wire};

pub mod availability;
mod discovery;

pub(crate) use discovery::Discovering;

/// Maximum number of open streams: one for each Configuration that names the handler.
const STREAMS: u32 = 256;

/// Configuration of [`serve`].
#[derive(Debug)]
pub struct Config {
    /// Folder with the agent's registration socket; the handler's own socket is created there, too.
    pub folder: PathBuf,
    /// Name of this node.
    pub node: String,
    /// Configuration that each call of the handler names, because the protocol does not name the real one.
    pub configuration: ConfigurationKey,
    /// While false, the handler reports no devices.
    pub is_available: watch::Receiver<bool>,
}

/// Reason why a handler is no longer served, with the remedy.
#[derive(Debug, thiserror::Error)]
#[error("cannot serve the handler{0}")]
pub struct Error(String);

/// Serves the handler and registers it whenever an agent serves the folder and has no stream to it. Returns only on an error.
pub async fn serve(config: Config, handler: Arc<dyn Handler>) -> Error {
    let own = config
        .folder
        .join(format!("{}.sock", handler.facts().description.name));
    let (listener, made) = match bind(&own).await {
        Ok(bound) => bound,
        Err(error) => return Error(format!(": {}", error.or(OTHER_FOLDER))),
    };
    let ended = Arc::new(Ended::default());
    let request = RegisterDiscoveryHandlerRequest {
        name: handler.facts().description.name.clone(),
        endpoint: own.to_string_lossy().into_owned(),
        endpoint_type: EndpointType::Uds.into(),
        shared: handler.facts().description.shared,
    };
    let agent = config.folder.join(SOCKET);
    let service = Served {
        handler,
        config,
        ended: Arc::clone(&ended),
    };
    let connections = Accepting::new(listener, "the agent").connections();
    let server = Server::builder()
        .max_concurrent_streams(STREAMS)
        .add_service(DiscoveryHandlerServer::new(service))
        .serve_with_incoming(connections);
    tokio::select! {
        Err(error) = server => Error(format!(
            " any longer on {}: {}; start it again",
            own.display(),
            chain(&error)
        )),
        () = made.0.gone() => Error(format!(
            " any longer: {} was removed or replaced; see whether another process serves the same handler",
            own.display()
        )),
        never = register(&agent, &request, &ended) => match never {},
    }
}

/// Registers again whenever the agent's socket is replaced and whenever a stream ends, because the agent may have dropped the handler.
/// After a stream that ended by itself, Leafhost's agent asks again after a pause, but Akri's does not always.
async fn register(
    agent: &Path,
    request: &RegisterDiscoveryHandlerRequest,
    ended: &Ended,
) -> Infallible {
    let folder = agent.parent().unwrap_or(Path::new("/"));
    loop {
        // Watches before the attempt, so that no change is missed.
        let names = names_of(folder);
        let socket = SocketFile::at(agent);
        match tried(agent, request.clone()).await {
            Ok(()) => {
                tracing::info!(agent = %agent.display(), handler = request.name, "the handler is registered");
                let gone = async {
                    match &socket {
                        Ok(socket) => socket.gone().await,
                        Err(_) => tokio::time::sleep(REGISTER_AGAIN).await,
                    }
                };
                let forgotten = async {
                    ended.by_itself.notified().await;
                    tokio::time::sleep(BACKOFF_LAST).await;
                };
                tokio::select! {
                    () = ended.by_agent.notified() => {}
                    () = forgotten => {}
                    () = gone => {}
                }
            }
            Err(why) => {
                tracing::warn!(agent = %agent.display(), why, "cannot register the handler; trying again");
                let appears = async {
                    match names {
                        Ok(mut names) => drop(names.next().await),
                        Err(_) => std::future::pending().await,
                    }
                };
                drop(tokio::time::timeout(REGISTER_AGAIN, appears).await);
            }
        }
    }
}

async fn tried(agent: &Path, request: RegisterDiscoveryHandlerRequest) -> Result<(), String> {
    let calling = async {
        let stream = UnixStream::connect(agent).await;
        let stream = stream.map_err(|error| error.to_string())?;
        let channel = wire::channel(paced(stream))
            .await
            .map_err(|error| chain(&error))?;
        let called = RegistrationClient::new(channel)
            .register_discovery_handler(request)
            .await;
        called
            .map(drop)
            .map_err(|status| status.message().to_owned())
    };
    let called = tokio::time::timeout(CONNECT, calling).await;
    called.unwrap_or_else(|_| Err("it does not answer".to_owned()))
}

struct Served {
    handler: Arc<dyn Handler>,
    config: Config,
    ended: Arc<Ended>,
}

/// Notifications of ended streams.
#[derive(Default)]
pub(crate) struct Ended {
    pub by_agent: Notify,
    pub by_itself: Notify,
}

#[tonic::async_trait]
impl DiscoveryHandler for Served {
    type DiscoverStream = BoxStream<'static, Result<DiscoverResponse, Status>>;

    async fn discover(
        &self,
        request: Request<DiscoverRequest>,
    ) -> Result<Response<Self::DiscoverStream>, Status> {
        let request = request.into_inner();
        let problems = self.handler.validate(&request.discovery_details).await;
        let problems = problems.map_err(|fault| Status::internal(fault.to_string()))?;
        if !problems.is_empty() {
            return Err(Status::invalid_argument(discovery::lines(&problems)));
        }
        let properties = request.discovery_properties.into_iter();
        let properties = properties.map(|(name, value)| Property {
            name,
            value: value.vec.map(Arc::from),
            // The protocol does not mark secrets, and an agent refuses no device over a value that is not secret.
            secret: false,
        });
        let session = self.handler.open(SessionSpec {
            node: self.config.node.clone(),
            configuration: self.config.configuration.clone(),
            details: request.discovery_details,
            properties: properties.collect(),
            opening: Opening::First,
        });
        let is_available = self.config.is_available.clone();
        let sets = Discovering::new(session, is_available, Arc::clone(&self.ended));
        let sets = futures::stream::unfold(sets, async |mut sets| {
            let next = sets.next().await?;
            Some((next, sets))
        });
        Ok(Response::new(sets.boxed()))
    }
}

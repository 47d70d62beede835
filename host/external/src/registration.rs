//! Akri's `v0.Registration` service on the agent's socket.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use futures::Stream;
use leafhost_core::names::is_handler_name;
use leafhost_core::ports::SourceProblem;
use leafhost_core::text::clean;
use leafhost_uds::authority::{Localhost, PREFACE};
use leafhost_uds::{Accepting, Connection, bind};
use tokio::io::{Join, join};
use tokio::net::UnixListener;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::sleep;
use tonic::transport::Server;
use tonic::{Request, Response, Status};

use crate::endpoint::Endpoint;
use crate::paced::Paced;
use crate::proto::registration_server::{Registration, RegistrationServer};
use crate::proto::{Empty, RegisterDiscoveryHandlerRequest};
use crate::registrations::Registered;
use crate::timeouts::{REGISTRATION, SOCKET};
use crate::{OTHER_FOLDER, Shared};

/// Maximum size of a registration, in bytes.
const MAX_REQUEST: usize = 64 << 10;
/// Maximum number of connections at a time.
const CONNECTIONS: usize = 16;
/// Maximum number of concurrent calls per connection.
const CALLS: u32 = 8;
/// Minimum time between two registrations of any handlers.
const PAUSE: Duration = Duration::from_millis(5);
/// Pause before the socket is created again.
const AGAIN: Duration = Duration::from_millis(100);

/// Serves the socket for ever. While another process serves it, reports that and retries.
pub async fn serve(shared: Arc<Shared>) {
    loop {
        let bound = bind(&shared.socket()).await;
        let (listener, made) = match bound {
            Ok(bound) => bound,
            Err(error) => {
                shared.socket_problem(Some(error.or(OTHER_FOLDER)));
                sleep(SOCKET).await;
                continue;
            }
        };
        shared.socket_problem(None);
        let file = made.0.clone();
        shared.served(Some(made));
        tracing::info!(socket = %shared.socket().display(), "external handlers may register");
        let service = Service {
            shared: Arc::clone(&shared),
            turn: Semaphore::new(1),
        };
        let service = RegistrationServer::new(service).max_decoding_message_size(MAX_REQUEST);
        let server = Server::builder()
            .max_concurrent_streams(CALLS)
            .timeout(REGISTRATION)
            // Connections end after this time at the latest.
            .max_connection_age(REGISTRATION)
            .max_connection_age_grace(Duration::ZERO)
            .add_service(service)
            .serve_with_incoming(connections(listener));
        tokio::select! {
            ended = server => tracing::warn!(?ended, "the registration socket of external handlers is served again"),
            () = file.gone() => {}
        }
        shared.served(None);
        sleep(AGAIN).await;
    }
}

struct Service {
    shared: Arc<Shared>,
    /// Admits one registration at a time, which bounds the registrations per second.
    turn: Semaphore,
}

#[tonic::async_trait]
impl Registration for Service {
    async fn register_discovery_handler(
        &self,
        request: Request<RegisterDiscoveryHandlerRequest>,
    ) -> Result<Response<Empty>, Status> {
        let user = request
            .extensions()
            .get::<Client>()
            .map(|client| client.user);
        let user = user.ok_or_else(|| Status::internal("cannot determine who calls"))?;
        let request = request.into_inner();
        let name = clean(&request.name, 63);
        let place = clean(&request.endpoint, 256);
        // The semaphore is never closed.
        let _turn = self.turn.acquire().await;
        sleep(PAUSE).await;
        match self.register(request, user) {
            Ok(()) => Ok(Response::new(Empty {})),
            Err(why) => {
                let problem = SourceProblem::new(
                    format!("external handler {name} at {place}"),
                    format!("was refused: {why}"),
                );
                tracing::debug!(%problem, "external handler is refused");
                self.shared
                    .edit(|registrations, now| registrations.refuse(&name, problem, now));
                Err(Status::invalid_argument(why))
            }
        }
    }
}

impl Service {
    fn register(&self, request: RegisterDiscoveryHandlerRequest, user: u32) -> Result<(), String> {
        let kind = request.endpoint_type();
        let RegisterDiscoveryHandlerRequest {
            name,
            endpoint,
            shared: is_shared,
            ..
        } = request;
        if !is_handler_name(&name) {
            return Err(
                "its name is not 1 to 63 letters, digits, '-', '_' or '.', beginning and ending with a letter or digit; choose another"
                    .to_owned(),
            );
        }
        let shared = &self.shared;
        let endpoint = Endpoint::parse(kind, &endpoint, &shared.folder, &shared.socket(), user);
        let endpoint = endpoint.map_err(|error| error.to_string())?;
        let registered = Registered {
            name: name.clone(),
            mark: endpoint.is_network().then(rand::random),
            endpoint,
            shared: is_shared,
            user,
        };
        tracing::debug!(handler = name, endpoint = %registered.endpoint, "external handler registers");
        shared.edit(|registrations, now| {
            registrations.register(registered, shared.folder.path(), now)?;
            registrations.accepted(&name);
            Ok(())
        })
    }
}

#[derive(Debug, Clone)]
struct Client {
    user: u32,
    /// Place among the [`CONNECTIONS`], taken until the connection ends.
    _place: Arc<OwnedSemaphorePermit>,
}

type Incoming = Connection<Join<Localhost<Paced<OwnedReadHalf>>, OwnedWriteHalf>, Client>;

/// Returns the connections made to the socket, at most [`CONNECTIONS`] at a time.
fn connections(listener: UnixListener) -> impl Stream<Item = Result<Incoming, Infallible>> {
    let places = Arc::new(Semaphore::new(CONNECTIONS));
    let accepting = Accepting::new(listener, "external handlers");
    futures::stream::unfold((accepting, places), async |(mut accepting, places)| {
        // The semaphore is never closed.
        let place = Arc::clone(&places).acquire_owned().await.ok()?;
        let (stream, user) = accepting.next().await;
        let client = Client {
            user,
            _place: Arc::new(place),
        };
        let (read, write) = stream.into_split();
        let stream = join(Localhost::new(Paced::after(read, PREFACE)), write);
        Some((Ok(Connection::new(stream, client)), (accepting, places)))
    })
}

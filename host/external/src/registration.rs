//! Akri's `v0.Registration` service on the agent's socket.

use std::convert::Infallible;
use std::future::Future as _;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures::Stream;
use leafhost_core::names::is_handler_name;
use leafhost_core::ports::SourceProblem;
use leafhost_core::text::clean;
use leafhost_uds::Accepting;
use leafhost_uds::authority::{Localhost, PREFACE};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Sleep, sleep};
use tonic::transport::Server;
use tonic::transport::server::Connected;
use tonic::{Request, Response, Status};

use crate::Shared;
use crate::endpoint::Endpoint;
use crate::paced::Paced;
use crate::proto::registration_server::{Registration, RegistrationServer};
use crate::proto::{Empty, RegisterDiscoveryHandlerRequest};
use crate::registrations::Registered;
use crate::socket;
use crate::timeouts::{REGISTRATION, SOCKET};

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

/// Serves the socket for ever. While another process serves it, reports that and tries again.
pub async fn serve(shared: Arc<Shared>) {
    loop {
        let bound = socket::bind(&shared.config.socket()).await;
        let (listener, made) = match bound {
            Ok(bound) => bound,
            Err(error) => {
                shared.socket_problem(Some(error.to_string()));
                sleep(SOCKET).await;
                continue;
            }
        };
        shared.socket_problem(None);
        shared.made.send_replace(Some(made.clone()));
        tracing::info!(socket = %shared.config.socket().display(), "external handlers may register");
        let service = Service {
            shared: Arc::clone(&shared),
            turn: Semaphore::new(1),
        };
        let service = RegistrationServer::new(service).max_decoding_message_size(MAX_REQUEST);
        let server = Server::builder()
            .max_concurrent_streams(CALLS)
            .timeout(REGISTRATION)
            .add_service(service)
            .serve_with_incoming(connections(listener));
        tokio::select! {
            ended = server => tracing::warn!(?ended, "the registration socket of external handlers is served anew"),
            () = made.gone() => {}
        }
        made.remove();
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
        let user = user.ok_or_else(|| Status::internal("cannot tell who calls"))?;
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
            shared,
            ..
        } = request;
        if !is_handler_name(&name) {
            return Err(
                "its name is not 1 to 63 letters, digits, '-', '_' or '.', beginning and ending with a letter or digit; choose another"
                    .to_owned(),
            );
        }
        let config = &self.shared.config;
        let endpoint = Endpoint::parse(kind, &endpoint, &config.folder, &config.socket(), user);
        let endpoint = endpoint.map_err(|error| error.to_string())?;
        self.shared.register(Registered {
            name,
            mark: endpoint.is_network().then(rand::random),
            endpoint,
            shared,
            user,
        })
    }
}

/// User at the other end of a connection.
#[derive(Debug, Clone, Copy)]
struct Client {
    user: u32,
}

/// A connection of a handler, which ends after [`REGISTRATION`] at the latest.
struct Incoming {
    stream: Localhost<Paced<UnixStream>>,
    client: Client,
    end: Pin<Box<Sleep>>,
    _place: OwnedSemaphorePermit,
}

impl Connected for Incoming {
    type ConnectInfo = Client;

    fn connect_info(&self) -> Client {
        self.client
    }
}

impl AsyncRead for Incoming {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.end.as_mut().poll(context).is_ready() {
            return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
        }
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl AsyncWrite for Incoming {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        if self.end.as_mut().poll(context).is_ready() {
            return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
        }
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

/// Returns the connections made to the socket, at most [`CONNECTIONS`] at a time.
fn connections(listener: UnixListener) -> impl Stream<Item = Result<Incoming, Infallible>> {
    let places = Arc::new(Semaphore::new(CONNECTIONS));
    let accepting = Accepting::new(listener, "external handlers");
    futures::stream::unfold((accepting, places), async |(mut accepting, places)| {
        // The semaphore is never closed.
        let place = Arc::clone(&places).acquire_owned().await.ok()?;
        let (stream, user) = accepting.next().await;
        let incoming = Incoming {
            stream: Localhost::new(Paced::after(stream, PREFACE)),
            client: Client { user },
            end: Box::pin(sleep(REGISTRATION)),
            _place: place,
        };
        Some((Ok(incoming), (accepting, places)))
    })
}

//! Serves one resource on one socket: accepts connections and speaks HTTP/2 on each, all within small bounds.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use hyper::server::conn::http2;
use hyper_util::rt::TokioIo;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::Semaphore;
use tokio_util::sync::DropGuard;
use tokio_util::task::TaskTracker;

use crate::intake::{Bounded, Intake};
use crate::service::Service;
use crate::session::Session;
use crate::sockets::Socket;

/// The kubelet opens one.
const MAX_CONNECTIONS: usize = 16;
/// The kubelet has one list open, and asks little beside it.
const MAX_CALLS: u32 = 8;
/// What may be under way to us on a call or connection before it is taken in.
const WINDOW: u32 = 64 << 10;
/// What may wait to be sent on a call.
const SEND_BUFFER: usize = 16 << 10;
const MAX_HEADERS: u32 = 8 << 10;
/// Before the next look for a connection when the system is out of file descriptors.
const PAUSE: Duration = Duration::from_millis(100);

/// A resource that is being served.
pub(crate) struct Serving {
    pub session: Arc<Session>,
    drain: Duration,
    socket: Socket,
    _end: DropGuard,
}

impl Serving {
    pub fn start(
        listener: UnixListener,
        socket: Socket,
        service: Service,
        intake: Intake,
        drain: Duration,
    ) -> Self {
        let session = Arc::clone(&service.session);
        let service = Bounded::new(service, intake);
        let accepting = accept(listener, service, Arc::clone(&session), drain);
        drop(session.tasks.spawn(accepting));
        Self {
            drain,
            socket,
            _end: session.end.clone().drop_guard(),
            session,
        }
    }

    /// Ends all streams and connections, and removes the socket. What is being answered is sent first, as far as that is
    /// quick.
    pub async fn end(self) {
        self.session.end.cancel();
        self.session.tasks.close();
        let ended = tokio::time::timeout(self.drain * 5, self.session.tasks.wait()).await;
        if ended.is_err() {
            tracing::warn!(socket = ?self.socket, "connections of a device-plugin socket do not end");
        }
    }
}

async fn accept(listener: UnixListener, service: Bounded, session: Arc<Session>, drain: Duration) {
    let places = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    let (mut is_told, mut is_full) = (false, false);
    loop {
        let accepted = tokio::select! {
            () = session.end.cancelled() => return,
            accepted = listener.accept() => accepted,
        };
        let stream = match accepted {
            Ok((stream, _)) => {
                is_told = false;
                stream
            }
            Err(error) => {
                if !is_told {
                    tracing::warn!(%error, "cannot accept a connection of the kubelet, it is tried again");
                }
                is_told = true;
                tokio::time::sleep(PAUSE).await;
                continue;
            }
        };
        // Not at the next place that is free: whoever opens and closes them would write a line each time.
        is_full &= places.available_permits() < MAX_CONNECTIONS / 2;
        let Ok(place) = Arc::clone(&places).try_acquire_owned() else {
            if !is_full {
                tracing::warn!(
                    "a device-plugin socket has {MAX_CONNECTIONS} connections, every one more is closed until half of them have ended"
                );
            }
            is_full = true;
            continue;
        };
        let (service, of) = (service.clone(), Arc::clone(&session));
        drop(session.tasks.spawn(async move {
            if let Err(error) = connection(stream, service, &of, drain).await {
                tracing::debug!(%error, "a connection to a device-plugin socket broke");
            }
            drop(place);
        }));
    }
}

async fn connection(
    stream: UnixStream,
    service: Bounded,
    session: &Session,
    drain: Duration,
) -> hyper::Result<()> {
    let connection = http2::Builder::new(Tracked(session.tasks.clone()))
        .initial_stream_window_size(WINDOW)
        .initial_connection_window_size(WINDOW)
        .max_concurrent_streams(MAX_CALLS)
        .max_send_buf_size(SEND_BUFFER)
        .max_header_list_size(MAX_HEADERS)
        .serve_connection(TokioIo::new(stream), service);
    let mut connection = pin!(connection);
    tokio::select! {
        ended = connection.as_mut() => return ended,
        () = session.end.cancelled() => {}
    }
    connection.as_mut().graceful_shutdown();
    tokio::time::timeout(drain, connection)
        .await
        .unwrap_or(Ok(()))
}

/// Spawns hyper's tasks where their end is waited for.
#[derive(Clone)]
struct Tracked(TaskTracker);

impl<F> hyper::rt::Executor<F> for Tracked
where
    F: Future<Output: Send> + Send + 'static,
{
    fn execute(&self, task: F) {
        drop(self.0.spawn(task));
    }
}

//! Serves one resource on one socket with tonic's server.
//!
//! Only root can reach the socket, since the kubelet creates its folder with mode 0750. So the limits bound the cost of one faulty client;
//! they do not stop an attacker.

use std::sync::Arc;
use std::time::Duration;

use leafhost_uds::Accepting;
use tokio::net::UnixListener;
use tokio::task::JoinHandle;
use tokio_util::sync::DropGuard;
use tonic::transport::{self, Server};

use crate::proto::device_plugin::device_plugin_server::DevicePluginServer;
use crate::service::Service;
use crate::session::Session;
use crate::sockets::Socket;

/// Longest message that the kubelet accepts.
pub(crate) const MAX_LIST: usize = 4 << 20;
/// Maximum number of concurrent calls. The kubelet has one list open on its connection, and makes few other calls at a time.
const MAX_CALLS: u32 = 8;
/// Time limit for open connections to send pending answers and close at the end of a session.
const DRAIN: Duration = Duration::from_secs(1);

/// Running server of a resource.
pub(crate) struct Serving {
    pub session: Arc<Session>,
    pub socket: Socket,
    server: JoinHandle<Result<(), transport::Error>>,
    _end: DropGuard,
}

impl Serving {
    pub fn start(listener: UnixListener, socket: Socket, service: Service) -> Self {
        let session = Arc::clone(&service.session);
        // The kubelet names all ids of a list when it asks for preferred ids.
        let service = DevicePluginServer::new(service).max_decoding_message_size(MAX_LIST);
        // Does not use tonic's router, which has no benefit here and needs memory for each resource.
        let server = Server::builder()
            .max_concurrent_streams(MAX_CALLS)
            .serve_with_incoming_shutdown(
                service,
                Accepting::new(listener, "the kubelet").connections(),
                session.end.clone().cancelled_owned(),
            );
        Self {
            socket,
            server: tokio::spawn(server),
            _end: session.end.clone().drop_guard(),
            session,
        }
    }

    /// Ends all streams and connections, and removes the socket. Pending answers are sent first, within [`DRAIN`].
    pub async fn end(mut self) {
        self.session.end.cancel();
        if tokio::time::timeout(DRAIN, &mut self.server).await.is_err() {
            self.server.abort();
            tracing::warn!(socket = ?self.socket, "a client of a device-plugin socket does not close its connection");
        }
    }
}

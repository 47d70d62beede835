//! Server on a Unix socket that ends as a process does: at once, with all its connections.

use std::net::Shutdown;
use std::os::unix::net::UnixStream as Connection;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context, Result};
use tokio::net::{UnixListener, UnixStream};
use tokio::task::JoinHandle;
use tonic::service::Routes;

/// Socket with its server.
#[derive(Debug)]
pub struct SocketServer {
    task: JoinHandle<()>,
    connections: Arc<Mutex<Vec<Connection>>>,
}

impl SocketServer {
    /// Binds `path`, where no file may exist, and serves `routes`.
    pub fn bind(path: &Path, routes: Routes) -> Result<Self> {
        let listener =
            UnixListener::bind(path).with_context(|| format!("cannot bind {}", path.display()))?;
        let connections = Arc::new(Mutex::new(Vec::new()));
        let known = Arc::clone(&connections);
        let incoming = futures::stream::unfold((listener, known), async |(listener, known)| {
            let stream = accept(&listener, &known).await;
            Some((stream, (listener, known)))
        });
        let serving = tonic::transport::Server::builder()
            .add_routes(routes)
            .serve_with_incoming(incoming);
        let task = tokio::spawn(async {
            // The server ends only with its socket, which a client notices.
            drop(serving.await);
        });
        Ok(Self { task, connections })
    }

    /// Closes the socket and every connection. The file stays, as after a kill.
    pub async fn kill(self) {
        self.task.abort();
        drop(self.task.await);
        let connections = self.connections.lock();
        for connection in connections
            .unwrap_or_else(PoisonError::into_inner)
            .drain(..)
        {
            // The peer may have closed it already.
            drop(connection.shutdown(Shutdown::Both));
        }
    }
}

async fn accept(
    listener: &UnixListener,
    known: &Mutex<Vec<Connection>>,
) -> std::io::Result<UnixStream> {
    let stream = listener.accept().await?.0.into_std()?;
    let again = stream.try_clone()?;
    known
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .push(again);
    UnixStream::from_std(stream)
}

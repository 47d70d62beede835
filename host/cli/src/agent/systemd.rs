//! Tells systemd (`Type=notify`) when the agent is ready and when it stops. Does nothing without `NOTIFY_SOCKET`.

use std::net::SocketAddr;
use std::time::Duration;

use leafhost_agent::AgentState;
use sd_notify::NotifyState;
use tokio_util::sync::CancellationToken;

/// Time after which the agent counts as ready even if a handler still compiles, so that units that wait for it do not fail.
const READY_TIMEOUT: Duration = Duration::from_secs(30);

/// Reports readiness once `board` is complete and the Instances show the devices of this node, but at the latest after
/// [`READY_TIMEOUT`].
pub async fn ready(mut board: AgentState, address: SocketAddr, shutdown: CancellationToken) {
    if std::env::var_os("NOTIFY_SOCKET").is_none() {
        return;
    }
    tokio::select! {
        waited = tokio::time::timeout(READY_TIMEOUT, board.ready()) => {
            let status = match waited {
                Ok(true) => format!("ready, status at {address}"),
                Ok(false) => return,
                Err(_) => format!("still reading handlers, status at {address}"),
            };
            notify(&[NotifyState::Ready, NotifyState::Status(&status)]);
        }
        () = shutdown.cancelled() => {}
    }
}

/// Reports that the agent is stopping.
pub fn stopping() {
    notify(&[NotifyState::Stopping, NotifyState::Status("stopping")]);
}

fn notify(state: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(state) {
        tracing::warn!(%error, "cannot notify systemd");
    }
}

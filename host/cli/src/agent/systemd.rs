//! Tells systemd (Type=notify) when the agent is ready and when it stops. Without `NOTIFY_SOCKET` nothing is told.

use std::net::SocketAddr;
use std::time::Duration;

use sd_notify::NotifyState;
use tokio_util::sync::CancellationToken;

/// The agent counts as ready after this even if a handler still compiles: units that wait for it should not fail.
const PATIENCE: Duration = Duration::from_secs(30);
/// How often `/readyz` is asked meanwhile.
const EVERY: Duration = Duration::from_millis(200);

/// Tells it as soon as `/readyz` says so: then the CDI specs of the devices are there.
pub async fn ready(address: SocketAddr, shutdown: CancellationToken) {
    if std::env::var_os("NOTIFY_SOCKET").is_none() {
        return;
    }
    let answered = async {
        while !is_ready(address).await {
            tokio::time::sleep(EVERY).await;
        }
    };
    tokio::select! {
        waited = tokio::time::timeout(PATIENCE, answered) => {
            let status = match waited {
                Ok(()) => format!("ready, status at {address}"),
                Err(_) => format!("still reading handlers, status at {address}"),
            };
            tell(&[NotifyState::Ready, NotifyState::Status(&status)]);
        }
        () = shutdown.cancelled() => {}
    }
}

/// Tells that the agent stops.
pub fn stopping() {
    tell(&[NotifyState::Stopping, NotifyState::Status("stopping")]);
}

fn tell(state: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(state) {
        tracing::warn!(%error, "cannot tell systemd");
    }
}

async fn is_ready(address: SocketAddr) -> bool {
    let asked = tokio::task::spawn_blocking(move || {
        let client: ureq::Agent = ureq::Agent::config_builder()
            .timeout_global(Some(Duration::from_secs(1)))
            .proxy(None)
            .build()
            .into();
        client
            .get(format!("http://{address}/readyz"))
            .call()
            .is_ok()
    });
    asked.await.unwrap_or(false)
}

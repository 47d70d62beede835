//! Connection to a plugin as the kubelet makes it: it tries for ten seconds, with the authority `localhost`.

use std::path::Path;
use std::time::Duration;

use leafhost_kubelet::proto::device_plugin::device_plugin_client::DevicePluginClient;
use tonic::Status;
use tonic::transport::{Channel, Endpoint, Uri};

/// Time for which the kubelet tries to connect.
const DIAL_TIMEOUT: Duration = Duration::from_secs(10);
/// Pause between two attempts.
const BACKOFF: Duration = Duration::from_secs(1);

/// Connects a client to the plugin that listens at `path`.
pub(super) async fn dial(path: &Path) -> Result<DevicePluginClient<Channel>, Status> {
    let endpoint = Endpoint::from_shared(format!("unix://{}", path.display()))
        .map_err(|error| Status::unknown(error.to_string()))?
        .origin(Uri::from_static("http://localhost"));
    let connecting = async {
        loop {
            match endpoint.connect().await {
                Ok(channel) => return DevicePluginClient::new(channel),
                Err(_) => tokio::time::sleep(BACKOFF).await,
            }
        }
    };
    tokio::time::timeout(DIAL_TIMEOUT, connecting)
        .await
        .map_err(|_| {
            Status::unknown(format!(
                "nobody answered at {} within {DIAL_TIMEOUT:?}",
                path.display()
            ))
        })
}

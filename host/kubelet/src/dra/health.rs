//! Streams the health of devices to the kubelet.
//!
//! Each message has all devices: the kubelet treats a device as unknown once no message has named it for 30 seconds.

use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use async_trait::async_trait;
use futures::Stream;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status};

use super::{DeviceHealth, DeviceName, HealthList};
use crate::proto::dra_health as proto;

/// Longest pause between two messages.
const REPEAT: Duration = Duration::from_secs(10);
/// Maximum size of a device's message, in bytes; a longer one is cut between two characters.
const MAX_TEXT: usize = 1024;

/// Health service on the driver's socket.
pub struct Service {
    pub health: watch::Receiver<Arc<HealthList>>,
    /// Token that ends all streams.
    pub end: CancellationToken,
}

type Messages =
    Pin<Box<dyn Stream<Item = Result<proto::NodeWatchResourcesResponse, Status>> + Send>>;

fn message(list: &HealthList) -> proto::NodeWatchResourcesResponse {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let now = now.map_or(0, |since| i64::try_from(since.as_secs()).unwrap_or(0));
    let devices = list.iter().map(|(name, health)| device(name, health, now));
    proto::NodeWatchResourcesResponse {
        devices: devices.collect(),
    }
}

fn device((pool, name): &DeviceName, health: &DeviceHealth, now: i64) -> proto::DeviceHealth {
    let status = if health.is_healthy {
        proto::HealthStatus::Healthy
    } else {
        proto::HealthStatus::Unhealthy
    };
    let mut message = health.message.clone();
    message.truncate(message.floor_char_boundary(MAX_TEXT));
    proto::DeviceHealth {
        device: Some(proto::DeviceIdentifier {
            pool_name: pool.clone(),
            device_name: name.clone(),
        }),
        health: status.into(),
        last_updated_time: now,
        health_check_timeout_seconds: 0,
        message,
    }
}

#[async_trait]
impl proto::dra_resource_health_server::DraResourceHealth for Service {
    type NodeWatchResourcesStream = Messages;

    async fn node_watch_resources(
        &self,
        _request: Request<proto::NodeWatchResourcesRequest>,
    ) -> Result<Response<Messages>, Status> {
        let (mut health, end) = (self.health.clone(), self.end.clone());
        health.mark_changed();
        let next =
            async |(mut health, end): (watch::Receiver<Arc<HealthList>>, CancellationToken)| {
                tokio::select! {
                    () = end.cancelled() => return None,
                    changed = health.changed() => changed.ok()?,
                    () = tokio::time::sleep(REPEAT) => {}
                }
                let message = message(&health.borrow_and_update().clone());
                Some((Ok(message), (health, end)))
            };
        let messages = futures::stream::unfold((health, end), next);
        Ok(Response::new(Box::pin(messages)))
    }
}

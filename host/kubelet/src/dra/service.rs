//! Serves the kubelet's calls for claims.

use std::collections::BTreeMap;
use std::sync::Arc;

use async_trait::async_trait;
use futures::future::join_all;
use tokio_util::task::TaskTracker;
use tonic::{Request, Response, Status};

use super::{ClaimPreparer, ClaimRef, PreparedDevice};
use crate::proto::dra as proto;
use crate::proto::dra::dra_plugin_server::DraPlugin;

/// Maximum number of claims in one call: a pod has at most a few dozen.
const MAX_CLAIMS: usize = 1_000;

/// Claim service on the driver's socket.
pub struct Service {
    pub preparer: Arc<dyn ClaimPreparer>,
    /// Tasks of calls, which continue if the kubelet hangs up.
    pub calls: TaskTracker,
}

impl Service {
    /// Calls `call` for all claims concurrently; returns the results by uid.
    async fn each<T, F>(
        &self,
        claims: Vec<proto::Claim>,
        call: impl Fn(Arc<dyn ClaimPreparer>, ClaimRef) -> F,
    ) -> Result<BTreeMap<String, Result<T, String>>, Status>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, String>> + Send + 'static,
    {
        if claims.len() > MAX_CLAIMS {
            return Err(Status::invalid_argument(format!(
                "the call has {} claims, at most {MAX_CLAIMS} are accepted",
                claims.len()
            )));
        }
        let calls = claims.into_iter().map(|claim| {
            let uid = claim.uid.clone();
            let claim = ClaimRef {
                namespace: claim.namespace,
                name: claim.name,
                uid: claim.uid,
            };
            let task = self.calls.spawn(call(Arc::clone(&self.preparer), claim));
            async move {
                let ended = task.await;
                let panicked = |_| Err("the call ended without an answer".to_owned());
                (uid, ended.unwrap_or_else(panicked))
            }
        });
        Ok(join_all(calls).await.into_iter().collect())
    }
}

/// Replaces an empty error text, which the kubelet would take for success.
fn not_empty(error: String) -> String {
    if error.is_empty() {
        "the driver did not say why".to_owned()
    } else {
        error
    }
}

fn device(device: PreparedDevice) -> proto::Device {
    proto::Device {
        request_names: device.requests,
        pool_name: device.pool,
        device_name: device.device,
        cdi_device_ids: device.cdi,
        share_id: device.share,
    }
}

#[async_trait]
impl DraPlugin for Service {
    async fn node_prepare_resources(
        &self,
        request: Request<proto::NodePrepareResourcesRequest>,
    ) -> Result<Response<proto::NodePrepareResourcesResponse>, Status> {
        let answers = self.each(request.into_inner().claims, |preparer, claim| async move {
            preparer.prepare(claim).await
        });
        let claims = answers.await?.into_iter().map(|(uid, answer)| {
            let (devices, error) = match answer {
                Ok(devices) => (devices.into_iter().map(device).collect(), String::new()),
                Err(error) => (Vec::new(), not_empty(error)),
            };
            (uid, proto::NodePrepareResourceResponse { devices, error })
        });
        let claims = claims.collect();
        Ok(Response::new(proto::NodePrepareResourcesResponse {
            claims,
        }))
    }

    async fn node_unprepare_resources(
        &self,
        request: Request<proto::NodeUnprepareResourcesRequest>,
    ) -> Result<Response<proto::NodeUnprepareResourcesResponse>, Status> {
        let answers = self.each(request.into_inner().claims, |preparer, claim| async move {
            preparer.unprepare(claim).await
        });
        let claims = answers.await?.into_iter().map(|(uid, answer)| {
            let error = answer.err().map(not_empty).unwrap_or_default();
            (uid, proto::NodeUnprepareResourceResponse { error })
        });
        let claims = claims.collect();
        Ok(Response::new(proto::NodeUnprepareResourcesResponse {
            claims,
        }))
    }
}

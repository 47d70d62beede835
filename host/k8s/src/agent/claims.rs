//! Reads claims that the scheduler has allocated, one at a time when the kubelet asks for them.

use std::time::Duration;

use async_trait::async_trait;
use k8s_openapi::api::resource::v1::{
    AllocationResult, DeviceRequestAllocationResult, ResourceClaim,
};
use kube::{Api, Client};
use leafhost_core::claim::ports::{ClaimReader, ReadError};
use leafhost_core::claim::{Allocated, AllocatedClaim, Parameters};
use leafhost_core::slice_device::SLOTS;
use leafhost_core::slices::DRIVER;

use crate::answers;
use crate::slices::{count, read_error};

/// Timeout of a request; the kubelet waits for the answers to some.
const REQUEST: Duration = Duration::from_secs(5);

/// Reader of claims. The client must not retry requests by itself.
pub struct KubeClaims(Client);

impl KubeClaims {
    /// Creates a reader that uses this client.
    pub fn new(client: Client) -> Self {
        Self(client)
    }
}

#[async_trait]
impl ClaimReader for KubeClaims {
    async fn read(&self, namespace: &str, name: &str) -> Result<Option<AllocatedClaim>, ReadError> {
        let api: Api<ResourceClaim> = Api::namespaced(self.0.clone(), namespace);
        let found = answers::within(REQUEST, api.get_opt(name)).await;
        let remedy = "allow the agent's service account to get resourceclaims in the whole cluster";
        let Some(claim) = found.map_err(|failure| read_error(&failure, remedy))? else {
            return Ok(None);
        };
        let uid = claim.metadata.uid.unwrap_or_default();
        let allocation = claim.status.and_then(|status| status.allocation);
        let allocation = allocation
            .map(|allocation| read(uid, allocation))
            .transpose();
        allocation.map_err(|message| ReadError {
            message,
            is_transient: false,
        })
    }
}

fn read(uid: String, allocation: AllocationResult) -> Result<AllocatedClaim, String> {
    let devices = allocation.devices.unwrap_or_default();
    let results = devices.results.into_iter().flatten();
    let results = results.filter(|result| result.driver == DRIVER);
    let results: Result<Vec<_>, _> = results.map(allocated).collect();
    let mut parameters = Vec::new();
    for config in devices.config.into_iter().flatten() {
        let requests = config.requests.unwrap_or_default();
        if let Some(opaque) = config.opaque {
            let read = Parameters::read(&opaque.driver, &requests, &opaque.parameters.0);
            parameters.extend(read?);
        }
    }
    Ok(AllocatedClaim {
        uid,
        results: results?,
        parameters,
    })
}

fn allocated(result: DeviceRequestAllocationResult) -> Result<Allocated, String> {
    let request = result
        .request
        .split('/')
        .next()
        .unwrap_or_default()
        .to_owned();
    let consumed = result.consumed_capacity.unwrap_or_default();
    let slots = match consumed.get(SLOTS) {
        Some(slots) => count(slots)
            .ok_or_else(|| format!("cannot count {} slots of device {}", slots.0, result.device))?,
        None => 1,
    };
    Ok(Allocated {
        request,
        alternative: result.request,
        pool: result.pool,
        device: result.device,
        share: result.share_id,
        slots,
        is_admin: result.admin_access == Some(true),
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::tests::stub::{Answer, Stub, failure};

    #[tokio::test]
    async fn a_claim_is_read_as_far_as_it_is_ours() {
        let result = |driver: &str, request: &str| json!({"driver": driver, "request": request, "pool": "node-a", "device": "gpu-1", "shareID": "s1", "consumedCapacity": {"slots": "2"}});
        let parameters = json!({"apiVersion": "leafhost.dev/v1alpha1", "kind": "DeviceParameters", "properties": {"A": "1"}});
        let config = |driver: &str, parameters: &serde_json::Value| json!({"source": "FromClaim", "opaque": {"driver": driver, "parameters": parameters}});
        let claim = json!({"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": {"name": "viewer", "uid": "u1"}, "spec": {},
        "status": {"allocation": {"devices": {
            "results": [result("leafhost.dev", "gpu/small"), result("gpu.example.com", "other")],
            "config": [config("gpu.example.com", &json!({"kind": "X"})), config("leafhost.dev", &parameters)],
        }}}});
        let stub = Stub::start(move |request| match request {
            "GET /apis/resource.k8s.io/v1/namespaces/default/resourceclaims/viewer" => {
                Answer::Object(200, claim.clone())
            }
            _ => failure(503, "busy"),
        })
        .await;
        let reader = KubeClaims::new(stub.client.clone());
        let found = reader.read("default", "viewer").await.unwrap().unwrap();
        assert_eq!(found.uid, "u1");
        let expected = Allocated {
            request: "gpu".to_owned(),
            alternative: "gpu/small".to_owned(),
            pool: "node-a".to_owned(),
            device: "gpu-1".to_owned(),
            share: Some("s1".to_owned()),
            slots: 2,
            is_admin: false,
        };
        assert_eq!(found.results, [expected]);
        assert_eq!(found.parameters[0].properties["A"], "1");
        let error = reader.read("default", "other").await.unwrap_err();
        assert!(error.is_transient, "{error:?}");
    }
}

//! The Instance as `kube` reads and writes it.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use kube::api::{Api, ApiResource, GroupVersionKind, Object, Patch, TypeMeta};
use kube::core::DeserializeGuard;
use kube::{Resource, ResourceExt as _};
use leafhost_core::instance::{
    self as core, Instance, InstanceKey, InstanceMetadata, InstanceSpec, InstanceStatus,
};
use leafhost_core::names::{API_VERSION, GROUP};
use leafhost_core::ports::StoreError;

use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::answers::{self, Failure, Kind};
use crate::requests::patch_by;

pub mod patch;

/// An Instance object of the API server.
pub type InstanceObject = Object<InstanceSpec, InstanceStatus>;

/// Returns the API resource of Instances.
pub fn api_resource() -> ApiResource {
    ApiResource::from_gvk(&GroupVersionKind::gvk(GROUP, "v0", "Instance"))
}

/// Timeout of a request.
pub const REQUEST: Duration = Duration::from_secs(3);

/// Creates the failure of a write whose assumptions the known object does not meet.
pub fn outdated() -> Failure {
    Failure::new(Kind::Conflict, String::new())
}

/// Sends the operations of [`patch`] on `base` under a field manager. They are `None` if `base` does not meet their assumptions.
pub async fn write<K: Clone + DeserializeOwned + Debug>(
    api: &Api<K>,
    base: &Instance,
    operations: Option<Value>,
    manager: &str,
) -> Result<K, Failure> {
    let operations = serde_json::from_value(operations.ok_or_else(outdated)?);
    let operations = operations.map_err(|error| {
        Failure::new(
            Kind::Refused,
            format!("cannot create a JSON Patch: {error}"),
        )
    })?;
    let patch: Patch<()> = Patch::Json(operations);
    let params = patch_by(manager);
    answers::within(REQUEST, api.patch(&base.metadata.name, &params, &patch)).await
}

/// Returns the key of an Instance's object.
pub fn key(object: &impl Resource) -> InstanceKey {
    InstanceKey::new(object.namespace().unwrap_or_default(), object.name_any())
}

/// Reads an object of a watch or list. Returns `None` if the object is invalid, since then no agent wrote it.
pub fn read(object: DeserializeGuard<InstanceObject>) -> Option<Arc<Instance>> {
    Some(Arc::new(into_instance(object.0.ok()?)))
}

/// Converts a failure to an error of the store.
pub fn store_error(failure: &Failure, key: &InstanceKey) -> StoreError {
    let (key, message) = (key.clone(), failure.describe());
    match failure.kind {
        Kind::Taken => StoreError::AlreadyExists { key, found: None },
        Kind::Conflict | Kind::Mismatch => StoreError::Conflict { key },
        Kind::Missing | Kind::NoNamespace => StoreError::Gone { key },
        Kind::Undefined => StoreError::Denied {
            key,
            message: "the API server knows no Instances of akri.sh/v0; install the CRDs (leafhost crds | kubectl apply -f -)"
                .to_owned(),
        },
        Kind::Denied | Kind::Refused => StoreError::Denied { key, message },
        Kind::Busy | Kind::Unreachable => StoreError::Unavailable {
            key,
            message,
            retry_after: failure.retry_after,
        },
        Kind::Failed | Kind::Lost | Kind::Unreadable => StoreError::Unknown { key, message },
    }
}

/// Converts an object to the Instance that agents use.
pub fn into_instance(object: InstanceObject) -> Instance {
    let metadata = object.metadata;
    let owners = metadata.owner_references.unwrap_or_default();
    Instance {
        api_version: API_VERSION.to_owned(),
        kind: "Instance".to_owned(),
        metadata: InstanceMetadata {
            name: metadata.name.unwrap_or_default(),
            namespace: metadata.namespace.unwrap_or_default(),
            uid: metadata.uid.unwrap_or_default(),
            resource_version: metadata.resource_version.unwrap_or_default(),
            creation_timestamp: metadata.creation_timestamp.map(|time| time.0.to_string()),
            deletion_timestamp: metadata.deletion_timestamp.map(|time| time.0.to_string()),
            labels: metadata.labels.unwrap_or_default(),
            annotations: metadata.annotations.unwrap_or_default(),
            owner_references: owners
                .into_iter()
                .map(|owner| core::OwnerReference {
                    api_version: owner.api_version,
                    kind: owner.kind,
                    name: owner.name,
                    uid: owner.uid,
                    controller: owner.controller,
                })
                .collect(),
        },
        spec: object.spec,
        status: object.status.unwrap_or_default(),
    }
}

/// Converts an Instance to the object to create.
pub fn from_instance(mut instance: Instance) -> InstanceObject {
    instance.status.used = Some(instance.used());
    let metadata = instance.metadata;
    let some = |map: BTreeMap<String, String>| (!map.is_empty()).then_some(map);
    Object {
        types: Some(TypeMeta {
            api_version: instance.api_version,
            kind: instance.kind,
        }),
        metadata: ObjectMeta {
            name: Some(metadata.name),
            namespace: Some(metadata.namespace),
            labels: some(metadata.labels),
            annotations: some(metadata.annotations),
            owner_references: Some(owners(metadata.owner_references)),
            ..ObjectMeta::default()
        },
        spec: instance.spec,
        status: Some(instance.status),
    }
}

/// Converts owner references to those that are written.
pub fn owners(owners: Vec<core::OwnerReference>) -> Vec<OwnerReference> {
    let written = owners.into_iter().map(|owner| OwnerReference {
        api_version: owner.api_version,
        kind: owner.kind,
        name: owner.name,
        uid: owner.uid,
        controller: owner.controller,
        block_owner_deletion: Some(true),
    });
    written.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_object_that_is_created_comes_back_as_it_was() {
        let instance: Instance = serde_json::from_value(serde_json::json!({
            "apiVersion": "akri.sh/v0", "kind": "Instance",
            "metadata": {"name": "a-1", "namespace": "default", "labels": {"leafhost.dev/shared": "true"},
                "ownerReferences": [{"apiVersion": "akri.sh/v0", "kind": "Configuration", "name": "a", "uid": "u", "controller": true}]},
            "spec": {"configurationName": "a", "capacity": 2, "nodes": ["n"], "leafhost": {"id": "x"}},
            "status": {"nodes": {"n": {"health": "Healthy"}}},
        }))
        .unwrap();
        let made = into_instance(from_instance(instance.clone()));
        assert_eq!(made.status.used, Some(0));
        let status = InstanceStatus {
            used: None,
            ..made.status
        };
        assert_eq!(Instance { status, ..made }, instance);
    }
}

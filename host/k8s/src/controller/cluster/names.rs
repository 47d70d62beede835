//! Writes the reservations of names: `resourcenames.leafhost.dev`.

use async_trait::async_trait;
use jiff::Timestamp;
use kube::Api;
use kube::api::Patch;
use leafhost_core::resource_names::{NameRecord, NameStore};
use leafhost_core::status_store::WriteError;
use serde_json::json;

use super::{KubeCluster, NAME, written};
use crate::crd::{ResourceName, ResourceNameSpec};
use crate::names::UNUSED_SINCE;
use crate::requests::{delete_only, patch_by, put_by};

#[async_trait]
impl NameStore for KubeCluster {
    async fn reserve(&self, name: &str, namespace: &str) -> Result<(), WriteError> {
        let namespace = namespace.to_owned();
        let object = ResourceName::new(name, ResourceNameSpec { namespace });
        let params = put_by(NAME);
        let api = self.resource_names();
        written(api.create(&params, &object)).await
    }

    async fn note_unused(
        &self,
        name: &str,
        seen: &NameRecord,
        since: Option<Timestamp>,
    ) -> Result<(), WriteError> {
        // The API server compares uid and version with those of the object.
        let patch = json!({"metadata": {
            "uid": seen.uid,
            "resourceVersion": seen.resource_version,
            "annotations": {UNUSED_SINCE: since.map(|since| since.to_string())},
        }});
        let params = patch_by(NAME);
        let api = self.resource_names();
        let patch = Patch::Merge(patch);
        written(api.patch(name, &params, &patch)).await
    }

    async fn free(&self, name: &str, seen: &NameRecord) -> Result<(), WriteError> {
        let params = delete_only(Some(seen.uid.clone()), Some(seen.resource_version.clone()));
        let api = self.resource_names();
        written(api.delete(name, &params)).await
    }
}

impl KubeCluster {
    fn resource_names(&self) -> Api<ResourceName> {
        Api::all(self.client.clone())
    }
}

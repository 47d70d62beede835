//! Looks up the Configurations and Instances that the controller's objects name, as the API server has them at the moment.

use kube::api::{ApiResource, DynamicObject};
use kube::{Api, Client};
use leafhost_core::configuration::Manifest;
use leafhost_core::instance::Instance;
use leafhost_core::names::ConfigurationKey;

use crate::answers::Failure;
use crate::instance::{self, InstanceObject};
use crate::manifest;

/// Lookup of Configurations, Instances and reservations of names.
#[derive(Clone)]
pub struct Origins {
    pub(super) client: Client,
}

impl Origins {
    /// Creates a lookup that uses this client.
    pub fn new(client: Client) -> Self {
        Self { client }
    }

    /// Returns the Configuration of this name, if it exists.
    pub async fn configuration(
        &self,
        namespace: &str,
        name: &str,
    ) -> Result<Option<Manifest>, String> {
        let resource = manifest::resource();
        let Some(found) = self.get(namespace, name, &resource).await? else {
            return Ok(None);
        };
        manifest::read(&found).map(Some).map_err(|problem| {
            let (path, why) = (problem.path, problem.message);
            format!("cannot read the Configuration {namespace}/{name}: {path}: {why}; correct it")
        })
    }

    /// Returns true if the Configuration exists.
    pub async fn has_configuration(&self, key: &ConfigurationKey) -> Result<bool, String> {
        let resource = manifest::resource();
        let found = self.get(key.namespace(), key.name(), &resource).await?;
        Ok(found.is_some())
    }

    /// Returns the Instance of this name, without its status, if it exists.
    pub async fn instance(&self, namespace: &str, name: &str) -> Result<Option<Instance>, String> {
        let resource = instance::api_resource();
        let Some(mut found) = self.get(namespace, name, &resource).await? else {
            return Ok(None);
        };
        if let Some(data) = found.data.as_object_mut() {
            data.remove("status");
        }
        let read: Result<InstanceObject, _> =
            serde_json::to_value(found).and_then(serde_json::from_value);
        let unread = |error: serde_json::Error| {
            format!("cannot read the Instance {namespace}/{name}: {error}")
        };
        read.map(instance::into_instance).map(Some).map_err(unread)
    }

    async fn get(
        &self,
        namespace: &str,
        name: &str,
        resource: &ApiResource,
    ) -> Result<Option<DynamicObject>, String> {
        let api: Api<DynamicObject> =
            Api::namespaced_with(self.client.clone(), namespace, resource);
        let failed = |error: kube::Error| {
            let (kind, error) = (&resource.kind, Failure::from(error).message);
            format!("cannot get the {kind} {namespace}/{name}: {error}")
        };
        api.get_opt(name).await.map_err(failed)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::tests::stub::{Answer, Stub};

    #[tokio::test]
    async fn what_is_there_is_read_whatever_its_status_says_and_what_is_not_is_none() {
        let stub = Stub::start(|request| {
            if request.contains("/instances/cams-1") {
                return Answer::Object(200, json!({"apiVersion": "akri.sh/v0", "kind": "Instance",
                    "metadata": {"name": "cams-1", "namespace": "n", "uid": "u"},
                    "spec": {"configurationName": "cams", "nodes": ["a"]},
                    "status": {"nodes": {"a": {"health": 7}}}}));
            }
            if request.contains("/configurations/cams") {
                return Answer::Object(200, json!({"apiVersion": "akri.sh/v0", "kind": "Configuration",
                    "metadata": {"name": "cams", "namespace": "n", "uid": "v"},
                    "spec": {"discoveryHandler": {"name": "udev"}}}));
            }
            let status = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "NotFound", "code": 404});
            Answer::Object(404, status)
        })
        .await;
        let origins = Origins::new(stub.client.clone());
        let instance = origins.instance("n", "cams-1").await.unwrap().unwrap();
        assert_eq!(
            (&*instance.metadata.uid, &*instance.spec.nodes[0]),
            ("u", "a")
        );
        let manifest = origins.configuration("n", "cams").await.unwrap().unwrap();
        assert_eq!(manifest.metadata.uid.as_deref(), Some("v"));
        assert_eq!(origins.instance("n", "other").await, Ok(None));
        assert_eq!(origins.configuration("n", "other").await, Ok(None));
    }
}

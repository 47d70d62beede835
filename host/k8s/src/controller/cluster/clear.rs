//! Removes from a cluster the statuses, reports, device classes and slices that no process updates any more.

use std::time::Duration;

use k8s_openapi::api::resource::v1::{DeviceClass, ResourceSlice};
use kube::api::{Api, DeleteParams, DynamicObject, ListParams, Patch};
use kube::{Client, ResourceExt as _};
use leafhost_core::slices::DRIVER;
use serde_json::json;

use super::NAME;
use crate::answers;
use crate::controller::classes;
use crate::crd::DiscoveryHandler;
use crate::manifest;
use crate::requests::patch_by;

/// Timeout of a request.
const REQUEST: Duration = Duration::from_secs(20);
/// Number of Configurations that are read at a time, since each may be large.
const PAGE: u32 = 50;

/// Deletes the reports of all nodes and the device classes and slices of Leafhost, and removes the statuses of all Configurations. Returns
/// the number of Configurations that had a status; the error says why the removal is incomplete. Agents and controllers that still run write
/// theirs again.
pub async fn clear(client: &Client) -> Result<usize, String> {
    let reports: Api<DiscoveryHandler> = Api::all(client.clone());
    let (how, all) = (DeleteParams::default(), ListParams::default());
    let deleted = reports.delete_collection(&how, &all);
    request("delete discoveryhandlers.leafhost.dev", deleted).await?;
    let classes: Api<DeviceClass> = Api::all(client.clone());
    let ours = ListParams::default().labels(classes::LABEL);
    let deleted = classes.delete_collection(&how, &ours);
    request("delete deviceclasses.resource.k8s.io", deleted).await?;
    let slices: Api<ResourceSlice> = Api::all(client.clone());
    let ours = ListParams::default().fields(&format!("spec.driver={DRIVER}"));
    let deleted = slices.delete_collection(&how, &ours);
    request("delete resourceslices.resource.k8s.io", deleted).await?;
    let api = Api::<DynamicObject>::all_with(client.clone(), &manifest::resource());
    let mut page = ListParams::default().limit(PAGE);
    let mut cleared = 0;
    while let Some(list) = request("list configurations.akri.sh", api.list(&page)).await? {
        for object in &list {
            if object.data.get("status").is_some_and(|it| !it.is_null()) {
                cleared += usize::from(forget(client, object).await?);
            }
        }
        let next = list.metadata.continue_.filter(|token| !token.is_empty());
        let Some(next) = next else {
            break;
        };
        page = page.continue_token(&next);
    }
    Ok(cleared)
}

/// Removes the status of a Configuration. Returns false if the Configuration is gone.
async fn forget(client: &Client, object: &DynamicObject) -> Result<bool, String> {
    let (namespace, name) = (object.namespace().unwrap_or_default(), object.name_any());
    let api =
        Api::<DynamicObject>::namespaced_with(client.clone(), &namespace, &manifest::resource());
    let params = patch_by(NAME);
    let patch = Patch::Merge(json!({"status": null}));
    let what = format!("remove the status of Configuration {namespace}/{name}");
    let answer = request(&what, api.patch_status(&name, &params, &patch)).await?;
    Ok(answer.is_some())
}

/// Awaits an answer. Returns `None` if the object or the definition of its kind does not exist.
async fn request<T>(
    what: &str,
    answer: impl Future<Output = kube::Result<T>>,
) -> Result<Option<T>, String> {
    match answers::within(REQUEST, answer).await {
        Ok(done) => Ok(Some(done)),
        Err(failure) if failure.code == Some(404) => Ok(None),
        Err(failure) => Err(format!(
            "cannot {what}: {}; run this again to continue where it stopped",
            failure.message
        )),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;
    use crate::tests::stub::{Answer, Stub, failure};

    fn configuration(name: &str, status: &Value) -> Value {
        json!({"apiVersion": "akri.sh/v0", "kind": "Configuration",
            "metadata": {"name": name, "namespace": "plant"}, "status": status})
    }

    #[tokio::test]
    async fn statuses_are_removed_page_by_page_where_there_is_one() {
        let stub = Stub::start(|request| {
            let list = |name: &str, status: Value, next: &str| {
                Answer::Object(
                    200,
                    json!({"apiVersion": "akri.sh/v0", "kind": "ConfigurationList",
                    "metadata": {"continue": next}, "items": [configuration(name, &status)]}),
                )
            };
            match request {
                _ if request.starts_with("DELETE") && request.contains("resource.k8s.io") => {
                    failure(404, "it is older")
                }
                _ if request.starts_with("DELETE") => Answer::Object(
                    200,
                    json!({"kind": "DiscoveryHandlerList", "apiVersion": "leafhost.dev/v1alpha1",
                    "metadata": {}, "items": []}),
                ),
                _ if request.starts_with("PATCH") && request.contains("/configurations/gone/") => {
                    failure(404, "it is gone")
                }
                _ if request.starts_with("PATCH") => {
                    Answer::Object(200, configuration("cams", &Value::Null))
                }
                _ if request.contains("continue=b") => list("none", Value::Null, ""),
                _ if request.contains("continue=a") => list("gone", json!({"nodes": 1}), "b"),
                _ => list("cams", json!({"nodes": 2}), "a"),
            }
        })
        .await;
        assert_eq!(clear(&stub.client).await.unwrap(), 1);
        assert_eq!(stub.requests("DELETE"), 3);
        assert_eq!(stub.requests("/configurations/cams/status"), 1);
        assert_eq!(stub.requests("/configurations/gone/status"), 1);
        assert_eq!(stub.requests("/configurations/none/status"), 0);
    }

    #[tokio::test]
    async fn without_definitions_nothing_is_left_to_be_done_and_a_refusal_is_an_error() {
        let stub = Stub::start(|_| failure(404, "the server could not find it")).await;
        assert_eq!(clear(&stub.client).await.unwrap(), 0);
        let stub = Stub::start(|_| failure(403, "no right")).await;
        let error = clear(&stub.client).await.unwrap_err();
        assert!(error.contains("discoveryhandlers") && error.contains("no right"));
    }
}

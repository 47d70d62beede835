//! Patches that stop the workloads of Akri, and start them again as they were. Pure.

use k8s_openapi::api::admissionregistration::v1::ValidatingWebhookConfiguration;
use k8s_openapi::api::apps::v1::{DaemonSet, Deployment};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use kube::ResourceExt as _;
use serde_json::{Value, json};

/// Label that no node and no object has. Akri's `DaemonSet`s and webhook select by it while Akri is stopped.
const STOPPED: &str = "leafhost.dev/akri-stopped";
/// Annotation of a stopped Deployment with its number of replicas.
const REPLICAS: &str = "leafhost.dev/replicas";

/// Returns the patch that turns the webhooks off or on again, or `None` if they are in that state already. While they are off, they select
/// no object.
pub fn ask(hooks: &ValidatingWebhookConfiguration, is_asked: bool) -> Option<Value> {
    let mut all = hooks.webhooks.clone().unwrap_or_default();
    let mut differs = false;
    for hook in &mut all {
        let selector = hook.object_selector.take().unwrap_or_default();
        let mut labels = selector.match_labels.clone().unwrap_or_default();
        differs |= if is_asked {
            labels.remove(STOPPED).is_some()
        } else {
            let before = labels.insert(STOPPED.to_owned(), "true".to_owned());
            before.is_none()
        };
        hook.object_selector = Some(LabelSelector {
            match_labels: Some(labels).filter(|labels| !labels.is_empty()),
            ..selector
        });
    }
    let version = &hooks.metadata.resource_version;
    let patch = json!({"metadata": {"resourceVersion": version}, "webhooks": all});
    differs.then_some(patch)
}

/// Returns true if the `DaemonSet` is stopped.
pub fn is_stopped(set: &DaemonSet) -> bool {
    let template = set.spec.template.spec.as_ref();
    let selector = template.and_then(|pod| pod.node_selector.as_ref());
    selector.is_some_and(|selector| selector.contains_key(STOPPED))
}

/// Returns the patch that stops the `DaemonSet`, if it runs.
pub fn stop(set: &DaemonSet) -> Option<Value> {
    let patch = json!({"spec": {"template": {"spec": {"nodeSelector": {STOPPED: "true"}}}}});
    (!is_stopped(set)).then_some(patch)
}

/// Returns the patch that starts the `DaemonSet`, if it is stopped.
pub fn start(set: &DaemonSet) -> Option<Value> {
    let patch = json!({"spec": {"template": {"spec": {"nodeSelector": {STOPPED: null}}}}});
    is_stopped(set).then_some(patch)
}

/// Returns the patch that stops the Deployment and records its replicas, if it has any.
pub fn scale_down(deployment: &Deployment) -> Option<Value> {
    let replicas = deployment.spec.replicas.unwrap_or(1);
    let metadata = json!({
        "resourceVersion": deployment.metadata.resource_version,
        "annotations": {REPLICAS: replicas.to_string()},
    });
    (replicas != 0).then(|| json!({"metadata": metadata, "spec": {"replicas": 0}}))
}

/// Returns the patch that restores the replicas of the Deployment, if it is stopped.
pub fn scale_up(deployment: &Deployment) -> Option<Value> {
    let replicas: i32 = deployment.annotations().get(REPLICAS)?.parse().ok()?;
    Some(json!({"metadata": {"annotations": {REPLICAS: null}}, "spec": {"replicas": replicas}}))
}

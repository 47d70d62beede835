//! Pods whose device is gone: their state, and their eviction.

use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, PostParams};
use kube::{Client, ResourceExt as _};
use leafhost_core::brokers::{CONTROLLER_LABEL, INSTANCE_LABEL};
use leafhost_core::cluster::{EvictionError, PodState};
use leafhost_core::names::GROUP;
use leafhost_core::scheduling::PodKey;
use leafhost_core::status_store::WriteError;
use serde_json::{Value, json};

use super::write_error;
use crate::answers::{self, Failure};
use crate::instance::REQUEST;

/// Annotation of mirror pods, which represent a kubelet's static pods.
const MIRROR: &str = "kubernetes.io/config.mirror";
/// Status code of an eviction that a `PodDisruptionBudget` does not allow at the moment.
const NOT_NOW: u16 = 429;

/// Reads the state of a pod; returns `None` if the pod does not exist.
pub async fn read(client: &Client, key: &PodKey) -> Result<Option<PodState>, EvictionError> {
    let pods: Api<Pod> = Api::namespaced(client.clone(), &key.namespace);
    let found = answers::within(REQUEST, pods.get_opt(&key.name)).await;
    found
        .map(|pod| pod.as_ref().map(state))
        .map_err(|failure| eviction_error(&failure))
}

/// Evicts the pod with this uid.
pub async fn evict(client: &Client, key: &PodKey, uid: &str) -> Result<(), EvictionError> {
    let pods: Api<Pod> = Api::namespaced(client.clone(), &key.namespace);
    // `Api::evict` of kube names the field `delete_options`, which the API server ignores.
    let eviction = json!({
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": {"name": key.name, "namespace": key.namespace},
        "deleteOptions": {"preconditions": {"uid": uid}},
    });
    let params = PostParams::default();
    let request =
        pods.create_subresource::<Value, Value>("eviction", &key.name, &params, &eviction);
    let answer = answers::within(REQUEST, request).await;
    answer.map(drop).map_err(|failure| eviction_error(&failure))
}

fn eviction_error(failure: &Failure) -> EvictionError {
    let message = &failure.message;
    match write_error(failure) {
        _ if failure.code == Some(NOT_NOW) => EvictionError::NotNow(message.clone()),
        WriteError::Denied(_) => {
            WriteError::Denied(format!("the API server refuses it: {message}")).into()
        }
        error => error.into(),
    }
}

fn state(pod: &Pod) -> PodState {
    let (spec, status, metadata) = (pod.spec.as_ref(), pod.status.as_ref(), &pod.metadata);
    let phase = status.and_then(|status| status.phase.as_deref());
    let has_ended = matches!(phase, Some("Succeeded" | "Failed"));
    let mut owners = metadata.owner_references.iter().flatten();
    let owner = owners.find(|owner| owner.controller == Some(true));
    let labels = pod.labels();
    // Pods of a broker's job have the label of the Instance, but not that of the controller.
    let is_created = labels
        .get(CONTROLLER_LABEL)
        .is_some_and(|value| value == GROUP);
    PodState {
        uid: pod.uid().unwrap_or_default(),
        node: spec.and_then(|spec| spec.node_name.clone()),
        created: metadata.creation_timestamp.as_ref().map(|time| time.0),
        is_ending: has_ended || metadata.deletion_timestamp.is_some(),
        is_mirror: pod.annotations().contains_key(MIRROR),
        is_broker: is_created || labels.contains_key(INSTANCE_LABEL),
        owner: owner.map(|owner| owner.kind.clone()),
    }
}

#[cfg(test)]
mod tests {

    use super::*;
    use crate::tests::stub::{Answer, Stub, failure};

    /// Answer of the API server to every request.
    type Script = fn() -> Answer;

    fn key() -> PodKey {
        PodKey {
            namespace: "n".into(),
            name: "p".into(),
        }
    }

    #[tokio::test]
    async fn an_answer_to_an_eviction_says_whether_it_may_succeed_later() {
        let missing = || {
            Answer::Object(
                404,
                json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 404, "reason": "NotFound",
                    "message": "no pod", "details": {"name": "p", "kind": "pods"}}),
            )
        };
        let done = || {
            Answer::Object(
                201,
                json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201}),
            )
        };
        let refused: Script = || failure(429, "it would violate the budget");
        let denied: Script = || failure(403, "no right");
        let broken: Script = || failure(500, "two budgets");
        let scripts: [(&str, Script); 5] = [
            ("done", done),
            ("missing", missing),
            ("refused", refused),
            ("denied", denied),
            ("broken", broken),
        ];
        for (what, script) in scripts {
            let stub = Stub::start(move |_| script()).await;
            let answer = evict(&stub.client, &key(), "u").await;
            let path = "POST /api/v1/namespaces/n/pods/p/eviction";
            assert_eq!(stub.requests(path), 1, "{what}");
            let is_expected = match what {
                "done" => answer.is_ok(),
                "missing" => answer == Err(EvictionError::Failed(WriteError::Outdated)),
                "refused" => {
                    matches!(&answer, Err(EvictionError::NotNow(why)) if why.contains("budget"))
                }
                "denied" => matches!(
                    &answer,
                    Err(EvictionError::Failed(WriteError::Denied(why))) if why.contains("no right")
                ),
                _ => matches!(
                    &answer,
                    Err(EvictionError::Failed(WriteError::NoAnswer { .. }))
                ),
            };
            assert!(is_expected, "{what}: {answer:?}");
        }
    }

    #[tokio::test]
    async fn a_pod_is_read_with_what_an_eviction_depends_on() {
        let pod = |metadata: Value, phase: &str| {
            let pod = json!({"metadata": metadata, "spec": {"nodeName": "a", "containers": []}, "status": {"phase": phase}});
            state(&serde_json::from_value(pod).unwrap())
        };
        let owners = json!([{"apiVersion": "v1", "kind": "Other", "name": "o", "uid": "1"},
            {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "r", "uid": "2", "controller": true}]);
        let created = "2026-01-01T00:00:00Z";
        let whole = PodState {
            uid: "u".into(),
            node: Some("a".into()),
            created: created.parse().ok(),
            owner: Some("ReplicaSet".into()),
            ..PodState::default()
        };
        let metadata = json!({"uid": "u", "creationTimestamp": created, "ownerReferences": owners});
        assert_eq!(pod(metadata, "Running"), whole);
        assert!(pod(json!({}), "Failed").is_ending);
        assert!(pod(json!({"deletionTimestamp": created}), "Running").is_ending);
        assert!(pod(json!({"annotations": {MIRROR: "h"}}), "Running").is_mirror);
        for (labels, is_broker) in [
            (json!({"controller": "akri.sh"}), true),
            (json!({"akri.sh/instance": "cams-1"}), true),
            (json!({"controller": "other", "app": "viewer"}), false),
        ] {
            let found = pod(json!({"labels": labels}), "Running");
            assert_eq!(found.is_broker, is_broker);
        }
        let stub = Stub::start(|_| {
            Answer::Object(
                404,
                json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 404, "reason": "NotFound"}),
            )
        })
        .await;
        assert_eq!(read(&stub.client, &key()).await, Ok(None));
    }
}

//! Pods, jobs, services and claim templates with labels of this API group.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{Pod, PodStatus, Service};
use k8s_openapi::api::resource::v1::ResourceClaimTemplate;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{ApiResource, ListParams, NotUsed, PartialObjectMeta};
use kube::core::Object as KubeObject;
use kube::{Api, Client, Resource};
use leafhost_core::brokers::{
    CONFIGURATION_LABEL, CONTROLLER_LABEL, INSTANCE_LABEL, Kind, MADE_OF_ANNOTATION, ManifestSet,
    Object, ObjectKey, ObjectSet, Phase, TARGET_NODE_LABEL,
};
use leafhost_core::configuration::{Backend, Manifest};
use leafhost_core::names::GROUP;
use serde::de::DeserializeOwned;
use tokio::sync::watch;

use crate::controller::left_over::has_some;
use crate::index;
use crate::watch::Watch;

/// A pod without its spec.
type PodObject = KubeObject<NotUsed, PodStatus>;

/// Number of kinds of objects.
const KINDS: usize = 4;

/// Objects of each kind that has been read.
type Parts = Mutex<BTreeMap<Kind, BTreeMap<ObjectKey, Arc<Object>>>>;

/// Follows the objects forever.
///
/// Claim templates are followed if some exist at the start, and otherwise once a broker gets its device through a claim: a cluster with
/// neither may lack the API.
pub async fn follow(
    client: Client,
    sender: watch::Sender<Arc<ObjectSet>>,
    mut manifests: watch::Receiver<Arc<ManifestSet>>,
) {
    let pods: Api<PodObject> = Api::all_with(client.clone(), &ApiResource::erase::<Pod>(&()));
    // Pods of jobs have this label, but not that of the controller.
    let pods = Watch::new(pods).labels(CONFIGURATION_LABEL);
    let jobs: Api<PartialObjectMeta<Job>> = Api::all(client.clone());
    let jobs = Watch::new(jobs).labels(CONFIGURATION_LABEL);
    let services: Api<PartialObjectMeta<Service>> = Api::all(client.clone());
    let selector = format!("{CONTROLLER_LABEL}={GROUP}");
    let services = Watch::new(services).labels(&selector);
    let all_templates: Api<ResourceClaimTemplate> = Api::all(client.clone());
    let templates: Api<PartialObjectMeta<ResourceClaimTemplate>> = Api::all(client);
    let templates = Watch::new(templates).labels(&selector);
    let shown = (Parts::default(), sender);
    let templates = async {
        if !has_some(&all_templates, &ListParams::default().labels(&selector)).await {
            show(Kind::ClaimTemplate, &BTreeMap::new(), &shown);
            let uses_claims =
                |set: &Arc<ManifestSet>| set.manifests.values().any(|one| has_claims(one));
            if manifests.wait_for(uses_claims).await.is_err() {
                return std::future::pending().await;
            }
        }
        follow_kind(Kind::ClaimTemplate, templates, |_| Phase::Pending, &shown).await;
    };
    tokio::join!(
        follow_kind(Kind::Pod, pods, |pod| phase(pod.status.as_ref()), &shown),
        follow_kind(Kind::Job, jobs, |_| Phase::Pending, &shown),
        follow_kind(Kind::Service, services, |_| Phase::Pending, &shown),
        templates,
    );
}

fn has_claims(manifest: &Manifest) -> bool {
    let backend = Backend::of(&manifest.metadata.annotations);
    backend == Backend::Dra && manifest.spec.broker_spec.is_some()
}

async fn follow_kind<K>(
    kind: Kind,
    watch: Watch<K>,
    phase: impl Fn(&K) -> Phase,
    shown: &(Parts, watch::Sender<Arc<ObjectSet>>),
) where
    K: Resource + Clone + DeserializeOwned + Debug + Send + 'static,
{
    let name = |object: &K| key(kind, object.meta());
    let read = |object: K, _: Option<&_>| Some(Arc::new(read(object.meta(), phase(&object))));
    let publish = |all: &BTreeMap<_, _>| show(kind, all, shown);
    index::follow(watch, &format!("{kind}s"), name, read, publish).await;
}

/// Publishes all objects once each kind has been read.
fn show(
    kind: Kind,
    all: &BTreeMap<ObjectKey, Arc<Object>>,
    (parts, sender): &(Parts, watch::Sender<Arc<ObjectSet>>),
) {
    // No holder of the lock panics.
    let mut parts = parts.lock().unwrap_or_else(PoisonError::into_inner);
    parts.insert(kind, all.clone());
    if parts.len() == KINDS {
        let all = parts.values().flatten();
        let next = ObjectSet {
            complete: true,
            objects: all
                .map(|(key, one)| (key.clone(), Arc::clone(one)))
                .collect(),
        };
        crate::publish(sender, next);
    }
}

fn key(kind: Kind, metadata: &ObjectMeta) -> ObjectKey {
    ObjectKey {
        kind,
        namespace: metadata.namespace.clone().unwrap_or_default(),
        name: metadata.name.clone().unwrap_or_default(),
    }
}

/// Returns the uid of the owner that controls an object.
pub fn owner(metadata: &ObjectMeta) -> Option<&str> {
    let mut owners = metadata.owner_references.iter().flatten();
    let owner = owners.find(|owner| owner.controller == Some(true))?;
    Some(&owner.uid)
}

fn read(metadata: &ObjectMeta, phase: Phase) -> Object {
    let label = |name: &str| metadata.labels.as_ref()?.get(name).cloned();
    let annotations = metadata.annotations.as_ref();
    Object {
        uid: metadata.uid.clone().unwrap_or_default(),
        owner: owner(metadata).map(str::to_owned),
        is_made: label(CONTROLLER_LABEL).is_some_and(|value| value == GROUP),
        configuration: label(CONFIGURATION_LABEL),
        instance: label(INSTANCE_LABEL),
        node: label(TARGET_NODE_LABEL),
        made_of: annotations.and_then(|all| all.get(MADE_OF_ANNOTATION).cloned()),
        is_deleting: metadata.deletion_timestamp.is_some(),
        phase,
    }
}

fn phase(status: Option<&PodStatus>) -> Phase {
    let Some(status) = status else {
        return Phase::Pending;
    };
    match status.phase.as_deref() {
        Some("Running") => Phase::Running,
        Some("Succeeded" | "Failed") => Phase::Ended(ran(status).unwrap_or_default()),
        _ => {
            let mut conditions = status.conditions.iter().flatten();
            let unplaced = conditions
                .find(|condition| condition.type_ == "PodScheduled" && condition.status == "False");
            let since = unplaced.and_then(|condition| condition.last_transition_time.as_ref());
            since.map_or(Phase::Pending, |since| Phase::Unschedulable(since.0))
        }
    }
}

/// Returns the running time of an ended pod, by the clock of its node.
fn ran(status: &PodStatus) -> Option<Duration> {
    let ends = status.container_statuses.iter().flatten();
    let ends = ends.filter_map(|container| {
        let state = container.state.as_ref()?;
        state.terminated.as_ref()?.finished_at.as_ref()
    });
    let (start, end) = (status.start_time.as_ref()?, ends.max()?);
    end.0.duration_since(start.0).try_into().ok()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_phase_of_a_pod_says_whether_it_waits_runs_or_has_ended() {
        let ended = |phase: &str| {
            json!({"phase": phase, "startTime": "2026-01-01T00:00:00Z", "containerStatuses": [
                {"name": "a", "image": "", "imageID": "", "ready": false, "restartCount": 0,
                    "state": {"terminated": {"exitCode": 0, "finishedAt": "2026-01-01T00:00:05Z"}}},
                {"name": "b", "image": "", "imageID": "", "ready": false, "restartCount": 0,
                    "state": {"terminated": {"exitCode": 1, "finishedAt": "2026-01-01T00:01:00Z"}}},
            ]})
        };
        let since = "2026-01-01T00:00:00Z";
        let scheduled = |status: &str| json!({"phase": "Pending", "conditions": [{"type": "PodScheduled", "status": status, "lastTransitionTime": since}]});
        let minute = Phase::Ended(Duration::from_mins(1));
        for (status, expected) in [
            (json!({}), Phase::Pending),
            (json!({"phase": "Pending"}), Phase::Pending),
            (scheduled("True"), Phase::Pending),
            (
                scheduled("False"),
                Phase::Unschedulable(since.parse().unwrap()),
            ),
            (json!({"phase": "Running"}), Phase::Running),
            (ended("Succeeded"), minute),
            (ended("Failed"), minute),
            // The kubelet did not start the pod.
            (
                json!({"phase": "Failed", "reason": "UnexpectedAdmissionError"}),
                Phase::Ended(Duration::ZERO),
            ),
        ] {
            let status: PodStatus = serde_json::from_value(status).unwrap();
            assert_eq!(phase(Some(&status)), expected, "{status:?}");
        }
    }
}

//! Follows Configurations and reports, and writes output for users: the statuses of Configurations, and Events.

use std::collections::BTreeMap;
use std::sync::Arc;

use async_trait::async_trait;
use kube::api::{Api, DynamicObject};
use kube::core::DeserializeGuard;
use kube::runtime::events::{self, EventType, Recorder};
use kube::{Client, Resource as _, ResourceExt as _};
use leafhost_core::brokers::ManifestSet;
use leafhost_core::cluster::{Deleting, DeletingKind};
use leafhost_core::configuration::{Configuration, Manifest, read_allocation};
use leafhost_core::names::{API_VERSION, ConfigurationKey};
use leafhost_core::node_report::{ObjectName, ReportedHandler};
use leafhost_core::status_store::{
    ConfigurationState, ConfigurationStates, ConfigurationStatus, Event, Regarding, ReportSet,
    StatusStore, WriteError,
};
use leafhost_core::tasks::Tasks;
use leafhost_core::text;
use tokio::sync::watch;

use super::finalizers::{self, Finalizers};
use super::{KubeCluster, NAME, edit, written};
use crate::bounded_store::BoundedStore;
use crate::crd::DiscoveryHandler;
use crate::index::{ObjectMap, follow};
use crate::manifest;
use crate::reports;
use crate::requests::{patch_by, reference};
use crate::watch::Watch;

/// Number of reports that are read at a time, since each may be large.
const REPORTS: u32 = 50;
/// Maximum size of an Event's text, in bytes; the API server refuses more than a kilobyte.
const MAX_NOTE: usize = 1_000;

/// A Configuration as it was read.
struct Read {
    state: Option<Arc<ConfigurationState>>,
    deleting: Option<Deleting>,
    /// Last valid version, for brokers.
    manifest: Option<Arc<Manifest>>,
}

/// A report of a node on a handler.
struct Report {
    reported: ((String, String), Arc<ReportedHandler>),
    bytes: usize,
}

impl ObjectMap<String, Report> for BoundedStore<Report> {
    fn put(&mut self, name: String, report: Report) {
        let ((node, _), _) = &report.reported;
        let node = node.clone();
        let is_left_out = Self::put(self, &name, &node, report.bytes, report).is_err();
        if is_left_out && self.is_first_rejection() {
            tracing::warn!(
                report = name,
                node = text::abridge(&node, 253),
                "a report is ignored, perhaps among others, because its node has too many or too large reports; delete those that its agent did not write: kubectl get dh"
            );
        }
    }

    fn get(&self, name: &String) -> Option<&Report> {
        Self::get(self, name)
    }

    fn drop_name(&mut self, name: &String) {
        self.remove(name);
    }
}

/// Watches Configurations, and shows those that are being deleted in `finalizers`.
pub fn follow_configurations(
    client: &Client,
    finalizers: Finalizers,
    tasks: &mut Tasks,
) -> (
    watch::Receiver<Arc<ConfigurationStates>>,
    watch::Receiver<Arc<ManifestSet>>,
) {
    let (sender, configurations) = watch::channel(Arc::default());
    let (manifest_sender, manifests) = watch::channel(Arc::default());
    let publish = move |all: &BTreeMap<Option<ConfigurationKey>, Read>| {
        let deleting = all.values().map(|one| &one.deleting);
        finalizers.show(DeletingKind::Configuration, deleting);
        let states = all.iter();
        let states = states.filter_map(|(key, one)| Some((key.clone()?, one.state.clone()?)));
        let states = ConfigurationStates {
            complete: true,
            configurations: states.collect(),
        };
        crate::publish(&sender, states);
        let manifests = all.iter();
        let manifests =
            manifests.filter_map(|(key, one)| Some((key.clone()?, one.manifest.clone()?)));
        let manifests = ManifestSet {
            complete: true,
            manifests: manifests.collect(),
        };
        crate::publish(&manifest_sender, manifests);
    };
    let watch = Watch::new(Api::all_with(client.clone(), &manifest::resource()));
    let read = |object: DynamicObject, before: Option<&Read>| {
        let deleting = finalizers::deleting(DeletingKind::Configuration, object.meta());
        key(&object)?;
        let state = state(&object, before.and_then(|before| before.state.as_deref()));
        let manifest = manifest_of(&object, before.and_then(|before| before.manifest.as_ref()));
        (state.is_some() || manifest.is_some()).then(|| Read {
            deleting: deleting.filter(|_| state.is_some()),
            state,
            manifest,
        })
    };
    let following = follow(watch, "Configurations", key, read, publish);
    tasks.add_loop("watch of statuses", following);
    (configurations, manifests)
}

/// Watches the reports of nodes.
pub fn follow_reports(client: &Client, tasks: &mut Tasks) -> watch::Receiver<Arc<ReportSet>> {
    let (sender, reports) = watch::channel(Arc::default());
    let publish = move |all: &BoundedStore<Report>| {
        let handlers = all.values().map(|one| one.reported.clone()).collect();
        let complete = true;
        crate::publish(&sender, ReportSet { complete, handlers });
    };
    let name = |object: &DeserializeGuard<DiscoveryHandler>| object.name_any();
    let read = |object: DeserializeGuard<DiscoveryHandler>, _: Option<&Report>| {
        let mut object = object.0.ok()?;
        let bytes = reports::size(&object);
        let spec = std::mem::take(&mut object.spec);
        let reported = Arc::new(reports::reported(object));
        Some(Report {
            reported: ((spec.node, spec.handler), reported),
            bytes,
        })
    };
    let watch = Watch::new(Api::all(client.clone())).page(REPORTS);
    let what = "discoveryhandlers.leafhost.dev";
    let following = follow(watch, what, name, read, publish);
    tasks.add_loop("watch of reports", following);
    reports
}

async fn publish(recorder: &Recorder, event: &Event) -> Result<(), WriteError> {
    let core = |kind: &str, object: &ObjectName| {
        let place = (&*object.namespace, &*object.name);
        reference("v1", kind, place, &object.uid)
    };
    let (action, regarding) = match &event.regarding {
        Regarding::Configuration(key, uid) => {
            let place = (key.namespace(), key.name());
            let regarding = reference(API_VERSION, "Configuration", place, uid);
            ("Discover", regarding)
        }
        Regarding::ConfigMap(object) => ("LoadHandler", core("ConfigMap", object)),
        Regarding::Pod(object) => ("Evict", core("Pod", object)),
    };
    let event = events::Event {
        type_: EventType::Warning,
        reason: event.reason.clone(),
        note: Some(text::abridge(&event.message, MAX_NOTE)),
        action: action.to_owned(),
        secondary: None,
    };
    written(recorder.publish(&event, &regarding)).await
}

#[async_trait]
impl StatusStore for KubeCluster {
    async fn show(
        &self,
        key: &ConfigurationKey,
        seen: &ConfigurationState,
        status: &ConfigurationStatus,
    ) -> Result<(), WriteError> {
        let api: Api<DynamicObject> =
            Api::namespaced_with(self.client.clone(), key.namespace(), &manifest::resource());
        let patch = edit(&seen.uid, &seen.resource_version, "/status", status)?;
        let params = patch_by(NAME);
        written(api.patch_status(key.name(), &params, &patch)).await
    }

    async fn publish(&self, event: &Event) -> Result<(), WriteError> {
        publish(&self.recorder, event).await
    }
}

/// Returns the key of a Configuration, or `None` if the object has an invalid name.
fn key(object: &DynamicObject) -> Option<ConfigurationKey> {
    let meta = object.meta();
    ConfigurationKey::new(meta.namespace.as_deref()?, meta.name.as_deref()?).ok()
}

/// Reads a Configuration. If an annotation is invalid, the values read before stay, as with agents.
fn state(
    object: &DynamicObject,
    before: Option<&ConfigurationState>,
) -> Option<Arc<ConfigurationState>> {
    let meta = object.meta();
    let handler = object.data.pointer("/spec/discoveryHandler/name");
    let status = object.data.get("status").cloned();
    let mut wrong = Vec::new();
    let read = read_allocation(object.annotations(), &mut wrong);
    let before = before.filter(|_| !wrong.is_empty());
    let (backend, evicts, restarts_pods) =
        before.map_or(read, |one| (one.backend, one.evicts, one.restarts_pods));
    let state = ConfigurationState {
        uid: meta.uid.clone().unwrap_or_default(),
        resource_version: meta.resource_version.clone().unwrap_or_default(),
        generation: meta.generation.unwrap_or_default(),
        created: meta.creation_timestamp.as_ref().map(|time| time.0),
        is_deleting: meta.deletion_timestamp.is_some(),
        handler: handler?.as_str()?.to_owned(),
        backend,
        evicts,
        restarts_pods,
        status: status.and_then(|status| serde_json::from_value(status).ok()),
    };
    Some(Arc::new(state))
}

/// Reads the manifest of a Configuration. If it is invalid, keeps the version before, as the agents do.
fn manifest_of(object: &DynamicObject, before: Option<&Arc<Manifest>>) -> Option<Arc<Manifest>> {
    let meta = object.meta();
    let read = manifest::read(object).ok();
    let usable = read.filter(|read| Configuration::try_from(read.clone()).is_ok());
    let mut manifest = if let Some(mut manifest) = usable {
        // The discovery fields are long, and brokers do not depend on them.
        manifest.spec.discovery_handler.discovery_details.clear();
        manifest.spec.discovery_handler.discovery_properties = None;
        Arc::new(manifest)
    } else {
        let uid = meta.uid.as_ref();
        Arc::clone(before.filter(|before| before.metadata.uid.as_ref() == uid)?)
    };
    let deleted = meta.deletion_timestamp.as_ref();
    if deleted.is_some() && manifest.metadata.deletion_timestamp.is_none() {
        let deleted = deleted.map(|time| time.0.to_string());
        Arc::make_mut(&mut manifest).metadata.deletion_timestamp = deleted;
    }
    Some(manifest)
}

#[cfg(test)]
mod tests {
    use leafhost_core::configuration::Backend;
    use leafhost_core::status_store::ConditionType;
    use serde_json::json;

    use super::*;
    use crate::tests::stub::{Answer, Stub};

    #[test]
    fn annotations_that_cannot_be_read_change_nothing() {
        let with = |allocation: &str| -> DynamicObject {
            serde_json::from_value(json!({"apiVersion": "akri.sh/v0", "kind": "Configuration",
                "metadata": {"name": "cams", "namespace": "n", "annotations": {"leafhost.dev/allocation": allocation, "leafhost.dev/evict": "true"}},
                "spec": {"discoveryHandler": {"name": "onvif"}, "capacity": 0}}))
            .unwrap()
        };
        let first = state(&with("dra"), None).unwrap();
        let then = state(&with("both"), Some(&first)).unwrap();
        for one in [first, then] {
            assert_eq!((one.backend, one.evicts), (Backend::Dra, true));
        }
    }

    #[test]
    fn pods_are_restarted_as_the_last_valid_annotation_asks() {
        let with = |restarts: &str, allocation: &str| -> DynamicObject {
            serde_json::from_value(json!({"apiVersion": "akri.sh/v0", "kind": "Configuration",
                "metadata": {"name": "cams", "namespace": "n", "annotations": {"leafhost.dev/restart-pods": restarts, "leafhost.dev/allocation": allocation}},
                "spec": {"discoveryHandler": {"name": "onvif"}}}))
            .unwrap()
        };
        let plugin = "device-plugin";
        let wrong = state(&with("yes", plugin), None).unwrap();
        assert!(!wrong.restarts_pods);
        let first = state(&with("true", plugin), None).unwrap();
        for (restarts, allocation, expected) in [
            ("yes", plugin, true),
            ("true", "dra", true),
            ("false", plugin, false),
            ("false", "dra", false),
        ] {
            let then = state(&with(restarts, allocation), Some(&first)).unwrap();
            assert_eq!(then.restarts_pods, expected, "{restarts} {allocation}");
        }
    }

    #[tokio::test]
    async fn an_event_of_the_same_object_and_reason_counts_on_whatever_its_text() {
        let stub = Stub::start(|_| Answer::Object(200, json!({"metadata": {"name": "e"}}))).await;
        let recorder = Recorder::new(stub.client.clone(), NAME.into());
        let key = ConfigurationKey::new("plant", "cams").unwrap();
        let object = ObjectName {
            namespace: "leafhost".into(),
            name: "onvif".into(),
            uid: "u".into(),
        };
        let mut event = Event {
            regarding: Regarding::Configuration(key, "u".into()),
            reason: "DiscoveryFailed".into(),
            message: "x".repeat(9_000),
        };
        publish(&recorder, &event).await.unwrap();
        event.message = "another text".into();
        publish(&recorder, &event).await.unwrap();
        event.regarding = Regarding::ConfigMap(object.clone());
        publish(&recorder, &event).await.unwrap();
        event.regarding = Regarding::Pod(ObjectName {
            namespace: "lab".into(),
            ..object
        });
        publish(&recorder, &event).await.unwrap();
        let events = |verb: &str, namespace: &str| {
            stub.requests(&format!(
                "{verb} /apis/events.k8s.io/v1/namespaces/{namespace}/events"
            ))
        };
        assert_eq!((events("POST", "plant"), events("PATCH", "plant")), (1, 1));
        assert_eq!((events("POST", "leafhost"), events("POST", "lab")), (1, 1));
    }

    #[test]
    fn a_configuration_is_read_whatever_its_spec_and_status_are() {
        let object = |status| {
            let object = json!({"apiVersion": API_VERSION, "kind": "Configuration", "metadata": {"name": "cams", "namespace": "plant",
                "uid": "u", "resourceVersion": "7", "generation": 3}, "spec": {"discoveryHandler": {"name": "onvif"}, "capacity": "x"},
                "status": status});
            state(&serde_json::from_value(object).unwrap(), None).unwrap()
        };
        let state = object(json!({"conditions": "none"}));
        assert_eq!(
            (&*state.handler, state.generation, &state.status),
            ("onvif", 3, &None)
        );
        let status = ConfigurationStatus {
            ready: "1/1".into(),
            ..ConfigurationStatus::default()
        };
        let mut later = json!(status);
        assert_eq!(object(later.clone()).status, Some(status));
        later["conditions"] = json!([{"type": "OfALaterVersion", "status": "True", "reason": "R", "message": "",
            "observedGeneration": 3, "lastTransitionTime": "2026-01-01T00:00:00Z"}]);
        let read = object(later);
        let read = &read.status.as_ref().unwrap().conditions;
        assert_eq!(read[0].kind, ConditionType::Other);
    }
}

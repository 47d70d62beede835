//! Builds the objects to create, with Akri's names, labels and owners.

use std::collections::BTreeMap;

use leafhost_core::brokers::{
    APP_LABEL, CONFIGURATION_LABEL, CONTROLLER_LABEL, INSTANCE_LABEL, Kind, MADE_OF_ANNOTATION,
    ObjectKey, TARGET_NODE_LABEL, Wanted,
};
use leafhost_core::configuration::Manifest;
use leafhost_core::instance::Instance;
use leafhost_core::names::{API_VERSION, GROUP, class_name, label_value};
use leafhost_core::slice_device::{SLOTS, name_attribute};
use leafhost_core::slices::DRIVER;
use serde_json::{Map, Value, json};

use super::template::{PLACEHOLDER, Template, made_of};

/// Name of the claim in the spec of a pod.
const CLAIM: &str = "akri-device";

/// Owner of a created object, and the label by which a service selects its pods.
#[derive(Clone, Copy)]
pub struct Owner<'a> {
    kind: &'static str,
    label: &'static str,
    name: &'a str,
    namespace: &'a str,
    pub uid: &'a str,
}

impl<'a> Owner<'a> {
    pub fn instance(instance: &'a Instance) -> Self {
        let metadata = &instance.metadata;
        Self {
            kind: "Instance",
            label: INSTANCE_LABEL,
            name: &metadata.name,
            namespace: &metadata.namespace,
            uid: &metadata.uid,
        }
    }

    pub fn configuration(manifest: &'a Manifest) -> Self {
        let metadata = &manifest.metadata;
        Self {
            kind: "Configuration",
            label: CONFIGURATION_LABEL,
            name: &metadata.name,
            namespace: metadata.namespace.as_deref().unwrap_or_default(),
            uid: metadata.uid.as_deref().unwrap_or_default(),
        }
    }

    /// Returns the label, with its value, by which the owner's service selects pods.
    pub fn label(self) -> (&'static str, String) {
        (self.label, label_value(self.name))
    }

    /// Returns the key of an object that this owner owns.
    fn key(self, kind: Kind, name: String) -> ObjectKey {
        ObjectKey {
            kind,
            namespace: self.namespace.to_owned(),
            name,
        }
    }

    fn create(
        self,
        key: ObjectKey,
        mut labels: BTreeMap<&'static str, String>,
        spec: &Value,
        made_of: &str,
    ) -> Wanted {
        labels.insert(APP_LABEL, label_value(&key.name));
        labels.insert(CONTROLLER_LABEL, GROUP.to_owned());
        let version = match key.kind {
            Kind::Job => "batch/v1",
            Kind::Pod | Kind::Service => "v1",
            Kind::ClaimTemplate => "resource.k8s.io/v1",
        };
        let body = json!({
            "apiVersion": version,
            "kind": key.kind.to_string(),
            "metadata": {
                "name": key.name,
                "namespace": key.namespace,
                "labels": labels,
                "annotations": {MADE_OF_ANNOTATION: made_of},
                "ownerReferences": [{
                    "apiVersion": API_VERSION, "kind": self.kind, "name": self.name, "uid": self.uid,
                    "controller": true, "blockOwnerDeletion": true,
                }],
            },
            "spec": spec,
        });
        Wanted {
            key,
            made_of: made_of.to_owned(),
            body,
        }
    }
}

/// Returns the key of an Instance's pod on a node.
pub fn pod_key(instance: &Instance, node: &str) -> ObjectKey {
    let part = dashed(&instance.metadata.name);
    let name = if instance.spec.shared {
        format!("{node}-{part}-pod")
    } else {
        format!("{part}-pod")
    };
    Owner::instance(instance).key(Kind::Pod, name)
}

/// Builds an Instance's pod on a node.
pub fn pod(instance: &Instance, node: &str, template: &Template<'_>) -> Wanted {
    let mut labels = device_labels(instance);
    labels.insert(TARGET_NODE_LABEL, label_value(node));
    let mut spec = with_device(template.spec.clone(), instance, template);
    bind(&mut spec, node);
    let key = pod_key(instance, node);
    Owner::instance(instance).create(key, labels, &spec, &template.made_of)
}

/// Returns the key of the claim template for an Instance's brokers.
pub fn claims_key(instance: &Instance) -> ObjectKey {
    let name = format!("{}-claims", dashed(&instance.metadata.name));
    Owner::instance(instance).key(Kind::ClaimTemplate, name)
}

/// Builds the claim template for an Instance's brokers.
pub fn claims(instance: &Instance, template: &Template<'_>) -> Wanted {
    let metadata = &instance.metadata;
    let class = class_name(&instance.spec.configuration_name);
    let expression = format!(
        "device.attributes[\"{DRIVER}\"].instance == \"{}\"",
        name_attribute(&metadata.name)
    );
    // Sets the fields that the API server would default, so that the stored object can be compared.
    let mut device = json!({
        "deviceClassName": class, "selectors": [{"cel": {"expression": expression}}],
        "allocationMode": "ExactCount", "count": 1,
    });
    if let Some(fields) = device.as_object_mut().filter(|_| template.slots > 1) {
        let slots = json!({"requests": {SLOTS: template.slots.to_string()}});
        fields.insert("capacity".to_owned(), slots);
    }
    let spec = json!({"spec": {"devices": {"requests": [{"name": "device", "exactly": device}]}}});
    let labels = device_labels(instance);
    let key = claims_key(instance);
    Owner::instance(instance).create(key, labels, &spec, &made_of(&spec))
}

/// Builds an Instance's job for a generation of its Configuration.
pub fn job(instance: &Instance, generation: i64, template: &Template<'_>) -> Wanted {
    let labels = device_labels(instance);
    let mut spec = template.spec.clone();
    if let Some(job) = spec.as_object_mut() {
        // The job records that it has run, so it must not expire.
        job.remove("ttlSecondsAfterFinished");
    }
    if let Some(pods) = child(&mut spec, "template") {
        if let Some(pod) = pods.get_mut("spec") {
            *pod = with_device(pod.take(), instance, template);
        }
        let metadata = child(pods, "metadata").and_then(|metadata| child(metadata, "labels"));
        if let Some(Value::Object(all)) = metadata {
            let labels = labels.iter();
            all.extend(labels.map(|(name, value)| ((*name).to_owned(), json!(value))));
        }
    }
    let name = format!("{}-{generation}-job", dashed(&instance.metadata.name));
    let owner = Owner::instance(instance);
    owner.create(owner.key(Kind::Job, name), labels, &spec, &template.made_of)
}

/// Builds the service of an Instance or a Configuration. A service has only one of the two labels that a pod has.
pub fn service(owner: Owner<'_>, spec: &Value, made_of: &str) -> Wanted {
    let (label, value) = owner.label();
    let mut spec = spec.clone();
    if let Some(Value::Object(selector)) = child(&mut spec, "selector") {
        selector.insert(CONTROLLER_LABEL.to_owned(), json!(GROUP));
        selector.insert(label.to_owned(), json!(value));
    }
    let name = format!("{}-svc", dashed(owner.name));
    let key = owner.key(Kind::Service, name);
    owner.create(key, BTreeMap::from([(label, value)]), &spec, made_of)
}

fn dashed(name: &str) -> String {
    name.replace('.', "-")
}

fn device_labels(instance: &Instance) -> BTreeMap<&'static str, String> {
    BTreeMap::from([
        (
            CONFIGURATION_LABEL,
            label_value(&instance.spec.configuration_name),
        ),
        (INSTANCE_LABEL, label_value(&instance.metadata.name)),
    ])
}

/// Replaces the placeholder in a `PodSpec` with the Instance's resource, or with a claim.
fn with_device(mut pod: Value, instance: &Instance, template: &Template<'_>) -> Value {
    let resource = format!("{GROUP}/{}", instance.metadata.name);
    for list in ["containers", "initContainers"] {
        let containers = pod.get_mut(list).and_then(Value::as_array_mut);
        for container in containers.into_iter().flatten() {
            let mut is_asked = false;
            for kind in ["/resources/limits", "/resources/requests"] {
                let amounts = container.pointer_mut(kind).and_then(Value::as_object_mut);
                if let Some(amounts) = amounts
                    && let Some(amount) = amounts.remove(PLACEHOLDER)
                {
                    is_asked = true;
                    if !template.has_claim {
                        amounts.insert(resource.clone(), amount);
                    }
                }
            }
            let resources = container.get_mut("resources");
            if let Some(resources) = resources.filter(|_| is_asked && template.has_claim) {
                push(resources, "claims", json!({"name": CLAIM}));
            }
        }
    }
    if template.has_claim {
        let claims = claims_key(instance).name;
        let claim = json!({"name": CLAIM, "resourceClaimTemplateName": claims});
        push(&mut pod, "resourceClaims", claim);
    }
    pod
}

/// Appends an entry to the list in a field. A value that is not a list stays, and the API server refuses the object.
fn push(parent: &mut Value, field: &str, entry: Value) {
    let Some(fields) = parent.as_object_mut() else {
        return;
    };
    match fields.entry(field).or_insert(Value::Null) {
        Value::Array(list) => list.push(entry),
        nothing @ Value::Null => *nothing = Value::Array(vec![entry]),
        _ => {}
    }
}

/// Restricts the pod to one node. The user's node selector terms are alternatives, so each of them gets the requirement.
fn bind(pod: &mut Value, node: &str) {
    let path = [
        "affinity",
        "nodeAffinity",
        "requiredDuringSchedulingIgnoredDuringExecution",
    ];
    let selector = path.into_iter().try_fold(pod, child);
    let Some(selector) = selector.and_then(Value::as_object_mut) else {
        return;
    };
    let terms = selector.entry("nodeSelectorTerms").or_insert(Value::Null);
    if terms.is_null() {
        *terms = json!([{}]);
    }
    let requirement = json!({"key": "metadata.name", "operator": "In", "values": [node]});
    for term in terms.as_array_mut().into_iter().flatten() {
        push(term, "matchFields", requirement.clone());
    }
}

/// Returns the object in a field and creates it if absent. Returns `None` if the field holds another type, which the API server will
/// refuse.
fn child<'a>(parent: &'a mut Value, name: &str) -> Option<&'a mut Value> {
    let child = parent.as_object_mut()?.entry(name).or_insert(Value::Null);
    if child.is_null() {
        *child = Value::Object(Map::new());
    }
    child.is_object().then_some(child)
}

#[cfg(test)]
mod tests;

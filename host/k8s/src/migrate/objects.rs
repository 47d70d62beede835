//! Patches that remove the marks of Akri's agents from Configurations and Instances, and that restore the state those agents need. Pure.
//!
//! Each change is a JSON merge patch with the resource version that was seen, so that it fails if another writer changed the object. Field
//! managers matter to Akri alone: it writes by server-side apply, which fails on fields that others have set to another value, and removes
//! only fields that it set itself.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{FieldsV1, ManagedFieldsEntry, ObjectMeta};
use kube::ResourceExt as _;
use kube::api::DynamicObject;
use leafhost_core::cluster::is_of_akri;
use leafhost_core::names::API_VERSION;
use leafhost_core::slot::DeviceUsage;
use serde_json::{Map, Value, json};

/// Field manager of the changes.
pub const MANAGER: &str = "leafhost";

/// Returns the patch that removes the marks of Akri's agents from a Configuration, if there are any.
pub fn take_configuration(configuration: &DynamicObject) -> Option<Value> {
    let is_akris = |entry: &ManagedFieldsEntry| is_applied(entry) && has_only_finalizers(entry);
    let kept = managers_but(configuration, is_akris);
    // Without any manager, the API server would assign all fields to one unknown manager.
    unmark(configuration, kept.filter(|kept| !kept.is_empty()))
}

/// Returns the patch that removes the marks of Akri's agents from an Instance, if there are any.
pub fn take_instance(instance: &DynamicObject) -> Option<Value> {
    // Only Akri's agents apply Instances; Akri's controller writes under the name "unknown".
    let is_akris = |entry: &ManagedFieldsEntry| {
        is_applied(entry) || entry.manager.as_deref() == Some("unknown")
    };
    let kept = managers_but(instance, is_akris).map(|mut kept| {
        if kept.is_empty() {
            kept.push(own_entry());
        }
        kept
    });
    unmark(instance, kept)
}

/// Returns the entries that are not Akri's, or `None` if none of them is Akri's.
fn managers_but(
    object: &DynamicObject,
    is_akris: impl Fn(&ManagedFieldsEntry) -> bool,
) -> Option<Vec<ManagedFieldsEntry>> {
    let entries = object.managed_fields();
    let kept: Vec<_> = entries
        .iter()
        .filter(|entry| !is_akris(entry))
        .cloned()
        .collect();
    (kept.len() < entries.len()).then_some(kept)
}

fn is_applied(entry: &ManagedFieldsEntry) -> bool {
    let manager = entry.manager.as_deref().unwrap_or_default();
    entry.operation.as_deref() == Some("Apply") && !manager.starts_with(MANAGER)
}

fn has_only_finalizers(entry: &ManagedFieldsEntry) -> bool {
    let fields = entry.fields_v1.as_ref().map(|fields| &fields.0);
    let only = |value: &Value, key: &str| {
        value
            .as_object()
            .is_some_and(|fields| fields.keys().all(|field| field == key))
    };
    fields.is_none_or(|fields| {
        only(fields, "f:metadata")
            && fields
                .get("f:metadata")
                .is_none_or(|fields| only(fields, "f:finalizers"))
    })
}

fn unmark(object: &DynamicObject, managers: Option<Vec<ManagedFieldsEntry>>) -> Option<Value> {
    let (finalizers, mut metadata) = (object.finalizers(), Map::new());
    if finalizers.iter().any(|name| is_of_akri(name)) {
        let others: Vec<_> = finalizers.iter().filter(|name| !is_of_akri(name)).collect();
        metadata.insert("finalizers".to_owned(), json!(others));
    }
    if let Some(managers) = managers {
        metadata.insert("managedFields".to_owned(), json!(managers));
    }
    (!metadata.is_empty()).then(|| versioned(&object.metadata, metadata))
}

/// Returns the patch that prepares an Instance for Akri's agents, if it needs one: each agent becomes the manager of its own entry of
/// `nodes` and of its own slots, so that it can remove them, and no other manager remains. Slots beyond the capacity, or with an invalid
/// holder, are removed, since Akri's agents could not read an Instance with such slots.
pub fn give_instance(instance: &DynamicObject) -> Option<Value> {
    let spec = instance.data.get("spec")?;
    let capacity = spec.get("capacity").and_then(Value::as_u64);
    let usage = spec.get("deviceUsage").and_then(Value::as_object);
    let mut dropped = Map::new();
    let mut slots: BTreeMap<String, Map<String, Value>> = BTreeMap::new();
    for (slot, holder) in usage.into_iter().flatten() {
        let number = slot
            .rsplit_once('-')
            .and_then(|(_, number)| number.parse().ok());
        let holder: Option<DeviceUsage> = holder.as_str().and_then(|text| text.parse().ok());
        let Some(holder) =
            holder.filter(|_| number.is_some_and(|number: u64| Some(number) < capacity))
        else {
            dropped.insert(slot.clone(), Value::Null);
            continue;
        };
        if let Some(node) = holder.node() {
            let of_node = slots.entry(format!("dp-{node}")).or_default();
            of_node.insert(format!("f:{slot}"), json!({}));
        }
    }
    let nodes = spec.get("nodes").and_then(Value::as_array);
    let nodes = nodes.into_iter().flatten().filter_map(Value::as_str);
    let mut managers: Vec<ManagedFieldsEntry> = nodes
        .map(|node| {
            let fields =
                json!({"f:configurationName": {}, "f:nodes": {format!("v:{}", json!(node)): {}}});
            entry(node, "Apply", &fields)
        })
        .collect();
    let slots = slots.into_iter();
    managers.extend(
        slots.map(|(manager, slots)| entry(&manager, "Apply", &json!({"f:deviceUsage": slots}))),
    );
    if managers.is_empty() {
        managers.push(own_entry());
    }
    let mut metadata = Map::new();
    if !is_same(&managers, instance.managed_fields()) {
        metadata.insert("managedFields".to_owned(), json!(managers));
    }
    if metadata.is_empty() && dropped.is_empty() {
        return None;
    }
    let mut patch = versioned(&instance.metadata, metadata);
    if let Some(fields) = patch.as_object_mut().filter(|_| !dropped.is_empty()) {
        fields.insert("spec".to_owned(), json!({"deviceUsage": dropped}));
    }
    Some(patch)
}

/// Returns true if both lists have the same entries, whatever their order and times.
fn is_same(wanted: &[ManagedFieldsEntry], found: &[ManagedFieldsEntry]) -> bool {
    let said = |entries: &[ManagedFieldsEntry]| {
        let mut said: Vec<String> = entries
            .iter()
            .map(|entry| {
                let fields = entry.fields_v1.as_ref().map(|fields| &fields.0);
                json!([entry.manager, entry.operation, entry.subresource, fields]).to_string()
            })
            .collect();
        said.sort();
        said
    };
    said(wanted) == said(found)
}

/// Returns the patch that removes the status of a Configuration, if it has one. Akri's webhook refuses every change of an object with
/// fields it does not know.
pub fn give_configuration(configuration: &DynamicObject) -> Option<Value> {
    configuration.data.get("status")?;
    let version = &configuration.metadata.resource_version;
    Some(json!({"metadata": {"resourceVersion": version}, "status": null}))
}

/// Builds a patch of metadata that fails if the object has changed since it was seen.
fn versioned(seen: &ObjectMeta, mut metadata: Map<String, Value>) -> Value {
    metadata.insert("resourceVersion".to_owned(), json!(seen.resource_version));
    json!({"metadata": metadata})
}

/// Returns the entry for an Instance that would have no other manager.
fn own_entry() -> ManagedFieldsEntry {
    entry(MANAGER, "Update", &json!({"f:configurationName": {}}))
}

fn entry(manager: &str, operation: &str, spec: &Value) -> ManagedFieldsEntry {
    ManagedFieldsEntry {
        api_version: Some(API_VERSION.to_owned()),
        fields_type: Some("FieldsV1".to_owned()),
        fields_v1: Some(FieldsV1(json!({"f:spec": spec}))),
        manager: Some(manager.to_owned()),
        operation: Some(operation.to_owned()),
        ..ManagedFieldsEntry::default()
    }
}

#[cfg(test)]
mod tests;

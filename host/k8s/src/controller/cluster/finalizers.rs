//! Objects that are being deleted, and their finalizers.

use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Client;
use kube::api::{Api, DynamicObject};
use leafhost_core::cluster::{Deleting, DeletingKind};
use leafhost_core::status_store::WriteError;
use tokio::sync::watch;

use super::{NAME, edit, written};
use crate::instance::api_resource;
use crate::manifest;
use crate::requests::patch_by;

/// Objects of all kinds that are being deleted.
#[derive(Clone, Default)]
pub struct Finalizers(Arc<watch::Sender<Vec<Deleting>>>);

impl Finalizers {
    /// Returns a receiver of all objects.
    pub fn deleting(&self) -> watch::Receiver<Vec<Deleting>> {
        self.0.subscribe()
    }

    /// Replaces the objects of a kind.
    pub fn show<'a>(
        &self,
        kind: DeletingKind,
        objects: impl Iterator<Item = &'a Option<Deleting>>,
    ) {
        let objects: Vec<Deleting> = objects.flatten().cloned().collect();
        self.0.send_if_modified(|shown| {
            let others = shown.iter().filter(|one| one.kind != kind).cloned();
            let next: Vec<Deleting> = others.chain(objects).collect();
            let differs = *shown != next;
            *shown = next;
            differs
        });
    }
}

/// Returns the object if it is being deleted.
pub fn deleting(kind: DeletingKind, metadata: &ObjectMeta) -> Option<Deleting> {
    metadata.deletion_timestamp.as_ref()?;
    let text = |text: &Option<String>| text.clone().unwrap_or_default();
    Some(Deleting {
        kind,
        namespace: text(&metadata.namespace),
        name: text(&metadata.name),
        uid: text(&metadata.uid),
        resource_version: text(&metadata.resource_version),
        finalizers: metadata.finalizers.clone().unwrap_or_default(),
    })
}

/// Sets the finalizers of an object if it is unchanged.
pub async fn set(
    client: &Client,
    object: &Deleting,
    finalizers: &[String],
) -> Result<(), WriteError> {
    let resource = match object.kind {
        DeletingKind::Configuration => manifest::resource(),
        DeletingKind::Instance => api_resource(),
    };
    let api: Api<DynamicObject> =
        Api::namespaced_with(client.clone(), &object.namespace, &resource);
    let patch = edit(
        &object.uid,
        &object.resource_version,
        "/metadata/finalizers",
        finalizers,
    )?;
    let params = patch_by(NAME);
    written(api.patch(&object.name, &params, &patch)).await
}

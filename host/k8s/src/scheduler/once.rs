//! Reads once what `leafhost select` explains: all Instances, and the owners of names.

use std::sync::Arc;

use kube::api::{Api, ListParams};
use kube::core::DeserializeGuard;
use kube::{Client, ResourceExt as _};
use leafhost_core::instance::Instance;
use leafhost_core::resource_names::ResourceNames;

use crate::answers::{self, Failure};
use crate::crd::ResourceName;
use crate::instance::{self, InstanceObject, REQUEST, api_resource};
use crate::names::record;

/// Reads all Instances and the owners of names, with the caller's rights. The error is a description.
pub async fn read(client: &Client) -> Result<(Vec<Arc<Instance>>, ResourceNames), String> {
    let error =
        |what: &str, failure: &Failure| format!("cannot read {what}: {}", failure.describe());
    let api: Api<DeserializeGuard<InstanceObject>> = Api::all_with(client.clone(), &api_resource());
    let params = ListParams::default();
    let listed = answers::within(REQUEST, api.list(&params)).await;
    let listed = listed.map_err(|failure| error("the Instances", &failure))?;
    let instances = listed.into_iter().filter_map(instance::read);
    let names: Api<DeserializeGuard<ResourceName>> = Api::all(client.clone());
    let listed = answers::within(REQUEST, names.list(&params)).await;
    let listed = listed.map_err(|failure| error("the names of resources", &failure))?;
    let names = listed.into_iter();
    let names = names.filter_map(|object| {
        let name = object.name_any();
        Some((name, record(object)?.reservation))
    });
    Ok((instances.collect(), names.collect()))
}

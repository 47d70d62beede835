//! Reads the objects of Akri and Leafhost in a cluster.

use std::collections::BTreeSet;
use std::fmt::Debug;

use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::apps::v1::{DaemonSet, Deployment};
use k8s_openapi::api::core::v1::Node;
use kube::api::{ListParams, ObjectList};
use kube::runtime::wait::await_condition;
use kube::{Api, Client, Resource, ResourceExt as _};
use leafhost_core::text;
use serde::de::DeserializeOwned;

use super::parts::{NAME_LABEL, Part, WRITERS, is_of};
use super::plan::ClusterState;
use super::{Error, failed, within};
use crate::instance::api_resource;
use crate::{crd, manifest, nodes};

/// Number of objects per page of a list.
const PAGE: u32 = 500;

/// Reads all objects that a plan depends on.
pub async fn look(client: &Client) -> Result<ClusterState, Error> {
    let all = ListParams::default();
    let configurations = Api::all_with(client.clone(), &manifest::resource());
    let instances = Api::all_with(client.clone(), &api_resource());
    Ok(ClusterState {
        daemon_sets: every(client, &all).await?,
        deployments: every(client, &all).await?,
        webhooks: every(client, &all).await?,
        definitions: every(client, &all).await?,
        own_definitions: crd::definitions()
            .map_err(|why| failed("read the definitions of Leafhost", &why))?,
        configurations: list(configurations, &all, "Configuration").await?,
        instances: list(instances, &all, "Instance").await?,
        ..pods(client).await?
    })
}

/// Reads the pods of agents and controllers, and the nodes that are Ready.
pub async fn pods(client: &Client) -> Result<ClusterState, Error> {
    let names = WRITERS.join(",");
    // Leafhost's chart can be installed under any names.
    let selectors = [
        format!("{NAME_LABEL} in ({names})"),
        format!(
            "{NAME_LABEL} notin ({names}),helm.sh/chart,app.kubernetes.io/component in (agent,controller)"
        ),
    ];
    let mut pods = Vec::new();
    for selector in selectors {
        let writers = ListParams::default().labels(&selector);
        pods.extend(every(client, &writers).await?);
    }
    let nodes: Vec<Node> = every(client, &ListParams::default()).await?;
    let is_ready = |node: &&Node| nodes::state(node).not_ready_since.is_none();
    let ready = nodes.iter().filter(is_ready).map(Node::name_any);
    Ok(ClusterState {
        pods,
        ready_nodes: ready.collect::<BTreeSet<_>>(),
        ..ClusterState::default()
    })
}

/// Waits until the controllers of Kubernetes have observed the current workloads of these parts.
pub async fn until_observed(client: &Client, parts: &[Part]) -> Result<(), Error> {
    let of_set = |set: &DaemonSet| set.status.as_ref()?.observed_generation;
    observed(client, parts, of_set).await?;
    let of_deployment = |one: &Deployment| one.status.as_ref()?.observed_generation;
    observed(client, parts, of_deployment).await
}

async fn observed<K>(
    client: &Client,
    parts: &[Part],
    generation: impl Fn(&K) -> Option<i64>,
) -> Result<(), Error>
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope>,
    K: Clone + Debug + DeserializeOwned + Send + 'static,
{
    let all: Vec<K> = every(client, &ListParams::default()).await?;
    for object in all.iter().filter(|one| is_of(one.meta(), parts)) {
        let (name, wanted) = (object.name_any(), object.meta().generation);
        let api = Api::namespaced(client.clone(), &object.namespace().unwrap_or_default());
        let is_seen = |now: Option<&K>| now.is_none_or(|now| generation(now) >= wanted);
        await_condition(api, &name, is_seen)
            .await
            .map_err(|error| failed(&format!("watch {name}"), &text::chain(&error)))?;
    }
    Ok(())
}

/// Returns all objects of a kind in all namespaces.
async fn every<K>(client: &Client, selected: &ListParams) -> Result<Vec<K>, Error>
where
    K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned,
{
    list(Api::all(client.clone()), selected, &K::kind(&())).await
}

/// Returns all objects, or none if the API server does not know the kind.
async fn list<K: Clone + Debug + DeserializeOwned>(
    api: Api<K>,
    selected: &ListParams,
    kind: &str,
) -> Result<Vec<K>, Error> {
    let mut params = selected.clone().limit(PAGE);
    let mut found = Vec::new();
    loop {
        let page = async {
            match api.list(&params).await {
                Err(kube::Error::Api(status)) if status.code == 404 => Ok(None),
                page => page.map(Some),
            }
        };
        let page: Option<ObjectList<K>> = within(page, &format!("list {kind}s")).await?;
        let Some(page) = page else {
            return Ok(found);
        };
        found.extend(page.items);
        match page.metadata.continue_.filter(|next| !next.is_empty()) {
            Some(next) => params = params.continue_token(&next),
            None => return Ok(found),
        }
    }
}

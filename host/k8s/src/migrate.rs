//! Migrates a cluster from Akri, and back.
//!
//! The steps follow from the state of the cluster ([`plan()`]), so an interrupted run can be repeated. Objects, their uids, slots and pods
//! stay. The mark of a stopped workload is on the workload itself, so restarting it needs no other record.

mod objects;
mod parts;
mod plan;
mod survey;
mod workloads;

use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{DynamicObject, Patch, PatchParams};
use kube::runtime::wait::{await_condition, conditions};
use kube::{Api, Client, Resource as _, ResourceExt as _};
use leafhost_core::text;
use serde_json::Value;
use tokio::time::timeout;

pub use plan::{Plan, Step};

use crate::answers;
use crate::requests::patch_by;
use objects::MANAGER;
use parts::{Part, is_of};
use plan::{Action, Edit};

/// Timeout of a request.
const REQUEST: Duration = Duration::from_secs(30);
/// Maximum wait for the end of pods; Akri's agents ignore SIGTERM until their grace period of 30 s is over.
const PODS: Duration = Duration::from_mins(3);

/// Direction of the migration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// Leafhost takes over.
    FromAkri,
    /// Akri takes over again.
    ToAkri,
}

/// Reason why the migration cannot continue.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The API server did not execute a request, or pods do not end; the text has the reason and the remedy.
    #[error("{0}")]
    Failed(String),
    /// An object was changed by another writer.
    #[error("{0} has changed since it was read; run this again to continue where it stopped")]
    Changed(String),
}

/// Plans the remaining steps.
pub async fn plan(client: &Client, direction: Direction) -> Result<Plan, Error> {
    let seen = survey::look(client).await?;
    Ok(match direction {
        Direction::FromAkri => plan::from_akri(&seen),
        Direction::ToAkri => plan::to_akri(&seen),
    })
}

/// Executes a step. Returns [`Error::Changed`] if a patch names the resource version of an object that has changed since it was read.
pub async fn run(client: &Client, step: &Step) -> Result<(), Error> {
    match &step.action {
        Action::Patch(edits) => {
            for edit in edits {
                patch(client, edit).await?;
            }
            Ok(())
        }
        Action::Wait => wait(client).await,
        Action::Define(definitions) => {
            let api: Api<CustomResourceDefinition> = Api::all(client.clone());
            let params = PatchParams::apply(MANAGER).force();
            for definition in definitions {
                let name = definition.name_any();
                let patch = Patch::Apply(definition);
                let request = api.patch(&name, &params, &patch);
                within(request, &format!("replace the definition {name}")).await?;
            }
            Ok(())
        }
    }
}

async fn patch(client: &Client, edit: &Edit) -> Result<(), Error> {
    let (client, resource, name) = (client.clone(), &edit.resource, &edit.name);
    let api: Api<DynamicObject> = match &edit.namespace {
        Some(namespace) => Api::namespaced_with(client, namespace, resource),
        None => Api::all_with(client, resource),
    };
    let params = patch_by(MANAGER);
    let patch: Patch<&Value> = Patch::Merge(&edit.patch);
    let what = || {
        let namespace = edit
            .namespace
            .as_ref()
            .map(|namespace| format!("{namespace}/"));
        format!("{} {}{name}", resource.kind, namespace.unwrap_or_default())
    };
    let request = async {
        // A status is written only through its subresource.
        if edit.patch.get("status").is_some() {
            api.patch_status(name, &params, &patch).await
        } else {
            api.patch(name, &params, &patch).await
        }
    };
    match answers::within(REQUEST, request).await {
        Ok(_) => Ok(()),
        // An object that is gone needs no change.
        Err(failure) if failure.code == Some(404) => Ok(()),
        Err(failure) if failure.code == Some(409) => Err(Error::Changed(what())),
        Err(failure) => Err(failed(&format!("change {}", what()), &failure.message)),
    }
}

/// Waits for the end of the pods of Akri's agents and controller, whose workloads are stopped.
async fn wait(client: &Client) -> Result<(), Error> {
    let parts = [Part::Agent, Part::Controller];
    if let Ok(ended) = timeout(PODS, ended(client, &parts)).await {
        return ended;
    }
    let seen = survey::pods(client).await?;
    Err(Error::Failed(format!(
        "these pods have not ended after 3 minutes: {}; find out why, and run this again to continue where it stopped",
        plan::pods(&seen, &parts).0.join(", ")
    )))
}

async fn ended(client: &Client, parts: &[Part]) -> Result<(), Error> {
    // A controller that has not seen the change yet could still create a pod.
    survey::until_observed(client, parts).await?;
    loop {
        let seen = survey::pods(client).await?;
        let is_one =
            |pod: &&Pod| is_of(pod.meta(), parts) && plan::is_waited_for(pod, &seen.ready_nodes);
        let Some(pod) = seen.pods.iter().find(is_one) else {
            return Ok(());
        };
        let (name, uid) = (pod.name_any(), pod.uid().unwrap_or_default());
        let pods = Api::namespaced(client.clone(), &pod.namespace().unwrap_or_default());
        let gone = await_condition::<Pod>(pods, &name, conditions::is_deleted(&uid));
        gone.await
            .map_err(|error| failed(&format!("watch pod {name}"), &text::chain(&error)))?;
    }
}

async fn within<T>(request: impl Future<Output = kube::Result<T>>, what: &str) -> Result<T, Error> {
    let answer = answers::within(REQUEST, request).await;
    answer.map_err(|failure| failed(what, &failure.message))
}

fn failed(what: &str, why: &str) -> Error {
    Error::Failed(format!(
        "cannot {what}: {why}; correct it and run this again to continue where it stopped"
    ))
}

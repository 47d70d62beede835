//! Plans the migration from the state of the cluster. Pure: after some steps of a plan were executed, a new plan has the remaining ones.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::admissionregistration::v1::ValidatingWebhookConfiguration;
use k8s_openapi::api::apps::v1::{DaemonSet, Deployment};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{ApiResource, DynamicObject};
use kube::{Resource, ResourceExt as _};
use leafhost_core::names::{API_VERSION, GROUP};
use leafhost_core::text::few;
use leafhost_core::yaml;
use serde_json::{Value, json};

use super::objects;
use super::parts::{Part, is_of, part, release, shown};
use super::workloads::{ask, is_stopped, scale_down, scale_up, start, stop};
use crate::instance::api_resource;
use crate::manifest::{self, embedded};

/// Definitions of Akri that Leafhost has, too.
const DEFINITIONS: [&str; 2] = ["configurations.akri.sh", "instances.akri.sh"];
/// Maximum number of objects that a note or a blocker names.
const NAMED: usize = 10;

/// State of a cluster.
#[derive(Debug, Default)]
pub struct ClusterState {
    pub daemon_sets: Vec<DaemonSet>,
    pub deployments: Vec<Deployment>,
    pub webhooks: Vec<ValidatingWebhookConfiguration>,
    /// Pods of agents and controllers.
    pub pods: Vec<Pod>,
    pub ready_nodes: BTreeSet<String>,
    pub definitions: Vec<CustomResourceDefinition>,
    /// Definitions of this Leafhost.
    pub own_definitions: Vec<CustomResourceDefinition>,
    pub configurations: Vec<DynamicObject>,
    pub instances: Vec<DynamicObject>,
}

/// Steps of a migration, and facts for the operator.
#[derive(Debug, Default)]
pub struct Plan {
    /// Summary of the installation of Akri, one line each.
    pub found: Vec<String>,
    /// True if a `DaemonSet` of Akri is stopped.
    pub is_akri_stopped: bool,
    /// Problems to solve before the migration.
    pub blockers: Vec<String>,
    /// Facts to know before the migration.
    pub notes: Vec<String>,
    /// Configurations as YAML with their names, for a caller whose handlers can check them.
    pub configurations: Vec<(String, String)>,
    /// Steps in the order of their execution.
    pub steps: Vec<Step>,
}

/// One step of a plan.
#[derive(Debug)]
pub struct Step {
    /// Description, as a sentence without a full stop.
    pub text: String,
    pub(super) action: Action,
}

#[derive(Debug)]
pub(super) enum Action {
    /// Patches each object.
    Patch(Vec<Edit>),
    /// Waits until the pods of Akri's agents and controller have ended, except those whose node is not Ready.
    Wait,
    /// Replaces these definitions.
    Define(Vec<CustomResourceDefinition>),
}

/// A JSON merge patch of an object.
#[derive(Debug)]
pub(super) struct Edit {
    pub resource: ApiResource,
    pub namespace: Option<String>,
    pub name: String,
    pub patch: Value,
}

/// Plans the migration of a cluster from Akri to Leafhost.
pub fn from_akri(seen: &ClusterState) -> Plan {
    let mut plan = Plan {
        found: found(seen),
        is_akri_stopped: seen.daemon_sets.iter().any(is_stopped),
        notes: notes(seen),
        configurations: seen.configurations.iter().filter_map(text).collect(),
        ..Plan::default()
    };
    plan.patch(
        |names| format!("Keep the API server from asking Akri's webhook {names}, which refuses Configurations that have a status"),
        &(),
        seen.webhooks.iter().filter(|one| is_of(one.meta(), &[Part::Webhook])),
        |one| ask(one, false),
    );
    let stopped = [Part::Agent, Part::Handler];
    plan.patch(
        |names| format!("Stop the DaemonSets {names}: from now on their pods need a node with a label that no node has"),
        &(),
        seen.daemon_sets.iter().filter(|one| is_of(one.meta(), &stopped)),
        stop,
    );
    plan.patch(
        |names| format!("Scale the Deployment {names} to 0"),
        &(),
        seen.deployments
            .iter()
            .filter(|one| is_of(one.meta(), &[Part::Controller])),
        scale_down,
    );
    let (waits, left) = pods(seen, &[Part::Agent, Part::Controller]);
    if !left.is_empty() {
        plan.notes.push(format!(
            "These pods of Akri are on nodes that are not Ready, and are not waited for: {}. If such a node comes back, its kubelet ends them",
            few(&left, NAMED)
        ));
    }
    if !plan.steps.is_empty() || !waits.is_empty() {
        plan.add(
            "Wait until the pods of Akri's agents and controller have ended",
            Action::Wait,
        );
    }
    plan.patch(
        |count| format!("Remove the finalizers and field managers of Akri's agents from {count}"),
        &manifest::resource(),
        &seen.configurations,
        objects::take_configuration,
    );
    plan.patch(
        |count| format!("Remove the finalizers and field managers of Akri's agents from {count}"),
        &api_resource(),
        &seen.instances,
        objects::take_instance,
    );
    let outdated = outdated(seen);
    if !outdated.is_empty() {
        plan.add(
            format!("Replace the definitions {} by those of this Leafhost, which have all fields of Akri's", DEFINITIONS.join(" and ")),
            Action::Define(outdated),
        );
    }
    plan
}

/// Plans the return of a cluster to Akri.
pub fn to_akri(seen: &ClusterState) -> Plan {
    let mut plan = Plan {
        found: found(seen),
        ..Plan::default()
    };
    let workloads = seen
        .daemon_sets
        .iter()
        .map(|one| ("DaemonSet", shown(one), one.meta()));
    let deployments = seen
        .deployments
        .iter()
        .map(|one| ("Deployment", shown(one), one.meta()));
    for (kind, name, metadata) in workloads.chain(deployments) {
        if part(metadata) == Some(Part::Leafhost) {
            let namespace = metadata.namespace.as_deref().unwrap_or_default();
            let release = release(metadata).unwrap_or("leafhost");
            plan.blockers.push(format!(
                "Leafhost's {kind} {name} exists: helm uninstall {release} --namespace {namespace} removes it and keeps Configurations, Instances and running pods"
            ));
        }
    }
    let (waits, _) = pods(seen, &[Part::Leafhost]);
    if plan.blockers.is_empty() && !waits.is_empty() {
        plan.blockers.push(format!(
            "These pods of Leafhost have not ended yet: {}",
            few(&waits, NAMED)
        ));
    }
    let mut agents = seen.daemon_sets.iter();
    // Akri's agents are started last. Once they run, the objects belong to them.
    if !agents.any(|one| is_of(one.meta(), &[Part::Agent]) && !is_stopped(one)) {
        give_objects(seen, &mut plan);
    }
    plan.patch(
        |names| format!("Let the API server ask Akri's webhook {names} again"),
        &(),
        &seen.webhooks,
        |one| ask(one, true),
    );
    plan.patch(
        |names| format!("Scale the Deployment {names} to the replicas that it had"),
        &(),
        &seen.deployments,
        scale_up,
    );
    plan.patch(
        |names| format!("Start the DaemonSets {names}"),
        &(),
        &seen.daemon_sets,
        start,
    );
    if plan.steps.is_empty() {
        return plan;
    }
    let mut agents = seen.daemon_sets.iter();
    if !agents.any(|one| is_of(one.meta(), &[Part::Agent])) {
        plan.notes
            .push("Akri's agents are not installed: install Akri when this is done".to_owned());
    }
    plan.notes.push(
        "Akri's agents delete the Instances of their nodes when they start, and create new ones: their brokers end and are created again".to_owned(),
    );
    plan
}

/// Adds the steps that restore the objects for Akri's agents.
fn give_objects(seen: &ClusterState, plan: &mut Plan) {
    for one in &seen.configurations {
        let unreadable = one.data.get("spec").map(embedded::unreadable);
        for why in unreadable.into_iter().flatten() {
            plan.blockers.push(format!(
                "Akri's agents stop at Configuration {}: {why}; correct or delete it",
                shown(one)
            ));
        }
    }
    plan.patch(
        |count| format!("Make each agent of Akri the field manager of its own slots and entries in {count}, and remove slots that are beyond the capacity"),
        &api_resource(),
        &seen.instances,
        objects::give_instance,
    );
    plan.patch(
        |count| format!("Remove the status of {count}, which Akri's webhook would refuse"),
        &manifest::resource(),
        &seen.configurations,
        objects::give_configuration,
    );
}

impl Plan {
    fn add(&mut self, text: impl Into<String>, action: Action) {
        let text = text.into();
        self.steps.push(Step { text, action });
    }

    /// Adds a step that patches the objects of a kind for which `patch` returns a patch; `text` gets their names or their number.
    fn patch<'o, K: Resource + 'o>(
        &mut self,
        text: impl Fn(&str) -> String,
        kind: &K::DynamicType,
        objects: impl IntoIterator<Item = &'o K>,
        patch: impl Fn(&K) -> Option<Value>,
    ) {
        let resource = ApiResource::erase::<K>(kind);
        let (mut names, mut edits) = (Vec::new(), Vec::new());
        for object in objects {
            if let Some(patch) = patch(object) {
                names.push(shown(object));
                edits.push(Edit {
                    resource: resource.clone(),
                    namespace: object.namespace(),
                    name: object.name_any(),
                    patch,
                });
            }
        }
        if edits.is_empty() {
            return;
        }
        let text = match resource.group.as_str() {
            GROUP => text(&count(names.len(), &resource.kind)),
            _ => text(&names.join(", ")),
        };
        self.add(text, Action::Patch(edits));
    }
}

/// Describes the installation of Akri.
fn found(seen: &ClusterState) -> Vec<String> {
    let agents = seen
        .daemon_sets
        .iter()
        .filter(|one| is_of(one.meta(), &[Part::Agent]));
    let mut found: Vec<String> = agents
        .map(|one| {
            let version = one.labels().get("app.kubernetes.io/version");
            let version = version.map_or("of an unknown version", String::as_str);
            let release = release(one.meta()).map(|release| format!(", Helm release {release}"));
            let pods = one
                .status
                .as_ref()
                .map_or(0, |status| status.current_number_scheduled);
            let state = if is_stopped(one) { ", stopped" } else { "" };
            format!(
                "Akri {version}: DaemonSet {}, {}{}{state}",
                shown(one),
                count(usize::try_from(pods).unwrap_or_default(), "pod"),
                release.unwrap_or_default()
            )
        })
        .collect();
    found.push(format!(
        "{}, {}",
        count(seen.configurations.len(), "Configuration"),
        count(seen.instances.len(), "Instance")
    ));
    found
}

/// Returns the notes for an operator before Akri is removed.
fn notes(seen: &ClusterState) -> Vec<String> {
    let mut notes = Vec::new();
    let mut of_releases: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for one in &seen.configurations {
        if let Some(release) = release(&one.metadata) {
            of_releases.entry(release).or_default().push(shown(one));
        }
    }
    for (release, names) in of_releases {
        notes.push(format!(
            "The Helm release {release} has created the Configurations {}: helm uninstall and helm upgrade of it would delete or change them. \
             docs/from-akri.md says how to remove Akri without them",
            few(&names, NAMED)
        ));
    }
    for one in &seen.daemon_sets {
        match part(one.meta()) {
            Some(Part::OtherHandler) => notes.push(format!(
                "The handler of DaemonSet {} continues, and registers with Leafhost's agents. What its devices add to a container needs grants: docs/external.md",
                shown(one)
            )),
            Some(Part::Agent) => {
                let version = one.labels().get("app.kubernetes.io/version");
                if version.is_some_and(|version| !version.starts_with("0.13.")) {
                    notes.push("This migration was tested with Akri 0.13 only".to_owned());
                }
            }
            _ => {}
        }
    }
    for one in &seen.configurations {
        let problems = one.data.get("spec").map(embedded::problems);
        for problem in problems.into_iter().flatten() {
            notes.push(format!("Configuration {}: {problem}", shown(one)));
        }
    }
    notes
}

/// Formats a Configuration as a user would write it.
fn text(configuration: &DynamicObject) -> Option<(String, String)> {
    let (name, spec) = (configuration.name_any(), configuration.data.get("spec")?);
    let metadata = json!({"name": name, "namespace": configuration.namespace()});
    let object = json!({"apiVersion": API_VERSION, "kind": "Configuration", "metadata": metadata, "spec": spec});
    let text = yaml::write(&object).ok()?;
    Some((format!("Configuration {}", shown(configuration)), text))
}

fn count(number: usize, what: &str) -> String {
    let plural = if number == 1 { "" } else { "s" };
    format!("{number} {what}{plural}")
}

/// Returns the pods of some parts that are waited for, and those whose node is not Ready.
pub(super) fn pods(seen: &ClusterState, parts: &[Part]) -> (Vec<String>, Vec<String>) {
    let of_them = seen.pods.iter().filter(|pod| is_of(pod.meta(), parts));
    let (waits, left): (Vec<&Pod>, Vec<&Pod>) =
        of_them.partition(|pod| is_waited_for(pod, &seen.ready_nodes));
    let names = |pods: Vec<&Pod>| pods.into_iter().map(shown).collect();
    (names(waits), names(left))
}

/// Returns true if the migration waits for the end of a pod: its node is Ready, or it has none. A pod without a node has no process yet,
/// and ends at once.
pub(super) fn is_waited_for(pod: &Pod, ready: &BTreeSet<String>) -> bool {
    let node = pod.spec.as_ref().and_then(|spec| spec.node_name.as_ref());
    node.is_none_or(|node| ready.contains(node))
}

/// Returns the definitions of Leafhost of which the cluster has an incomplete version.
fn outdated(seen: &ClusterState) -> Vec<CustomResourceDefinition> {
    let ours = seen.own_definitions.iter();
    ours.filter(|ours| {
        let name = ours.name_any();
        let mut found = seen.definitions.iter();
        let theirs = found.find(|theirs| theirs.name_any() == name);
        // Helm installs missing definitions.
        DEFINITIONS.contains(&&*name)
            && theirs.is_some_and(|theirs| !has(&json!(theirs.spec), &json!(ours.spec)))
    })
    .cloned()
    .collect()
}

/// Returns true if `whole` contains all of `part`; the API server adds defaults.
fn has(whole: &Value, part: &Value) -> bool {
    match (whole, part) {
        (Value::Object(whole), Value::Object(part)) => part
            .iter()
            .all(|(key, part)| whole.get(key).is_some_and(|whole| has(whole, part))),
        (Value::Array(whole), Value::Array(part)) => {
            whole.len() == part.len()
                && whole.iter().zip(part).all(|(whole, part)| has(whole, part))
        }
        (Value::Number(whole), Value::Number(part)) => whole.as_f64() == part.as_f64(),
        _ => whole == part,
    }
}

#[cfg(test)]
mod tests;

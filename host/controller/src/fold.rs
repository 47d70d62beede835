//! Folds the reports of all nodes on a Configuration into one status and its problems. Pure.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use leafhost_core::cluster::{Classes, NodeSet};
use leafhost_core::configuration::Backend;
use leafhost_core::names::{ConfigurationKey, class_name};
use leafhost_core::node_report::{HANDLER_REFUSED, ReportedConfiguration, ReportedProblem};
use leafhost_core::ports::InstanceSet;
use leafhost_core::problem::{Problem, Reason, Subject};
use leafhost_core::resource_names::{NameOwners, ResourceNames};
use leafhost_core::status_store::{
    Condition, ConditionType, ConfigurationState, ConfigurationStates, ConfigurationStatus,
    Regarding, ReportSet, Truth,
};
use leafhost_core::text::few;

use crate::names::of_states;

/// Maximum number of node names in a message.
const NAMED: usize = 3;

/// Reason of an Event on objects that a handler found but that did not become devices.
const LEFT_OUT: &str = "DevicesLeftOut";

/// State of the cluster that the statuses are computed from.
pub struct ClusterState<'a> {
    pub nodes: &'a NodeSet,
    pub configurations: &'a ConfigurationStates,
    /// Reports of the nodes.
    pub reports: &'a ReportSet,
    pub instances: &'a InstanceSet,
    /// Names that namespaces have reserved.
    pub names: &'a ResourceNames,
    /// Problems of brokers.
    pub brokers: &'a [Problem],
    /// Problems of Configurations whose pods are not restarted although they ask for that.
    pub restarts: &'a [Problem],
    /// Device classes of Configurations whose devices the scheduler allocates.
    pub classes: &'a Classes,
}

/// Statuses and Events to write.
#[derive(Debug, Default, PartialEq)]
pub struct Folded {
    /// Statuses by Configuration, without those that are being deleted or whose reports are all on older versions.
    pub statuses: BTreeMap<ConfigurationKey, ConfigurationStatus>,
    /// Messages of Events, by object and reason.
    pub events: BTreeMap<(Regarding, String), String>,
}

/// Folds the state of the cluster into statuses and Events. A condition whose status is unchanged keeps its transition time.
pub fn fold(seen: &ClusterState<'_>, now: Timestamp) -> Folded {
    let mut folded = Folded::default();
    let mut reported = by_configuration(seen);
    let owners = of_states(seen.names, seen.configurations);
    let devices = devices(seen, &owners);
    for (key, configuration) in &seen.configurations.configurations {
        if configuration.is_deleting {
            continue;
        }
        let reported = reported.remove(key).unwrap_or_default();
        // A node that cannot use a new version reports that next to the version it accepted before.
        let is_newest = |one: &Report<'_>| {
            let generation = one.reported.generation;
            generation.is_none_or(|generation| generation >= configuration.generation)
                || reason(one.reported) == Some(Reason::InvalidSource)
        };
        let reports: Vec<Report<'_>> = reported.iter().copied().filter(is_newest).collect();
        if reports.is_empty() && !reported.is_empty() {
            continue;
        }
        let found = devices.get(key);
        let taken = owners.taken_from(key.namespace(), key.name());
        let is_taken = taken.is_some();
        let taken = taken.map(|owner| Problem::NameTaken {
            configuration: key.clone(),
            owner: owner.to_string(),
            consumer: "the kubelet",
        });
        let taken = taken
            .or_else(|| found?.taken.clone())
            .as_ref()
            .map(ReportedProblem::from);
        let mut problems = problems(&reports, taken.as_ref());
        let mut conditions = conditions(&reports, &problems, taken.as_ref());
        if let Some((update, is_problem)) = left_out(&reports, &configuration.handler) {
            if is_problem {
                problems.insert(LEFT_OUT.to_owned(), update.message.clone());
            }
            conditions.push(update);
        }
        conditions.extend(allocation(seen, key, configuration, &problems));
        if let Some(Err(problem)) = seen.classes.get(key) {
            let problem = ReportedProblem::from(problem);
            problems.insert(problem.reason, problem.message);
        }
        for (kind, all) in [
            (ConditionType::BrokersMade, seen.brokers),
            (ConditionType::PodsRestarted, seen.restarts),
        ] {
            let own = all.iter();
            let own = own.filter(|one| one.subject() == Subject::Configuration(key));
            let own: Vec<ReportedProblem> = own.map(Into::into).collect();
            let first = own.first();
            conditions.extend(first.map(|problem| ConditionUpdate::failed(kind, problem)));
            problems.extend(own.into_iter().map(|one| (one.reason, one.message)));
        }
        let ready = reports.iter().filter(|one| !is_blocked(one.reported));
        let ready = if is_taken { 0 } else { ready.count() };
        let mut status = ConfigurationStatus {
            observed_generation: configuration.generation,
            ready: format!("{ready}/{}", reported.len()),
            nodes: reported.len(),
            ready_nodes: ready,
            devices: found.map_or(0, |found| found.count),
            conditions: Vec::new(),
        };
        let before = configuration.status.as_ref();
        status.conditions = conditions
            .into_iter()
            .map(|update| update.since(before, configuration, now))
            .collect();
        folded.statuses.insert(key.clone(), status);
        for (reason, message) in problems {
            let regarding = Regarding::Configuration(key.clone(), configuration.uid.clone());
            folded.events.insert((regarding, reason), message);
        }
    }
    refused_handlers(seen, &mut folded);
    folded
}

/// Report of one node on a Configuration.
#[derive(Debug, Clone, Copy)]
struct Report<'a> {
    node: &'a str,
    reported: &'a ReportedConfiguration,
}

fn reason(reported: &ReportedConfiguration) -> Option<Reason> {
    reported.problem.as_ref()?.reason.parse().ok()
}

/// Returns true if the report shows that the Configuration does not work on its node.
pub fn is_blocked(reported: &ReportedConfiguration) -> bool {
    let concerns = reason(reported).map(concerns);
    concerns.is_some_and(|concerns| concerns != Concerns::Remark)
}

/// Part of a Configuration that a reason is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Concerns {
    /// The handler is still loading.
    Loading,
    /// The agent does not take the Configuration because there are too many.
    LeftOut,
    /// The handler is missing.
    Handler,
    /// The Configuration is invalid.
    Details,
    /// The handler is not called, or fails.
    Discovery,
    /// Devices are found but not offered to the scheduler.
    Allocation,
    /// The Configuration works.
    Remark,
}

fn concerns(reason: Reason) -> Concerns {
    match reason {
        Reason::HandlerLoading => Concerns::Loading,
        Reason::TooManyConfigurations => Concerns::LeftOut,
        Reason::HandlerNotFound | Reason::HandlerRemoved => Concerns::Handler,
        Reason::InvalidDetails | Reason::InvalidSource => Concerns::Details,
        Reason::DiscoveryFailed | Reason::PropertyUnavailable => Concerns::Discovery,
        Reason::DraUnavailable => Concerns::Allocation,
        _ => Concerns::Remark,
    }
}

/// Returns true if the node is Ready, so that its reports count.
pub fn is_ready(nodes: &NodeSet, node: &str) -> bool {
    let state = nodes.nodes.get(node);
    state.is_some_and(|state| state.not_ready_since.is_none())
}

/// Returns the reports of Ready nodes by Configuration. Only reports of the handler that the Configuration names now count.
fn by_configuration<'a>(
    seen: &ClusterState<'a>,
) -> BTreeMap<&'a ConfigurationKey, Vec<Report<'a>>> {
    let mut all: BTreeMap<_, Vec<_>> = BTreeMap::new();
    for ((node, handler), report) in &seen.reports.handlers {
        if !is_ready(seen.nodes, node) {
            continue;
        }
        for (key, reported) in &report.configurations {
            let configuration = seen.configurations.configurations.get(key);
            if configuration.is_some_and(|configuration| configuration.handler == *handler) {
                all.entry(key).or_default().push(Report { node, reported });
            }
        }
    }
    all
}

/// Summary of a Configuration's Instances.
#[derive(Debug, Default)]
struct Devices {
    /// Number of Instances that a Ready node sees.
    count: usize,
    /// Problem of the first Instance whose name belongs to another namespace.
    taken: Option<Problem>,
}

fn devices(
    seen: &ClusterState<'_>,
    owners: &NameOwners<'_>,
) -> BTreeMap<ConfigurationKey, Devices> {
    let mut all: BTreeMap<_, Devices> = BTreeMap::new();
    for (key, instance) in &seen.instances.instances {
        let mut nodes = instance.spec.nodes.iter();
        let is_seen = nodes.any(|node| is_ready(seen.nodes, node));
        let (true, Some(configuration)) = (is_seen, instance.configuration()) else {
            continue;
        };
        let devices = all.entry(configuration).or_default();
        devices.count = devices.count.saturating_add(1);
        if devices.taken.is_none() {
            let owner = owners.taken_from(&key.namespace, &key.name);
            devices.taken = owner.map(|owner| Problem::InstanceNameTaken {
                instance: key.clone(),
                owner: owner.to_string(),
            });
        }
    }
    all
}

/// Returns the problems by reason, each with the nodes that have it. The controller itself knows that a name is `taken`.
fn problems(reports: &[Report<'_>], taken: Option<&ReportedProblem>) -> BTreeMap<String, String> {
    let mut by_reason: BTreeMap<&str, NodeMessages<'_>> = BTreeMap::new();
    for report in reports {
        if let Some(problem) = &report.reported.problem
            && problem.reason != <&str>::from(Reason::HandlerLoading)
        {
            let node_messages = by_reason.entry(&problem.reason).or_default();
            node_messages.add(report.node, &problem.message);
        }
    }
    let all = by_reason.into_iter();
    let mut all: BTreeMap<String, String> = all
        .map(|(reason, node_messages)| (reason.to_owned(), node_messages.describe(reports.len())))
        .collect();
    if let Some(taken) = taken {
        all.insert(taken.reason.clone(), taken.message.clone());
    }
    all
}

/// Nodes that have a problem, and their messages with counts.
#[derive(Debug, Default)]
struct NodeMessages<'a> {
    nodes: BTreeSet<&'a str>,
    messages: BTreeMap<&'a str, usize>,
}

impl<'a> NodeMessages<'a> {
    fn add(&mut self, node: &'a str, message: &'a str) {
        self.nodes.insert(node);
        let count = self.messages.entry(message).or_default();
        *count = count.saturating_add(1);
    }

    /// Returns a text with the nodes and the most frequent message.
    fn describe(&self, of: usize) -> String {
        let names = few(&self.nodes, NAMED);
        let messages = self.messages.iter();
        let message = messages.max_by_key(|(message, count)| (*count, std::cmp::Reverse(*message)));
        let message = message.map_or("", |(message, _)| *message);
        match self.nodes.len() {
            count if count == of => format!("on {names}: {message}"),
            count => format!("on {count} of {of} nodes ({names}): {message}"),
        }
    }
}

/// A condition without its transition time.
struct ConditionUpdate {
    kind: ConditionType,
    status: Truth,
    reason: String,
    message: String,
}

impl ConditionUpdate {
    fn new(kind: ConditionType, status: Truth, reason: &str, message: String) -> Self {
        Self {
            kind,
            status,
            reason: reason.to_owned(),
            message,
        }
    }

    /// Creates a condition that is false because of a problem.
    fn failed(kind: ConditionType, problem: &ReportedProblem) -> Self {
        let message = problem.message.clone();
        Self::new(kind, Truth::False, &problem.reason, message)
    }

    fn since(
        self,
        before: Option<&ConfigurationStatus>,
        configuration: &ConfigurationState,
        now: Timestamp,
    ) -> Condition {
        let mut before = before.into_iter().flat_map(|before| &before.conditions);
        let same = before.find(|before| (before.kind, before.status) == (self.kind, self.status));
        Condition {
            kind: self.kind,
            status: self.status,
            reason: self.reason,
            message: self.message,
            observed_generation: configuration.generation,
            last_transition_time: same.map_or(now, |same| same.last_transition_time),
        }
    }
}

fn conditions(
    reports: &[Report<'_>],
    problems: &BTreeMap<String, String>,
    taken: Option<&ReportedProblem>,
) -> Vec<ConditionUpdate> {
    use Concerns::{Allocation, Details, Discovery, Handler, LeftOut, Remark};

    let of = |wanted: &[Concerns]| {
        let mut found = problems.iter();
        found.find(|(reason, _)| {
            let reason: Option<Reason> = reason.parse().ok();
            reason.is_some_and(|reason| wanted.contains(&concerns(reason)))
        })
    };
    let with = ConditionUpdate::new;
    let has = |wanted: &[Concerns]| {
        let mut all = reports.iter().map(|one| reason(one.reported).map(concerns));
        all.any(|concerns| concerns.is_none_or(|concerns| wanted.contains(&concerns)))
    };
    let judge = |kind, wrong: &[Concerns], right: &[Concerns], word: &str, message: &str| {
        if let Some((reason, message)) = of(wrong) {
            with(kind, Truth::False, reason, message.clone())
        } else if has(right) {
            with(kind, Truth::True, word, message.to_owned())
        } else if let Some((reason, message)) = of(&[LeftOut, Handler, Details, Discovery]) {
            with(kind, Truth::Unknown, reason, message.clone())
        } else if reports.is_empty() {
            let message = "no node that is Ready reports on it; look at the agents: kubectl get pods, kubectl get dh";
            with(kind, Truth::Unknown, "NoReport", message.to_owned())
        } else {
            let reason = <&str>::from(Reason::HandlerLoading);
            let message = "the handler is being loaded";
            with(kind, Truth::Unknown, reason, message.to_owned())
        }
    };
    // An agent may know this before the controller does.
    let reported = || {
        let reason = <&str>::from(Reason::NameTaken);
        problems.get(reason).map(|message| (reason, message))
    };
    let taken = taken.map(|taken| (&*taken.reason, &taken.message));
    let kind = ConditionType::NameTaken;
    let name_taken = if let Some((reason, message)) = taken.or_else(reported) {
        with(kind, Truth::True, reason, message.clone())
    } else {
        let message = "no other namespace has the name";
        with(kind, Truth::False, "NameFree", message.to_owned())
    };
    vec![
        judge(
            ConditionType::HandlerAvailable,
            &[Handler],
            &[Details, Discovery, Allocation, Remark],
            "HandlerFound",
            "each node that reports has the handler",
        ),
        judge(
            ConditionType::DetailsValid,
            &[Details],
            &[Discovery, Allocation, Remark],
            "DetailsAccepted",
            "the handler accepts the details",
        ),
        judge(
            ConditionType::Discovering,
            &[LeftOut, Handler, Details, Discovery],
            &[Allocation, Remark],
            "HandlerAnswers",
            "the handler looks for devices",
        ),
        name_taken,
    ]
}

/// Returns the conditions on the offer of the devices to the scheduler, or none if the Configuration does not use DRA.
fn allocation(
    seen: &ClusterState<'_>,
    key: &ConfigurationKey,
    configuration: &ConfigurationState,
    problems: &BTreeMap<String, String>,
) -> Vec<ConditionUpdate> {
    if configuration.backend != Backend::Dra {
        return Vec::new();
    }
    let kind = ConditionType::DeviceClassMade;
    let made = seen.classes.get(key).map(|made| match made {
        Ok(()) => {
            let class = class_name(key.name());
            let message = format!("pods claim its devices by the DeviceClass {class}");
            ConditionUpdate::new(kind, Truth::True, "ClassMade", message)
        }
        Err(problem) => ConditionUpdate::failed(kind, &ReportedProblem::from(problem)),
    });
    let reason = <&str>::from(Reason::DraUnavailable);
    let unavailable = problems.get(reason).map(|message| {
        let kind = ConditionType::DraUnavailable;
        ConditionUpdate::new(kind, Truth::True, reason, message.clone())
    });
    made.into_iter().chain(unavailable).collect()
}

/// Returns the condition on objects that a handler found but that did not become devices, and true if that is a problem: an object was
/// denied, or an object was skipped and there is no device at all.
fn left_out(reports: &[Report<'_>], handler: &str) -> Option<(ConditionUpdate, bool)> {
    let sum = |count: fn(&ReportedConfiguration) -> usize| {
        let counts = reports.iter().map(|one| count(one.reported));
        counts.fold(0, usize::saturating_add)
    };
    let (skipped, denied) = (sum(|one| one.skipped), sum(|one| one.denied));
    if skipped == 0 && denied == 0 {
        return None;
    }
    let first = |text: fn(&ReportedConfiguration) -> Option<&String>| {
        let mut node_messages = NodeMessages::default();
        for report in reports {
            if let Some(text) = text(report.reported) {
                node_messages.add(report.node, text);
            }
        }
        (!node_messages.nodes.is_empty()).then(|| node_messages.describe(reports.len()))
    };
    let mut parts = Vec::new();
    if denied > 0 {
        let first = first(|one| one.first_denied.as_ref()).unwrap_or_default();
        parts.push(format!(
            "{denied} denied, first {first}; if it is wanted, grant it in {handler}.grants.yaml (agent.handlers.grants of the chart, or a ConfigMap with handlers)"
        ));
    }
    if skipped > 0 {
        let first = first(|one| one.first_skipped.as_ref()).unwrap_or_default();
        parts.push(format!("{skipped} skipped, first {first}"));
    }
    let kind = ConditionType::DevicesLeftOut;
    let reason = if denied > 0 { "Denied" } else { "Skipped" };
    let update = ConditionUpdate::new(kind, Truth::True, reason, parts.join("; "));
    let is_problem = denied > 0 || sum(|one| one.devices) == 0;
    Some((update, is_problem))
}

/// Adds an Event for each ConfigMap that holds a refused component or an invalid entry.
fn refused_handlers(seen: &ClusterState<'_>, folded: &mut Folded) {
    let reports = seen.reports.handlers.iter();
    let reports = reports.filter(|((node, _), _)| is_ready(seen.nodes, node));
    let nodes: BTreeSet<&str> = reports
        .clone()
        .map(|((node, _), _)| node.as_str())
        .collect();
    let mut refused: BTreeMap<_, NodeMessages<'_>> = BTreeMap::new();
    for ((node, _), report) in reports {
        for source in report.sources.values() {
            if let (Some(problem), Some(object)) = (&source.problem, &source.object)
                && [HANDLER_REFUSED, Reason::InvalidSource.into()].contains(&&*problem.reason)
            {
                let node_messages = refused.entry((object, &problem.reason)).or_default();
                node_messages.add(node, &problem.message);
            }
        }
    }
    for ((object, reason), node_messages) in refused {
        let message = node_messages.describe(nodes.len());
        let regarding = Regarding::ConfigMap(object.clone());
        folded.events.insert((regarding, reason.clone()), message);
    }
}

#[cfg(test)]
mod tests;

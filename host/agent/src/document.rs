//! The board: everything the tasks publish, and the status document made of it on demand.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;

use leafhost_core::attribute::AttributeValue;
use leafhost_core::device::Health;
use leafhost_core::instance::{Instance, InstanceSpec, Leafhost};
use leafhost_core::names::ConfigurationKey;
use leafhost_core::ports::{InstanceSet, SourceProblem};
use leafhost_core::text;
use leafhost_kubelet::{Report, State};
use tokio::sync::watch;

use crate::discovery::{
    ConfigurationDevices, ConfigurationReport, DeviceSnapshot, DiscoveryReport, HandlerReport,
    SessionReport,
};
use crate::loader::{HandlerSet, LoadedSource};
use crate::metrics::resource_state;
use crate::offer::OfferReport;
use crate::reconcile::ReconcileReport;
use crate::slots::report::SlotReport;
use crate::slots::unit::resource;
use crate::status::{
    ConfigurationView, HandlerView, KubeletView, RefusedView, ResourceView, SessionView, SlotView,
    Status,
};

/// The most bytes of properties that the document has: it is made and read within seconds.
const MOST_PROPERTIES: usize = 8 << 20;
/// So many sentences of one kind are told of a Configuration.
const TOLD: usize = 20;
/// So many names are told in one sentence.
const NAMED: usize = 3;

/// What does not change while the agent runs.
#[derive(Debug, Clone, Default)]
pub struct Identity {
    /// The node's name.
    pub node: String,
    /// The agent's version.
    pub version: String,
    /// `standalone` or `kubernetes`.
    pub mode: String,
    /// Where the CDI specs are, if any are written.
    pub cdi_dir: Option<String>,
    /// What is known to be missing on this machine: no udev, not root.
    pub problems: Vec<String>,
}

/// What the kubelet's side of the agent publishes.
#[derive(Debug, Clone)]
pub struct KubeletBoard {
    /// The kubelet's folder.
    pub root: PathBuf,
    /// The resources.
    pub plugins: watch::Receiver<Arc<Report>>,
    /// The slots.
    pub slots: watch::Receiver<Arc<SlotReport>>,
}

/// What the tasks publish.
#[derive(Debug, Clone)]
pub struct Board {
    pub(crate) identity: Arc<Identity>,
    pub(crate) handlers: watch::Receiver<Arc<HandlerSet>>,
    pub(crate) devices: watch::Receiver<Arc<DeviceSnapshot>>,
    pub(crate) report: watch::Receiver<Arc<DiscoveryReport>>,
    pub(crate) reconcile: watch::Receiver<ReconcileReport>,
    pub(crate) offers: Option<watch::Receiver<Arc<OfferReport>>>,
    pub(crate) kubelet: Option<KubeletBoard>,
    pub(crate) instances: watch::Receiver<Arc<InstanceSet>>,
}

impl Board {
    /// Waits until something is published that this board has not seen. False: there will be no more.
    pub async fn changed(&mut self) -> bool {
        let offers = async {
            match &mut self.offers {
                Some(offers) => offers.changed().await,
                None => std::future::pending().await,
            }
        };
        let kubelet = async {
            match &mut self.kubelet {
                Some(kubelet) => tokio::select! {
                    changed = kubelet.plugins.changed() => changed,
                    changed = kubelet.slots.changed() => changed,
                },
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            changed = kubelet => changed.is_ok(),
            changed = self.handlers.changed() => changed.is_ok(),
            changed = self.devices.changed() => changed.is_ok(),
            changed = self.report.changed() => changed.is_ok(),
            changed = self.reconcile.changed() => changed.is_ok(),
            changed = self.instances.changed() => changed.is_ok(),
            changed = offers => changed.is_ok(),
        }
    }

    /// Waits until the agent is ready: Configurations and handlers were read and the Instances said so. False: it ended before.
    pub async fn ready(&mut self) -> bool {
        self.reconcile
            .wait_for(|report| report.done_once)
            .await
            .is_ok()
    }

    /// Why the agent, which has been ready, can give no device; nothing if it can.
    pub(crate) fn cannot(&self) -> Option<String> {
        let kubelet = self.kubelet.as_ref()?;
        kubelet.slots.borrow().unwritable.clone()
    }

    /// What is waited for until the agent is ready; nothing if it is.
    pub(crate) fn waits_for(&self) -> Option<String> {
        if self.reconcile.borrow().done_once {
            return None;
        }
        let handlers = self.handlers.borrow();
        let is_open = |loaded: &LoadedSource| loaded.handler.is_none() && loaded.error.is_none();
        let open = handlers.sources.iter().filter(|(_, one)| is_open(one));
        let open: Vec<&String> = open.map(|(source, _)| source).collect();
        Some(if !open.is_empty() {
            format!("handlers that are being loaded: {}", text::few(open, NAMED))
        } else if !handlers.complete {
            "the handlers to be read and loaded".to_owned()
        } else if !self.devices.borrow().read {
            "the Configurations".to_owned()
        } else {
            "the Instances to be written".to_owned()
        })
    }

    /// Resources that the kubelet does not get, and why.
    fn unserved(&self) -> BTreeMap<String, String> {
        let Some(kubelet) = &self.kubelet else {
            return BTreeMap::new();
        };
        let plugins = kubelet.plugins.borrow();
        let failed = plugins.resources.iter();
        let failed = failed.filter(|(_, report)| report.state == State::Failed);
        let told = failed.filter_map(|(name, report)| {
            let problem = report.problem.as_ref()?;
            Some((
                name.to_string(),
                format!("pods do not get {name}: {problem}"),
            ))
        });
        told.collect()
    }

    /// The document as of now.
    pub fn status(&self) -> Status {
        let handlers = Arc::clone(&self.handlers.borrow());
        let devices = Arc::clone(&self.devices.borrow());
        let report = Arc::clone(&self.report.borrow());
        let offers = match &self.offers {
            Some(offers) => Arc::clone(&offers.borrow()),
            None => Arc::default(),
        };
        let instances = Arc::clone(&self.instances.borrow());
        let mut problems = self.identity.problems.clone();
        problems.extend(handlers.problems.iter().map(SourceProblem::to_string));
        let unowned = report
            .problems
            .iter()
            .filter(|problem| problem.configuration.is_none());
        problems.extend(unowned.map(SourceProblem::to_string));
        let reconciled = self.reconcile.borrow().clone();
        problems.extend(reconciled.problems);
        problems.extend(reconciled.left_out);
        problems.extend(offers.general.iter().cloned());
        let instances = instances.instances.values();
        let size: usize = instances.clone().map(|one| properties_size(one)).sum();
        let leave_out = size > MOST_PROPERTIES;
        if leave_out {
            problems.push(format!(
                "the Instances' properties and attributes are left out here, because they have {} MiB: the Instances themselves have them",
                size >> 20
            ));
        }
        let shown = |one: &Arc<Instance>| {
            if leave_out {
                without_properties(one)
            } else {
                (**one).clone()
            }
        };
        Status {
            node: self.identity.node.clone(),
            version: self.identity.version.clone(),
            mode: self.identity.mode.clone(),
            cdi_dir: self.identity.cdi_dir.clone(),
            handlers: handler_views(&handlers, &report.handlers),
            configurations: configuration_views(&devices, &report, &offers, &self.unserved()),
            instances: instances.map(shown).collect(),
            kubelet: self.kubelet.as_ref().map(kubelet_view),
            problems,
        }
    }
}

/// What an Instance has that grows with what a handler tells, in bytes.
fn properties_size(instance: &Instance) -> usize {
    let properties = instance.spec.broker_properties.iter();
    let properties = properties.map(|(name, value)| name.len() + value.len());
    let leafhost = instance.spec.leafhost.iter();
    let attributes = leafhost.flat_map(|leafhost| &leafhost.attributes);
    let attributes = attributes.map(|(name, value)| {
        let value = match value {
            AttributeValue::String(text) | AttributeValue::Version(text) => text.len(),
            AttributeValue::Int(_) | AttributeValue::Bool(_) => size_of_val(value),
        };
        name.len() + value
    });
    properties.chain(attributes).sum()
}

fn without_properties(instance: &Instance) -> Instance {
    let spec = &instance.spec;
    Instance {
        api_version: instance.api_version.clone(),
        kind: instance.kind.clone(),
        metadata: instance.metadata.clone(),
        spec: InstanceSpec {
            configuration_name: spec.configuration_name.clone(),
            cdi_name: spec.cdi_name.clone(),
            capacity: spec.capacity,
            broker_properties: BTreeMap::new(),
            shared: spec.shared,
            nodes: spec.nodes.clone(),
            device_usage: spec.device_usage.clone(),
            leafhost: spec.leafhost.as_ref().map(|leafhost| Leafhost {
                id: leafhost.id.clone(),
                physical_id: leafhost.physical_id.clone(),
                ..Leafhost::default()
            }),
        },
        status: instance.status.clone(),
    }
}

fn kubelet_view(board: &KubeletBoard) -> KubeletView {
    let plugins = Arc::clone(&board.plugins.borrow());
    let slots = Arc::clone(&board.slots.borrow());
    let resources = plugins.resources.iter().map(|(name, report)| ResourceView {
        name: name.to_string(),
        socket: report.socket.clone(),
        state: resource_state(report.state).to_owned(),
        registrations: report.registrations,
        problem: report.problem.clone(),
        refused: slots
            .refusals
            .get(name.as_str())
            .map(|refusal| RefusedView {
                count: refusal.count,
                last: refusal.last.to_string(),
                reason: refusal.reason.clone(),
            }),
    });
    let taken = slots.slots.iter().map(|slot| SlotView {
        slot: slot.slot.clone(),
        resource: slot.unit.resource.clone(),
        device: slot.unit.id.clone(),
        holder: slot.holder.clone(),
    });
    KubeletView {
        dir: board.root.display().to_string(),
        present: plugins.kubelet.is_some(),
        socket_missing: plugins.kubelet.is_none() && slots.socket_missing,
        resources: resources.collect(),
        slots: taken.collect(),
        problems: plugins
            .problems
            .iter()
            .chain(&slots.problems)
            .cloned()
            .collect(),
    }
}

fn handler_views(set: &HandlerSet, reports: &[HandlerReport]) -> Vec<HandlerView> {
    let mut views: Vec<HandlerView> = Vec::new();
    for (source, loaded) in &set.sources {
        let name = loaded
            .handler
            .as_ref()
            .map(|handler| &handler.description().name);
        let report = reports
            .iter()
            .find(|report| Some(&report.name) == name && report.source == *source);
        views.push(handler_view(source, loaded, report));
    }
    for report in reports {
        let shown = |view: &HandlerView| view.name == report.name && view.source == report.source;
        if !views.iter().any(shown) {
            views.push(handler_view(
                &report.source,
                &LoadedSource::default(),
                Some(report),
            ));
        }
    }
    views.sort_by(|one, two| (&one.name, &one.source).cmp(&(&two.name, &two.source)));
    views
}

fn handler_view(
    source: &str,
    loaded: &LoadedSource,
    report: Option<&HandlerReport>,
) -> HandlerView {
    let mut view = HandlerView {
        source: source.to_owned(),
        status: match &loaded.error {
            Some(_) if loaded.given_up => "Offline".to_owned(),
            Some(_) => "Refused".to_owned(),
            None => "Loading".to_owned(),
        },
        ..HandlerView::default()
    };
    if let Some(handler) = &loaded.handler {
        let description = handler.description();
        view.name.clone_from(&description.name);
        view.version.clone_from(&description.version);
        view.digest.clone_from(&handler.digest().0);
        view.warnings = handler.warnings().to_vec();
    }
    if let Some(report) = report {
        view.name.clone_from(&report.name);
        report.status.clone_into(&mut view.status);
        view.since = Some(report.since.to_string());
        view.devices = report.devices;
        view.last_error.clone_from(&report.last_error);
    }
    if let Some(error) = &loaded.error {
        view.last_error = Some(error.to_string());
        view.missing_grants.clone_from(&error.missing_grants);
    }
    view
}

fn configuration_views(
    devices: &DeviceSnapshot,
    report: &DiscoveryReport,
    offers: &OfferReport,
    unserved: &BTreeMap<String, String>,
) -> Vec<ConfigurationView> {
    let twice = found_twice(devices);
    let mut problems: BTreeMap<&ConfigurationKey, Vec<String>> = BTreeMap::new();
    for problem in &report.problems {
        if let Some(key) = &problem.configuration {
            problems.entry(key).or_default().push(problem.to_string());
        }
    }
    let keys: BTreeSet<&ConfigurationKey> = report
        .configurations
        .keys()
        .chain(problems.keys().copied())
        .collect();
    let nothing = ConfigurationReport::default();
    keys.into_iter()
        .map(|key| {
            let report = report.configurations.get(key).unwrap_or(&nothing);
            let view = devices.configurations.get(key);
            let mut texts = problems.remove(key).unwrap_or_default();
            texts.extend(report.problems.iter().cloned());
            texts.extend(offers.problems.get(key).into_iter().flatten().cloned());
            texts.extend(unserved.get(&resource(key.name())).cloned());
            texts.extend(twice.get(key).into_iter().flatten().cloned());
            ConfigurationView {
                name: key.name().to_owned(),
                namespace: key.namespace().to_owned(),
                handler: report.handler.clone(),
                devices: view.map_or(0, |view| view.devices.len()),
                unhealthy: view.map_or(0, |view| unhealthy(view)),
                problems: texts,
                invalid_details: report.invalid_details.clone(),
                sessions: report
                    .sessions
                    .iter()
                    .map(|session| session_view(session))
                    .collect(),
                cdi_kind: offers.kinds.get(key).cloned(),
            }
        })
        .collect()
}

fn session_view(report: &SessionReport) -> SessionView {
    let call = &report.call;
    SessionView {
        source: report.source.clone(),
        last_call: report.last_call.map(|time| time.to_string()),
        events: call.events.iter().map(|&event| event.to_owned()).collect(),
        wall_ms: call.wall.as_secs_f64() * 1e3,
        cpu_ms: call.cpu.as_secs_f64() * 1e3,
        memory_bytes: call.memory,
        result: report.result.label().to_owned(),
        error: report.error.clone(),
        failures: report.failures,
        next_ms: call
            .next
            .map(|next| u64::try_from(next.as_millis()).unwrap_or(u64::MAX)),
        devices: report.devices,
        left_out: report.left_out.clone(),
        left_out_dropped: report.left_out_dropped,
        skipped: report.skipped.clone(),
        skipped_dropped: report.skipped_dropped,
        denied: call.denied.clone(),
        wakes_refused: call.wakes_refused.clone(),
    }
}

fn unhealthy(view: &ConfigurationDevices) -> usize {
    let bad = view.devices.values().filter(|view| {
        let health = view.device.as_ref().map(|device| &device.health);
        view.missing_since.is_some() || matches!(health, Some(Health::Unhealthy(_)))
    });
    bad.count()
}

/// Pieces of hardware that two Configurations have found, in words for each of them: the first [`TOLD`] and how many more.
fn found_twice(devices: &DeviceSnapshot) -> BTreeMap<&ConfigurationKey, Vec<String>> {
    let mut found: BTreeMap<&str, BTreeMap<&ConfigurationKey, &str>> = BTreeMap::new();
    for (key, view) in &devices.configurations {
        for device in view
            .devices
            .values()
            .filter_map(|view| view.device.as_ref())
        {
            if let Some(physical) = &device.physical_id {
                let finders = found.entry(physical).or_default();
                finders.entry(key).or_insert(&device.id);
            }
        }
    }
    let mut texts: BTreeMap<&ConfigurationKey, (Vec<String>, usize)> = BTreeMap::new();
    for (physical, finders) in found.iter().filter(|(_, finders)| finders.len() > 1) {
        for (&key, id) in finders {
            let (told, more) = texts.entry(key).or_default();
            if told.len() == TOLD {
                *more += 1;
                continue;
            }
            let others = finders.iter().filter(|(other, _)| **other != key);
            let others = others.map(|(other, id)| format!("{other} (as {id:?})"));
            let others = text::few(others, NAMED);
            told.push(format!(
                "device {id:?} is the hardware {physical:?}, which {others} found, too: it may be handed out twice"
            ));
        }
    }
    let with_rest = |(key, (mut told, more)): (_, (Vec<String>, usize))| {
        if more > 0 {
            told.push(format!(
                "{more} more devices are hardware that other Configurations found, too"
            ));
        }
        (key, told)
    };
    texts.into_iter().map(with_rest).collect()
}

#[cfg(test)]
mod tests;

//! The published state of all tasks, and the status document that is built from it on demand.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use leafhost_core::attribute;
use leafhost_core::device::Health;
use leafhost_core::device_id::resource;
use leafhost_core::device_view::{ConfigurationDevices, DeviceSnapshot};
use leafhost_core::instance::Instance;
use leafhost_core::names::ConfigurationKey;
use leafhost_core::ports::InstanceSet;
use leafhost_core::problem::{Problem, Subject};
use leafhost_core::text;
use leafhost_core::wait::changed;
use leafhost_discovery::loader::{HandlerSet, LoadedSource};
use leafhost_discovery::{ConfigurationReport, DiscoveryReport, HandlerReport, SessionReport};
use leafhost_kubelet::{Report, State};
use leafhost_slots::report::SlotReport;
use tokio::sync::watch;

use crate::cdi::CdiReport;
use crate::claims::board::ClaimBoard;
use crate::claims::offer;
use crate::reconcile::ReconcileReport;
use crate::status::{
    ConfigurationView, HandlerView, KubeletView, RefusedView, ResourceView, SessionView, SlotView,
    Status,
};

/// Maximum number of bytes of properties in the document, which must be built and read within seconds.
const MOST_PROPERTIES: usize = 8 << 20;
/// Maximum number of handlers that one message names.
const NAMED: usize = 3;

/// Facts that do not change while the agent runs.
#[derive(Debug, Clone, Default)]
pub struct Identity {
    /// Name of the node.
    pub node: String,
    /// Version of the agent.
    pub version: String,
    /// `standalone` or `cluster`.
    pub mode: String,
    /// Folder for CDI specs; `None` to write none. The folder need not exist.
    pub cdi_dir: Option<PathBuf>,
    /// Problems of this machine: no udev, not root.
    pub problems: Vec<Problem>,
}

/// Published state of the tasks for the kubelet.
#[derive(Debug, Clone)]
pub struct KubeletBoard {
    /// Folder of the kubelet.
    pub root: PathBuf,
    /// Report on resources.
    pub plugins: watch::Receiver<Arc<Report>>,
    /// Report on slots.
    pub slots: watch::Receiver<Arc<SlotReport>>,
}

/// Published state of all tasks.
#[derive(Debug, Clone)]
pub struct AgentState {
    pub(crate) identity: Arc<Identity>,
    pub(crate) handlers: watch::Receiver<Arc<HandlerSet>>,
    pub(crate) devices: watch::Receiver<Arc<DeviceSnapshot>>,
    pub(crate) report: watch::Receiver<Arc<DiscoveryReport>>,
    pub(crate) reconcile: watch::Receiver<ReconcileReport>,
    /// Report on CDI specs; empty if none are written.
    pub(crate) offers: watch::Receiver<Arc<CdiReport>>,
    pub(crate) kubelet: Option<KubeletBoard>,
    pub(crate) claims: Option<ClaimBoard>,
    pub(crate) instances: watch::Receiver<Arc<InstanceSet>>,
    /// Reason why the report of this node is not written.
    pub(crate) unreported: watch::Receiver<Option<String>>,
}

impl AgentState {
    /// Waits until anything new is published.
    pub async fn changed(&mut self) {
        let kubelet = async {
            match &mut self.kubelet {
                Some(kubelet) => tokio::select! {
                    () = changed(&mut kubelet.plugins) => {}
                    () = changed(&mut kubelet.slots) => {}
                },
                None => std::future::pending().await,
            }
        };
        let claims = async {
            match &mut self.claims {
                Some(claims) => claims.changed().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = kubelet => {}
            () = claims => {}
            () = changed(&mut self.unreported) => {}
            () = changed(&mut self.handlers) => {}
            () = changed(&mut self.devices) => {}
            () = changed(&mut self.report) => {}
            () = changed(&mut self.reconcile) => {}
            () = changed(&mut self.instances) => {}
            () = changed(&mut self.offers) => {}
        }
    }

    /// Waits until the agent is ready: Configurations and handlers were read and the Instances written. Returns false if the agent ended
    /// before.
    pub async fn ready(&mut self) -> bool {
        let done = self.reconcile.wait_for(|report| report.done_once);
        done.await.is_ok()
    }

    /// Returns the reason if the agent cannot claim any slot.
    pub(crate) fn cannot(&self) -> Option<String> {
        let slots = self.kubelet.as_ref()?.slots.borrow();
        let is_it = |problem: &&Problem| matches!(problem, Problem::SlotsNotClaimed { .. });
        slots.problems.iter().find(is_it).map(Problem::to_string)
    }

    /// Returns the text of the first condition that the agent still waits for; `None` once it is ready.
    pub(crate) fn waits_for(&self) -> Option<String> {
        if self.reconcile.borrow().done_once {
            return None;
        }
        let handlers = Arc::clone(&self.handlers.borrow());
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

    /// Returns problems of Configurations whose resource cannot be registered with the kubelet.
    fn unserved(&self, report: &DiscoveryReport) -> Vec<Problem> {
        let Some(kubelet) = &self.kubelet else {
            return Vec::new();
        };
        let plugins = kubelet.plugins.borrow();
        let failed = |resource: &String| {
            let mut resources = plugins.resources.iter();
            let (_, report) = resources.find(|(name, _)| name.as_str() == resource)?;
            report
                .problem
                .clone()
                .filter(|_| report.state == State::Failed)
        };
        let problem = |key: &ConfigurationKey| {
            let resource = resource(key.name());
            Some(Problem::ResourceFailed {
                configuration: key.clone(),
                error: failed(&resource)?,
                resource,
            })
        };
        report.configurations.keys().filter_map(problem).collect()
    }

    /// Returns all problems except those of the kubelet.
    pub(crate) fn problems(&self) -> Vec<Problem> {
        let handlers = Arc::clone(&self.handlers.borrow());
        let devices = Arc::clone(&self.devices.borrow());
        let report = Arc::clone(&self.report.borrow());
        let mut problems = self.machine_problems();
        let sources = handlers.problems.iter().chain(&report.set.problems);
        problems.extend(sources.cloned().map(Problem::InvalidSource));
        problems.extend(report.too_many());
        for report in report.configurations.values() {
            problems.extend_from_slice(&report.problems);
        }
        problems.extend_from_slice(&self.reconcile.borrow().problems);
        let unreported = self.unreported.borrow().clone();
        problems.extend(unreported.map(|error| Problem::ReportNotWritten { error }));
        match &self.claims {
            Some(claims) => problems.extend(claims.problems()),
            None => problems.extend(offer::unavailable(&devices)),
        }
        problems.extend_from_slice(&self.offers.borrow().problems);
        problems.extend(self.unserved(&report));
        problems.extend(found_twice(&devices));
        problems
    }

    /// Returns the warnings: parts of Configurations without effect, and files that are not read. They are shown and logged but do not
    /// count as problems.
    pub(crate) fn warnings(&self) -> Vec<Problem> {
        let handlers = Arc::clone(&self.handlers.borrow());
        let report = Arc::clone(&self.report.borrow());
        let warnings = report.set.warnings.iter().chain(&handlers.warnings);
        warnings.cloned().map(Problem::NoEffect).collect()
    }

    /// Returns the problems of this machine. A missing udevd counts only if a handler in use asks for udev's devices.
    pub(crate) fn machine_problems(&self) -> Vec<Problem> {
        let handlers = Arc::clone(&self.handlers.borrow());
        let report = Arc::clone(&self.report.borrow());
        let loaded = handlers.sources.values();
        let mut using = loaded
            .filter_map(|loaded| loaded.handler.as_ref())
            .filter(|handler| handler.facts().uses_udev);
        let needed = using.any(|handler| {
            let name = &handler.facts().description.name;
            report
                .configurations
                .values()
                .any(|one| one.handler == *name)
        });
        let problems = self.identity.problems.iter();
        let problems = problems.filter(|problem| needed || **problem != Problem::NoUdevd);
        problems.cloned().collect()
    }

    /// Returns the current document.
    pub fn status(&self) -> Status {
        let cdi_dir = self.identity.cdi_dir.as_ref();
        let handlers = Arc::clone(&self.handlers.borrow());
        let devices = Arc::clone(&self.devices.borrow());
        let report = Arc::clone(&self.report.borrow());
        let offers = Arc::clone(&self.offers.borrow());
        let instances = Arc::clone(&self.instances.borrow());
        let mut problems = self.problems();
        let instances = instances.instances.values();
        let size: usize = instances.clone().map(|one| properties_size(one)).sum();
        let leave_out = size > MOST_PROPERTIES;
        if leave_out {
            problems.push(Problem::StatusTruncated {
                mebibytes: size >> 20,
            });
        }
        let mut general = Vec::new();
        let mut configurations = configuration_views(&devices, &report, &offers);
        if let Some(claims) = &self.claims {
            let offer = Arc::clone(&claims.offer.borrow());
            for (key, view) in &mut configurations {
                view.allocation = offer.view(key);
            }
        }
        let mut notes = Vec::new();
        let problems = problems.iter().map(|problem| (problem, false));
        let warnings = self.warnings();
        let warnings = warnings.iter().map(|warning| (warning, true));
        for (problem, is_warning) in problems.chain(warnings) {
            let list = match problem.subject() {
                Subject::Configuration(key) => {
                    let view = configurations.entry(key.clone());
                    let view = view.or_insert_with(|| configuration_view(key));
                    if is_warning {
                        &mut view.warnings
                    } else {
                        &mut view.problems
                    }
                }
                _ if is_warning => &mut notes,
                _ => &mut general,
            };
            list.push(problem.into());
        }
        let shown = |one: &Arc<Instance>| {
            let mut instance = Instance::clone(one);
            if leave_out {
                instance.spec.broker_properties.clear();
                if let Some(leafhost) = &mut instance.spec.leafhost {
                    leafhost.attributes.clear();
                    leafhost.capacity.clear();
                }
            }
            instance
        };
        Status {
            node: self.identity.node.clone(),
            version: self.identity.version.clone(),
            mode: self.identity.mode.clone(),
            cdi_dir: cdi_dir.map(|dir| dir.display().to_string()),
            handlers: handler_views(&handlers, &report.handlers),
            configurations: configurations.into_values().collect(),
            instances: instances.map(shown).collect(),
            kubelet: self.kubelet.as_ref().map(kubelet_view),
            problems: general,
            notes,
        }
    }
}

/// Returns the size of an Instance's properties and attributes, which grow with the reports of a handler; an estimate, in bytes.
fn properties_size(instance: &Instance) -> usize {
    let properties = instance.spec.broker_properties.iter();
    let properties = properties.map(|(name, value)| name.len() + value.len());
    let attributes = instance.spec.leafhost.as_ref();
    let attributes = attributes.map_or(0, |leafhost| leafhost.attributes.len());
    properties.sum::<usize>() + attributes * 2 * attribute::MAX_VALUE
}

fn kubelet_view(board: &KubeletBoard) -> KubeletView {
    let plugins = Arc::clone(&board.plugins.borrow());
    let slots = Arc::clone(&board.slots.borrow());
    let resources = plugins.resources.iter().map(|(name, report)| ResourceView {
        name: name.to_string(),
        socket: report.socket.clone(),
        state: <&str>::from(report.state).to_owned(),
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
        resource: slot.device_id.resource.clone(),
        device: slot.device_id.id.clone(),
        holder: slot.holder.clone(),
    });
    let folder: Vec<Problem> = (plugins.problems.iter().cloned())
        .map(|error| Problem::KubeletUnavailable { error })
        .collect();
    let is_missing = |problem: &Problem| matches!(problem, Problem::KubeletSocketMissing { .. });
    KubeletView {
        dir: board.root.display().to_string(),
        present: plugins.kubelet.is_some(),
        socket_missing: plugins.kubelet.is_none() && slots.problems.iter().any(is_missing),
        resources: resources.collect(),
        slots: taken.collect(),
        problems: folder
            .iter()
            .chain(&slots.problems)
            .map(Into::into)
            .collect(),
    }
}

fn handler_views(set: &HandlerSet, reports: &[HandlerReport]) -> Vec<HandlerView> {
    let mut views: Vec<HandlerView> = Vec::new();
    for (source, loaded) in &set.sources {
        let name = loaded
            .handler
            .as_ref()
            .map(|handler| &handler.facts().description.name);
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
        let facts = handler.facts();
        view.name.clone_from(&facts.description.name);
        view.version.clone_from(&facts.description.version);
        view.endpoint.clone_from(&facts.endpoint);
        if view.endpoint.is_some() {
            "external".clone_into(&mut view.kind);
        } else {
            "component".clone_into(&mut view.kind);
            view.digest.clone_from(&facts.digest.0);
        }
        view.warnings.clone_from(&facts.warnings);
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
    offers: &CdiReport,
) -> BTreeMap<ConfigurationKey, ConfigurationView> {
    let view = |(key, report): (&ConfigurationKey, &ConfigurationReport)| {
        let devices = devices.configurations.get(key);
        let sessions = report.sessions.iter();
        let view = ConfigurationView {
            handler: report.handler.clone(),
            devices: devices.map_or(0, |view| view.devices.len()),
            unhealthy: devices.map_or(0, |view| unhealthy(view)),
            invalid_details: report.invalid_details.clone(),
            sessions: sessions.map(|session| session_view(session)).collect(),
            cdi_kind: offers.kinds.get(key).cloned(),
            ..configuration_view(key)
        };
        (key.clone(), view)
    };
    report.configurations.iter().map(view).collect()
}

/// Returns the view of a Configuration of which only the name is known.
fn configuration_view(key: &ConfigurationKey) -> ConfigurationView {
    ConfigurationView {
        name: key.name().to_owned(),
        namespace: key.namespace().to_owned(),
        ..ConfigurationView::default()
    }
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

/// Returns a problem for each Configuration that shares hardware with others, with the first device and the number of devices.
fn found_twice(devices: &DeviceSnapshot) -> impl Iterator<Item = Problem> {
    let mut found: BTreeMap<&str, BTreeMap<&ConfigurationKey, &str>> = BTreeMap::new();
    for (key, view) in &devices.configurations {
        let reported = view
            .devices
            .values()
            .filter_map(|view| view.device.as_ref());
        for device in reported {
            if let Some(hardware) = &device.physical_id {
                let finders = found.entry(hardware).or_default();
                finders.entry(key).or_insert(&device.id);
            }
        }
    }
    let mut problems: BTreeMap<&ConfigurationKey, Problem> = BTreeMap::new();
    for (hardware, finders) in found.iter().filter(|(_, finders)| finders.len() > 1) {
        for (&key, id) in finders {
            let others = || finders.iter().filter(|(other, _)| **other != key);
            let problem = problems
                .entry(key)
                .or_insert_with(|| Problem::HardwareShared {
                    configuration: key.clone(),
                    devices: 0,
                    example: (*id).to_owned(),
                    hardware: (*hardware).to_owned(),
                    others: others().map(|(other, _)| other.to_string()).collect(),
                });
            if let Problem::HardwareShared { devices, .. } = problem {
                *devices += 1;
            }
        }
    }
    problems.into_values()
}

#[cfg(test)]
mod tests;

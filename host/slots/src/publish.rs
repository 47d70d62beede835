//! Publishes the results of the slot task: device lists for the kubelet, held slots for the plan, a report for people.

use std::collections::BTreeSet;
use std::sync::Arc;

use leafhost_core::configuration::Backend;
use leafhost_core::device_view::DeviceSnapshot;
use leafhost_core::instance::HeldSlots;
use leafhost_core::names::ConfigurationKey;
use leafhost_core::ports::InstanceSet;
use leafhost_core::problem::Problem;
use leafhost_core::unit::resource;
use leafhost_kubelet::{KubeletRun, Offers};
use tokio::sync::watch;

use super::SlotTask;
use super::model::context::SlotContext;
use super::model::holds::Holds;
use super::model::offers::{self, Limits, Offerer};
use super::model::view::Owners;
use super::refusals::Refusals;
use super::report::{SlotReport, SlotView};

/// Published state and its receivers.
pub(super) struct Shown {
    offers: watch::Sender<Arc<Offers>>,
    held: watch::Sender<Arc<HeldSlots>>,
    report: watch::Sender<Arc<SlotReport>>,
    offerer: Offerer,
    /// Names that were ever offered.
    known: BTreeSet<String>,
    pub refusals: Refusals,
}

impl Shown {
    /// Creates the state with nothing published. `known` are the names that were ever offered.
    pub fn new(
        offers: watch::Sender<Arc<Offers>>,
        held: watch::Sender<Arc<HeldSlots>>,
        report: watch::Sender<Arc<SlotReport>>,
        known: BTreeSet<String>,
    ) -> Self {
        Self {
            offers,
            held,
            report,
            offerer: Offerer::default(),
            known,
            refusals: Refusals::default(),
        }
    }
}

impl SlotTask {
    /// Returns the problems of slots that a restarted kubelet has no record of.
    fn lost(&self, kubelet: Option<KubeletRun>) -> impl Iterator<Item = Problem> {
        let (mut lost, mut doubtful) = (Vec::new(), Vec::new());
        for hold in self.holds.by_unit.values() {
            if hold.holder.is_lost() {
                let pods = hold.holder.words().unwrap_or_default();
                lost.push(format!("{} ({pods})", hold.slot));
            } else if hold.absent && hold.is_doubtful(kubelet) {
                doubtful.push(hold.slot.clone());
            }
        }
        let lost = (!lost.is_empty()).then_some(Problem::SlotRecordLost { slots: lost });
        let doubtful = (!doubtful.is_empty()).then_some(Problem::SlotRecordMissing {
            slots: doubtful,
            grace_seconds: self.config.grace.as_secs(),
        });
        lost.into_iter().chain(doubtful)
    }

    /// Returns the resources of Configurations with backend `Dra`: a resource offered both ways would be allocated by the kubelet alone.
    fn given_by_the_scheduler(
        &self,
        devices: &DeviceSnapshot,
        instances: &InstanceSet,
    ) -> BTreeSet<String> {
        let is_given = |key: &ConfigurationKey| {
            let view = devices.configurations.get(key);
            view.is_some_and(|view| view.configured.configuration.backend == Backend::Dra)
        };
        if !devices.configurations.keys().any(is_given) {
            return BTreeSet::new();
        }
        let configurations = self.owners.configurations.iter();
        let configurations = configurations.filter(|(_, key)| is_given(key));
        let own = self.owners.instances.iter().filter(|(_, key)| {
            let instance = instances.instances.get(key);
            let owner = instance.and_then(|instance| {
                ConfigurationKey::new(&key.namespace, &instance.spec.configuration_name).ok()
            });
            owner.is_some_and(|owner| is_given(&owner))
        });
        let names = configurations
            .map(|(name, _)| name)
            .chain(own.map(|(name, _)| name));
        names.map(|name| resource(name)).collect()
    }

    pub(super) fn publish(&mut self) {
        let held = self.holds.held(&self.owners);
        self.shown.held.send_if_modified(|old| {
            let differs = **old != held;
            if differs {
                *old = Arc::new(held);
            }
            differs
        });
        let is_known = self.instances.borrow().is_known();
        if self.looks.ready.is_some() || !is_known {
            return;
        }
        let kubelet = self.looks.records.kubelet_run();
        let instances = Arc::clone(&self.instances.borrow());
        let devices = Arc::clone(&self.devices.borrow());
        let limits = Limits {
            live: self.config.instance_resources,
            ever: offers::NAMES_EVER.max(self.config.instance_resources),
        };
        let context = SlotContext {
            node: &self.node,
            devices: &devices,
            instances: &instances,
            owners: &self.owners,
            holds: &self.holds,
            new: self.newcomers.uids(),
            barred: self.unwritable.barred(),
            kubelet,
        };
        let is_writable = !self.unwritable.is_all() && instances.complete;
        let mut offered = self
            .shown
            .offerer
            .offer(context, is_writable, &self.shown.known, limits);
        let given = self.given_by_the_scheduler(&devices, &instances);
        offered
            .offers
            .retain(|name, _| !given.contains(name.as_str()));
        let mut problems = offered.problems;
        // A name counts once a kubelet may have added it to the Node object.
        let mut new_names = BTreeSet::new();
        if kubelet.is_some() {
            new_names = offered.new_names;
            self.shown.known.extend(new_names.iter().cloned());
        }
        self.note_names(new_names);
        problems.extend(self.notes.problem.clone());
        let offers = &offered.offers;
        self.shown
            .refusals
            .keep(|resource| offers.keys().any(|name| name.as_str() == resource));
        self.shown.offers.send_if_modified(|old| {
            let same = old.len() == offered.offers.len()
                && old
                    .iter()
                    .zip(&offered.offers)
                    .all(|((one, a), (two, b))| one == two && Arc::ptr_eq(a, b));
            if !same {
                *old = Arc::new(offered.offers);
            }
            !same
        });
        problems.extend(self.owners.problems.iter().cloned());
        problems.extend(self.adoptions.conflicts.iter().cloned());
        problems.extend(self.adoptions.problem.iter().cloned());
        problems.extend(self.looks.problems.iter().cloned());
        problems.extend(withdrawn(&self.holds, &self.owners));
        problems.extend(self.unwritable.problem());
        problems.extend(self.lost(kubelet));
        let slots = self
            .holds
            .by_unit
            .iter()
            .map(|(unit, hold)| SlotView {
                slot: hold.slot.clone(),
                instance: hold.owner(&self.owners).cloned(),
                unit: unit.clone(),
                holder: hold.holder.words(),
                is_named: hold.holder.is_named(),
            })
            .collect();
        let report = SlotReport {
            is_known: true,
            slots,
            socket_missing: self.looks.is_socket_missing,
            problems: problems.into_iter().collect(),
            refusals: self.shown.refusals.views(),
        };
        self.shown.report.send_if_modified(|old| {
            let differs = **old != report;
            if differs {
                *old = Arc::new(report);
            }
            differs
        });
    }
}

/// Returns a problem with the pods that have slots of withdrawn Instances; their devices are usually gone.
fn withdrawn(holds: &Holds, owners: &Owners) -> Option<Problem> {
    let gone = holds.by_unit.values();
    let gone = gone.filter(|hold| hold.stored.is_none() && hold.owner(owners).is_none());
    let slots: Vec<String> = gone
        .filter_map(|hold| Some(format!("{} ({})", hold.slot, hold.holder.words()?)))
        .collect();
    (!slots.is_empty()).then_some(Problem::InstanceWithdrawn { slots })
}

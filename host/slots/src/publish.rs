//! Publishes the results of the slot task: device lists for the kubelet, held slots for the plan, a report for users.

use std::collections::BTreeSet;
use std::sync::Arc;

use leafhost_core::configuration::Backend;
use leafhost_core::device_id::resource_name;
use leafhost_core::device_view::DeviceSnapshot;
use leafhost_core::instance::HeldSlots;
use leafhost_core::ports::InstanceSet;
use leafhost_core::problem::Problem;
use leafhost_core::usable::configured;
use leafhost_core::wait::publish;
use leafhost_kubelet::{KubeletRun, Offers};
use tokio::sync::watch;

use super::SlotTask;
use super::model::name_index::NameIndex;
use super::model::offers::{self, Limits, OfferBuilder};
use super::model::slot_table::SlotTable;
use super::refusals::Refusals;
use super::report::{SlotReport, SlotView};

/// Senders of the published state, and the inputs of publishing.
pub(super) struct Published {
    pub offers: watch::Sender<Arc<Offers>>,
    pub held: watch::Sender<Arc<HeldSlots>>,
    pub report: watch::Sender<Arc<SlotReport>>,
    pub offer_builder: OfferBuilder,
    /// Names that were ever offered.
    pub known: BTreeSet<String>,
    pub refusals: Refusals,
}

impl SlotTask {
    /// Returns the problems of slots that a restarted kubelet has no record of.
    fn lost(&self, kubelet: Option<KubeletRun>) -> impl Iterator<Item = Problem> {
        let (mut lost, mut uncertain) = (Vec::new(), Vec::new());
        for state in self.slot_table.by_device_id.values() {
            if state.holder.is_lost() {
                let pods = state.holder.describe().unwrap_or_default();
                lost.push(format!("{} ({pods})", state.slot));
            } else if state.absent && state.is_uncertain(kubelet) {
                uncertain.push(state.slot.clone());
            }
        }
        let lost = (!lost.is_empty()).then_some(Problem::SlotRecordLost { slots: lost });
        let uncertain = (!uncertain.is_empty()).then_some(Problem::SlotRecordMissing {
            slots: uncertain,
            grace_seconds: self.config.grace.as_secs(),
        });
        lost.into_iter().chain(uncertain)
    }

    /// Returns true if a resource belongs to a Configuration with backend `Dra`: if it were offered both ways, the kubelet alone would
    /// allocate it.
    fn is_dra(&self, resource: &str, devices: &DeviceSnapshot, instances: &InstanceSet) -> bool {
        let name = resource_name(resource).unwrap_or_default();
        let key = self.name_index.configurations.get(name);
        let view = key.and_then(|key| devices.configurations.get(key));
        let instance = self.name_index.instances.get(name);
        let instance = instance.and_then(|key| instances.instances.get(key));
        let of_instance = instance.and_then(|instance| configured(devices, instance));
        let mut owners = view
            .map(|view| &view.configured)
            .into_iter()
            .chain(of_instance);
        owners.any(|owner| owner.configuration.backend == Backend::Dra)
    }

    pub(super) fn publish(&mut self) {
        let held = self.slot_table.held(&self.name_index);
        publish(&self.published.held, Arc::new(held));
        let (instances, devices) = self.current.clone();
        if self.record_reads.ready.is_some() || !instances.is_known() {
            return;
        }
        let kubelet = self.record_reads.records.kubelet_run();
        let limits = Limits {
            live: self.config.instance_resources,
            ever: offers::NAMES_EVER.max(self.config.instance_resources),
        };
        let is_writable = !self.unwritable.is_all() && instances.complete;
        let mut builder = std::mem::take(&mut self.published.offer_builder);
        let known = &self.published.known;
        let mut offered = builder.offer(self.context(), is_writable, known, limits);
        self.published.offer_builder = builder;
        let mut views = devices.configurations.values();
        if views.any(|view| view.configured.configuration.backend == Backend::Dra) {
            offered
                .offers
                .retain(|name, _| !self.is_dra(name.as_str(), &devices, &instances));
        }
        let mut problems = offered.problems;
        // A name counts once a kubelet may have added it to the Node object.
        let mut new_names = BTreeSet::new();
        if kubelet.is_some() {
            new_names = offered.new_names;
            self.published.known.extend(new_names.iter().cloned());
        }
        self.store_names(new_names);
        problems.extend(self.ledger_writes.problem.clone());
        let offers = &offered.offers;
        self.published
            .refusals
            .keep(|resource| offers.keys().any(|name| name.as_str() == resource));
        publish(&self.published.offers, Arc::new(offered.offers));
        problems.extend(self.name_index.problems.iter().cloned());
        problems.extend(self.adoptions.conflicts.iter().cloned());
        problems.extend(self.adoptions.problem.iter().cloned());
        problems.extend(self.record_reads.problems.iter().cloned());
        problems.extend(withdrawn(&self.slot_table, &self.name_index));
        problems.extend(self.unwritable.problem());
        problems.extend(self.lost(kubelet));
        let slots = self
            .slot_table
            .by_device_id
            .iter()
            .map(|(device_id, state)| SlotView {
                slot: state.slot.clone(),
                instance: state.owner(&self.name_index).cloned(),
                device_id: device_id.clone(),
                holder: state.holder.describe(),
                is_named: state.holder.is_named(),
            })
            .collect();
        let report = SlotReport {
            is_known: true,
            slots,
            problems: problems.into_iter().collect(),
            refusals: self.published.refusals.views(),
        };
        publish(&self.published.report, Arc::new(report));
    }
}

/// Returns a problem that names the pods with slots of withdrawn Instances; their devices are usually gone.
fn withdrawn(slot_table: &SlotTable, name_index: &NameIndex) -> Option<Problem> {
    let gone = slot_table.by_device_id.values();
    let gone = gone.filter(|state| state.stored.is_none() && state.owner(name_index).is_none());
    let slots: Vec<String> = gone
        .filter_map(|state| Some(format!("{} ({})", state.slot, state.holder.describe()?)))
        .collect();
    (!slots.is_empty()).then_some(Problem::InstanceWithdrawn { slots })
}

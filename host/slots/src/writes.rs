//! Writes of the slot task. They run beside the task, which never waits for one, so that allocations without a write are answered
//! meanwhile. Units and slots that are being written stay reserved until the write has ended.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use leafhost_core::instance::InstanceKey;
use leafhost_core::ports::{Change, StoreError, Written};
use leafhost_core::unit::Unit;
use leafhost_core::wait::SourceEnded;
use tokio::task::{JoinError, JoinSet};
use tokio::time::{Instant, timeout};

use super::SlotTask;
use super::model::claim::Chosen;
use super::model::hold::{Place, Reason};
use super::queue::Request;
use super::unwritable::News;

/// Time limit of the writes of one decision. After it their outcome is unknown.
const WRITE: Duration = Duration::from_secs(5);

/// Purpose of a write.
pub(super) enum Purpose {
    /// Claims of an allocation.
    Claim {
        request: Request,
        chosen: Vec<Chosen>,
        /// Claims of refused allocations that this one takes over.
        redeemed: BTreeSet<Place>,
    },
    /// Slots to release, and the requests that wait for it.
    Release {
        slots: Vec<(Unit, Place, Reason)>,
        then: Vec<Request>,
    },
    /// Claims of slots that the kubelet was seen to have.
    Adopt { places: Vec<(Unit, Place)> },
    /// Tests whether Instances that failed can be written again.
    Trial,
}

impl Purpose {
    /// Returns the units and slots that nothing else may change meanwhile.
    fn reserved(&self) -> (Vec<Unit>, Vec<Place>) {
        match self {
            Self::Claim { chosen, .. } => {
                let places = chosen.iter().map(Chosen::place);
                let units = chosen.iter().map(|one| one.unit.clone());
                (units.collect(), places.collect())
            }
            Self::Release { slots, .. } => {
                let all = slots.iter();
                all.map(|(unit, place, _)| (unit.clone(), place.clone()))
                    .unzip()
            }
            Self::Adopt { places } => places.iter().cloned().unzip(),
            Self::Trial => Default::default(),
        }
    }
}

/// Write that has ended.
pub(super) struct Done {
    purpose: Purpose,
    /// Instances that were written, in the order of the results.
    keys: Vec<InstanceKey>,
    results: Vec<Written>,
}

/// Writes that run.
#[derive(Default)]
pub(super) struct Writes {
    running: JoinSet<Done>,
    units: BTreeSet<Unit>,
    places: BTreeSet<Place>,
    /// Claims whose allocation was answered with an error, which no pod can have, with the time after which they are no longer tracked.
    pub void: BTreeMap<Place, Instant>,
}

impl Writes {
    /// Returns true if the unit is being written.
    pub fn has_unit(&self, unit: &Unit) -> bool {
        self.units.contains(unit)
    }

    /// Returns true if the slot is being written.
    pub fn has_place(&self, place: &Place) -> bool {
        self.places.contains(place)
    }

    /// Returns the ids of the slots that are being written.
    pub fn slots(&self) -> BTreeSet<String> {
        self.places.iter().map(|(_, slot)| slot.clone()).collect()
    }

    /// Returns the next write that ends.
    pub async fn next(&mut self) -> Option<Result<Done, JoinError>> {
        self.running.join_next().await
    }
}

impl SlotTask {
    /// Begins a write.
    pub(super) fn write(&mut self, purpose: Purpose, changes: Vec<Change>) {
        let (units, places) = purpose.reserved();
        self.writes.units.extend(units);
        self.writes.places.extend(places);
        let store = Arc::clone(&self.store);
        let keys: Vec<_> = changes.iter().map(Change::key).collect();
        self.writes.running.spawn(async move {
            let results = timeout(WRITE, store.apply(changes)).await;
            let results = results.unwrap_or_else(|_| {
                let seconds = WRITE.as_secs();
                let unknown = |key: &InstanceKey| StoreError::Unknown {
                    key: key.clone(),
                    message: format!("the store did not answer within {seconds} seconds"),
                };
                keys.iter().map(|key| Err(unknown(key))).collect()
            });
            Done {
                purpose,
                keys,
                results,
            }
        });
    }

    /// Begins the trial writes that are due.
    pub(super) fn try_to_write(&mut self) {
        let instances = Arc::clone(&self.instances.borrow());
        let own = self.owners.instances.values();
        let trials = self.unwritable.trials(&instances, own, Instant::now());
        for change in trials {
            self.write(Purpose::Trial, vec![change]);
        }
    }

    /// Learns from the results of one batch whether slots can be claimed.
    fn learn(&mut self, purpose: &Purpose, keys: &[InstanceKey], results: &[Written]) {
        let is_trial = matches!(purpose, Purpose::Trial);
        let news = self
            .unwritable
            .learn(keys, results, is_trial, Instant::now());
        match (news, self.unwritable.problem()) {
            (News::Worse, Some(problem)) => tracing::warn!(%problem, "slots cannot be claimed"),
            (News::Better, _) => {
                tracing::info!("slots can be claimed again");
                self.is_due = true;
            }
            _ => {}
        }
    }

    /// Takes in the results of a write.
    pub(super) async fn written(
        &mut self,
        done: Result<Done, JoinError>,
    ) -> Result<(), SourceEnded> {
        let Done {
            purpose,
            keys,
            results,
        } = done.map_err(|_| SourceEnded("a write of slots"))?;
        let (units, places) = purpose.reserved();
        for unit in units {
            self.writes.units.remove(&unit);
        }
        for place in places {
            self.writes.places.remove(&place);
        }
        // Slots that were reserved may be free now.
        self.is_due |= !self.pending.patient.is_empty();
        self.refresh();
        self.learn(&purpose, &keys, &results);
        match purpose {
            Purpose::Claim {
                request,
                chosen,
                redeemed,
            } => {
                let errors: Vec<_> = results.into_iter().filter_map(Result::err).collect();
                if errors.is_empty() {
                    self.grant(request, chosen, &redeemed).await;
                } else {
                    self.take_back(&chosen, &redeemed);
                    self.lose(request, &chosen, &errors).await;
                }
            }
            Purpose::Release { slots, then } => {
                self.released(slots, results);
                self.allocate(then).await;
            }
            Purpose::Adopt { places } => self.adopted(places, results),
            Purpose::Trial => {}
        }
        let waiting = std::mem::take(&mut self.pending.busy);
        self.allocate(waiting).await;
        Ok(())
    }

    /// Waits for the running writes. The task decides nothing more.
    pub(super) async fn finish(&mut self) -> Result<(), SourceEnded> {
        self.requests.close();
        self.pending.clear();
        while let Some(done) = self.writes.next().await {
            self.written(done).await?;
        }
        while let Some(note) = self.notes.next().await {
            self.noted(note)?;
        }
        Ok(())
    }
}

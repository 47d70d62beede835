//! Answers the kubelet's Allocate calls: chooses slots, claims them, answers, and releases what could not be answered.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use leafhost_core::ports::StoreError;
use leafhost_core::slot::slot_number;
use leafhost_core::text::chain;
use leafhost_core::unit::{Unit, resource_name};
use leafhost_core::wait::SourceEnded;
use leafhost_kubelet::{KubeletRun, Refusal};
use tokio::task::JoinError;
use tokio::time::Instant;

use super::SlotTask;
use super::looks::SOON;
use super::model::claim::{self, Chosen, Turns};
use super::model::context::SlotContext;
use super::model::hold::{Hold, Holder, Place, Reason};
use super::questions::Answer;
use super::queue::Request;
use super::submounts;
use super::writes::Purpose;

impl SlotTask {
    /// Decides these allocations. Those with a unit that is being written wait in `pending.busy`.
    pub(super) async fn allocate(&mut self, mut waiting: Vec<Request>) {
        while !waiting.is_empty() {
            // Requests for the same id are decided one after the other.
            let mut units = BTreeSet::new();
            let (batch, rest) = waiting.into_iter().partition(|request| {
                let own: Vec<Unit> = request.units().collect();
                let is_apart = own.iter().all(|unit| !units.contains(unit));
                if is_apart {
                    units.extend(own);
                }
                is_apart
            });
            waiting = rest;
            let batch = self.hold_back(batch);
            if !batch.is_empty() {
                self.decide(batch).await;
            }
        }
    }

    /// Moves requests whose units are being written or asked about to `pending.busy`; returns the others.
    fn hold_back(&mut self, batch: Vec<Request>) -> Vec<Request> {
        let is_busy = |request: &Request| {
            let mut units = request.units();
            units.any(|unit| self.writes.has_unit(&unit) || self.questions.has_unit(&unit))
        };
        let (busy, free): (Vec<_>, Vec<_>) = batch.into_iter().partition(is_busy);
        self.pending.busy.extend(busy);
        free
    }

    /// Decides allocations that have no unit in common. Units that a pod was seen to have are first looked up at the kubelet.
    async fn decide(&mut self, batch: Vec<Request>) {
        self.refresh();
        let (held, free): (Vec<_>, Vec<_>) = batch.into_iter().partition(|request| {
            !request.is_late() && request.units().any(|unit| self.is_seen(&unit, |_| true))
        });
        for request in held {
            self.ask(request);
        }
        self.choose(free, BTreeMap::new()).await;
    }

    /// Decides the allocation that the kubelet was asked about, then those that waited for the answer.
    pub(super) async fn answered(
        &mut self,
        answer: Result<Answer, JoinError>,
    ) -> Result<(), SourceEnded> {
        let answer = answer.map_err(|_| SourceEnded("a question to the kubelet"))?;
        self.refresh();
        let checked = self.check_holders(&answer);
        // The units that proved to be free are being released.
        let batch = self.hold_back(vec![answer.request]);
        self.choose(batch, checked).await;
        let waiting = std::mem::take(&mut self.pending.busy);
        self.allocate(waiting).await;
        Ok(())
    }

    /// Chooses slots for allocations and begins to claim them. `checked` holds the refusal for each unit that a pod still has.
    async fn choose(&mut self, batch: Vec<Request>, mut checked: BTreeMap<Unit, Refusal>) {
        let batch = self.free_doubles(batch, &checked);
        self.refresh();
        let instances = Arc::clone(&self.instances.borrow());
        let devices = Arc::clone(&self.devices.borrow());
        let context = SlotContext {
            node: &self.node,
            devices: &devices,
            instances: &instances,
            owners: &self.owners,
            holds: &self.holds,
            new: self.newcomers.uids(),
            barred: self.unwritable.barred(),
            kubelet: self.looks.records.kubelet_run(),
        };
        let mut reserved = self.writes.slots();
        let mut decided: Vec<(Request, Result<Vec<Chosen>, Refusal>)> = Vec::new();
        for request in batch {
            let held = request.units().find_map(|unit| checked.remove(&unit));
            let chosen = match held {
                Some(refusal) => Err(refusal),
                None if request.is_late() => Err(too_late()),
                None => context.choose_for(&request, &mut reserved, &mut self.turns),
            };
            decided.push((request, chosen));
        }
        for (request, chosen) in decided {
            match chosen {
                Err(_) if self.may_wait(&request) => self.pending.patient.push(request),
                Err(refusal) => {
                    let refusal = request.lost_with(refusal);
                    self.refuse(request, refusal);
                }
                Ok(chosen) => self.claim(request, chosen).await,
            }
        }
    }

    /// Returns true if the allocation can be decided again later: it asks for any device of a Configuration, whose slots may become free or
    /// known within the time limit.
    fn may_wait(&self, request: &Request) -> bool {
        let name = resource_name(&request.resource).unwrap_or_default();
        self.owners.configurations.contains_key(name)
            && request.again_until().is_some()
            && request.units().all(|unit| {
                let is_known = slot_number(name, &unit.id).is_some();
                is_known && !self.holds.by_unit.contains_key(&unit)
            })
    }

    /// Decides again the allocations that wait for a free slot.
    pub(super) async fn decide_patient(&mut self) {
        let patient = std::mem::take(&mut self.pending.patient);
        self.allocate(patient).await;
    }

    /// Chooses other slots for a request whose slots could not be claimed, usually because another node claimed them first, or refuses it.
    pub(super) async fn lose(
        &mut self,
        mut request: Request,
        chosen: &[Chosen],
        errors: &[StoreError],
    ) {
        let lost = chosen.iter().filter(|one| {
            let key = one.instance.key();
            errors.iter().any(|error| *error.key() == key)
        });
        request.lost.extend(lost.map(|one| one.slot.clone()));
        request.losses = request.losses.saturating_add(1);
        let unwritten = errors.iter().find(|error| !error.is_outdated());
        request.unwritten = unwritten.map(|error| refused(error, chosen));
        let name = resource_name(&request.resource).unwrap_or_default();
        let is_any = self.owners.configurations.contains_key(name);
        if is_any && request.again_until().is_some() {
            tracing::debug!(
                resource = request.resource,
                slots = request.lost.iter().cloned().collect::<Vec<_>>().join(" "),
                "they cannot be claimed; something else is chosen"
            );
            // The slots that were claimed are being released; the request waits for that.
            self.allocate(vec![request]).await;
        } else if let Some(error) = errors.first() {
            self.refuse(request, refused(error, chosen));
        }
    }

    /// Begins to write the claims of an allocation, or grants it at once if none is needed.
    async fn claim(&mut self, request: Request, chosen: Vec<Chosen>) {
        let mut redeemed = BTreeSet::new();
        for one in &chosen {
            // This allocation owns the claim from here on.
            if self.writes.void.remove(&one.place()).is_some() {
                redeemed.insert(one.place());
            }
            if one.claim.is_some() {
                // Left over from an Instance that is gone; no pod was seen to have it.
                self.holds.released(&one.unit);
            }
        }
        let changes = claim::claims(&chosen);
        if changes.is_empty() {
            self.grant(request, chosen, &redeemed).await;
        } else {
            let purpose = Purpose::Claim {
                request,
                chosen,
                redeemed,
            };
            self.write(purpose, changes);
        }
    }

    /// Returns a refusal for each requested unit that a running pod has. A unit of this node is requested again by the app container of the
    /// same pod, after its pod has ended, or by a kubelet that has lost its records.
    fn check_holders(&mut self, answer: &Answer) -> BTreeMap<Unit, Refusal> {
        let Answer {
            request,
            snapshot,
            listed,
        } = answer;
        let mut refusals = BTreeMap::new();
        let seen = request.units().filter(|unit| self.is_seen(unit, |_| true));
        let seen: Vec<Unit> = seen.collect();
        if let Some(snapshot) = snapshot {
            let back = self.holds.see(snapshot, self.config.grace);
            self.release(back, Vec::new());
        }
        for unit in seen {
            let Some(Hold { holder, .. }) = self.holds.by_unit.get(&unit) else {
                continue;
            };
            let words = holder.words().unwrap_or_default();
            let why = if let Some(pods) = listed.as_ref().and_then(|listed| listed.get(&unit)) {
                let pods: Vec<String> = pods.iter().map(ToString::to_string).collect();
                format!("{unit} is held by {}", pods.join(", "))
            } else if holder.is_lost() {
                format!(
                    "{unit} is held by {words}, which is still on this node although the kubelet has lost its record of it"
                )
            } else if self.is_of_older_kubelet(&unit)
                && snapshot
                    .as_ref()
                    .is_none_or(|snapshot| snapshot.listed.is_none() || holder.is_running(snapshot))
            {
                format!(
                    "{unit} was held by {words} before the kubelet was restarted, and it cannot be told whether that has ended"
                )
            } else {
                continue;
            };
            refusals.insert(unit, Refusal::Unavailable(why));
        }
        refusals
    }

    /// Returns true if a pod was seen to have the unit, by a kubelet other than the current one.
    pub(super) fn is_of_older_kubelet(&self, unit: &Unit) -> bool {
        let current = self.looks.records.kubelet_run();
        self.is_seen(unit, |kubelet_run| kubelet_run != current)
    }

    /// Returns true if a pod was seen to have the unit, by a kubelet that satisfies `wish`.
    fn is_seen(&self, unit: &Unit, wish: impl Fn(Option<KubeletRun>) -> bool) -> bool {
        let hold = self.holds.by_unit.get(unit);
        hold.is_some_and(|hold| match &hold.holder {
            Holder::Seen { kubelet_run, .. } => wish(*kubelet_run),
            Holder::Unseen(_) => false,
        })
    }

    /// Releases all but one of the slots of one Instance that a single request names, so that the container gets different Instances: the
    /// pods that had them have ended. Such a request waits for the release, once. Returns the requests that need not wait.
    fn free_doubles(
        &mut self,
        batch: Vec<Request>,
        refused: &BTreeMap<Unit, Refusal>,
    ) -> Vec<Request> {
        let mut ready = Vec::new();
        for mut request in batch {
            let name = resource_name(&request.resource).unwrap_or_default();
            if request.ids.len() < 2
                || request.has_waited
                || !self.owners.configurations.contains_key(name)
                || request.is_late()
                || request.units().any(|unit| refused.contains_key(&unit))
            {
                ready.push(request);
                continue;
            }
            let mut held: Vec<(Unit, &Hold)> = request
                .units()
                .filter_map(|unit| Some((unit.clone(), self.holds.by_unit.get(&unit)?)))
                .collect();
            held.sort_by_key(|(_, hold)| std::cmp::Reverse(hold.allocated));
            let mut instances = BTreeSet::new();
            let mut back = Vec::new();
            for (unit, hold) in held {
                if !instances.insert(&hold.instance) {
                    back.push((unit, Reason::GivenBack));
                }
            }
            if back.is_empty() {
                ready.push(request);
            } else {
                request.has_waited = true;
                ready.extend(self.release(back, vec![request]));
            }
        }
        ready
    }

    pub(super) fn uids<'a>(&self, units: impl Iterator<Item = &'a Unit>) -> BTreeSet<String> {
        let holders = units.filter_map(|unit| self.holds.by_unit.get(unit));
        holders.flat_map(|hold| hold.holder.uids()).collect()
    }

    /// Answers an allocation whose claims are written.
    pub(super) async fn grant(
        &mut self,
        request: Request,
        chosen: Vec<Chosen>,
        redeemed: &BTreeSet<Place>,
    ) {
        let name = resource_name(&request.resource).unwrap_or_default();
        let through = self.owners.configurations.contains_key(name);
        let answer = if request.is_late() {
            Err(too_late())
        } else {
            submounts::hold(claim::answer(through.then_some(name), &chosen))
        };
        let allocation = match answer {
            Ok(allocation) => allocation,
            Err(refusal) => {
                self.take_back(&chosen, redeemed);
                return self.refuse(request, refusal);
            }
        };
        self.metrics.allocated("ok", request.asked.elapsed());
        self.shown.refusals.granted(&request.resource);
        let is_sent = request.answer.send(Ok(allocation)).is_ok();
        // The task that waits for the answer runs next on this thread, before the records are brought up to date.
        tokio::task::yield_now().await;
        self.refresh();
        let units = chosen.iter().map(|one| one.unit.clone()).collect();
        let kubelet = self.looks.records.kubelet_run();
        self.holds.allocated(&units, kubelet, Instant::now());
        let slots: Vec<&str> = chosen.iter().map(|one| one.slot.as_str()).collect();
        tracing::info!(
            resource = request.resource,
            slots = slots.join(" "),
            "allocated"
        );
        if !is_sent {
            self.take_back(&chosen, redeemed);
        }
        self.look_by(Instant::now() + SOON);
    }

    /// Answers an allocation with an error.
    pub(super) fn refuse(&mut self, request: Request, refusal: Refusal) {
        self.metrics.allocated("refused", request.asked.elapsed());
        let reason = refusal.to_string();
        tracing::warn!(resource = request.resource, reason, "allocation refused");
        self.shown
            .refusals
            .add(&request.resource, reason, self.clock.now());
        self.holds.refused(request.units());
        drop(request.answer.send(Err(refusal)));
        // The kubelet's records may explain the refusal.
        self.look_by(Instant::now() + SOON);
    }

    /// Releases the claims of an allocation that is answered with an error, of which the kubelet holds nothing. A claim with an unknown
    /// outcome is released when the store shows it.
    pub(super) fn take_back(&mut self, chosen: &[Chosen], redeemed: &BTreeSet<Place>) {
        self.refresh();
        let until = Instant::now() + self.config.grace;
        let places = chosen
            .iter()
            .filter(|one| one.claim.is_some() || redeemed.contains(&one.place()))
            .map(|one| (one.place(), until));
        self.writes.void.extend(places);
        self.take_back_void();
    }

    /// Releases the claims in `writes.void` that the store shows. After the grace they are released like any other slot that no pod was
    /// seen to have.
    pub(super) fn take_back_void(&mut self) {
        if self.writes.void.is_empty() {
            return;
        }
        let now = Instant::now();
        self.writes.void.retain(|_, until| *until > now);
        let back: Vec<(Unit, Reason)> = self
            .holds
            .by_unit
            .iter()
            .filter(|(_, hold)| {
                let place = hold.place();
                matches!(hold.holder, Holder::Unseen(_))
                    && place.is_some_and(|place| self.writes.void.contains_key(&place))
            })
            .map(|(unit, _)| (unit.clone(), Reason::Refused))
            .collect();
        self.release(back, Vec::new());
    }
}

impl SlotContext<'_> {
    /// Chooses slots for an allocation, preferably not those that another node claimed first.
    fn choose_for(
        &self,
        request: &Request,
        reserved: &mut BTreeSet<String>,
        turns: &mut Turns,
    ) -> Result<Vec<Chosen>, Refusal> {
        let (resource, ids) = (&request.resource, &request.ids);
        if !request.lost.is_empty() {
            let mut others = reserved.clone();
            others.extend(request.lost.iter().cloned());
            if let Ok(chosen) = self.choose(resource, ids, &mut others, turns) {
                reserved.extend(chosen.iter().map(|one| one.slot.clone()));
                return Ok(chosen);
            }
        }
        self.choose(resource, ids, reserved, turns)
    }
}

fn too_late() -> Refusal {
    Refusal::Unavailable("decided too late".to_owned())
}

/// Returns the refusal for an allocation whose claim of `chosen` failed with `error`.
pub(super) fn refused(error: &StoreError, chosen: &[Chosen]) -> Refusal {
    let key = error.key();
    Refusal::Unavailable(if error.is_outdated() {
        let slots = chosen.iter().filter(|one| one.instance.key() == *key);
        let slots: Vec<&str> = slots.map(|one| one.slot.as_str()).collect();
        format!(
            "another node was quicker: slot {} of Instance {key} was claimed meanwhile",
            slots.join(" or ")
        )
    } else {
        format!("the claim cannot be written: {}", chain(error))
    })
}

//! The slot task's answers to the kubelet: decide, claim, answer, and take back what could not be answered.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use leafhost_core::ports::StoreError;
use leafhost_core::text::chain;
use leafhost_kubelet::{KubeletRun, Refusal};
use tokio::time::{Instant, timeout};

use super::SlotTask;
use super::model::claim::{self, Chosen};
use super::model::context::SlotContext;
use super::model::hold::{Hold, Holder, Place, Reason};
use super::model::unit::{Unit, resource_name};
use super::queue::{QUEUE, Request};
use super::release::SOON;
use super::submounts;

/// Time limit for a request to PodResources while an allocation waits.
const ASK: Duration = Duration::from_secs(2);

impl SlotTask {
    /// Decides all allocations that wait.
    pub(super) async fn allocate(&mut self, first: Request) {
        let mut waiting = vec![first];
        while waiting.len() < QUEUE
            && let Ok(next) = self.requests.try_recv()
        {
            waiting.push(next);
        }
        while !waiting.is_empty() {
            // Two that ask for the same id are decided one after the other.
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
            self.decide(batch).await;
        }
    }

    /// Decides allocations of which no two ask for the same, with one write.
    async fn decide(&mut self, batch: Vec<Request>) {
        self.refresh();
        let mut checked = self.check_holders(&batch).await;
        self.free_doubles(&batch, &checked).await;
        self.refresh();
        let instances = Arc::clone(&self.instances.borrow());
        let devices = Arc::clone(&self.devices.borrow());
        let context = SlotContext {
            node: &self.node,
            devices: &devices,
            instances: &instances,
            owners: &self.owners,
            holds: &self.holds,
            kubelet: self.records.kubelet_run(),
        };
        let mut reserved = BTreeSet::new();
        let mut decided: Vec<(Request, Result<Vec<Chosen>, Refusal>)> = Vec::new();
        for request in batch {
            let held = request.units().find_map(|unit| checked.remove(&unit));
            let chosen = match held {
                Some(refusal) => Err(refusal),
                None if request.is_late() => Err(too_late()),
                None => context.choose(
                    &request.resource,
                    &request.ids,
                    &mut reserved,
                    &mut self.turns,
                ),
            };
            decided.push((request, chosen));
        }
        let mut changes = Vec::new();
        let mut counts = Vec::new();
        let mut redeemed = BTreeSet::new();
        for (_, chosen) in &decided {
            let chosen = chosen.as_deref().unwrap_or_default();
            let own = claim::claims(chosen);
            counts.push(own.len());
            changes.extend(own);
            for one in chosen {
                // From here on it is this allocation's.
                if self.void.remove(&one.place()).is_some() {
                    redeemed.insert(one.place());
                }
                if one.claim.is_some() {
                    // Of an Instance that is gone; nobody was seen to have it.
                    self.holds.released(&one.unit);
                }
            }
        }
        let results = if changes.is_empty() {
            Vec::new()
        } else {
            self.store.apply(changes).await
        };
        self.learn(&results);
        let mut results = results.into_iter();
        for ((request, chosen), count) in decided.into_iter().zip(counts) {
            let written: Vec<_> = results.by_ref().take(count).collect();
            let result = match chosen {
                Err(refusal) => Err(refusal),
                Ok(chosen) => match written.into_iter().find_map(Result::err) {
                    Some(error) => {
                        self.take_back(&chosen, &redeemed).await;
                        Err(refused(&error))
                    }
                    None => Ok(chosen),
                },
            };
            self.answer(request, result, &redeemed).await;
        }
    }

    /// Which of the ids somebody who lives has. A slot this node has is asked for again by the app container of the same
    /// pod, or after its pod has ended; or by a kubelet that has lost its records.
    async fn check_holders(&mut self, batch: &[Request]) -> BTreeMap<Unit, Refusal> {
        let seen: Vec<Unit> = batch
            .iter()
            .filter(|request| !request.is_late())
            .flat_map(Request::units)
            .filter(|unit| self.is_seen(unit, |_| true))
            .collect();
        let mut refusals = BTreeMap::new();
        if seen.is_empty() {
            return refusals;
        }
        let current = self.records.kubelet_run();
        let is_older =
            |task: &Self, unit: &Unit| task.is_seen(unit, |kubelet_run| kubelet_run != current);
        let mut look = None;
        if seen.iter().any(|unit| is_older(self, unit)) {
            let uids = self.uids(seen.iter());
            look = timeout(ASK, self.records.look(uids, BTreeSet::new()))
                .await
                .ok();
            if let Some(look) = &look {
                let back = self.holds.see(look, self.config.grace);
                self.release(back).await;
                self.refresh();
            }
        }
        let listed = timeout(ASK, self.records.listed()).await.ok().flatten();
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
            } else if is_older(self, &unit)
                && look
                    .as_ref()
                    .is_none_or(|look| look.listed.is_none() || holder.is_running(look))
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

    /// Whether somebody was seen to have it, by a kubelet that is as wished.
    fn is_seen(&self, unit: &Unit, wish: impl Fn(Option<KubeletRun>) -> bool) -> bool {
        let hold = self.holds.by_unit.get(unit);
        hold.is_some_and(|hold| match &hold.holder {
            Holder::Seen { kubelet_run, .. } => wish(*kubelet_run),
            Holder::Unseen(_) => false,
        })
    }

    /// Ids of one request behind which are slots of one Instance: the pods that had them have ended. All but one are given
    /// back, so that the container gets different Instances.
    async fn free_doubles(&mut self, batch: &[Request], refused: &BTreeMap<Unit, Refusal>) {
        let mut back = Vec::new();
        for request in batch {
            let name = resource_name(&request.resource).unwrap_or_default();
            if request.ids.len() < 2
                || !self.owners.configurations.contains_key(name)
                || request.is_late()
                || request.units().any(|unit| refused.contains_key(&unit))
            {
                continue;
            }
            let mut held: Vec<(Unit, &Hold)> = request
                .units()
                .filter_map(|unit| Some((unit.clone(), self.holds.by_unit.get(&unit)?)))
                .collect();
            held.sort_by_key(|(_, hold)| std::cmp::Reverse(hold.allocated));
            let mut instances = BTreeSet::new();
            for (unit, hold) in held {
                if !instances.insert(&hold.instance) {
                    back.push((unit, Reason::GivenBack));
                }
            }
        }
        self.release(back).await;
    }

    fn uids<'a>(&self, units: impl Iterator<Item = &'a Unit>) -> BTreeSet<String> {
        let holders = units.filter_map(|unit| self.holds.by_unit.get(unit));
        holders.flat_map(|hold| hold.holder.uids()).collect()
    }

    async fn answer(
        &mut self,
        request: Request,
        result: Result<Vec<Chosen>, Refusal>,
        redeemed: &BTreeSet<Place>,
    ) {
        let took = request.asked.elapsed();
        let result = match result {
            Ok(chosen) if request.is_late() => {
                self.take_back(&chosen, redeemed).await;
                Err(too_late())
            }
            Ok(chosen) => {
                let name = resource_name(&request.resource).unwrap_or_default();
                let through = self.owners.configurations.contains_key(name);
                match submounts::hold(claim::answer(through.then_some(name), &chosen)) {
                    Ok(allocation) => Ok((chosen, allocation)),
                    Err(refusal) => {
                        self.take_back(&chosen, redeemed).await;
                        Err(refusal)
                    }
                }
            }
            Err(refusal) => Err(refusal),
        };
        self.metrics.allocated(
            match &result {
                Ok(_) => "ok",
                Err(_) => "refused",
            },
            took,
        );
        match result {
            Ok((chosen, allocation)) => {
                self.refusals.granted(&request.resource);
                let is_sent = request.answer.send(Ok(allocation)).is_ok();
                // What waits for the answer is next on this very thread: it goes before the records are brought up to date.
                tokio::task::yield_now().await;
                self.refresh();
                let units = chosen.iter().map(|one| one.unit.clone()).collect();
                let kubelet = self.records.kubelet_run();
                self.holds.allocated(&units, kubelet, Instant::now());
                let slots: Vec<&str> = chosen.iter().map(|one| one.slot.as_str()).collect();
                tracing::info!(
                    resource = request.resource,
                    slots = slots.join(" "),
                    "allocated"
                );
                if !is_sent {
                    self.take_back(&chosen, redeemed).await;
                }
                self.look_by(Instant::now() + SOON);
            }
            Err(refusal) => {
                tracing::warn!(
                    resource = request.resource,
                    reason = refusal.to_string(),
                    "allocation refused"
                );
                let reason = refusal.to_string();
                self.refusals
                    .add(&request.resource, reason, self.clock.now());
                self.holds.refused(request.units());
                drop(request.answer.send(Err(refusal)));
                // What was wrong with it may be news.
                self.look_by(Instant::now() + SOON);
            }
        }
    }

    /// Gives back what an allocation claimed that is answered with an error: the kubelet holds nothing of it. A claim whose
    /// outcome is unknown is given back when the store shows it.
    async fn take_back(&mut self, chosen: &[Chosen], redeemed: &BTreeSet<Place>) {
        self.refresh();
        let until = Instant::now() + self.config.grace;
        let places = chosen
            .iter()
            .filter(|one| one.claim.is_some() || redeemed.contains(&one.place()))
            .map(|one| (one.place(), until));
        self.void.extend(places);
        self.take_back_void().await;
    }

    /// Releases claims that nobody can have, as far as the store shows them. Later than the grace they come back like any
    /// other that nobody was seen to have.
    pub(super) async fn take_back_void(&mut self) {
        if self.void.is_empty() {
            return;
        }
        let now = Instant::now();
        self.void.retain(|_, until| *until > now);
        let back: Vec<(Unit, Reason)> = self
            .holds
            .by_unit
            .iter()
            .filter(|(_, hold)| {
                let place = hold.place();
                matches!(hold.holder, Holder::Unseen(_))
                    && place.is_some_and(|place| self.void.contains_key(&place))
            })
            .map(|(unit, _)| (unit.clone(), Reason::Refused))
            .collect();
        self.release(back).await;
    }
}

fn too_late() -> Refusal {
    Refusal::Unavailable("decided too late".to_owned())
}

fn refused(error: &StoreError) -> Refusal {
    Refusal::Unavailable(match error {
        StoreError::Conflict { key, .. } => {
            format!("another node was quicker: slots of Instance {key} were claimed meanwhile")
        }
        StoreError::Unavailable { .. } => {
            format!("the claim cannot be written: {}", chain(error))
        }
    })
}

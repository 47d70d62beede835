//! The slot task's answers to the kubelet: decide, claim, answer, and take back what could not be answered.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use leafhost_core::ports::StoreError;
use leafhost_kubelet::Refusal;
use tokio::time::{Instant, timeout};

use super::SlotTask;
use super::claim::{self, Chosen, Ground};
use super::door::{ALLOCATE, QUEUE, Request};
use super::holds::{Holder, Reason};
use super::release::SOON;
use super::unit::{Unit, resource_name};
use crate::words;

/// PodResources is asked for so long while an allocation waits.
const ASK: Duration = Duration::from_secs(2);

impl SlotTask {
    /// Decides all allocations that wait, with one write.
    pub(super) async fn allocate(&mut self, first: Request) {
        let mut batch = vec![first];
        while batch.len() < QUEUE
            && let Ok(next) = self.requests.try_recv()
        {
            batch.push(next);
        }
        self.meet();
        let instances = Arc::clone(&self.instances.borrow());
        let devices = Arc::clone(&self.devices.borrow());
        let mut reserved = BTreeSet::new();
        let mut decided: Vec<(Request, Result<Vec<Chosen>, Refusal>)> = Vec::new();
        for request in batch {
            let chosen = match self.check_holders(&request).await {
                Err(refusal) => Err(refusal),
                Ok(()) => Ground {
                    node: &self.node,
                    devices: &devices,
                    instances: &instances,
                    owners: &self.owners,
                    holds: &self.holds,
                }
                .choose(&request.resource, &request.ids, &mut reserved),
            };
            decided.push((request, chosen));
        }
        let mut changes = Vec::new();
        let mut counts = Vec::new();
        for (_, chosen) in &decided {
            let own = chosen
                .as_ref()
                .map_or_else(|_| Vec::new(), |chosen| claim::claims(chosen));
            counts.push(own.len());
            changes.extend(own);
        }
        let mut results = if changes.is_empty() {
            Vec::new()
        } else {
            self.store.apply(changes).await
        }
        .into_iter();
        for ((request, chosen), count) in decided.into_iter().zip(counts) {
            let written: Vec<_> = results.by_ref().take(count).collect();
            let result = match chosen {
                Err(refusal) => Err(refusal),
                Ok(chosen) => match written.into_iter().find_map(Result::err) {
                    Some(error) => {
                        self.take_back(&chosen).await;
                        Err(refused(&error))
                    }
                    None => Ok(chosen),
                },
            };
            self.answer(request, result).await;
        }
    }

    /// Whether nobody who lives has what is asked for. A slot this node has is asked for again by the app container of the
    /// same pod, or after its pod has ended; or by a kubelet that has lost its books.
    pub(super) async fn check_holders(&mut self, request: &Request) -> Result<(), Refusal> {
        let seen = |id: &String| {
            let unit = Unit {
                resource: request.resource.clone(),
                id: id.clone(),
            };
            let hold = self.holds.by_unit.get(&unit)?;
            match &hold.holder {
                Holder::Seen { incarnation, .. } => Some((unit, *incarnation)),
                Holder::Unseen(_) => None,
            }
        };
        let seen: Vec<_> = request.ids.iter().filter_map(seen).collect();
        if seen.is_empty() {
            return Ok(());
        }
        let current = self.books.incarnation();
        if seen.iter().any(|(_, incarnation)| *incarnation != current) {
            let uids = self.uids(seen.iter().map(|(unit, _)| unit));
            if let Ok(look) = timeout(ASK, self.books.look(uids)).await {
                let back = self.holds.see(&look, self.config.grace);
                self.release(back).await;
                self.meet();
            }
        }
        let listed = timeout(ASK, self.books.listed()).await.ok().flatten();
        for (unit, _) in &seen {
            if let Some(pods) = listed.as_ref().and_then(|listed| listed.get(unit)) {
                let pods: Vec<String> = pods.iter().map(ToString::to_string).collect();
                return Err(Refusal::Unavailable(format!(
                    "{unit} is held by {}",
                    pods.join(", ")
                )));
            }
            let hold = self.holds.by_unit.get(unit);
            if let Some(hold) = hold.filter(|hold| hold.holder.is_lost()) {
                return Err(Refusal::Unavailable(format!(
                    "{unit} is held by {}, which is still on this node although the kubelet has lost its record of it",
                    hold.holder.words().unwrap_or_default()
                )));
            }
        }
        Ok(())
    }

    pub(super) fn uids<'a>(&self, units: impl Iterator<Item = &'a Unit>) -> BTreeSet<String> {
        units
            .filter_map(|unit| match &self.holds.by_unit.get(unit)?.holder {
                Holder::Seen { pods, .. } => Some(pods),
                Holder::Unseen(_) => None,
            })
            .flatten()
            .filter_map(|pod| pod.uid.clone())
            .collect()
    }

    pub(super) async fn answer(&mut self, request: Request, result: Result<Vec<Chosen>, Refusal>) {
        self.meet();
        let took = request.asked.elapsed();
        let late = took >= ALLOCATE || request.answer.is_closed();
        let result = match result {
            Ok(chosen) if late => {
                self.take_back(&chosen).await;
                Err(Refusal::Unavailable("decided too late".to_owned()))
            }
            other => other,
        };
        self.metrics.allocated(
            match &result {
                Ok(_) => "ok",
                Err(_) => "refused",
            },
            took,
        );
        match result {
            Ok(chosen) => {
                let name = resource_name(&request.resource).unwrap_or_default();
                let through = self.owners.configurations.contains_key(name);
                let allocation = claim::answer(through.then_some(name), &chosen);
                let units = chosen.iter().map(|one| one.unit.clone()).collect();
                self.holds.allocated(&units, Instant::now());
                for unit in &units {
                    self.void.remove(unit);
                }
                let slots: Vec<&str> = chosen.iter().map(|one| one.slot.as_str()).collect();
                tracing::info!(
                    resource = request.resource,
                    slots = slots.join(" "),
                    "allocated"
                );
                if request.answer.send(Ok(allocation)).is_err() {
                    self.take_back(&chosen).await;
                }
                self.look_by(Instant::now() + SOON);
            }
            Err(refusal) => {
                tracing::warn!(
                    resource = request.resource,
                    reason = refusal.to_string(),
                    "allocation refused"
                );
                drop(request.answer.send(Err(refusal)));
            }
        }
    }

    /// Gives back what an allocation claimed that is answered with an error: the kubelet holds nothing of it.
    pub(super) async fn take_back(&mut self, chosen: &[Chosen]) {
        self.meet();
        for one in chosen.iter().filter(|one| one.claim.is_some()) {
            let epoch = self
                .holds
                .by_unit
                .get(&one.unit)
                .map_or(0, |hold| hold.epoch);
            self.void.insert(one.unit.clone(), epoch);
        }
        self.take_back_void().await;
    }

    /// Releases claims that nobody can have, as far as the store shows them.
    pub(super) async fn take_back_void(&mut self) {
        if self.void.is_empty() {
            return;
        }
        let holds = &self.holds.by_unit;
        self.void
            .retain(|unit, epoch| holds.get(unit).is_none_or(|hold| hold.epoch == *epoch));
        let back: Vec<(Unit, Reason)> = self
            .void
            .keys()
            .filter(|unit| holds.get(unit).is_some_and(|hold| hold.stored))
            .map(|unit| (unit.clone(), Reason::Refused))
            .collect();
        self.release(back).await;
    }
}

fn refused(error: &StoreError) -> Refusal {
    Refusal::Unavailable(match error {
        StoreError::Conflict { key } => {
            format!("another node was quicker: slots of Instance {key} were claimed meanwhile")
        }
        StoreError::Unavailable { .. } => {
            format!("the claim cannot be written: {}", words::of(error))
        }
    })
}

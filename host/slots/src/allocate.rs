//! Answers the kubelet's Allocate calls: chooses slots, claims them, answers, and releases the slots of failed allocations.

use std::collections::BTreeSet;

use leafhost_core::device_id::{DeviceId, resource_name};
use leafhost_core::ports::StoreError;
use leafhost_core::slot::slot_number;
use leafhost_core::text::chain;
use leafhost_core::usable::{Unusable, usable};
use leafhost_core::wait::SourceEnded;
use leafhost_kubelet::{KubeletRun, Refusal};
use tokio::task::JoinError;
use tokio::time::Instant;

use super::SlotTask;
use super::holder_queries::HolderAnswer;
use super::model::claim::{self, Chosen, RoundRobin};
use super::model::context::SlotContext;
use super::model::slot_state::{Holder, Reason, SlotState};
use super::queue::Request;
use super::record_reads::SOON;
use super::submounts;
use super::writes::Purpose;

impl SlotTask {
    /// Decides an allocation. If a write or a query about one of its device ids is running, the request waits in `pending.busy`. If a pod
    /// was seen to have one of them, the kubelet is queried first.
    pub(super) async fn allocate(&mut self, request: Request) {
        let Some(request) = self.hold_back(request) else {
            return;
        };
        self.refresh();
        let is_seen = request
            .device_ids()
            .any(|device_id| self.is_seen(&device_id, |_| true));
        if is_seen && !request.is_late() {
            self.query_holders(request);
        } else {
            self.choose(request, None).await;
        }
    }

    /// Moves a request to `pending.busy` if a write or a query about one of its device ids is running; returns it otherwise.
    fn hold_back(&mut self, request: Request) -> Option<Request> {
        let is_busy = request.device_ids().any(|device_id| {
            self.writes.has_device_id(&device_id) || self.holder_queries.has_device_id(&device_id)
        });
        if is_busy {
            self.pending.busy.push(request);
            return None;
        }
        Some(request)
    }

    /// Decides the allocation whose holders were queried, then those that waited for the answer.
    pub(super) async fn answered(
        &mut self,
        answer: Result<HolderAnswer, JoinError>,
    ) -> Result<(), SourceEnded> {
        let answer = answer.map_err(|_| SourceEnded("a question to the kubelet"))?;
        self.refresh();
        let refusal = self.check_holders(&answer);
        // Device ids that proved to be free are now being released, so the request may have to wait.
        if let Some(request) = self.hold_back(answer.request) {
            self.choose(request, refusal).await;
        }
        let busy = std::mem::take(&mut self.pending.busy);
        self.retry(busy).await;
        Ok(())
    }

    /// Retries allocations that have waited.
    pub(super) async fn retry(&mut self, requests: Vec<Request>) {
        for request in requests {
            self.allocate(request).await;
        }
    }

    /// Chooses slots for an allocation and begins to claim them. `held` is the refusal if a pod still has a requested device id.
    async fn choose(&mut self, request: Request, held: Option<Refusal>) {
        let released = match held {
            Some(_) => Some(request),
            None => self.release_duplicates(request),
        };
        let Some(request) = released else {
            return;
        };
        self.refresh();
        let mut round_robin = std::mem::take(&mut self.round_robin);
        let chosen = match held {
            Some(refusal) => Err(refusal),
            None if request.is_late() => Err(too_late()),
            None => {
                let reserved = self.writes.slots();
                self.context()
                    .choose_for(&request, reserved, &mut round_robin)
            }
        };
        self.round_robin = round_robin;
        match chosen {
            Err(_) if self.may_wait(&request) => self.pending.waiting.push(request),
            Err(refusal) => {
                let refusal = request.lost_with(refusal);
                self.refuse(request, refusal);
            }
            Ok(chosen) => self.claim(request, chosen).await,
        }
    }

    /// Returns true if the allocation may succeed within the time limit: it asks for any device of a Configuration, whose slots may become
    /// free or known, or for a device that its handler has not reported yet.
    fn may_wait(&self, request: &Request) -> bool {
        let name = resource_name(&request.resource).unwrap_or_default();
        let is_any = self.name_index.configurations.contains_key(name)
            && request.device_ids().all(|device_id| {
                let is_known = slot_number(name, &device_id.id).is_some();
                is_known && !self.slot_table.by_device_id.contains_key(&device_id)
            });
        request.again_until().is_some() && (is_any || self.context().is_unseen(request))
    }

    /// Retries or refuses a request whose slots could not be claimed. A request for any device of a Configuration gets other slots. If no
    /// other slot can be claimed either, and the store may recover, the request waits until a trial write succeeds.
    pub(super) async fn retry_or_refuse(
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
        let is_any = self.name_index.configurations.contains_key(name);
        request.may_recover = unwritten.is_some_and(StoreError::may_recover);
        let has_no_other = !is_any || self.unwritable.is_all();
        if request.may_recover && has_no_other && request.again_until().is_some() {
            self.pending.waiting.push(request);
        } else if is_any && request.again_until().is_some() {
            tracing::debug!(
                resource = request.resource,
                slots = request.lost.iter().cloned().collect::<Vec<_>>().join(" "),
                "cannot claim these slots; choosing others"
            );
            // The slots that were claimed are being released; the request waits for that.
            self.allocate(request).await;
        } else if let Some(error) = errors.first() {
            self.refuse(request, refused(error, chosen));
        }
    }

    /// Begins to write the claims of an allocation, or grants it at once if none is needed.
    async fn claim(&mut self, request: Request, chosen: Vec<Chosen>) {
        for one in &chosen {
            if one.claim.is_some() {
                // The device id is left over from an Instance that is gone; no pod was seen to have it.
                self.slot_table.released(&one.device_id);
            }
        }
        let changes = claim::claims(&chosen);
        if changes.is_empty() {
            self.grant(request, chosen).await;
        } else {
            self.write(Purpose::Claim { request, chosen }, changes);
        }
    }

    /// Returns a refusal if a running pod has, or may have, one of the requested device ids. The kubelet requests a device id again for an
    /// app container of the same pod, after the pod has ended, or after the kubelet has lost its records.
    fn check_holders(&mut self, answer: &HolderAnswer) -> Option<Refusal> {
        let HolderAnswer {
            request,
            snapshot,
            listed,
        } = answer;
        let seen = request
            .device_ids()
            .filter(|device_id| self.is_seen(device_id, |_| true));
        let seen: Vec<DeviceId> = seen.collect();
        if let Some(snapshot) = snapshot {
            let back = self.slot_table.observe(snapshot, self.config.grace);
            self.release(back, None);
        }
        for device_id in seen {
            let Some(SlotState { holder, .. }) = self.slot_table.by_device_id.get(&device_id)
            else {
                continue;
            };
            let words = holder.describe().unwrap_or_default();
            let why = if let Some(pods) = listed.as_ref().and_then(|listed| listed.get(&device_id))
            {
                let pods: Vec<String> = pods.iter().map(ToString::to_string).collect();
                format!("{device_id} is held by {}", pods.join(", "))
            } else if holder.is_lost() {
                format!(
                    "{device_id} is held by {words}, which is still on this node although the kubelet has lost its record of it"
                )
            } else if self.is_of_older_kubelet(&device_id)
                && snapshot
                    .as_ref()
                    .is_none_or(|snapshot| snapshot.listed.is_none() || holder.is_running(snapshot))
            {
                format!(
                    "{device_id} was held by {words} before the kubelet was restarted, and the agent cannot determine whether that has ended"
                )
            } else {
                continue;
            };
            return Some(Refusal::Unavailable(why));
        }
        None
    }

    /// Returns true if a kubelet other than the current one reported the device id for a pod.
    pub(super) fn is_of_older_kubelet(&self, device_id: &DeviceId) -> bool {
        let current = self.record_reads.records.kubelet_run();
        self.is_seen(device_id, |kubelet_run| kubelet_run != current)
    }

    /// Returns true if a kubelet that satisfies `wish` reported the device id for a pod.
    fn is_seen(&self, device_id: &DeviceId, wish: impl Fn(Option<KubeletRun>) -> bool) -> bool {
        let state = self.slot_table.by_device_id.get(device_id);
        state.is_some_and(|state| match &state.holder {
            Holder::Seen { kubelet_run, .. } => wish(*kubelet_run),
            Holder::Unseen(_) => false,
        })
    }

    /// Begins to release duplicates: if several requested device ids have slots of one Instance, only the slot allocated last is kept, so
    /// that the container gets different Instances. The pods that had the other slots have ended. The request waits for the release, at
    /// most once; a request that need not wait is returned.
    fn release_duplicates(&mut self, mut request: Request) -> Option<Request> {
        let name = resource_name(&request.resource).unwrap_or_default();
        if request.has_waited
            || request.is_late()
            || !self.name_index.configurations.contains_key(name)
        {
            return Some(request);
        }
        let held = request.device_ids().filter_map(|device_id| {
            let state = self.slot_table.by_device_id.get(&device_id)?;
            Some((device_id, state))
        });
        let mut held: Vec<(DeviceId, &SlotState)> = held.collect();
        held.sort_by_key(|(_, state)| std::cmp::Reverse(state.allocated));
        let mut instances = BTreeSet::new();
        held.retain(|(_, state)| !instances.insert(&state.instance));
        let back = held.into_iter();
        let back: Vec<_> = back
            .map(|(device_id, _)| (device_id, Reason::GivenBack))
            .collect();
        request.has_waited = !back.is_empty();
        self.release(back, Some(request))
    }

    /// Grants an allocation whose claims are written, or refuses it if the answer comes too late.
    pub(super) async fn grant(&mut self, request: Request, chosen: Vec<Chosen>) {
        let name = resource_name(&request.resource).unwrap_or_default();
        let through = self.name_index.configurations.contains_key(name);
        let answer = if request.is_late() {
            Err(too_late())
        } else {
            submounts::cover(claim::answer(through.then_some(name), &chosen))
        };
        let allocation = match answer {
            Ok(allocation) => allocation,
            Err(refusal) => {
                self.release_claims(&chosen);
                return self.refuse(request, refusal);
            }
        };
        self.metrics.allocated("ok", request.asked.elapsed());
        self.published.refusals.granted(&request.resource);
        let is_sent = request.answer.send(Ok(allocation)).is_ok();
        // The task that waits for the answer runs next on this thread, before the records are brought up to date.
        tokio::task::yield_now().await;
        self.refresh();
        let device_ids = chosen.iter().map(|one| one.device_id.clone()).collect();
        let kubelet = self.record_reads.records.kubelet_run();
        self.slot_table
            .allocated(&device_ids, kubelet, Instant::now());
        let slots: Vec<&str> = chosen.iter().map(|one| one.slot.as_str()).collect();
        tracing::info!(
            resource = request.resource,
            slots = slots.join(" "),
            "allocated"
        );
        if is_sent {
            // A refused allocation may have left this claim; it now belongs to this allocation.
            for one in &chosen {
                self.writes.refused_claims.remove(&one.slot_key());
            }
        } else {
            self.release_claims(&chosen);
        }
        self.schedule_read(Instant::now() + SOON);
    }

    /// Answers an allocation with an error.
    pub(super) fn refuse(&mut self, request: Request, refusal: Refusal) {
        self.metrics.allocated("refused", request.asked.elapsed());
        let reason = refusal.to_string();
        tracing::warn!(resource = request.resource, reason, "allocation refused");
        self.published
            .refusals
            .add(&request.resource, reason, self.clock.now());
        self.slot_table.refused(request.device_ids());
        drop(request.answer.send(Err(refusal)));
        // The kubelet's records may explain the refusal.
        self.schedule_read(Instant::now() + SOON);
    }

    /// Releases the claims of an allocation that was refused, or whose answer nobody received: the kubelet has none of these slots. A claim
    /// with an unknown outcome is released when the store shows it.
    pub(super) fn release_claims(&mut self, chosen: &[Chosen]) {
        self.refresh();
        let until = Instant::now() + self.config.grace;
        let slot_keys = chosen
            .iter()
            .filter(|one| one.claim.is_some())
            .map(|one| (one.slot_key(), until));
        self.writes.refused_claims.extend(slot_keys);
        self.release_refused_claims();
    }

    /// Releases the claims in `writes.refused_claims` that the store shows. After the grace they are released like any other slot that no pod was
    /// seen to have.
    pub(super) fn release_refused_claims(&mut self) {
        if self.writes.refused_claims.is_empty() {
            return;
        }
        let now = Instant::now();
        self.writes.refused_claims.retain(|_, until| *until > now);
        let back: Vec<(DeviceId, Reason)> = self
            .slot_table
            .by_device_id
            .iter()
            .filter(|(_, state)| {
                let slot_key = state.slot_key();
                matches!(state.holder, Holder::Unseen(_))
                    && slot_key
                        .is_some_and(|slot_key| self.writes.refused_claims.contains_key(&slot_key))
            })
            .map(|(device_id, _)| (device_id.clone(), Reason::Refused))
            .collect();
        self.release(back, None);
    }
}

impl SlotContext<'_> {
    /// Returns true if a requested device has not been reported since the agent started.
    fn is_unseen(&self, request: &Request) -> bool {
        let name = resource_name(&request.resource).unwrap_or_default();
        let held = request.device_ids().filter_map(|device_id| {
            let state = self.slot_table.by_device_id.get(&device_id)?;
            state.stored.as_ref()
        });
        let mut keys = held.chain(self.name_index.instances.get(name));
        keys.any(|key| {
            let instance = self.instances.instances.get(key);
            instance.is_some_and(|instance| {
                let usable = usable(self.node, self.devices, instance);
                matches!(usable, Err(Unusable::NotSeen))
            })
        })
    }

    /// Chooses slots for an allocation that are not reserved, if possible none that an earlier attempt failed to claim.
    fn choose_for(
        &self,
        request: &Request,
        reserved: BTreeSet<String>,
        round_robin: &mut RoundRobin,
    ) -> Result<Vec<Chosen>, Refusal> {
        let (resource, ids) = (&request.resource, &request.ids);
        if !request.lost.is_empty() {
            let others = reserved.union(&request.lost).cloned().collect();
            if let Ok(chosen) = self.choose(resource, ids, others, round_robin) {
                return Ok(chosen);
            }
        }
        self.choose(resource, ids, reserved, round_robin)
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
            "another node claimed slot {} of Instance {key} first",
            slots.join(" or ")
        )
    } else {
        format!("cannot write the claim: {}", chain(error))
    })
}

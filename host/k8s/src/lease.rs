//! Leader election of controllers: only the one that holds the Lease and renews it acts.
//!
//! All times are measured by this machine's own clock: the Lease of another holder expires once it has not changed for [`DURATION`], and
//! this process stops leading [`DEADLINE`] after its last renewal began, whether the API server answers or not.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use kube::api::{Api, PostParams};
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout_at};
use tokio_util::sync::CancellationToken;

use crate::answers::{self, Failure};

/// Time after which a Lease that is not renewed expires.
const DURATION: Duration = Duration::from_secs(15);
/// Time without a renewal after which the holder stops acting; no other candidate acts before [`DURATION`].
const DEADLINE: Duration = Duration::from_secs(10);
/// Interval between reads or renewals.
const PERIOD: Duration = Duration::from_secs(3);
/// Timeout of a request.
const REQUEST: Duration = Duration::from_secs(3);

/// Acquires and renews the Lease until `stop` is cancelled, then releases it; `leads` is true while this process holds it.
pub async fn hold(
    api: Api<Lease>,
    name: String,
    holder: String,
    leads: watch::Sender<bool>,
    stop: CancellationToken,
) {
    let mut lead = Lead {
        lease: name.clone(),
        until: None,
        leads,
    };
    let mut candidate = Candidate {
        api,
        name,
        holder,
        seen: None,
    };
    let kept = keep(&mut candidate, &mut lead);
    stop.run_until_cancelled(kept).await;
    lead.set(None);
    if let Err(failure) = answers::within(REQUEST, candidate.give_back()).await {
        let (lease, error) = (&candidate.name, failure.message);
        tracing::warn!(lease, error, "cannot release the Lease; it expires");
    }
}

/// Attempts to acquire or renew the Lease, forever.
async fn keep(candidate: &mut impl Attempt, lead: &mut Lead) {
    loop {
        let begun = Instant::now();
        match lead
            .during(answers::within(REQUEST, candidate.attempt()))
            .await
        {
            Ok(true) => lead.set(Some(begun + DEADLINE)),
            Ok(false) => lead.set(None),
            Err(failure) => {
                let (lease, error) = (&lead.lease, failure.message);
                tracing::warn!(lease, error, "cannot read or renew the Lease");
            }
        }
        lead.during(sleep(PERIOD)).await;
    }
}

/// Leadership of this process.
struct Lead {
    lease: String,
    until: Option<Instant>,
    leads: watch::Sender<bool>,
}

impl Lead {
    /// Sets the end of the leadership; `None` ends it now.
    fn set(&mut self, until: Option<Instant>) {
        self.until = until.filter(|until| *until > Instant::now());
        let is_leader = self.until.is_some();
        if crate::publish(&self.leads, is_leader) {
            let lease = &self.lease;
            tracing::info!(lease, is_leader, "the Lease has changed hands");
        }
    }

    /// Awaits `work`, and meanwhile ends the leadership when its time is over.
    async fn during<T>(&mut self, work: impl Future<Output = T>) -> T {
        tokio::pin!(work);
        if let Some(until) = self.until {
            match timeout_at(until, &mut work).await {
                Ok(done) => return done,
                Err(_) => self.set(None),
            }
        }
        work.await
    }
}

#[async_trait]
trait Attempt: Send {
    /// Reads the Lease, and writes it if this process holds it or if it has expired. Returns true if this process holds it.
    async fn attempt(&mut self) -> Result<bool, Failure>;
}

struct Candidate {
    api: Api<Lease>,
    name: String,
    holder: String,
    /// Lease as last seen, and the time since when it has not changed.
    seen: Option<(Arc<LeaseSpec>, Instant)>,
}

#[async_trait]
impl Attempt for Candidate {
    async fn attempt(&mut self) -> Result<bool, Failure> {
        let Some(mut lease) = self.api.get_opt(&self.name).await? else {
            let lease = Lease {
                metadata: ObjectMeta {
                    name: Some(self.name.clone()),
                    ..ObjectMeta::default()
                },
                spec: Some(self.renewed(LeaseSpec::default())),
            };
            return written(self.api.create(&PostParams::default(), &lease).await);
        };
        let spec = lease.spec.take().unwrap_or_default();
        if spec.holder_identity.as_deref() != Some(&self.holder) && !self.has_run_out(&spec) {
            return Ok(false);
        }
        lease.spec = Some(self.renewed(spec));
        // The object carries the version that was read, so that only one of two writers succeeds.
        written(
            self.api
                .replace(&self.name, &PostParams::default(), &lease)
                .await,
        )
    }
}

impl Candidate {
    /// Clears the holder of the Lease if this process holds it.
    async fn give_back(&self) -> Result<(), Failure> {
        let Some(mut lease) = self.api.get_opt(&self.name).await? else {
            return Ok(());
        };
        let Some(spec) = lease.spec.as_mut() else {
            return Ok(());
        };
        if spec.holder_identity.as_deref() != Some(&self.holder) {
            return Ok(());
        }
        spec.holder_identity = Some(String::new());
        let params = PostParams::default();
        written(self.api.replace(&self.name, &params, &lease).await).map(drop)
    }

    fn has_run_out(&mut self, spec: &LeaseSpec) -> bool {
        if spec.holder_identity.as_ref().is_none_or(String::is_empty) {
            return true;
        }
        match &self.seen {
            Some((seen, since)) if **seen == *spec => since.elapsed() >= DURATION,
            _ => {
                self.seen = Some((Arc::new(spec.clone()), Instant::now()));
                false
            }
        }
    }

    fn renewed(&self, mut spec: LeaseSpec) -> LeaseSpec {
        let now = Some(MicroTime(Timestamp::now()));
        if spec.holder_identity.as_deref() != Some(&self.holder) {
            spec.acquire_time.clone_from(&now);
            let before = spec.holder_identity.replace(self.holder.clone());
            let transitions = spec.lease_transitions.unwrap_or_default();
            spec.lease_transitions = Some(transitions.saturating_add(i32::from(before.is_some())));
        }
        spec.lease_duration_seconds = i32::try_from(DURATION.as_secs()).ok();
        spec.renew_time = now;
        spec
    }
}

/// Returns true if the write succeeded, false if another writer changed the Lease first.
fn written(answer: kube::Result<Lease>) -> Result<bool, Failure> {
    match answer.map_err(Failure::from) {
        Ok(_) => Ok(true),
        Err(failure) if failure.code == Some(409) => Ok(false),
        Err(failure) => Err(failure),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use serde_json::{Value, json};

    use super::*;
    use crate::tests::stub::{Answer, Stub, failure};

    /// Starts a stub server with one Lease.
    async fn server(lease: Option<Value>) -> (Stub, Arc<Mutex<Option<Value>>>) {
        let stored = Arc::new(Mutex::new(lease));
        let kept = Arc::clone(&stored);
        let stub = Stub::start(move |request| {
            let kept = kept.lock().unwrap();
            match (&*kept, request.starts_with("GET")) {
                (Some(lease), true) => Answer::Object(200, lease.clone()),
                (None, true) => failure(404, "no lease"),
                (Some(_), false) if request.starts_with("POST") => failure(409, "exists"),
                (_, false) => Answer::Object(200, json!({"metadata": {"name": "l"}})),
            }
        })
        .await;
        (stub, stored)
    }

    fn candidate(stub: &Stub) -> Candidate {
        Candidate {
            api: Api::namespaced(stub.client.clone(), "n"),
            name: "l".into(),
            holder: "me".into(),
            seen: None,
        }
    }

    fn held(by: &str, renewed: &str) -> Value {
        json!({"metadata": {"name": "l", "namespace": "n", "resourceVersion": "1"},
            "spec": {"holderIdentity": by, "renewTime": renewed, "leaseTransitions": 2}})
    }

    #[tokio::test]
    async fn a_lease_that_nobody_has_or_that_is_our_own_is_taken() {
        for lease in [
            None,
            Some(held("me", "2026-01-01T00:00:00.000000Z")),
            Some(held("", "2026-01-01T00:00:00.000000Z")),
        ] {
            let (stub, _) = server(lease).await;
            assert!(candidate(&stub).attempt().await.unwrap());
        }
    }

    #[tokio::test]
    async fn anothers_lease_is_taken_once_it_has_not_changed_for_its_duration() {
        let (stub, stored) = server(Some(held("other", "2026-01-01T00:00:00.000000Z"))).await;
        let mut candidate = candidate(&stub);
        assert!(!candidate.attempt().await.unwrap());
        let back = |candidate: &mut Candidate| {
            let (_, since) = candidate.seen.as_mut().unwrap();
            *since -= DURATION;
        };
        back(&mut candidate);
        // The Lease has been renewed since, whatever the other's clock says.
        *stored.lock().unwrap() = Some(held("other", "2020-01-01T00:00:00.000000Z"));
        assert!(!candidate.attempt().await.unwrap());
        back(&mut candidate);
        assert!(candidate.attempt().await.unwrap());
    }

    #[tokio::test]
    async fn a_lease_is_given_back_at_the_stop_by_its_holder_alone() {
        for (holder, writes) in [("me", 2), ("other", 0)] {
            let lease = held(holder, "2026-01-01T00:00:00.000000Z");
            let (stub, _) = server(Some(lease)).await;
            let (leads, mut leading) = watch::channel(false);
            let stop = CancellationToken::new();
            let api = Api::namespaced(stub.client.clone(), "n");
            let held = hold(api, "l".into(), "me".into(), leads, stop.clone());
            let stopped = async {
                if holder == "me" {
                    leading.wait_for(|leads| *leads).await.unwrap();
                }
                stop.cancel();
            };
            tokio::join!(held, stopped);
            assert_eq!(stub.requests("PUT"), writes, "{holder}");
        }
    }

    /// Renews the Lease twice, gets no answer three times, renews it again, and loses it.
    struct Hanging(usize);

    #[async_trait]
    impl Attempt for Hanging {
        async fn attempt(&mut self) -> Result<bool, Failure> {
            self.0 += 1;
            match self.0 {
                1 | 2 | 6 => Ok(true),
                7 => Ok(false),
                _ => std::future::pending().await,
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn the_lead_ends_on_time_while_attempts_to_renew_hang_and_comes_back_with_a_renewal() {
        let (leads, mut leading) = watch::channel(false);
        let mut lead = Lead {
            lease: "l".into(),
            until: None,
            leads,
        };
        let mut hanging = Hanging(0);
        let start = Instant::now();
        let follow = async {
            let mut seen = Vec::new();
            while seen.len() < 4 {
                leading.changed().await.unwrap();
                seen.push((*leading.borrow(), start.elapsed().as_secs()));
            }
            seen
        };
        tokio::select! {
            () = keep(&mut hanging, &mut lead) => unreachable!("it has no end"),
            seen = follow => {
                // The last renewal was at 3 s, and attempts hang from 6 to 9, from 12 to 15 and from 18 to 21 s.
                assert_eq!(seen, [(true, 0), (false, 13), (true, 24), (false, 27)]);
            }
        }
    }
}

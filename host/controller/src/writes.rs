//! Decides when a task looks for writes to make, and runs those that it plans: concurrently for many namespaces, and only while this
//! controller leads. Delays the writes that were just tried, and all writes while the API server does not answer.

use std::collections::BTreeSet;
use std::pin::Pin;
use std::time::Duration;

use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt as _, StreamExt as _};
use leafhost_core::status_store::WriteError;
use leafhost_core::wait::changed;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

use crate::attempts::Attempts;
use crate::pass_schedule::PassSchedule;
use crate::round_robin::{RoundRobin, Waiting, WriteLimits};

/// Bounds of a task's concurrent writes.
pub const PLACES: WriteLimits = WriteLimits {
    all: 8,
    of_one: 4,
    slow: 2,
};
/// Bounds of a task that makes one write at a time, and one more for a namespace whose writes take long.
pub const ONE_PLACE: WriteLimits = WriteLimits {
    all: 1,
    of_one: 1,
    slow: 1,
};
/// Shortest time that a write without an answer holds its place, so that few writes are tried while the API server does not answer.
const NO_ANSWER: Duration = Duration::from_secs(1);
/// Longest time that a write holds its place because the API server asked for a delay.
const LONGEST: Duration = Duration::from_secs(30);
/// Duration from which a write counts as slow.
const SLOW: Duration = Duration::from_secs(1);

/// A write that has ended.
pub struct Done<K, V> {
    namespace: String,
    is_slow: bool,
    /// Key of the object.
    pub key: K,
    /// Value that was to be written.
    pub value: V,
    /// Answer of the API server.
    pub answer: Result<(), WriteError>,
    /// Time of the answer.
    pub at: Instant,
}

/// Step that a task takes next.
pub enum Step<K, V> {
    /// Records the outcome of writes.
    Ended(Vec<Done<K, V>>),
    /// Runs a pass: reads the state of the cluster, and plans the writes.
    Pass,
}

type Running<'a, K, V> = Pin<Box<dyn Future<Output = Done<K, V>> + Send + 'a>>;

/// The value that was to be written, and the answer of the API server.
type Answer<'a, V> = Pin<Box<dyn Future<Output = (V, Result<(), WriteError>)> + Send + 'a>>;

/// Passes and writes of a task. `W` and `S` tell a write apart from the one before, as in [`Attempts`].
pub struct Writes<'a, K, V, W = (), S = ()> {
    leads: watch::Receiver<bool>,
    /// Schedule of the passes; a task adds the moments that no change may announce.
    pub passes: PassSchedule,
    /// Last write of each object.
    pub attempts: Attempts<K, W, S>,
    /// Time within which the watch should show a write.
    settle: Duration,
    identify: fn(&V) -> (W, S),
    write: Box<dyn Fn(K, V) -> Answer<'a, V> + Send + 'a>,
    round_robin: RoundRobin<K>,
    waiting: Waiting<K, V>,
    running: FuturesUnordered<Running<'a, K, V>>,
}

impl<'a, K, V, W, S> Writes<'a, K, V, W, S>
where
    K: Ord + Clone + Send + 'a,
    V: Send + 'a,
    W: PartialEq,
    S: PartialEq,
{
    /// Creates a queue without writes. A pass comes `soon` after a change; a write is not repeated for `settle` while its object is
    /// unchanged. `identify` returns what a value changes and the object as it was seen.
    pub fn new<F>(
        leads: watch::Receiver<bool>,
        limits: WriteLimits,
        (soon, settle): (Duration, Duration),
        identify: fn(&V) -> (W, S),
        write: impl Fn(K, V) -> F + Send + 'a,
    ) -> Self
    where
        F: Future<Output = (V, Result<(), WriteError>)> + Send + 'a,
    {
        Self {
            leads,
            passes: PassSchedule::new(soon),
            attempts: Attempts::default(),
            settle,
            identify,
            write: Box::new(move |key, value| -> Answer<'a, V> { Box::pin(write(key, value)) }),
            round_robin: RoundRobin::new(limits),
            waiting: Waiting::new(),
            running: FuturesUnordered::new(),
        }
    }

    /// Returns true if this controller leads.
    pub fn leads(&self) -> bool {
        *self.leads.borrow()
    }

    /// Records a change of what the task reads.
    pub fn changed(&mut self) {
        self.passes.changed();
    }

    /// Records a change after which the plan is outdated: drops the writes that wait for a place.
    pub fn outdated(&mut self) {
        self.waiting.clear();
        self.changed();
    }

    /// Plans these writes, each with its namespace, in a pass; the next pass is at `next` unless a change comes earlier. A write that was
    /// just tried is left for a later pass, as is one for which `pause` returns a later time. An object that is being written is left out;
    /// a pass follows once that write has ended.
    pub fn plan(
        &mut self,
        jobs: impl IntoIterator<Item = (String, K, V)>,
        next: Option<Instant>,
        mut pause: impl FnMut(&K, &V) -> Option<Instant>,
    ) {
        let now = Instant::now();
        let jobs: Vec<_> = jobs.into_iter().collect();
        let wanted: BTreeSet<&K> = jobs.iter().map(|(_, key, _)| key).collect();
        self.attempts.forget(|key| wanted.contains(key), now);
        for (namespace, key, value) in jobs {
            let (what, seen) = (self.identify)(&value);
            let later = self.attempts.later(&key, &what, &seen, now);
            let later = later.or_else(|| pause(&key, &value));
            if let Some(until) = later.filter(|until| *until > now) {
                self.passes.by(until);
            } else if !self.round_robin.is_running(&namespace, &key) {
                let queue = self.waiting.entry(namespace).or_default();
                queue.insert(key, value);
            }
        }
        if let Some(next) = next {
            self.passes.by(next);
        }
    }

    /// Begins the planned writes, and returns the next step of the task. Writes and attempts of a task end with the lead. Cancel safe:
    /// dropping the future loses no write.
    pub async fn step(&mut self) -> Step<K, V> {
        loop {
            self.begin();
            tokio::select! {
                () = changed(&mut self.leads) => self.outdated(),
                Some(first) = self.running.next() => return Step::Ended(self.ended(first)),
                () = self.passes.due() => {
                    self.waiting.clear();
                    self.round_robin.forget(Instant::now());
                    if !self.leads() {
                        // The next leader starts without this state, too.
                        self.attempts = Attempts::default();
                    }
                    return Step::Pass;
                }
            }
        }
    }

    /// Begins waiting writes as long as places are free.
    fn begin(&mut self) {
        let now = Instant::now();
        if !self.leads() {
            return;
        }
        while let Some((namespace, key)) = self.round_robin.next(&self.waiting, now) {
            let queue = self.waiting.get_mut(&namespace);
            let Some(value) = queue.and_then(|queue| queue.remove(&key)) else {
                return;
            };
            let request = (self.write)(key.clone(), value);
            self.running.push(Box::pin(async move {
                let begun = Instant::now();
                let (value, answer) = request.await;
                let at = Instant::now();
                if let Err(WriteError::NoAnswer { retry_after, .. }) = &answer {
                    let rest = retry_after.unwrap_or_default().min(LONGEST);
                    sleep_until((at + rest).max(begun + NO_ANSWER)).await;
                }
                Done {
                    namespace,
                    is_slow: begun.elapsed() >= SLOW,
                    key,
                    value,
                    answer,
                    at,
                }
            }));
        }
    }

    /// Records the writes that have ended, and returns them.
    fn ended(&mut self, first: Done<K, V>) -> Vec<Done<K, V>> {
        let mut all = vec![first];
        while let Some(Some(done)) = self.running.next().now_or_never() {
            all.push(done);
        }
        let now = Instant::now();
        for done in &all {
            self.round_robin
                .done(&done.namespace, &done.key, done.is_slow, now);
            let what = (self.identify)(&done.value);
            self.attempts
                .tried(done.key.clone(), what, &done.answer, self.settle, done.at);
        }
        self.changed();
        all
    }
}

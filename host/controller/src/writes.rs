//! Runs concurrent writes for many namespaces, and backs off after writes without an answer.

use std::pin::Pin;
use std::time::Duration;

use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt as _, StreamExt as _};
use leafhost_core::status_store::WriteError;
use tokio::time::{Instant, sleep_until};

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

type Running<'a, K, V> = Pin<Box<dyn Future<Output = Done<K, V>> + Send + 'a>>;

/// Waiting and running writes.
pub struct Writes<'a, K, V> {
    round_robin: RoundRobin<K>,
    waiting: Waiting<K, V>,
    running: FuturesUnordered<Running<'a, K, V>>,
}

impl<'a, K, V> Writes<'a, K, V>
where
    K: Ord + Clone + Send + 'a,
    V: Send + 'a,
{
    /// Creates a queue without writes.
    pub fn new(limits: WriteLimits) -> Self {
        Self {
            round_robin: RoundRobin::new(limits),
            waiting: Waiting::new(),
            running: FuturesUnordered::new(),
        }
    }

    /// Replaces the waiting writes with `due`, each with its namespace. An object that is being written is left out; plan again once that
    /// write has ended.
    pub fn plan(&mut self, due: impl IntoIterator<Item = (String, K, V)>) {
        self.waiting.clear();
        self.round_robin.forget(Instant::now());
        for (namespace, key, value) in due {
            if !self.round_robin.is_running(&namespace, &key) {
                self.waiting
                    .entry(namespace)
                    .or_default()
                    .insert(key, value);
            }
        }
    }

    /// Begins waiting writes as long as places are free.
    pub fn begin<F>(&mut self, write: impl Fn(K, V) -> F)
    where
        F: Future<Output = (V, Result<(), WriteError>)> + Send + 'a,
    {
        let now = Instant::now();
        while let Some((namespace, key)) = self.round_robin.next(&self.waiting, now) {
            let queue = self.waiting.get_mut(&namespace);
            let Some(value) = queue.and_then(|queue| queue.remove(&key)) else {
                return;
            };
            let request = write(key.clone(), value);
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

    /// Returns the next writes that end; waits forever while none runs. Cancel safe: dropping the future loses no write.
    pub async fn done(&mut self) -> Vec<Done<K, V>> {
        let Some(first) = self.running.next().await else {
            return std::future::pending().await;
        };
        let mut all = vec![first];
        while let Some(Some(done)) = self.running.next().now_or_never() {
            all.push(done);
        }
        let now = Instant::now();
        for done in &all {
            self.round_robin
                .done(&done.namespace, &done.key, done.is_slow, now);
        }
        all
    }
}

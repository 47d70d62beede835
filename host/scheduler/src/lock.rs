//! Lock of a node: from Bind until the pod has its devices, no other pod is bound to the node. Locking is optional: agents can identify the pod of an
//! Allocate call without it.
//!
//! Later Binds wait here, because a refused Bind costs a pod a second or more. No lock is taken over because of its age.

use std::time::Duration;

use jiff::Timestamp;
use leafhost_core::scheduling::{BindingArgs, NodeLock, Pod};
use tokio::time::{Instant, sleep, timeout_at};

use crate::release::UNBOUND;
use crate::scheduler::{Scheduler, State};

/// Maximum time for which a Bind waits for a lock.
const WAITS: Duration = Duration::from_secs(4);
/// Maximum number of attempts to write a lock for one Bind, which are `AGAIN` apart.
const TRIES: u32 = 5;
const AGAIN: Duration = Duration::from_millis(100);
/// Pause between a change and the next check of a lock that another pod holds.
const LOOKS: Duration = Duration::from_millis(20);

/// State of a node's lock from the point of view of one pod.
enum Verdict {
    /// Held by the pod itself.
    Own,
    /// Not held, or held by a pod that no longer needs it; with the version of the Node.
    Free(String),
    /// Held by another pod.
    Held(NodeLock),
    /// Held by a pod that the watch has not shown; with the version of the Node.
    Unknown(NodeLock, String),
}

impl State {
    /// Judges the lock of a node for the pod with the uid `uid`.
    fn lock_of(&mut self, node: &str, uid: &str, now: Instant) -> Result<Verdict, String> {
        let Some(nodes) = &self.world.locks else {
            return Err("the Nodes are not read yet; retrying".to_owned());
        };
        let Some(seen) = nodes.get(node) else {
            return Err(format!("there is no Node {node}; retrying"));
        };
        let version = seen.version.clone();
        // A lock that cannot be parsed locks nothing.
        let Some(lock) = NodeLock::read(&seen.lock) else {
            return Ok(Verdict::Free(version));
        };
        if lock.uid == uid {
            return Ok(Verdict::Own);
        }
        let pod = self.world.pods().get(&lock.pod).cloned();
        Ok(match pod.filter(|pod| pod.uid == lock.uid) {
            None => Verdict::Unknown(lock, version),
            Some(pod) if self.is_over(&pod, node, now) => Verdict::Free(version),
            Some(_) => Verdict::Held(lock),
        })
    }

    /// Returns true if a pod no longer needs the lock of a node.
    fn is_over(&mut self, pod: &Pod, node: &str, now: Instant) -> bool {
        if pod.has_ended {
            return true;
        }
        if !pod.node.is_empty() {
            let own = self.world.reserved_for(&pod.uid);
            let is_served = !own.is_empty() && own.iter().all(|one| one.is_held);
            let mut given = pod.allocated.values().flatten();
            let has_any = given.any(|name| self.world.has_named(name));
            return pod.node != node || is_served || !has_any;
        }
        // Within seconds, the scheduler retries a Bind that ended without an answer.
        let since = *self.unbound.entry(pod.uid.clone()).or_insert(now);
        !self.binding.contains(&pod.uid) && since + UNBOUND <= now
    }
}

impl Scheduler {
    /// Wakes the Binds that wait for a lock.
    pub(crate) fn may_be_unlocked(&self) {
        if let Some(node_queues) = &self.locks {
            node_queues.changed.notify_waiters();
        }
    }

    /// Locks the node for the pod, if the extender locks nodes.
    pub(crate) async fn lock(&self, target: &BindingArgs) -> Result<(), String> {
        let Some(node_queues) = &self.locks else {
            return Ok(());
        };
        let deadline = Instant::now() + WAITS;
        let busy = |by: &str| {
            let node = &target.node;
            Err(format!(
                "node {node} is locked until {by} has its devices; retrying"
            ))
        };
        let Ok(_permit) = timeout_at(deadline, node_queues.acquire(&target.node)).await else {
            return busy("another pod");
        };
        let mut tries = 0;
        loop {
            let changed = node_queues.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            let verdict = self
                .state()
                .lock_of(&target.node, &target.uid, Instant::now())?;
            let (held, version) = match verdict {
                Verdict::Own => return Ok(()),
                Verdict::Free(version) => (None, version),
                Verdict::Held(lock) => (Some(lock), String::new()),
                Verdict::Unknown(lock, version) => {
                    let is_over = self.is_gone(&lock, &target.node).await;
                    ((!is_over).then_some(lock), version)
                }
            };
            let Some(held) = held else {
                if self.write_lock(target, &version).await? {
                    return Ok(());
                }
                tries += 1;
                if tries == TRIES {
                    return busy("the pod of another scheduler");
                }
                sleep(AGAIN).await;
                continue;
            };
            if timeout_at(deadline, changed).await.is_err() {
                return busy(&format!("pod {}", held.pod));
            }
            sleep(LOOKS).await;
        }
    }

    /// Asks the API server about a lock's pod that the watch does not show. Returns true if it is gone, has ended or is on another node.
    async fn is_gone(&self, lock: &NodeLock, node: &str) -> bool {
        match self.cluster.pod(&lock.pod).await {
            Ok(None) => true,
            Ok(Some(pod)) => {
                let is_elsewhere = !pod.node.is_empty() && pod.node != node;
                pod.uid != lock.uid || pod.has_ended || is_elsewhere
            }
            Err(_) => false,
        }
    }

    async fn write_lock(&self, target: &BindingArgs, version: &str) -> Result<bool, String> {
        let lock = NodeLock {
            since: Timestamp::now().strftime("%FT%TZ").to_string(),
            pod: target.key(),
            uid: target.uid.clone(),
        };
        let node = &target.node;
        let text = lock.to_string();
        let written = self.cluster.set_lock(node, version, Some(&text)).await;
        let written = written.map_err(|error| format!("cannot lock node {node}: {error}"))?;
        Ok(written.is_some_and(|seen| {
            let state = &mut *self.state();
            state.world.put_node(node.clone(), seen);
            true
        }))
    }

    /// Unlocks the node if it is locked for the pod. If the write fails, others take the lock over once the pod no longer needs it.
    pub(crate) async fn unlock(&self, target: &BindingArgs) {
        if self.locks.is_none() {
            return;
        }
        for attempt in 0..TRIES {
            if attempt > 0 {
                sleep(AGAIN).await;
            }
            let version = {
                let state = self.state();
                let nodes = state.world.locks.as_ref();
                let seen = nodes.and_then(|nodes| nodes.get(&target.node));
                let own = seen.filter(|seen| {
                    NodeLock::read(&seen.lock).is_some_and(|lock| lock.uid == target.uid)
                });
                own.map(|seen| seen.version.clone())
            };
            let Some(version) = version else {
                return;
            };
            match self.cluster.set_lock(&target.node, &version, None).await {
                Ok(Some(seen)) => {
                    let name = target.node.clone();
                    self.state().world.put_node(name, seen);
                    self.may_be_unlocked();
                    return;
                }
                Ok(None) => {}
                Err(error) => {
                    tracing::warn!(node = target.node, %error, "cannot unlock a node; others unlock it once the pod no longer needs the lock");
                    return;
                }
            }
        }
    }
}

//! Fair queue: a few tasks run at once, one for each client, and a peer with the fewest running tasks goes first.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::oneshot;

/// Client that work is done for: the peer of a request, and the namespace in it. Any peer may name any namespace.
pub type Client = (Option<IpAddr>, String);

#[derive(Debug)]
pub struct FairQueue {
    most: usize,
    queue: Mutex<Queue>,
}

#[derive(Debug, Default)]
struct Queue {
    next: u64,
    running: BTreeMap<u64, Client>,
    /// Waiting tasks by number, which is in order of arrival.
    waiting: BTreeMap<u64, (Client, oneshot::Sender<()>)>,
}

/// Permit of a running task, or place of a waiting one in the queue. Dropping it lets the next task run.
#[derive(Debug)]
pub struct Permit {
    fair_queue: Arc<FairQueue>,
    number: u64,
}

impl FairQueue {
    /// Creates a queue that runs at most `most` tasks at once.
    pub fn new(most: usize) -> Arc<Self> {
        Arc::new(Self {
            most,
            queue: Mutex::default(),
        })
    }

    /// Waits for a permit for a task of this client.
    pub async fn acquire(self: &Arc<Self>, client: Client) -> Permit {
        let (begin, begins) = oneshot::channel();
        let permit = {
            let mut queue = self.lock();
            let number = queue.next;
            queue.next += 1;
            queue.waiting.insert(number, (client, begin));
            queue.start(self.most);
            Permit {
                fair_queue: Arc::clone(self),
                number,
            }
        };
        // The sender exists until the task may run.
        let _ = begins.await;
        permit
    }

    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Queue {
    /// Starts tasks while permits are free and a client without a running task waits.
    fn start(&mut self, most: usize) {
        while self.running.len() < most {
            let of = |peer: Option<IpAddr>| {
                let running = self.running.values();
                running.filter(|(other, _)| *other == peer).count()
            };
            let free = self
                .waiting
                .iter()
                .filter(|(_, (client, _))| !self.running.values().any(|running| running == client));
            let Some(number) = free
                .min_by_key(|(number, ((peer, _), _))| (of(*peer), **number))
                .map(|(number, _)| *number)
            else {
                return;
            };
            if let Some((client, begin)) = self.waiting.remove(&number) {
                self.running.insert(number, client);
                // A task that no longer waits releases the permit when it is dropped.
                let _ = begin.send(());
            }
        }
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let mut queue = self.fair_queue.lock();
        queue.waiting.remove(&self.number);
        queue.running.remove(&self.number);
        queue.start(self.fair_queue.most);
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;
    use futures::future::BoxFuture;

    use super::*;

    fn client(peer: u8, namespace: &str) -> Client {
        (Some([10, 0, 0, peer].into()), namespace.into())
    }

    fn asked(fair_queue: &Arc<FairQueue>, peer: u8, namespace: &str) -> BoxFuture<'static, Permit> {
        let fair_queue = Arc::clone(fair_queue);
        let client = client(peer, namespace);
        let mut permit = async move { fair_queue.acquire(client).await }.boxed();
        // The task is in the queue from its first poll.
        if let Some(permit) = (&mut permit).now_or_never() {
            return futures::future::ready(permit).boxed();
        }
        permit
    }

    #[test]
    fn a_namespace_has_one_turn_at_a_time_and_others_do_not_wait_for_it() {
        let fair_queue = FairQueue::new(3);
        let slow = asked(&fair_queue, 1, "aaa").now_or_never().unwrap();
        let mut more: Vec<_> = (0..60).map(|_| asked(&fair_queue, 1, "aaa")).collect();
        for waiting in &mut more {
            assert!(waiting.now_or_never().is_none());
        }
        let other = asked(&fair_queue, 1, "zzz").now_or_never();
        assert!(other.is_some(), "60 of another namespace wait");
        drop(slow);
        let next = (&mut more[0]).now_or_never();
        assert!(next.is_some());
        assert!((&mut more[1]).now_or_never().is_none());
    }

    #[test]
    fn who_names_many_namespaces_leaves_the_next_turn_to_others() {
        let fair_queue = FairQueue::new(2);
        let mut many: Vec<_> = (0..60)
            .map(|number| asked(&fair_queue, 1, &format!("n{number}")))
            .collect();
        let first = (&mut many[0]).now_or_never().unwrap();
        let _second = (&mut many[1]).now_or_never().unwrap();
        let mut other = asked(&fair_queue, 2, "zzz");
        assert!((&mut other).now_or_never().is_none());
        drop(first);
        let _others = (&mut other).now_or_never().unwrap();
        assert!((&mut many[2]).now_or_never().is_none());
    }

    #[test]
    fn who_no_longer_waits_takes_no_turn() {
        let fair_queue = FairQueue::new(1);
        let first = asked(&fair_queue, 1, "a").now_or_never().unwrap();
        let second = asked(&fair_queue, 1, "b");
        let mut third = asked(&fair_queue, 1, "c");
        drop(second);
        drop(first);
        assert!((&mut third).now_or_never().is_some());
        let begun = asked(&fair_queue, 1, "d");
        drop(third);
        drop(begun);
        assert!(asked(&fair_queue, 1, "e").now_or_never().is_some());
        assert!(fair_queue.lock().running.is_empty());
    }
}

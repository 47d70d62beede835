//! Waits in a component for the host's pollables and for timers, all in one call.

use std::rc::Rc;
use std::time::Duration;

use wasip2::clocks::monotonic_clock::{self, subscribe_duration};
use wasip2::io::poll::{Pollable, poll};

use crate::host::wait_list::WaitList;

/// Tasks that wait. A pollable must be dropped before its resource, so the owner of the resource also owns the pollable;
/// this list holds only pollables in use.
#[derive(Debug, Default)]
pub struct Reactor {
    timers: WaitList<Duration, ()>,
    pollables: WaitList<(), Rc<Pollable>>,
}

impl Reactor {
    /// Returns the time of the host's monotonic clock.
    #[allow(clippy::unused_self, reason = "what waits by this clock waits here")]
    pub fn now(&self) -> Duration {
        Duration::from_nanos(monotonic_clock::now())
    }

    pub async fn sleep_until(&self, end: Duration) {
        self.timers.wait(end, ()).await;
    }

    /// Waits until the host reports readiness; the resource may still have nothing then.
    pub async fn ready(&self, pollable: &Rc<Pollable>) {
        self.pollables.wait((), Rc::clone(pollable)).await;
    }

    /// Waits until at least one entry is ready and wakes its task. Traps if there are no entries, which is a bug of the
    /// handler.
    pub fn park(&self) {
        let waiting = self.pollables.all();
        let timer = self.timers.first().map(|(end, _)| {
            let left = end.saturating_sub(self.now());
            subscribe_duration(nanoseconds(left))
        });
        let asked: Vec<&Pollable> = waiting
            .iter()
            .map(|(_, pollable)| &**pollable)
            .chain(&timer)
            .collect();
        assert!(
            !asked.is_empty(),
            "the work waits for something that can never happen"
        );
        for index in poll(&asked) {
            let index = usize::try_from(index).unwrap_or(usize::MAX);
            if let Some((key, _)) = waiting.get(index) {
                self.pollables.happened(*key);
            }
        }
        let now = self.now();
        while let Some(key) = self.timers.first().filter(|(end, _)| *end <= now) {
            self.timers.happened(key);
        }
    }
}

/// Converts a duration to nanoseconds for the host's clock, at most 584 years.
pub fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

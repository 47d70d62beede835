//! The clock of a fake host: it advances exactly as far as something waits, at once.

use std::cell::Cell;
use std::time::Duration;

use crate::host::wait_list::WaitList;

/// A clock, and the timers that run by it.
#[derive(Debug, Default)]
pub(crate) struct Clock {
    now: Cell<Duration>,
    tick: Cell<Duration>,
    timers: WaitList<Duration, ()>,
}

impl Clock {
    pub fn set_tick(&self, tick: Duration) {
        self.tick.set(tick);
    }

    /// The time, after the clock has advanced by the configured tick.
    pub fn look(&self) -> Duration {
        let now = self.now.get();
        self.pass(self.tick.get());
        now
    }

    pub fn now(&self) -> Duration {
        self.now.get()
    }

    pub fn pass(&self, time: Duration) {
        self.now.set(self.now.get().saturating_add(time));
    }

    pub async fn sleep_until(&self, end: Duration) {
        self.timers.wait(end, ()).await;
    }

    /// Advances to the end of the next timer; all timers that end then complete in the order they began.
    #[expect(
        clippy::panic,
        reason = "a test that would wait for ever fails, and says why"
    )]
    pub fn park(&self) {
        let Some((end, _)) = self.timers.first() else {
            panic!(
                "the work waits for something that can never happen: no timer runs, and no fake answers; wait inside \
                 `Host::within`"
            );
        };
        self.now.set(self.now.get().max(end));
        while let Some(key) = self.timers.first().filter(|(end, _)| *end <= self.now()) {
            self.timers.happened(key);
        }
    }
}

//! Clock of a fake host. It jumps straight to the time that the tasks wait for.

use std::cell::Cell;
use std::time::Duration;

use crate::host::wait_list::WaitList;

/// Clock and its timers.
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

    /// Returns the time, then advances the clock by the configured tick.
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

    /// Advances to the end of the next timer and completes all timers that have ended by then, in order.
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

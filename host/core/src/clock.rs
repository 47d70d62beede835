//! The clock: wall time that runs with tokio's, so that deadlines and shown times never disagree and tests can pause both.
//!
//! A correction of the system's clock after the start is not followed. What an earlier agent wrote down is read by the clock of the boot,
//! which is never corrected; a wall time counts only across boots.

use std::time::Duration;

use crate::instance::{NodeStatus, Uptime};
use jiff::{SignedDuration, Timestamp};
use tokio::time::Instant;

/// Two readings of wall time and uptime differ by this much although no clock was corrected.
const JITTER: SignedDuration = SignedDuration::from_secs(2);

/// One boot of this machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Boot {
    /// The kernel's id.
    id: u128,
    /// When it started, by the agent's clock. Time in suspend does not count.
    started: Timestamp,
}

impl Boot {
    /// A moment of the agent's clock as one of this boot. It is rounded up, so that no grace gets shorter.
    pub fn uptime(&self, time: Timestamp) -> Uptime {
        let up = Duration::try_from(time.duration_since(self.started)).unwrap_or_default();
        Uptime {
            boot: self.id(),
            seconds: up.as_secs() + u64::from(up.subsec_nanos() > 0),
        }
    }

    /// Returns the id of the boot as text.
    pub fn id(&self) -> String {
        format!("{:032x}", self.id)
    }
}

/// Wall time, anchored once.
#[derive(Debug, Clone, Copy)]
pub struct Clock {
    started: Instant,
    wall: Timestamp,
    boot: Option<Boot>,
}

impl Clock {
    /// A clock that shows `wall` now and knows of no boot.
    pub fn new(wall: Timestamp) -> Self {
        Self {
            started: Instant::now(),
            wall,
            boot: None,
        }
    }

    /// The same clock in the boot `id`, which has been up for `up`.
    #[must_use]
    pub fn booted(self, id: u128, up: Duration) -> Self {
        let up = SignedDuration::try_from(up).unwrap_or_default();
        let started = self.wall.checked_sub(up).unwrap_or(Timestamp::MIN);
        Self {
            boot: Some(Boot { id, started }),
            ..self
        }
    }

    /// The boot in which the clock runs, where that is known.
    pub fn boot(&self) -> Option<Boot> {
        self.boot
    }

    /// Since when a device is missing, by this clock, as a status says that this or an earlier agent wrote. The wall clock may have
    /// been corrected since: a moment of this boot is told by the boot's clock, an earlier one counts as the start of this boot, and one
    /// of the future as now.
    pub fn missing_since(&self, status: &NodeStatus) -> Option<Timestamp> {
        let wall: Timestamp = status.missing_since.as_ref()?.parse().ok()?;
        let wall = wall.min(self.now());
        let Some(boot) = &self.boot else {
            return Some(wall);
        };
        let uptime = status.missing_uptime.as_ref();
        let Some(uptime) = uptime.filter(|uptime| uptime.boot == boot.id()) else {
            return Some(wall.max(boot.started));
        };
        let since = later(boot.started, Duration::from_secs(uptime.seconds));
        let is_same = since.duration_since(wall).abs() <= JITTER;
        Some(if is_same { wall } else { since.min(self.now()) })
    }

    /// The time, in whole milliseconds: it is shown to people.
    pub fn now(&self) -> Timestamp {
        let now = later(self.wall, self.started.elapsed());
        Timestamp::from_millisecond(now.as_millisecond()).unwrap_or(now)
    }

    /// The moment at which the clock will show `time`; now for what is past.
    pub fn instant(&self, time: Timestamp) -> Instant {
        let wait = Duration::try_from(time.duration_since(self.now())).unwrap_or_default();
        Instant::now() + wait
    }
}

/// `time` and `by` more, at most the end of time.
pub fn later(time: Timestamp, by: Duration) -> Timestamp {
    SignedDuration::try_from(by)
        .ok()
        .and_then(|by| time.checked_add(by).ok())
        .unwrap_or(Timestamp::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn wall_time_runs_with_the_paused_clock() {
        let clock = Clock::new(Timestamp::UNIX_EPOCH);
        tokio::time::advance(Duration::from_secs(90)).await;
        assert_eq!(clock.now().as_second(), 90);
        let ahead = clock.instant(Timestamp::from_second(100).unwrap());
        assert_eq!(ahead - Instant::now(), Duration::from_secs(10));
        assert_eq!(clock.instant(Timestamp::UNIX_EPOCH), Instant::now());
    }

    #[tokio::test(start_paused = true)]
    async fn a_missing_device_is_dated_by_the_boot_in_which_it_went_missing() {
        let status = |since: &str, uptime: Option<(u128, u64)>| NodeStatus {
            missing_since: Some(since.to_owned()),
            missing_uptime: uptime.map(|(boot, seconds)| Uptime {
                boot: format!("{boot:032x}"),
                seconds,
            }),
            ..NodeStatus::new(crate::device::Health::Healthy)
        };
        let clock = Clock::new("2026-01-01T01:00:00Z".parse().unwrap());
        let clock = clock.booted(7, Duration::from_hours(1));
        for (what, status, expected) in [
            (
                "corrected",
                status("1970-01-01T00:50:00Z", Some((7, 3000))),
                "2026-01-01T00:50:00Z",
            ),
            (
                "ahead",
                status("2030-01-01T00:50:00Z", Some((7, 3000))),
                "2026-01-01T00:50:00Z",
            ),
            (
                "as it was",
                status("2026-01-01T00:50:01Z", Some((7, 3000))),
                "2026-01-01T00:50:01Z",
            ),
            (
                "before this boot",
                status("2025-01-01T00:00:00Z", Some((6, 3000))),
                "2026-01-01T00:00:00Z",
            ),
            (
                "of an older agent",
                status("1970-01-01T00:00:00Z", None),
                "2026-01-01T00:00:00Z",
            ),
            (
                "ahead, of an earlier boot",
                status("2030-01-01T00:00:00Z", Some((6, 3000))),
                "2026-01-01T01:00:00Z",
            ),
            (
                "recent",
                status("2026-01-01T00:50:00Z", None),
                "2026-01-01T00:50:00Z",
            ),
        ] {
            let since = clock.missing_since(&status).unwrap();
            assert_eq!(since.to_string(), expected, "{what}");
        }
        let since = "2026-01-01T00:50:00.5Z".parse().unwrap();
        assert_eq!(clock.boot().unwrap().uptime(since).seconds, 3001);
    }

    #[test]
    fn the_end_of_time_is_not_passed() {
        assert_eq!(
            later(Timestamp::MAX, Duration::from_secs(1)),
            Timestamp::MAX
        );
    }
}

//! Clock: wall time that advances with tokio's clock, so that deadlines and displayed times agree and tests can pause
//! both.
//!
//! Ignores corrections of the system clock after the start. Times written by an earlier agent are read by the boot
//! clock, which is never corrected; their wall time counts only across boots.

use std::time::Duration;

use crate::instance::{NodeStatus, Uptime};
use jiff::{SignedDuration, Timestamp};
use tokio::time::Instant;

/// Tolerated difference between wall time and uptime if no clock was corrected.
const JITTER: SignedDuration = SignedDuration::from_secs(2);

/// Boot of this machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Boot {
    /// Boot id of the kernel.
    id: u128,
    /// Time of the boot by the agent's clock. Time in suspend does not count.
    started: Timestamp,
}

impl Boot {
    /// Converts a time of the agent's clock to an uptime of this boot. Rounds up, so that no grace period gets shorter.
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

/// Wall clock that is read once and then advances with tokio's clock.
#[derive(Debug, Clone, Copy)]
pub struct Clock {
    started: Instant,
    wall: Timestamp,
    /// Boot in which the clock runs, if known.
    pub boot: Option<Boot>,
}

impl Clock {
    /// Creates a clock that shows `wall` now and knows no boot.
    pub fn new(wall: Timestamp) -> Self {
        Self {
            started: Instant::now(),
            wall,
            boot: None,
        }
    }

    /// Sets the boot of the clock: its `id`, and the time `up` since it started.
    #[must_use]
    pub fn booted(self, id: u128, up: Duration) -> Self {
        let up = SignedDuration::try_from(up).unwrap_or_default();
        let started = self.wall.checked_sub(up).unwrap_or(Timestamp::MIN);
        Self {
            boot: Some(Boot { id, started }),
            ..self
        }
    }

    /// Returns the time, by this clock, since which a device is missing, from a status written by this or an earlier
    /// agent. The wall clock may have been corrected in between: a time of this boot is read by the boot clock, an
    /// earlier time becomes the start of this boot, and a future time becomes now.
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

    /// Returns the current time in whole milliseconds, as shown to people.
    pub fn now(&self) -> Timestamp {
        let now = later(self.wall, self.started.elapsed());
        Timestamp::from_millisecond(now.as_millisecond()).unwrap_or(now)
    }

    /// Returns the `Instant` at which the clock will show `time`, or now if `time` is in the past.
    pub fn instant(&self, time: Timestamp) -> Instant {
        let wait = Duration::try_from(time.duration_since(self.now())).unwrap_or_default();
        Instant::now() + wait
    }
}

/// Returns `time` plus `by`, or the maximum timestamp on overflow.
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
        assert_eq!(clock.boot.unwrap().uptime(since).seconds, 3001);
    }

    #[test]
    fn the_end_of_time_is_not_passed() {
        assert_eq!(
            later(Timestamp::MAX, Duration::from_secs(1)),
            Timestamp::MAX
        );
    }
}

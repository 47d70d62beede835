//! How soon a call may follow another. Anybody on the network can send what wakes a handler, so calls that others cause for long
//! are made less often, and leave time between them.

use std::collections::VecDeque;
use std::time::Duration;

use leafhost_core::timeouts::WAKE_SPACING;
use tokio::time::Instant;

/// The time that is looked at.
const WINDOW: Duration = Duration::from_secs(10);
/// More calls than this in it are a flood…
const FLOOD: usize = 20;
/// …until there are fewer than this.
const CALM: usize = 5;
/// So much time of several calls in it is a flood, too…
const FLOOD_TIME: Duration = Duration::from_secs(5);
/// …until it is less than this.
const CALM_TIME: Duration = Duration::from_secs(2);
/// The time between calls in a flood: as long as the last call was, within these.
const FLOOD_SPACING: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(8));

/// The calls of the last ten seconds that others caused.
#[derive(Debug, Default)]
pub(super) struct Pace {
    /// When they began, and when they ended.
    calls: VecDeque<(Instant, Instant)>,
    /// When the one that runs began.
    begun: Option<Instant>,
    flooded: bool,
}

impl Pace {
    /// A call begins that others caused.
    pub(super) fn begin(&mut self, now: Instant) {
        self.forget(now);
        self.begun = Some(now);
    }

    /// How long after a call that ends now, whoever caused it, the next may be made.
    pub(super) fn end(&mut self, now: Instant) -> Duration {
        match self.begun.take() {
            Some(begun) => self.calls.push_back((begun, now)),
            None => self.forget(now),
        }
        let calls = self.calls.len();
        let spent: Duration = self.calls.iter().map(|call| within(*call, now)).sum();
        self.flooded |= calls > FLOOD || (calls > 1 && spent > FLOOD_TIME);
        self.flooded &= calls >= CALM || spent >= CALM_TIME;
        if !self.flooded {
            return WAKE_SPACING;
        }
        let (least, most) = FLOOD_SPACING;
        let took = self.calls.back().map(|(begun, end)| *end - *begun);
        took.unwrap_or_default().clamp(least, most)
    }

    /// Those that ended before the time that is looked at.
    fn forget(&mut self, now: Instant) {
        let is_over = |(_, end): &mut (Instant, Instant)| now.duration_since(*end) >= WINDOW;
        while self.calls.pop_front_if(is_over).is_some() {}
        self.flooded &= !self.calls.is_empty();
    }
}

/// How much of a call lies in the time that is looked at.
fn within((begun, end): (Instant, Instant), now: Instant) -> Duration {
    let before = now.duration_since(begun).saturating_sub(WINDOW);
    end.duration_since(begun).saturating_sub(before)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The part of ten minutes that calls of this length take if each is made as soon as it may, and how many there are.
    fn share(length: Duration) -> (f64, u32) {
        let mut pace = Pace::default();
        let start = Instant::now();
        let (mut now, mut spent, mut calls) = (start, Duration::ZERO, 0);
        // The first minute shows that it is a flood.
        while now < start + 60 * WINDOW {
            pace.begin(now);
            if now >= start + 6 * WINDOW {
                spent += length;
                calls += 1;
            }
            now += length;
            now += pace.end(now);
        }
        let all = now.duration_since(start + 6 * WINDOW);
        (spent.as_secs_f64() / all.as_secs_f64(), calls)
    }

    #[test]
    fn calls_that_others_cause_are_one_a_second_and_leave_time_between_them() {
        for (millis, most) in [
            (1, 0.01),
            (100, 0.1),
            (400, 0.29),
            (600, 0.38),
            (1000, 0.51),
            (2000, 0.51),
            (5000, 0.51),
            (12_000, 0.61),
            (30_000, 0.8),
        ] {
            let (share, calls) = share(Duration::from_millis(millis));
            assert!(share <= most, "{millis}: {share}");
            assert!(calls <= 602, "{millis}: {calls}");
        }
    }

    #[test]
    fn a_long_call_alone_keeps_the_next_away_for_a_tenth_of_a_second() {
        for seconds in [4, 30] {
            let mut pace = Pace::default();
            let mut now = Instant::now();
            for _ in 0..3 {
                pace.begin(now);
                now += Duration::from_secs(seconds);
                assert_eq!(pace.end(now), WAKE_SPACING);
                // Those that others did not cause do not count.
                for _ in 0..60 {
                    now += Duration::from_millis(200);
                    assert_eq!(pace.end(now), WAKE_SPACING);
                }
            }
        }
    }
}

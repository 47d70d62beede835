//! Delays the replacement of ended pods: the first is replaced at once, each later one after a longer wait if the pods keep ending soon.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use jiff::Timestamp;
use leafhost_core::backoff;
use leafhost_core::brokers::ObjectKey;

/// Wait before the second replacement in a row; doubles with each further one.
const FIRST: Duration = Duration::from_secs(10);
/// Maximum wait before a replacement.
const LAST: Duration = Duration::from_mins(5);
/// Running time after which an ended pod is replaced at once.
const STEADY: Duration = Duration::from_mins(10);

/// Pods that have ended, by key.
#[derive(Debug, Default)]
pub struct Restarts(BTreeMap<ObjectKey, Ended>);

#[derive(Debug)]
struct Ended {
    uid: String,
    /// Number of successive pods that ended before [`STEADY`].
    in_a_row: u32,
    due: Timestamp,
}

impl Restarts {
    /// Returns the time at which the pod is to be replaced. The wait begins when the end of the pod is seen.
    pub fn due(&mut self, key: &ObjectKey, uid: &str, ran: Duration, now: Timestamp) -> Timestamp {
        let before = self.0.get(key);
        if let Some(same) = before.filter(|ended| ended.uid == uid) {
            return same.due;
        }
        let in_a_row = match before {
            Some(before) if ran < STEADY => before.in_a_row.saturating_add(1),
            _ => 0,
        };
        let wait = match in_a_row {
            0 => Duration::ZERO,
            _ => backoff::doubled(FIRST, in_a_row, LAST),
        };
        let due = now.checked_add(wait).unwrap_or(now);
        let ended = Ended {
            uid: uid.to_owned(),
            in_a_row,
            due,
        };
        self.0.insert(key.clone(), ended);
        due
    }

    /// Forgets all pods but the wanted ones.
    pub fn keep(&mut self, wanted: &BTreeSet<ObjectKey>) {
        self.0.retain(|key, _| wanted.contains(key));
    }
}

#[cfg(test)]
mod tests {
    use leafhost_core::brokers::Kind;

    use super::*;

    #[test]
    fn pods_that_end_soon_are_replaced_ever_later_and_one_that_ran_long_at_once() {
        let key = ObjectKey {
            kind: Kind::Pod,
            namespace: "n".into(),
            name: "p".into(),
        };
        let now = Timestamp::UNIX_EPOCH;
        let mut restarts = Restarts::default();
        let mut wait = |uid: &str, ran: Duration| {
            let due = restarts.due(&key, uid, ran, now);
            due.duration_since(now).as_secs()
        };
        let soon = Duration::from_secs(1);
        let waits: Vec<i64> = (0..8).map(|n| wait(&n.to_string(), soon)).collect();
        assert_eq!(waits, [0, 10, 20, 40, 80, 160, 300, 300]);
        assert_eq!(wait("7", soon), 300);
        assert_eq!(wait("8", STEADY), 0);
        assert_eq!(wait("9", soon), 10);
        restarts.keep(&BTreeSet::new());
        assert_eq!(restarts.due(&key, "10", soon, now), now);
    }
}

//! Limits the text of the devices of all sessions together, whichever handlers report them. Pure.
//!
//! The agent holds the text of a device several times: here, in its Instance, and while it is written or read.

use std::collections::{BTreeMap, BTreeSet};

use leafhost_core::device::{Device, MAX_TEXT};
use leafhost_core::session::{Devices, Discovery};

use super::{Grace, SessionDevices};

/// Maximum number of bytes of text of all sessions together.
const MOST: usize = 64 << 20;
/// Bytes that each session may always have, however much the others have, unless the shares of all sessions together exceed [`MOST`].
const SHARE: usize = 1 << 20;

/// Text of all sessions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Budget {
    sessions: usize,
    held: usize,
}

impl Budget {
    /// Counts the text of these sessions.
    pub fn of<'a>(sessions: impl Iterator<Item = &'a SessionDevices>) -> Self {
        let empty = Self {
            sessions: 0,
            held: 0,
        };
        sessions.fold(empty, |sum, session| Self {
            sessions: sum.sessions + 1,
            held: sum.held + session.held(),
        })
    }

    /// Admits an answer of one of the sessions if it stays within the session's share, if there is room, or if the session has no more text
    /// after it than before.
    ///
    /// # Errors
    /// Fails if the limit is exceeded; the text says by how much, with the remedy.
    pub fn admit(
        self,
        session: &SessionDevices,
        answer: &Discovery,
        grace: Grace,
    ) -> Result<(), String> {
        let before = session.held();
        let after = session.held_after(answer, grace);
        let all = self.held.saturating_sub(before) + after;
        let share = (MOST / self.sessions.max(1)).clamp(MAX_TEXT, SHARE);
        if after <= share || after <= before || all <= MOST {
            return Ok(());
        }
        Err(format!(
            "its devices would have {} MiB of text and those of all handlers on this node {} MiB, at most {} MiB ({} KiB are always free for each Configuration and handler); the answer is not used and the devices before it stay; report fewer devices or shorter properties, or remove a Configuration that has many",
            after.div_ceil(1 << 20),
            all.div_ceil(1 << 20),
            MOST >> 20,
            share >> 10
        ))
    }
}

impl SessionDevices {
    /// Returns the bytes of text that are kept for the session.
    fn held(&self) -> usize {
        self.text + bytes(&self.left_out) + bytes(&self.departed)
    }

    /// Returns the bytes that would be kept after an answer: its devices, and the tracked devices that stay although the answer lacks them.
    fn held_after(&self, answer: &Discovery, grace: Grace) -> usize {
        let Discovery {
            devices,
            departed,
            left_out,
        } = answer;
        let (reported, is_complete) = match devices {
            Devices::Unchanged => return self.held(),
            Devices::Complete(devices) => (devices, true),
            Devices::Partial(devices) => (devices, false),
        };
        let present: BTreeMap<(&str, bool), usize> = reported
            .iter()
            .map(|device: &Device| ((device.id.as_str(), device.shared), device.text()))
            .collect();
        let departed: BTreeSet<&str> = departed.iter().map(String::as_str).collect();
        let stay = self.tracked.iter().filter(|(key, _)| {
            let id = key.id.as_str();
            let is_lacking = is_complete && !left_out.ids.contains(id);
            let goes = is_lacking && grace.of(key.shared).is_zero();
            !(goes || departed.contains(id) || present.contains_key(&(id, key.shared)))
        });
        let stay: usize = stay.map(|(_, tracked)| tracked.device.text()).sum();
        let ids = bytes(&left_out.ids) + departed.iter().map(|id| id.len()).sum::<usize>();
        present.values().sum::<usize>() + stay + ids
    }
}

fn bytes(ids: &BTreeSet<String>) -> usize {
    ids.iter().map(String::len).sum()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use jiff::Timestamp;
    use leafhost_core::left_out::LeftOuts;

    use super::*;

    const MIB: usize = 1 << 20;
    const NONE: Grace = Grace(Some(Duration::ZERO));

    fn devices(name: &str, mebibytes: usize) -> Vec<Device> {
        // A little less each, for the ids.
        let device = |number: usize| {
            let mut device = Device::new(format!("{name}{number}"), false);
            let text = "x".repeat((MIB >> 5) - 64);
            device.properties.insert("A".into(), text);
            device
        };
        (0..mebibytes << 5).map(device).collect()
    }

    fn answer(devices: Devices) -> Discovery {
        Discovery {
            devices,
            departed: Vec::new(),
            left_out: LeftOuts::default(),
        }
    }

    fn complete(name: &str, mebibytes: usize) -> Discovery {
        answer(Devices::Complete(devices(name, mebibytes)))
    }

    /// Applies an answer if it is admitted.
    fn take(
        sessions: &mut [SessionDevices],
        index: usize,
        answer: Discovery,
    ) -> Result<(), String> {
        Budget::of(sessions.iter()).admit(&sessions[index], &answer, NONE)?;
        sessions[index].fold(answer, NONE, Timestamp::UNIX_EPOCH);
        Ok(())
    }

    #[test]
    fn all_sessions_together_have_so_much_and_each_always_its_share() {
        let mut sessions = vec![SessionDevices::default(); 10];
        for index in 0..8 {
            take(&mut sessions, index, complete("a", 8)).unwrap();
        }
        let why = take(&mut sessions, 8, complete("a", 2)).unwrap_err();
        for words in [
            "2 MiB of text",
            "66 MiB",
            "at most 64 MiB",
            "1024 KiB are always free",
        ] {
            assert!(why.contains(words), "{why}");
        }
        assert!(sessions[8].tracked().is_empty(), "refused whole");
        take(&mut sessions, 8, complete("a", 1)).unwrap();
        take(&mut sessions, 9, complete("a", 1)).unwrap();
        // An answer without more text is accepted even above the limit; withdrawn devices free text for others.
        take(&mut sessions, 0, complete("b", 8)).unwrap();
        take(&mut sessions, 0, complete("b", 5)).unwrap();
        take(&mut sessions, 9, complete("a", 2)).unwrap();
        take(&mut sessions, 9, complete("a", 3)).unwrap_err();
        assert_eq!(sessions[9].tracked().len(), 64);
    }

    #[test]
    fn what_stays_beside_an_answer_counts() {
        let mut sessions = vec![SessionDevices::default(); 8];
        for index in 0..8 {
            let taken = complete("a", if index == 0 { 6 } else { 8 });
            take(&mut sessions, index, taken).unwrap();
        }
        let more = |mebibytes| answer(Devices::Partial(devices("b", mebibytes)));
        take(&mut sessions, 0, more(3)).unwrap_err();
        take(&mut sessions, 0, more(2)).unwrap();
        let mut others = complete("c", 7);
        others.left_out.ids = devices("a", 2).into_iter().map(|one| one.id).collect();
        take(&mut sessions, 0, others.clone()).unwrap_err();
        others.departed = others.left_out.ids.iter().cloned().collect();
        take(&mut sessions, 0, others).unwrap();
        // With a grace, devices that a complete answer lacks stay for a time.
        let (budget, grace) = (
            Budget::of(sessions.iter()),
            Grace(Some(Duration::from_secs(1))),
        );
        budget
            .admit(&sessions[1], &complete("b", 8), grace)
            .unwrap_err();
        budget.admit(&sessions[1], &complete("b", 8), NONE).unwrap();
        budget
            .admit(&sessions[1], &answer(Devices::Unchanged), grace)
            .unwrap();
    }

    #[test]
    fn the_shares_of_many_sessions_are_smaller() {
        let budget = Budget {
            sessions: 1000,
            held: MOST,
        };
        let session = SessionDevices::default();
        let of = |bytes: usize| {
            let mut device = Device::new("a", true);
            device.properties.insert("A".into(), "x".repeat(bytes));
            answer(Devices::Complete(vec![device]))
        };
        budget.admit(&session, &of(60 << 10), NONE).unwrap();
        budget.admit(&session, &complete("a", 1), NONE).unwrap_err();
    }
}

//! Rejected devices of an answer: a bounded number is shown, the ids of all are kept.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::device::MAX_ID;

/// Maximum number of rejected devices shown; all others are only counted.
pub const MAX_SHOWN: usize = 100;

/// Device that was rejected.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeftOut {
    /// Id of the device, cut to 256 bytes for display; unprintable characters escaped.
    pub id: String,
    /// Reason for the rejection.
    pub reason: String,
}

/// Rejected devices of an answer.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LeftOuts {
    /// First rejected devices, at most [`MAX_SHOWN`].
    pub shown: Vec<LeftOut>,
    /// Number of rejected devices not in `shown`.
    pub more: u64,
    /// Ids of all rejected devices, except ids that no device can have.
    pub ids: BTreeSet<String>,
    /// Property or path in the container that the grants do not allow, by the id of the rejected device that has it.
    pub ungranted: BTreeMap<String, String>,
}

impl LeftOuts {
    /// Adds the device with this id, as the handler wrote it. Calls `say` only if the device is shown.
    pub fn add(&mut self, id: &str, say: impl FnOnce() -> LeftOut) {
        // Longer ids belong to no device.
        if id.len() <= MAX_ID {
            self.ids.insert(id.to_owned());
        }
        if self.shown.len() < MAX_SHOWN {
            self.shown.push(say());
        } else {
            self.more += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_hundred_are_shown_and_all_are_known() {
        let mut all = LeftOuts::default();
        for number in 0..4096 {
            let id = format!("{}{number}", "x".repeat(300));
            all.add(&id, || LeftOut {
                id: number.to_string(),
                reason: "why".into(),
            });
        }
        assert_eq!((all.shown.len(), all.more), (100, 3996));
        assert_eq!(all.shown.last().map(|one| one.id.as_str()), Some("99"));
        assert_eq!(all.ids.len(), 4096);
        for (id, is_there) in [("0", true), ("4095", true), ("4096", false), ("", false)] {
            let id = format!("{}{id}", "x".repeat(300));
            assert_eq!(all.ids.contains(&id), is_there, "{id}");
        }
    }
}

//! The devices of an answer that were not taken: a bounded number is shown, all are known.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use crate::device::MAX_ID;

/// How many are shown; of the others there is only the number.
pub const MAX_SHOWN: usize = 100;

/// A device that was not taken.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeftOut {
    /// Its id, cut to 256 bytes for showing; unprintable characters escaped.
    pub id: String,
    /// Why.
    pub reason: String,
}

/// The devices that were not taken.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LeftOuts {
    /// The first ones.
    pub shown: Vec<LeftOut>,
    /// How many more there were.
    pub more: u64,
    /// The ids of all of them, but for those that no device can have.
    pub ids: BTreeSet<String>,
}

/// Collects them one by one.
#[derive(Debug, Default)]
pub struct Collector(LeftOuts);

impl Collector {
    /// The device with that id, as the handler wrote it. `say` is asked only if it is shown.
    pub fn add(&mut self, id: &str, say: impl FnOnce() -> LeftOut) {
        // No device has a longer one.
        if id.len() <= MAX_ID {
            self.0.ids.insert(id.to_owned());
        }
        if self.0.shown.len() < MAX_SHOWN {
            self.0.shown.push(say());
        } else {
            self.0.more += 1;
        }
    }

    /// All of them.
    pub fn done(self) -> LeftOuts {
        self.0
    }
}

impl FromIterator<LeftOut> for LeftOuts {
    /// Those whose ids are shown as they are.
    fn from_iter<T: IntoIterator<Item = LeftOut>>(all: T) -> Self {
        let mut collector = Collector::default();
        for one in all {
            let id = one.id.clone();
            collector.add(&id, || one);
        }
        collector.done()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_hundred_are_shown_and_all_are_known() {
        let mut collector = Collector::default();
        for number in 0..4096 {
            let id = format!("{}{number}", "x".repeat(300));
            collector.add(&id, || LeftOut {
                id: number.to_string(),
                reason: "why".into(),
            });
        }
        let all = collector.done();
        assert_eq!((all.shown.len(), all.more), (100, 3996));
        assert_eq!(all.shown.last().map(|one| one.id.as_str()), Some("99"));
        assert_eq!(all.ids.len(), 4096);
        for (id, is_there) in [("0", true), ("4095", true), ("4096", false), ("", false)] {
            let id = format!("{}{id}", "x".repeat(300));
            assert_eq!(all.ids.contains(&id), is_there, "{id}");
        }
    }

    #[test]
    fn nothing_left_out_is_nothing() {
        assert_eq!(Collector::default().done(), LeftOuts::default());
        assert!(LeftOuts::default().ids.is_empty());
    }
}

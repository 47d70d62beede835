//! The devices of an answer that were not taken: shown up to a number, known all.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};

use serde::{Deserialize, Serialize};

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
    /// All of them.
    pub ids: Ids,
}

/// Of each id eight bytes, sorted: an answer may have a great many.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Ids(Vec<u64>);

impl Ids {
    /// Whether the device with that id is among them.
    pub fn contains(&self, id: &str) -> bool {
        !self.0.is_empty() && self.0.binary_search(&digest(id)).is_ok()
    }

    /// How many there are; one that is repeated counts once.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// Takes them in one by one.
#[derive(Debug, Default)]
pub struct Gathering {
    shown: Vec<LeftOut>,
    more: u64,
    ids: Vec<u64>,
}

impl Gathering {
    /// The device with that id, as the handler wrote it. `say` is asked only if it is shown.
    pub fn add(&mut self, id: &str, say: impl FnOnce() -> LeftOut) {
        self.ids.push(digest(id));
        if self.shown.len() < MAX_SHOWN {
            self.shown.push(say());
        } else {
            self.more += 1;
        }
    }

    /// All of them.
    pub fn done(mut self) -> LeftOuts {
        self.ids.sort_unstable();
        self.ids.dedup();
        self.ids.shrink_to_fit();
        LeftOuts {
            shown: self.shown,
            more: self.more,
            ids: Ids(self.ids),
        }
    }
}

impl FromIterator<LeftOut> for LeftOuts {
    /// Those whose ids are shown as they are.
    fn from_iter<T: IntoIterator<Item = LeftOut>>(all: T) -> Self {
        let mut gathering = Gathering::default();
        for one in all {
            let id = one.id.clone();
            gathering.add(&id, || one);
        }
        gathering.done()
    }
}

/// The same in every run of the program.
fn digest(id: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    id.hash(&mut hasher);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_hundred_are_shown_and_all_are_known() {
        let mut gathering = Gathering::default();
        for number in 0..4096 {
            let id = format!("{}{number}", "x".repeat(300));
            gathering.add(&id, || LeftOut {
                id: number.to_string(),
                reason: "why".into(),
            });
        }
        let all = gathering.done();
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
        assert_eq!(Gathering::default().done(), LeftOuts::default());
        assert!(LeftOuts::default().ids.is_empty());
    }
}

//! Which files of a folder are read where it holds more than may be: what is followed pushes out nothing that was followed
//! before. Pure.

use std::collections::{BTreeMap, BTreeSet};

use leafhost_core::text;

use super::Rules;
use crate::settle::Stamp;

/// The most files that one message names.
const MAX_NAMED: usize = 5;

/// Which file goes first where not all can be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Rank {
    /// It is followed and as it was.
    Same,
    /// It is followed, and has changed.
    Changed,
    /// It was followed until there was no room for it.
    Waiting,
    /// What it held in an earlier run serves.
    Kept,
    /// Nothing of it serves.
    New,
}

/// The files that are not read.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct LeftOut {
    /// All of them.
    pub names: BTreeSet<String>,
    /// What is told of them.
    pub problems: Vec<String>,
}

/// Takes out of `found` what is not read. `absent` files that are followed may come back in a moment and have their places.
pub fn leave_out(
    found: &mut BTreeMap<String, Stamp>,
    rules: &Rules,
    absent: usize,
    rank: impl Fn(&str, &Stamp) -> Rank,
) -> LeftOut {
    let bytes = |name: &str, stamp: &Stamp| match rules.kind(name) {
        // What is larger is refused, and nothing of it is held.
        Some(kind) if kind.held && stamp.size <= kind.max => stamp.size,
        _ => 0,
    };
    let all = found.iter().fold(0_u64, |sum, (name, stamp)| {
        sum.saturating_add(bytes(name, stamp))
    });
    if found.len().saturating_add(absent) <= rules.max_files && all <= rules.max_bytes {
        return LeftOut::default();
    }
    let mut queue: Vec<(Rank, String, u64)> = found
        .iter()
        .map(|(name, stamp)| (rank(name, stamp), name.clone(), bytes(name, stamp)))
        .collect();
    queue.sort();
    let (mut number, mut held) = (0_usize, 0_u64);
    let (mut beyond, mut large, mut serving) = (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
    for (rank, name, bytes) in queue {
        let followed = rank <= Rank::Waiting;
        let reserved = if followed { 0 } else { absent };
        let out = if number.saturating_add(reserved) >= rules.max_files {
            &mut beyond
        } else if held.saturating_add(bytes) > rules.max_bytes {
            &mut large
        } else {
            number = number.saturating_add(1);
            held = held.saturating_add(bytes);
            continue;
        };
        found.remove(&name);
        if rank != Rank::New {
            serving.insert(name.clone());
        }
        out.insert(name);
    }
    let mut problems = Vec::new();
    if !beyond.is_empty() {
        problems.push(format!(
            "has {} files more than the {} that are read, and these are not, new ones first: {}; remove some",
            beyond.len(),
            rules.max_files,
            text::few(&beyond, MAX_NAMED)
        ));
    }
    if !large.is_empty() {
        problems.push(format!(
            "has more than {} MiB in its files, which is the most, and {} are not read, new ones first: {}; make some smaller or remove some",
            rules.max_bytes >> 20,
            large.len(),
            text::few(&large, MAX_NAMED)
        ));
    }
    if !serving.is_empty() {
        problems.push(format!(
            "has files that were read and are not any more: {}; what was accepted of them serves, and no change of them does",
            text::few(&serving, MAX_NAMED)
        ));
    }
    beyond.append(&mut large);
    LeftOut {
        names: beyond,
        problems,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::folder::{Kind, LONGEST_NAME};

    const RULES: Rules = Rules {
        kinds: &[
            Kind {
                suffix: ".held",
                max: 1 << 20,
                links: false,
                held: true,
            },
            Kind {
                suffix: "",
                max: 1 << 30,
                links: false,
                held: false,
            },
        ],
        nested: false,
        max_files: 4,
        max_bytes: 2 << 20,
        longest_name: LONGEST_NAME,
    };

    /// What is read of files with their ranks and sizes, and what is told.
    fn run(files: &[(&str, Rank, u64)], absent: usize) -> (Vec<String>, String) {
        let mut found: BTreeMap<_, _> = files
            .iter()
            .map(|(name, _, size)| {
                let stamp = Stamp {
                    inode: 1,
                    size: *size,
                    modified: (0, 0),
                    changed: (0, 0),
                };
                ((*name).to_owned(), stamp)
            })
            .collect();
        let rank = |name: &str, _: &Stamp| files.iter().find(|file| file.0 == name).unwrap().1;
        let left = leave_out(&mut found, &RULES, absent, rank);
        assert_eq!(found.len() + left.names.len(), files.len());
        (found.into_keys().collect(), left.problems.join("\n"))
    }

    #[test]
    fn what_serves_has_its_place_first_and_new_ones_what_is_left() {
        use Rank::{Changed, Kept, New, Same};
        let files = [
            ("a", New, 0),
            ("b", New, 0),
            ("c", Kept, 0),
            ("d", Same, 0),
            ("e", Changed, 0),
        ];
        assert_eq!(run(&files, 0).0, ["a", "c", "d", "e"]);
        assert_eq!(run(&files, 1).0, ["c", "d", "e"], "one may come back");
        let (read, told) = run(&files, 2);
        assert_eq!(read, ["d", "e"]);
        assert!(
            told.starts_with("has 3 files more than the 4 ") && told.contains(": a, b, c; remove"),
            "{told}"
        );
        assert!(told.contains("not any more: c; what was"), "{told}");
    }

    #[test]
    fn the_bytes_that_are_held_are_bounded_and_what_grows_pushes_nothing_out() {
        use Rank::{Changed, New, Same, Waiting};
        let mib = 1 << 20;
        let files = [
            ("a.held", New, 1),
            ("b.held", Waiting, mib),
            ("c.held", Changed, mib),
            ("d.held", Same, mib - 1),
        ];
        let (read, told) = run(&files, 0);
        assert_eq!(read, ["a.held", "c.held", "d.held"]);
        assert!(
            told.contains("more than 2 MiB in its files") && told.contains("not any more: b.held;"),
            "{told}"
        );
        let unheld = [
            ("a", New, 1 << 29),
            ("b.held", New, mib + 1),
            ("c.held", New, mib),
            ("d.held", New, mib),
        ];
        assert_eq!(run(&unheld, 0).0.len(), 4, "what is refused is not held");
    }
}

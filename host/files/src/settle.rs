//! When a file of a watched folder counts: closed and unchanged for a while; and when it counts as gone.
//!
//! Pure: told what was heard and seen and when, it says what has settled. Knows no file system.

use std::collections::BTreeMap;
use std::time::Duration;

use leafhost_core::timeouts::{FILE_GONE, FILE_SETTLE, FILE_SILENT, FOLDER_BACKSTOP};
use tokio::time::Instant;

/// What tells one state of a file from another without reading it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stamp {
    /// The file's number: another one after a rename.
    pub inode: u64,
    /// Bytes.
    pub size: u64,
    /// Seconds and nanoseconds.
    pub modified: (i64, i64),
    /// Seconds and nanoseconds; changes also when a tool sets `modified` back.
    pub changed: (i64, i64),
}

/// Something that happened to a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Heard {
    /// It was made: by a writer that will close it, or as a link, which nobody closes.
    Created,
    /// It was written to and is open.
    Written,
    /// A writer closed it, or it was moved here.
    Closed,
}

/// What has settled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Settled {
    /// The file is there and at rest; its content may differ from before.
    Rests,
    /// The file is gone.
    Gone,
}

/// Whether somebody has the file open for writing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Writer {
    /// Nobody, as far as was heard. Created and Written lead out.
    None,
    /// It was made, or found empty, and nothing more heard. Closed, Written, or a long silence lead out.
    Perhaps,
    /// It was written to. Closed leads out, or a long silence: truncate(2) writes and nobody closes, and a replaced folder takes
    /// the writer's close with it.
    Writing,
}

#[derive(Debug)]
struct Entry {
    /// As last seen; absent while the file is.
    stamp: Option<Stamp>,
    /// When something last happened to it.
    quiet_since: Instant,
    /// Whether something was heard of it since it was last seen, which explains that it is another.
    heard: bool,
    writer: Writer,
    /// Whether something happened since it last counted.
    pending: bool,
    /// Whether it ever counted.
    counted: bool,
}

impl Entry {
    fn is_known(&self) -> bool {
        self.stamp.is_some() || self.counted
    }

    /// When it settles, if nothing more happens.
    fn settles(&self) -> Option<(Instant, Settled)> {
        let (wait, settled) = match (self.stamp, self.writer) {
            (None, _) => (FILE_GONE, Settled::Gone),
            (Some(_), _) if !self.pending => return None,
            (Some(_), Writer::None) => (FILE_SETTLE, Settled::Rests),
            (Some(_), Writer::Perhaps) => (FOLDER_BACKSTOP, Settled::Rests),
            (Some(_), Writer::Writing) => (FILE_SILENT, Settled::Rests),
        };
        Some((self.quiet_since + wait, settled))
    }
}

/// The files of one folder by name.
#[derive(Debug, Default)]
pub struct Settling {
    entries: BTreeMap<String, Entry>,
}

impl Settling {
    /// Something happened to a file.
    pub fn heard(&mut self, name: &str, heard: Heard, now: Instant) {
        let entry = self.entries.entry(name.to_owned()).or_insert(Entry {
            stamp: None,
            quiet_since: now,
            heard: true,
            writer: Writer::None,
            pending: true,
            counted: false,
        });
        entry.heard = true;
        entry.pending = true;
        entry.quiet_since = now;
        entry.writer = match heard {
            Heard::Closed => Writer::None,
            Heard::Written => Writer::Writing,
            Heard::Created if entry.writer == Writer::Writing => Writer::Writing,
            Heard::Created => Writer::Perhaps,
        };
    }

    /// Events were lost: whoever wrote may have closed.
    pub fn lost(&mut self, now: Instant) {
        for entry in self.entries.values_mut() {
            if entry.writer == Writer::Writing {
                entry.writer = Writer::Perhaps;
                entry.quiet_since = now;
            }
            entry.heard = false;
        }
    }

    /// The folder was looked through and this is all there is.
    pub fn seen(&mut self, found: &BTreeMap<String, Stamp>, now: Instant) {
        for (name, stamp) in found {
            // An empty file of which nothing was heard: somebody is about to write it, more likely than not.
            let writer = match stamp.size {
                0 => Writer::Perhaps,
                _ => Writer::None,
            };
            let entry = self.entries.entry(name.clone()).or_insert(Entry {
                stamp: None,
                quiet_since: now,
                heard: false,
                writer,
                pending: true,
                counted: false,
            });
            let heard = std::mem::take(&mut entry.heard);
            if entry.stamp != Some(*stamp) {
                if !heard {
                    entry.quiet_since = now;
                    // Another file took its place without an event, so the events of the writer were about the other.
                    if entry.stamp.is_some_and(|seen| seen.inode != stamp.inode) {
                        entry.writer = writer;
                    }
                }
                entry.stamp = Some(*stamp);
                entry.pending = true;
            }
        }
        self.entries.retain(|name, entry| {
            if !found.contains_key(name) {
                entry.heard = false;
                if entry.stamp.take().is_some() {
                    entry.quiet_since = now;
                    entry.writer = Writer::None;
                }
            }
            entry.stamp.is_some() || entry.counted
        });
    }

    /// A file changed while it was read.
    pub fn moved_on(&mut self, name: &str, now: Instant) {
        if let Some(entry) = self.entries.get_mut(name) {
            entry.pending = true;
            entry.quiet_since = now;
        }
    }

    /// A file could not be read: it is taken once more, after a while.
    pub fn unread(&mut self, name: &str, now: Instant) {
        self.moved_on(name, now);
        if let Some(entry) = self.entries.get_mut(name) {
            entry.writer = Writer::Perhaps;
        }
    }

    /// Whether the file was seen, not only heard of.
    pub fn knows(&self, name: &str) -> bool {
        let entry = self.entries.get(name);
        entry.is_some_and(Entry::is_known)
    }

    /// How many files are away that were seen and do not count as gone yet.
    pub fn away(&self, found: &BTreeMap<String, Stamp>) -> usize {
        let known = self.entries.iter().filter(|(_, entry)| entry.is_known());
        known.filter(|(name, _)| !found.contains_key(*name)).count()
    }

    /// A file as last seen.
    pub fn stamp(&self, name: &str) -> Option<Stamp> {
        self.entries.get(name)?.stamp
    }

    /// The files of a folder below this one, as last seen.
    pub fn seen_in<'a>(&'a self, folder: &'a str) -> impl Iterator<Item = (String, Stamp)> + 'a {
        let below = move |name: &str| {
            let rest = name.strip_prefix(folder);
            rest.is_some_and(|rest| rest.starts_with('/'))
        };
        let entries = self.entries.iter().filter(move |(name, _)| below(name));
        entries.filter_map(|(name, entry)| Some((name.clone(), entry.stamp?)))
    }

    /// Takes what has settled by now. To be called after [`Settling::seen`] of the same moment, so that nothing counts
    /// that changed unheard.
    pub fn take(&mut self, now: Instant) -> Vec<(String, Settled)> {
        let mut taken = Vec::new();
        self.entries.retain(|name, entry| {
            let Some((_, settled)) = entry.settles().filter(|(at, _)| *at <= now) else {
                return true;
            };
            taken.push((name.clone(), settled));
            entry.pending = false;
            entry.counted = true;
            settled == Settled::Rests
        });
        taken
    }

    /// When something settles next.
    pub fn next(&self) -> Option<Instant> {
        let times = self.entries.values().filter_map(Entry::settles);
        times.map(|(at, _)| at).min()
    }

    /// Files that are there and have never counted. From now on their going counts.
    pub fn take_unsettled(&mut self) -> Vec<String> {
        self.entries
            .iter_mut()
            .filter(|(_, entry)| entry.stamp.is_some() && !entry.counted)
            .map(|(name, entry)| {
                entry.counted = true;
                name.clone()
            })
            .collect()
    }
}

/// How long a folder rests between looks after something was heard: a writer in a hurry causes no more.
pub const LOOK_SPACING: Duration = Duration::from_millis(50);

#[cfg(test)]
mod tests {
    use super::*;

    /// A name, what happens at which millisecond, and what settles at which.
    type Scenario = (&'static str, Vec<(u64, Step)>, Vec<(u64, Settled)>);

    /// What happens in a scenario.
    enum Step {
        Hear(Heard),
        See(u64),
        Replace(u64),
        Miss,
        Lose,
        MoveOn,
        Unread,
    }
    use Heard::{Closed, Created, Written};
    use Step::{Hear, Lose, Miss, MoveOn, Replace, See, Unread};

    fn stamp(size: u64) -> Stamp {
        Stamp {
            inode: 1,
            size,
            modified: (0, 0),
            changed: (0, 0),
        }
    }

    /// Runs steps at their milliseconds, looking every 10 ms besides; yields what settled when.
    fn run(steps: &[(u64, Step)], until: u64) -> Vec<(u64, Settled)> {
        let start = Instant::now();
        let mut settling = Settling::default();
        let mut there = BTreeMap::new();
        let mut out = Vec::new();
        for time in (0..=until).step_by(10) {
            let now = start + Duration::from_millis(time);
            for (_, step) in steps.iter().filter(|(at, _)| *at == time) {
                match step {
                    Hear(heard) => settling.heard("f", *heard, now),
                    See(size) => drop(there.insert("f".to_owned(), stamp(*size))),
                    Replace(size) => {
                        let stamp = Stamp {
                            inode: 2,
                            ..stamp(*size)
                        };
                        there.insert("f".to_owned(), stamp);
                    }
                    Miss => there.clear(),
                    Lose => settling.lost(now),
                    MoveOn => settling.moved_on("f", now),
                    Unread => settling.unread("f", now),
                }
            }
            settling.seen(&there, now);
            out.extend(settling.take(now).into_iter().map(|(_, what)| (time, what)));
        }
        out
    }

    #[test]
    fn a_file_counts_once_closed_and_unchanged_for_200_ms_and_is_gone_after_two_seconds() {
        use Settled::{Gone, Rests};
        let table: Vec<Scenario> = vec![
            (
                "there from the start",
                vec![(0, See(1))],
                vec![(200, Rests)],
            ),
            (
                "written and closed",
                vec![
                    (0, See(1)),
                    (0, Hear(Created)),
                    (10, Hear(Written)),
                    (50, Hear(Closed)),
                ],
                vec![(250, Rests)],
            ),
            (
                "a writer that pauses while open",
                vec![
                    (0, See(1)),
                    (0, Hear(Created)),
                    (10, Hear(Written)),
                    (5000, See(2)),
                    (5000, Hear(Written)),
                    (5100, Hear(Closed)),
                ],
                vec![(5300, Rests)],
            ),
            (
                "made by a link",
                vec![(0, See(1)), (0, Hear(Created))],
                vec![(10_000, Rests)],
            ),
            (
                "moved in",
                vec![(0, See(1)), (0, Hear(Closed))],
                vec![(200, Rests)],
            ),
            (
                "changed unheard",
                vec![(0, See(1)), (1000, See(2))],
                vec![(200, Rests), (1200, Rests)],
            ),
            (
                "written alike within one clock tick",
                vec![(0, See(1)), (1000, Hear(Written)), (1000, Hear(Closed))],
                vec![(200, Rests), (1200, Rests)],
            ),
            (
                "removed and written again within two seconds",
                vec![
                    (0, See(1)),
                    (1000, Miss),
                    (2000, See(2)),
                    (2000, Hear(Created)),
                    (2010, Hear(Closed)),
                ],
                vec![(200, Rests), (2210, Rests)],
            ),
            (
                "removed",
                vec![(0, See(1)), (1000, Miss)],
                vec![(200, Rests), (3000, Gone)],
            ),
            ("there for a moment", vec![(0, See(1)), (100, Miss)], vec![]),
            (
                "kept busy",
                vec![(0, See(1)), (150, See(2)), (300, See(3)), (450, See(4))],
                vec![(650, Rests)],
            ),
            (
                "its close was lost",
                vec![(0, See(1)), (0, Hear(Written)), (500, Lose)],
                vec![(10_500, Rests)],
            ),
            (
                "changed while it was read",
                vec![(0, See(1)), (210, MoveOn)],
                vec![(200, Rests), (410, Rests)],
            ),
            (
                "could not be read",
                vec![(0, See(1)), (210, Unread)],
                vec![(200, Rests), (10_210, Rests)],
            ),
            (
                "found emptied and then written",
                vec![(0, See(0)), (500, See(1)), (500, Hear(Closed))],
                vec![(700, Rests)],
            ),
            ("found empty", vec![(0, See(0))], vec![(10_000, Rests)]),
            (
                "changed while nobody has it open, as truncate(2) does",
                vec![(0, See(1)), (1000, See(2)), (1000, Hear(Written))],
                vec![(200, Rests), (61_000, Rests)],
            ),
            (
                "replaced unheard, with its folder, while it is written",
                vec![
                    (0, See(1)),
                    (1000, See(2)),
                    (1000, Hear(Written)),
                    (2000, Replace(3)),
                ],
                vec![(200, Rests), (2200, Rests)],
            ),
            (
                "replaced and written, as its folder is replaced",
                vec![
                    (0, See(1)),
                    (1000, Hear(Written)),
                    (1000, Replace(3)),
                ],
                vec![(200, Rests), (61_000, Rests)],
            ),
            (
                "emptied for good",
                vec![
                    (0, See(1)),
                    (1000, See(0)),
                    (1000, Hear(Written)),
                    (1000, Hear(Closed)),
                ],
                vec![(200, Rests), (1200, Rests)],
            ),
        ];
        for (name, steps, expected) in table {
            assert_eq!(run(&steps, 62_000), expected, "{name}");
        }
    }

    #[test]
    fn nothing_settles_next_when_all_is_at_rest() {
        let now = Instant::now();
        let mut settling = Settling::default();
        settling.seen(&[("f".to_owned(), stamp(1))].into(), now);
        assert_eq!(settling.next(), Some(now + FILE_SETTLE));
        assert_eq!(settling.take(now + FILE_SETTLE).len(), 1);
        assert_eq!(settling.next(), None);
        assert!(settling.take_unsettled().is_empty());
    }

    #[test]
    fn a_change_that_was_heard_of_before_it_was_seen_counts_from_when_it_was_heard() {
        let start = Instant::now();
        let mut settling = Settling::default();
        settling.seen(&[("f".to_owned(), stamp(1))].into(), start);
        settling.heard("f", Heard::Closed, start);
        settling.seen(&[("f".to_owned(), stamp(2))].into(), start + LOOK_SPACING);
        assert_eq!(settling.next(), Some(start + FILE_SETTLE));
        settling.seen(&[("f".to_owned(), stamp(3))].into(), start + LOOK_SPACING);
        assert_eq!(settling.next(), Some(start + LOOK_SPACING + FILE_SETTLE));
    }

    #[test]
    fn a_file_that_never_settled_is_missed_once_it_was_told_of() {
        let now = Instant::now();
        let mut settling = Settling::default();
        settling.heard("f", Heard::Written, now);
        settling.seen(&[("f".to_owned(), stamp(1))].into(), now);
        assert_eq!(settling.take_unsettled(), ["f"]);
        settling.seen(&BTreeMap::new(), now);
        let taken = settling.take(now + FILE_GONE);
        assert_eq!(taken, [("f".to_owned(), Settled::Gone)]);
    }

    #[test]
    fn what_is_in_a_folder_below_is_told_from_what_begins_alike() {
        let mut settling = Settling::default();
        let names = ["one/a", "one/b", "oneself/c", "two/d"];
        let found = names.map(|name| (name.to_owned(), stamp(1))).into();
        settling.seen(&found, Instant::now());
        let in_one: Vec<_> = settling.seen_in("one").map(|(name, _)| name).collect();
        assert_eq!(in_one, ["one/a", "one/b"]);
    }
}

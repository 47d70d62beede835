//! Decides when a file of a watched folder is stable, that is, closed and unchanged for a while, and when it counts as
//! gone.
//!
//! Pure: takes events, scans of the folder and their times, and returns the files that have settled. Does not access
//! the file system.

use std::collections::BTreeMap;
use std::time::Duration;

use leafhost_core::timeouts::{FILE_GONE, FILE_SETTLE, FILE_SILENT, FOLDER_BACKSTOP};
use tokio::time::Instant;

/// Metadata that distinguishes the states of a file without reading it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stamp {
    /// Inode number, which differs after a rename over the file.
    pub inode: u64,
    /// Size in bytes.
    pub size: u64,
    /// Modification time in seconds and nanoseconds.
    pub modified: (i64, i64),
    /// Change time in seconds and nanoseconds; changes also when a tool sets `modified` back.
    pub changed: (i64, i64),
}

/// An event of a file from inotify.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FileEvent {
    /// Created: by a writer that will close it, or as a link, which no writer closes.
    Created,
    /// Written to and still open.
    Written,
    /// Closed by a writer, or moved into the folder.
    Closed,
}

/// Result for a file that has settled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Settled {
    /// The file exists and does not change; its content may differ from before.
    Stable,
    /// The file is gone.
    Gone,
}

/// State of writers that have the file open.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Writer {
    /// No writer, as far as events show. Left on Created and Written.
    None,
    /// Created, or found empty, and no event followed. Left on Closed, on Written, or after `FOLDER_BACKSTOP` without events.
    Possible,
    /// Written to. Left on Closed, or after `FILE_SILENT` without events: no close follows truncate(2), and when the folder is replaced,
    /// the close is not reported.
    Writing,
}

#[derive(Debug)]
struct Entry {
    /// Stamp of the last scan; `None` while the file is missing.
    stamp: Option<Stamp>,
    /// `Instant` of the last event or change.
    quiet_since: Instant,
    /// True if an event came since the last scan, which explains a different stamp.
    had_event: bool,
    writer: Writer,
    /// True if something happened since the file last settled.
    pending: bool,
    /// True if the file ever settled, or was reported as not settled.
    reported: bool,
}

impl Entry {
    fn new(writer: Writer, now: Instant) -> Self {
        Self {
            stamp: None,
            quiet_since: now,
            had_event: false,
            writer,
            pending: true,
            reported: false,
        }
    }

    /// Returns the `Instant` at which the file settles if no more events come, and the result.
    fn settles(&self) -> Option<(Instant, Settled)> {
        let (wait, settled) = match (self.stamp, self.writer) {
            (None, _) => (FILE_GONE, Settled::Gone),
            (Some(_), _) if !self.pending => return None,
            (Some(_), Writer::None) => (FILE_SETTLE, Settled::Stable),
            (Some(_), Writer::Possible) => (FOLDER_BACKSTOP, Settled::Stable),
            (Some(_), Writer::Writing) => (FILE_SILENT, Settled::Stable),
        };
        Some((self.quiet_since + wait, settled))
    }
}

/// Files of one folder by name.
#[derive(Debug, Default)]
pub struct Settling {
    entries: BTreeMap<String, Entry>,
}

impl Settling {
    /// Records an event of a file.
    pub fn event(&mut self, name: &str, event: FileEvent, now: Instant) {
        let entry = self.entries.entry(name.to_owned());
        let entry = entry.or_insert(Entry::new(Writer::None, now));
        entry.had_event = true;
        entry.pending = true;
        entry.quiet_since = now;
        entry.writer = match event {
            FileEvent::Closed => Writer::None,
            FileEvent::Written => Writer::Writing,
            FileEvent::Created if entry.writer == Writer::Writing => Writer::Writing,
            FileEvent::Created => Writer::Possible,
        };
    }

    /// Records that events were lost: a writer may have closed its file.
    pub fn events_lost(&mut self, now: Instant) {
        for entry in self.entries.values_mut() {
            if entry.writer == Writer::Writing {
                entry.writer = Writer::Possible;
                entry.quiet_since = now;
            }
            entry.had_event = false;
        }
    }

    /// Records the result of a scan: all files of the folder.
    pub fn scanned(&mut self, found: &BTreeMap<String, Stamp>, now: Instant) {
        for (name, stamp) in found {
            // An empty file without an event: a program is probably about to write it.
            let writer = match stamp.size {
                0 => Writer::Possible,
                _ => Writer::None,
            };
            let entry = self.entries.entry(name.clone());
            let entry = entry.or_insert(Entry::new(writer, now));
            let had_event = std::mem::take(&mut entry.had_event);
            if entry.stamp != Some(*stamp) {
                if !had_event {
                    entry.quiet_since = now;
                    // Another file took its place without an event: earlier events of a writer belong to the former file.
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
                entry.had_event = false;
                if entry.stamp.take().is_some() {
                    entry.quiet_since = now;
                    entry.writer = Writer::None;
                }
            }
            entry.stamp.is_some() || entry.reported
        });
    }

    /// Records that a file changed while it was read.
    pub fn changed_while_read(&mut self, name: &str, now: Instant) {
        if let Some(entry) = self.entries.get_mut(name) {
            entry.pending = true;
            entry.quiet_since = now;
        }
    }

    /// Records that a file could not be read: it settles once more after `FOLDER_BACKSTOP`.
    pub fn unreadable(&mut self, name: &str, now: Instant) {
        self.changed_while_read(name, now);
        if let Some(entry) = self.entries.get_mut(name) {
            entry.writer = Writer::Possible;
        }
    }

    /// Returns the files of a subfolder, as of the last scan.
    pub fn seen_in<'a>(&'a self, folder: &'a str) -> impl Iterator<Item = (String, Stamp)> + 'a {
        let below = move |name: &str| {
            let rest = name.strip_prefix(folder);
            rest.is_some_and(|rest| rest.starts_with('/'))
        };
        let entries = self.entries.iter().filter(move |(name, _)| below(name));
        entries.filter_map(|(name, entry)| Some((name.clone(), entry.stamp?)))
    }

    /// Returns the files that have settled by now. Must be called after [`Settling::scanned`] at the same `Instant`, so that a file that
    /// changed without an event does not settle.
    pub fn take(&mut self, now: Instant) -> Vec<(String, Settled)> {
        let mut taken = Vec::new();
        self.entries.retain(|name, entry| {
            let Some((_, settled)) = entry.settles().filter(|(at, _)| *at <= now) else {
                return true;
            };
            taken.push((name.clone(), settled));
            entry.pending = false;
            entry.reported = true;
            settled == Settled::Stable
        });
        taken
    }

    /// Returns the `Instant` at which the next file settles.
    pub fn next(&self) -> Option<Instant> {
        let times = self.entries.values().filter_map(Entry::settles);
        times.map(|(at, _)| at).min()
    }

    /// Returns the files that exist and have never settled. From now on their removal is reported.
    pub fn take_unsettled(&mut self) -> Vec<String> {
        self.entries
            .iter_mut()
            .filter(|(_, entry)| entry.stamp.is_some() && !entry.reported)
            .map(|(name, entry)| {
                entry.reported = true;
                name.clone()
            })
            .collect()
    }
}

/// Minimum time between two scans of a folder, however many events come.
pub const SCAN_SPACING: Duration = Duration::from_millis(50);

#[cfg(test)]
mod tests {
    use super::*;

    /// A name, the steps with their milliseconds, and the expected results with theirs.
    type Scenario = (&'static str, Vec<(u64, Step)>, Vec<(u64, Settled)>);

    /// A step of a scenario.
    enum Step {
        Event(FileEvent),
        See(u64),
        Replace(u64),
        Miss,
        Lose,
        ChangeWhileRead,
        FailToRead,
    }
    use FileEvent::{Closed, Created, Written};
    use Step::{ChangeWhileRead, Event, FailToRead, Lose, Miss, Replace, See};

    fn stamp(size: u64) -> Stamp {
        Stamp {
            inode: 1,
            size,
            modified: (0, 0),
            changed: (0, 0),
        }
    }

    /// Runs the steps at their milliseconds and a scan every 10 ms; returns the results with their milliseconds.
    fn run(steps: &[(u64, Step)], until: u64) -> Vec<(u64, Settled)> {
        let start = Instant::now();
        let mut settling = Settling::default();
        let mut there = BTreeMap::new();
        let mut out = Vec::new();
        for time in (0..=until).step_by(10) {
            let now = start + Duration::from_millis(time);
            for (_, step) in steps.iter().filter(|(at, _)| *at == time) {
                match step {
                    Event(event) => settling.event("f", *event, now),
                    See(size) => drop(there.insert("f".to_owned(), stamp(*size))),
                    Replace(size) => {
                        let stamp = Stamp {
                            inode: 2,
                            ..stamp(*size)
                        };
                        there.insert("f".to_owned(), stamp);
                    }
                    Miss => there.clear(),
                    Lose => settling.events_lost(now),
                    ChangeWhileRead => settling.changed_while_read("f", now),
                    FailToRead => settling.unreadable("f", now),
                }
            }
            settling.scanned(&there, now);
            out.extend(settling.take(now).into_iter().map(|(_, what)| (time, what)));
        }
        out
    }

    #[test]
    fn a_file_settles_once_closed_and_unchanged_for_200_ms_and_is_gone_after_two_seconds() {
        use Settled::{Gone, Stable};
        let table: Vec<Scenario> = vec![
            (
                "there from the start",
                vec![(0, See(1))],
                vec![(200, Stable)],
            ),
            (
                "written and closed",
                vec![
                    (0, See(1)),
                    (0, Event(Created)),
                    (10, Event(Written)),
                    (50, Event(Closed)),
                ],
                vec![(250, Stable)],
            ),
            (
                "a writer that pauses while open",
                vec![
                    (0, See(1)),
                    (0, Event(Created)),
                    (10, Event(Written)),
                    (5000, See(2)),
                    (5000, Event(Written)),
                    (5100, Event(Closed)),
                ],
                vec![(5300, Stable)],
            ),
            (
                "made by a link",
                vec![(0, See(1)), (0, Event(Created))],
                vec![(10_000, Stable)],
            ),
            (
                "moved in",
                vec![(0, See(1)), (0, Event(Closed))],
                vec![(200, Stable)],
            ),
            (
                "changed without an event",
                vec![(0, See(1)), (1000, See(2))],
                vec![(200, Stable), (1200, Stable)],
            ),
            (
                "written alike within one clock tick",
                vec![(0, See(1)), (1000, Event(Written)), (1000, Event(Closed))],
                vec![(200, Stable), (1200, Stable)],
            ),
            (
                "removed and written again within two seconds",
                vec![
                    (0, See(1)),
                    (1000, Miss),
                    (2000, See(2)),
                    (2000, Event(Created)),
                    (2010, Event(Closed)),
                ],
                vec![(200, Stable), (2210, Stable)],
            ),
            (
                "removed",
                vec![(0, See(1)), (1000, Miss)],
                vec![(200, Stable), (3000, Gone)],
            ),
            ("there for a moment", vec![(0, See(1)), (100, Miss)], vec![]),
            (
                "changed again and again",
                vec![(0, See(1)), (150, See(2)), (300, See(3)), (450, See(4))],
                vec![(650, Stable)],
            ),
            (
                "its close was lost",
                vec![(0, See(1)), (0, Event(Written)), (500, Lose)],
                vec![(10_500, Stable)],
            ),
            (
                "changed while it was read",
                vec![(0, See(1)), (210, ChangeWhileRead)],
                vec![(200, Stable), (410, Stable)],
            ),
            (
                "could not be read",
                vec![(0, See(1)), (210, FailToRead)],
                vec![(200, Stable), (10_210, Stable)],
            ),
            (
                "found emptied and then written",
                vec![(0, See(0)), (500, See(1)), (500, Event(Closed))],
                vec![(700, Stable)],
            ),
            ("found empty", vec![(0, See(0))], vec![(10_000, Stable)]),
            (
                "changed while nobody has it open, as truncate(2) does",
                vec![(0, See(1)), (1000, See(2)), (1000, Event(Written))],
                vec![(200, Stable), (61_000, Stable)],
            ),
            (
                "replaced without an event, with its folder, while it is written",
                vec![
                    (0, See(1)),
                    (1000, See(2)),
                    (1000, Event(Written)),
                    (2000, Replace(3)),
                ],
                vec![(200, Stable), (2200, Stable)],
            ),
            (
                "replaced and written, as its folder is replaced",
                vec![(0, See(1)), (1000, Event(Written)), (1000, Replace(3))],
                vec![(200, Stable), (61_000, Stable)],
            ),
            (
                "emptied for good",
                vec![
                    (0, See(1)),
                    (1000, See(0)),
                    (1000, Event(Written)),
                    (1000, Event(Closed)),
                ],
                vec![(200, Stable), (1200, Stable)],
            ),
        ];
        for (name, steps, expected) in table {
            assert_eq!(run(&steps, 62_000), expected, "{name}");
        }
    }

    #[test]
    fn nothing_settles_next_when_all_files_are_stable() {
        let now = Instant::now();
        let mut settling = Settling::default();
        settling.scanned(&[("f".to_owned(), stamp(1))].into(), now);
        assert_eq!(settling.next(), Some(now + FILE_SETTLE));
        assert_eq!(settling.take(now + FILE_SETTLE).len(), 1);
        assert_eq!(settling.next(), None);
        assert!(settling.take_unsettled().is_empty());
    }

    #[test]
    fn a_change_whose_event_came_before_its_scan_counts_from_the_event() {
        let start = Instant::now();
        let mut settling = Settling::default();
        settling.scanned(&[("f".to_owned(), stamp(1))].into(), start);
        settling.event("f", FileEvent::Closed, start);
        settling.scanned(&[("f".to_owned(), stamp(2))].into(), start + SCAN_SPACING);
        assert_eq!(settling.next(), Some(start + FILE_SETTLE));
        settling.scanned(&[("f".to_owned(), stamp(3))].into(), start + SCAN_SPACING);
        assert_eq!(settling.next(), Some(start + SCAN_SPACING + FILE_SETTLE));
    }

    #[test]
    fn a_file_that_never_settled_is_reported_as_gone_once_it_was_reported() {
        let now = Instant::now();
        let mut settling = Settling::default();
        settling.event("f", FileEvent::Written, now);
        settling.scanned(&[("f".to_owned(), stamp(1))].into(), now);
        assert_eq!(settling.take_unsettled(), ["f"]);
        settling.scanned(&BTreeMap::new(), now);
        let taken = settling.take(now + FILE_GONE);
        assert_eq!(taken, [("f".to_owned(), Settled::Gone)]);
    }

    #[test]
    fn a_subfolder_is_told_from_one_whose_name_only_begins_alike() {
        let mut settling = Settling::default();
        let names = ["one/a", "one/b", "oneself/c", "two/d"];
        let found = names.map(|name| (name.to_owned(), stamp(1))).into();
        settling.scanned(&found, Instant::now());
        let in_one: Vec<_> = settling.seen_in("one").map(|(name, _)| name).collect();
        assert_eq!(in_one, ["one/a", "one/b"]);
    }
}

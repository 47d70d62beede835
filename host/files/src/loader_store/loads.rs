//! The versions that are being loaded, in a file of the state folder: a version that kills the agent must not be the first that the agent
//! loads after each restart.
//!
//! A line has the digest of a version's bytes and grants, and the number of times in a row that the agent has died while loading it,
//! including the current load. A version whose load has ended, successfully or not, has no line.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};

use leafhost_core::handler::MOST_HANDLERS;
use leafhost_core::ports::SourceVersion;
use leafhost_disk::atomic;

use crate::regular;

/// Name of the file in the state folder.
const NAME: &str = "loading";

/// Number of deaths by digest of a version.
type Counts = BTreeMap<String, u32>;

/// Record of the versions that are being loaded.
#[derive(Debug)]
pub struct Loads {
    folder: PathBuf,
    held: Mutex<Held>,
}

#[derive(Debug, Default)]
struct Held {
    /// Deaths before the agent last started.
    deaths: Counts,
    under_way: BTreeSet<String>,
    written: Counts,
}

impl Loads {
    /// Reads the file of a state folder. An unreadable file counts as empty and is replaced. Blocks.
    pub fn open(folder: PathBuf) -> Self {
        let text = fs::read_to_string(folder.join(NAME)).unwrap_or_default();
        let line = |line: &str| {
            let (digest, deaths) = line.split_once(' ')?;
            Some((digest.to_owned(), deaths.parse().ok()?))
        };
        let deaths: Counts = text.lines().filter_map(line).take(MOST_HANDLERS).collect();
        let held = Held {
            written: deaths.clone(),
            deaths,
            under_way: BTreeSet::new(),
        };
        Self {
            folder,
            held: Mutex::new(held),
        }
    }

    /// Returns the number of times in a row that the agent has died while this version was being loaded.
    pub fn deaths(&self, version: &SourceVersion) -> u32 {
        let deaths = self.lock().deaths.get(&digest(version)).copied();
        deaths.unwrap_or(0)
    }

    /// Records the versions that are being loaded now; a version whose load has ended loses its line. Blocks.
    pub fn set(&self, versions: &[SourceVersion]) -> io::Result<()> {
        let mut held = self.lock();
        let now: BTreeSet<String> = versions.iter().map(digest).collect();
        let Held {
            deaths,
            under_way,
            written,
        } = &mut *held;
        for ended in under_way.difference(&now) {
            deaths.remove(ended);
        }
        let mut next = deaths.clone();
        for digest in &now {
            *next.entry(digest.clone()).or_default() += 1;
        }
        *under_way = now;
        if next == *written {
            return Ok(());
        }
        let lines: String = next
            .iter()
            .map(|(digest, deaths)| format!("{digest} {deaths}\n"))
            .collect();
        atomic::write(&self.folder, NAME, lines.as_bytes())?;
        *written = next;
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, Held> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the digest of bytes and grants: with other grants a version may load.
fn digest(version: &SourceVersion) -> String {
    let grants = version.grants.as_deref().unwrap_or_default();
    regular::digest_of(format!("{}\n{grants}", version.digest.0).as_bytes()).0
}

#[cfg(test)]
mod tests {
    use leafhost_core::handler::Digest;

    use super::*;

    fn version(bytes: &str, grants: Option<&str>) -> SourceVersion {
        SourceVersion {
            digest: Digest(bytes.to_owned()),
            grants: grants.map(Into::into),
        }
    }

    #[test]
    fn a_load_that_does_not_end_is_counted_over_deaths_and_one_that_ends_is_not() {
        let folder = tempfile::tempdir().unwrap();
        let open = || Loads::open(folder.path().to_owned());
        let (guilty, innocent) = (version("a", None), version("b", None));
        for deaths in 0..3 {
            let loads = open();
            assert_eq!(loads.deaths(&guilty), deaths);
            assert_eq!(loads.deaths(&innocent), 0);
            loads.set(&[guilty.clone(), innocent.clone()]).unwrap();
            loads.set(std::slice::from_ref(&guilty)).unwrap();
        }
        let loads = open();
        assert_eq!(loads.deaths(&guilty), 3);
        assert_eq!(loads.deaths(&version("a", Some("udev: {}"))), 0);
        // The version is no longer loaded, others are.
        loads.set(std::slice::from_ref(&innocent)).unwrap();
        loads.set(&[]).unwrap();
        let loads = open();
        assert_eq!((loads.deaths(&guilty), loads.deaths(&innocent)), (3, 0));
        loads.set(std::slice::from_ref(&guilty)).unwrap();
        loads.set(&[]).unwrap();
        assert_eq!(open().deaths(&guilty), 0);
    }

    #[test]
    fn what_is_no_such_file_says_nothing_and_is_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(NAME);
        for text in ["\0\u{202e} \n", "a b c\n 7", "7"] {
            std::fs::write(&path, text).unwrap();
            let loads = Loads::open(folder.path().to_owned());
            let version = version("a", None);
            assert_eq!(loads.deaths(&version), 0);
            loads.set(std::slice::from_ref(&version)).unwrap();
            let loads = Loads::open(folder.path().to_owned());
            assert_eq!(loads.deaths(&version), 1);
        }
    }
}

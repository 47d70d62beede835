//! The agent's memory with all its handlers in use, after many calls.
//!
//! `CALLS` sets the number. A tenth of them comes first, so that everything has been used once. The program is read
//! from disk as after a boot, because how much of it the kernel maps depends on how its pages came into memory.

use std::fs::File;
use std::path::Path;

use anyhow::{Context, Result};
use leafhost_tests::program::leafhost;
use nix::fcntl::{PosixFadviseAdvice, posix_fadvise};

use crate::busy_agent::{BusyAgent, CONFIGURATIONS, HANDLERS};
use crate::process::{growth, mb};
use crate::table::Line;

const CALLS: u32 = 10_000;
const PORT: u16 = 9481;

pub fn measure() -> Result<Vec<Line>> {
    let asked = std::env::var("CALLS").ok();
    let calls = asked.map_or(Ok(CALLS), |calls| calls.parse())?;
    forget(&leafhost()?)?;
    let mut agent = BusyAgent::new(PORT)?;
    let loaded = agent.memory()?;
    agent.configure()?;
    agent.call(calls / 10, true)?;
    let before = agent.memory()?;
    agent.call(calls, true)?;
    let after = agent.memory()?;
    Ok(vec![Line {
        what: format!(
            "agent's memory, {} handlers in use, {CONFIGURATIONS} Configurations, after {calls} calls / grown since {}",
            HANDLERS.len(),
            calls / 10
        ),
        value: format!(
            "{} / {:+.1} %",
            mb(after.resident),
            growth(before.resident, after.resident)
        ),
        target: "≤ 32 MB / ± 2 %".into(),
        reference: format!(
            "{} of it its own ({:+.1} %), the rest the program and native code on disk; before the first call {}, {} its own",
            mb(after.anonymous),
            growth(before.anonymous, after.anonymous),
            mb(loaded.resident),
            mb(loaded.anonymous)
        ),
    }])
}

/// Drops a file from the page cache.
fn forget(path: &Path) -> Result<()> {
    let dropped = File::open(path).and_then(|file| {
        // Only clean pages can be dropped.
        file.sync_all()?;
        Ok(posix_fadvise(
            file,
            0,
            0,
            PosixFadviseAdvice::POSIX_FADV_DONTNEED,
        )?)
    });
    dropped.with_context(|| format!("cannot have {} read anew", path.display()))
}

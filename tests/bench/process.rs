//! Memory and wake-ups of a process, from the kernel.

use std::collections::BTreeMap;
use std::fs;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use leafhost_tests::wait::within;

/// Memory in KiB.
#[derive(Debug, Clone, Copy)]
pub struct Memory {
    /// Resident memory.
    pub resident: u32,
    /// The anonymous part of it.
    pub anonymous: u32,
}

impl Memory {
    /// Of a process, now.
    pub fn of(pid: u32) -> Result<Self> {
        let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
        Ok(Self {
            resident: field(&status, "VmRSS:")?,
            anonymous: field(&status, "RssAnon:")?,
        })
    }
}

/// Megabytes with one digit.
pub fn mb(kib: u32) -> String {
    format!("{:.1} MB", f64::from(kib) * 1024.0 / 1e6)
}

/// Growth in percent.
pub fn growth(before: u32, after: u32) -> f64 {
    (f64::from(after) / f64::from(before.max(1)) - 1.0) * 100.0
}

/// Voluntary context switches of each thread, by number and name.
pub fn waits(pid: u32) -> Result<BTreeMap<(u32, String), u32>> {
    let mut waits = BTreeMap::new();
    for entry in fs::read_dir(format!("/proc/{pid}/task"))? {
        let folder = entry?.path();
        let Ok(status) = fs::read_to_string(folder.join("status")) else {
            // The thread has ended.
            continue;
        };
        let name = fs::read_to_string(folder.join("comm")).unwrap_or_default();
        let thread = folder.file_name().and_then(|name| name.to_str());
        let thread = thread.context("no number")?.parse()?;
        let count = field(&status, "voluntary_ctxt_switches:")?;
        waits.insert((thread, name.trim().to_owned()), count);
    }
    Ok(waits)
}

/// Waits for this time.
pub fn pass(time: Duration) -> Result<()> {
    let begun = Instant::now();
    within(time * 2, "that time has passed", || {
        ensure!(begun.elapsed() > time);
        Ok(())
    })
}

fn field(status: &str, name: &str) -> Result<u32> {
    let line = status.lines().find_map(|line| line.strip_prefix(name));
    let number = line.and_then(|line| line.split_whitespace().next());
    Ok(number.with_context(|| format!("no {name}"))?.parse()?)
}

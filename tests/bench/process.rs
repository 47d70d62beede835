//! Memory of a process, from the kernel.

use std::fs::{self, File};
use std::path::Path;

use anyhow::{Context, Result};
use nix::fcntl::{PosixFadviseAdvice, posix_fadvise};

/// Memory of a process in KiB.
#[derive(Debug, Clone, Copy)]
pub struct Memory {
    /// Resident memory.
    pub resident: u32,
    /// Anonymous part of the resident memory.
    pub anonymous: u32,
}

impl Memory {
    /// Reads the current memory of a process.
    pub fn of(pid: u32) -> Result<Self> {
        let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
        Ok(Self {
            resident: field(&status, "VmRSS:")?,
            anonymous: field(&status, "RssAnon:")?,
        })
    }
}

/// Formats KiB as megabytes with one digit.
pub fn mb(kib: u32) -> String {
    format!("{:.1} MB", f64::from(kib) * 1024.0 / 1e6)
}

/// Drops a file from the page cache.
pub fn forget(path: &Path) -> Result<()> {
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

/// Returns a number from a status file of the kernel.
pub fn field(status: &str, name: &str) -> Result<u32> {
    let line = status.lines().find_map(|line| line.strip_prefix(name));
    let number = line.and_then(|line| line.split_whitespace().next());
    Ok(number.with_context(|| format!("no {name}"))?.parse()?)
}

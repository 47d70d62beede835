//! The same bytes written to the same folder as durably as the agent does it: what nothing can be faster than.

use std::fs::File;
use std::io::Write as _;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

/// Writes what a file holds to another file beside it: complete under its name and synced, and the folder synced.
pub fn write(stored: &Path) -> Result<Duration> {
    let bytes = std::fs::read(stored).with_context(|| format!("no {}", stored.display()))?;
    let folder = stored.parent().context("it is in no folder")?;
    let begun = Instant::now();
    let mut file = tempfile::Builder::new()
        .suffix(".tmp")
        .tempfile_in(folder)?;
    file.write_all(&bytes)?;
    file.as_file().sync_all()?;
    let path = folder.join("beside");
    file.persist(&path)?;
    File::open(folder)?.sync_all()?;
    let took = begun.elapsed();
    std::fs::remove_file(path)?;
    Ok(took)
}

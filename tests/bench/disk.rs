//! Lower bound for the agent's times: writes of the same bytes with the same durability.

use std::fs::File;
use std::io::Write as _;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

/// Writes a copy of a file next to it, renamed when complete, with file and folder synced.
pub fn write(stored: &Path) -> Result<Duration> {
    let bytes = std::fs::read(stored).with_context(|| format!("no {}", stored.display()))?;
    let folder = stored.parent().context("it is in no folder")?;
    let begun = Instant::now();
    let mut file = tempfile::Builder::new()
        .suffix(".tmp")
        .tempfile_in(folder)?;
    file.write_all(&bytes)?;
    file.as_file().sync_all()?;
    let path = folder.join("copy");
    file.persist(&path)?;
    File::open(folder)?.sync_all()?;
    let took = begun.elapsed();
    std::fs::remove_file(path)?;
    Ok(took)
}

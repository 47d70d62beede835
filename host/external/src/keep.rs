//! The registrations in the state folder: a running handler registers again only if it notices that the agent was away. Blocks.

use std::io::{self, Read as _};
use std::path::Path;

use leafhost_disk::atomic;
use serde::{Deserialize, Serialize};

use crate::registrations::Registered;

/// Maximum number of bytes that are read.
const MAX: u64 = 1 << 20;

#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct File {
    handlers: Vec<Registered>,
}

/// Reads the registrations of an earlier run; returns none if there is no file.
pub fn read(path: &Path) -> io::Result<Vec<Registered>> {
    let file = match std::fs::File::open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        file => file?,
    };
    // A file that is cut off cannot be parsed.
    let file: File = serde_json::from_reader(io::BufReader::new(file.take(MAX)))?;
    Ok(file.handlers)
}

/// Writes the file atomically.
pub fn write(path: &Path, handlers: Vec<Registered>) -> io::Result<()> {
    let (folder, name) = atomic::parts(path)?;
    atomic::write_with(folder, name, |file| {
        Ok(serde_json::to_writer(file, &File { handlers })?)
    })
}

//! The registrations in the state folder: a running handler registers again only if it notices that the agent was away. Blocks.

use std::io;
use std::path::Path;

use leafhost_disk::atomic;
use serde::{Deserialize, Serialize};

use crate::registrations::Registered;

#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct File {
    handlers: Vec<Registered>,
}

/// Reads the registrations of an earlier run; returns none if there is no file.
pub fn read(path: &Path) -> io::Result<Vec<Registered>> {
    match std::fs::read(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        bytes => Ok(serde_json::from_slice::<File>(&bytes?)?.handlers),
    }
}

/// Writes the file atomically.
pub fn write(path: &Path, handlers: Vec<Registered>) -> io::Result<()> {
    let (folder, name) = atomic::parts(path)?;
    atomic::write_with(folder, name, |file| {
        Ok(serde_json::to_writer(file, &File { handlers })?)
    })
}

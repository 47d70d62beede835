//! The owners of handler names, in a file of the state folder.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;

use leafhost_core::ports::Owner;

use leafhost_disk::atomic;

use crate::{own_yaml, regular};

/// Name of the file in the state folder.
const NAME: &str = "owners.yaml";
/// Maximum size of the file, in bytes.
const MAX: u64 = 4 << 20;

/// Reads the owners from the file in the state folder. An unreadable file counts as empty and is replaced. Blocks.
pub fn read(folder: &Path) -> BTreeMap<String, Owner> {
    let file = regular::open(&folder.join(NAME), MAX);
    let bytes = file.and_then(|file| Ok(regular::read(&file, MAX)?));
    let owners = match bytes {
        Err(regular::Error::Io(error)) if error.kind() == io::ErrorKind::NotFound => {
            Ok(BTreeMap::new())
        }
        bytes => bytes
            .map_err(|error| error.to_string())
            .and_then(|bytes| own_yaml::read(&bytes).map_err(|error| error.to_string())),
    };
    owners.unwrap_or_else(|error| {
        tracing::warn!(%error, "cannot read the owner of each handler's name ({NAME}); each name now belongs to the first file that has it");
        BTreeMap::new()
    })
}

/// Replaces the file in the state folder if the owners have changed. Blocks.
pub fn write(folder: &Path, owners: &BTreeMap<String, Owner>) -> io::Result<()> {
    if *owners == read(folder) {
        return Ok(());
    }
    let text = own_yaml::write(owners)?;
    atomic::write(folder, NAME, text.as_bytes())
}

//! Files that the agent itself has written to the state folder: read within bounds, and renamed where they are something else by now.
//! Blocks.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use leafhost_core::effort;
use leafhost_core::ports::SourceProblem;
use serde::de::DeserializeOwned;

use crate::regular::{self, Error};

/// The most work of reading a file, see [`effort::steps`]: some seconds. What the agent writes is far below.
const MAX_STEPS: u64 = 1 << 33;
/// The most names to which a file may be renamed.
const NAMES: u32 = 10;

/// Reads a file of at most `max` bytes. What cannot be one of the agent's is refused.
pub fn read(path: &Path, max: u64) -> Result<Vec<u8>, Error> {
    let bytes = regular::read(&regular::open(path, max)?, max)?;
    if u64::try_from(bytes.len()).is_ok_and(|len| len <= max) {
        return Ok(bytes);
    }
    Err(Error::Refused(
        "is being written by another program".to_owned(),
    ))
}

/// Reads YAML that the agent has written.
pub fn parse<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, String> {
    let text = std::str::from_utf8(bytes).map_err(|error| error.to_string())?;
    let reader = || serde_yaml_ng::Deserializer::from_str(text);
    if effort::steps(text) > MAX_STEPS || effort::is_blown_up(text, reader()) {
        return Err("is too much to read".to_owned());
    }
    T::deserialize(reader()).map_err(|error| error.to_string())
}

/// Renames a file that is no `kind`, without replacing another one. Returns the problem with its consequence. A file that cannot be
/// renamed stays.
pub fn rename_broken(path: &Path, kind: &str, outcome: &str, why: &str) -> SourceProblem {
    let (source, message) =
        match free(path).and_then(|renamed| fs::rename(path, &renamed).map(|()| renamed)) {
            Ok(renamed) => (
                renamed,
                format!("was no {kind} and was moved aside; {outcome}: {why}"),
            ),
            Err(error) => (
                path.to_owned(),
                format!(
                    "is no {kind} and cannot be moved aside ({error}), remove it; {outcome}: {why}"
                ),
            ),
        };
    problem(&source, message)
}

/// A problem of a file or folder.
pub fn problem(source: &Path, message: String) -> SourceProblem {
    SourceProblem {
        source: source.display().to_string(),
        line: None,
        path: String::new(),
        message,
        configuration: None,
    }
}

/// The first free name `.broken`, `.broken.1` and so on.
fn free(path: &Path) -> io::Result<PathBuf> {
    for number in 0..NAMES {
        let mut renamed = path.as_os_str().to_owned();
        renamed.push(".broken");
        if number > 0 {
            renamed.push(format!(".{number}"));
        }
        let renamed = PathBuf::from(renamed);
        match fs::symlink_metadata(&renamed) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(renamed),
            Err(error) => return Err(error),
            Ok(_) => {}
        }
    }
    Err(io::Error::other(format!(
        "there are {NAMES} broken files of that name already"
    )))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::{Duration, Instant};

    #[test]
    fn a_broken_file_is_renamed_and_replaces_none_and_stays_where_no_name_is_free() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x.yaml");
        fs::create_dir(folder.path().join("x.yaml.broken")).unwrap();
        for number in 1..NAMES {
            fs::write(&path, number.to_string()).unwrap();
            let reported = rename_broken(&path, "X", "it is made anew", "why");
            assert!(
                reported
                    .source
                    .ends_with(&format!("x.yaml.broken.{number}"))
            );
            assert_eq!(
                fs::read_to_string(&reported.source).unwrap(),
                number.to_string()
            );
        }
        fs::write(&path, "left").unwrap();
        let reported = rename_broken(&path, "X", "it is made anew", "why").to_string();
        assert!(
            reported
                .contains("x.yaml: is no X and cannot be moved aside (there are 10 broken files")
                && reported.ends_with("remove it; it is made anew: why"),
            "{reported}"
        );
        assert_eq!(fs::read_to_string(&path).unwrap(), "left");
    }

    #[test]
    fn a_file_that_would_take_long_is_not_read() {
        let begun = Instant::now();
        let text = "[".repeat(1 << 20);
        let error = parse::<serde_json::Value>(text.as_bytes()).unwrap_err();
        assert_eq!(error, "is too much to read");
        assert!(begun.elapsed() < Duration::from_secs(10));
    }
}

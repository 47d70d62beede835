//! What the agent itself has written to the state folder: read within bounds, and moved aside where it is something else by now.
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
/// The names beside a file that it may be moved to.
const ASIDE: u32 = 10;

/// Reads a file of at most `max` bytes. What cannot be one of the agent's is refused.
pub fn read(path: &Path, max: u64) -> Result<Vec<u8>, Error> {
    let bytes = regular::read(&regular::open(path, max)?, max)?;
    if u64::try_from(bytes.len()).is_ok_and(|len| len <= max) {
        return Ok(bytes);
    }
    Err(Error::Refused("is being written by somebody".to_owned()))
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

/// Moves aside what is no `kind` of file, replacing nothing, and tells it with what comes of that. What cannot be moved stays.
pub fn move_aside(path: &Path, kind: &str, outcome: &str, why: &str) -> SourceProblem {
    let (source, message) =
        match free(path).and_then(|aside| fs::rename(path, &aside).map(|()| aside)) {
            Ok(aside) => (
                aside,
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

/// What is told of a file or folder.
pub fn problem(source: &Path, message: String) -> SourceProblem {
    SourceProblem {
        source: source.display().to_string(),
        line: None,
        path: String::new(),
        message,
        configuration: None,
    }
}

/// The first name beside it that nothing has.
fn free(path: &Path) -> io::Result<PathBuf> {
    for number in 0..ASIDE {
        let mut aside = path.as_os_str().to_owned();
        aside.push(".broken");
        if number > 0 {
            aside.push(format!(".{number}"));
        }
        let aside = PathBuf::from(aside);
        match fs::symlink_metadata(&aside) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(aside),
            Err(error) => return Err(error),
            Ok(_) => {}
        }
    }
    Err(io::Error::other(format!(
        "there are {ASIDE} such beside it already"
    )))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::{Duration, Instant};

    #[test]
    fn what_is_moved_aside_replaces_nothing_and_stays_where_there_is_no_place() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x.yaml");
        fs::create_dir(folder.path().join("x.yaml.broken")).unwrap();
        for number in 1..ASIDE {
            fs::write(&path, number.to_string()).unwrap();
            let told = move_aside(&path, "X", "it is made anew", "why");
            assert!(told.source.ends_with(&format!("x.yaml.broken.{number}")));
            assert_eq!(
                fs::read_to_string(&told.source).unwrap(),
                number.to_string()
            );
        }
        fs::write(&path, "left").unwrap();
        let told = move_aside(&path, "X", "it is made anew", "why").to_string();
        assert!(
            told.contains("x.yaml: is no X and cannot be moved aside (there are 10 such")
                && told.ends_with("remove it; it is made anew: why"),
            "{told}"
        );
        assert_eq!(fs::read_to_string(&path).unwrap(), "left");
    }

    #[test]
    fn what_would_take_long_is_not_read() {
        let begun = Instant::now();
        let text = "[".repeat(1 << 20);
        let error = parse::<serde_json::Value>(text.as_bytes()).unwrap_err();
        assert_eq!(error, "is too much to read");
        assert!(begun.elapsed() < Duration::from_secs(10));
    }
}

//! Damaged files of the state folder. Blocks.

use std::fs;
use std::path::{Path, PathBuf};

use leafhost_core::ports::SourceProblem;

/// Renames a file that cannot be read as `kind` to `.broken`, so that it can be examined. Returns the problem with its consequence. A file that cannot
/// be renamed stays.
pub fn rename_broken(path: &Path, kind: &str, outcome: &str, why: &str) -> SourceProblem {
    let mut renamed = path.as_os_str().to_owned();
    renamed.push(".broken");
    let renamed = PathBuf::from(renamed);
    let (at, message) = match fs::rename(path, &renamed) {
        Ok(()) => (
            renamed.as_path(),
            format!("cannot be read as {kind} and was moved aside; {outcome}: {why}"),
        ),
        Err(error) => (
            path,
            format!(
                "cannot be read as {kind} or moved aside ({error}), remove it; {outcome}: {why}"
            ),
        ),
    };
    SourceProblem::new(at.display().to_string(), message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_broken_file_is_renamed_and_stays_where_it_cannot_be() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x.yaml");
        for text in ["first", "second"] {
            fs::write(&path, text).unwrap();
            let reported = rename_broken(&path, "X", "it is created again", "why");
            assert!(reported.source.ends_with("x.yaml.broken"));
            assert_eq!(fs::read_to_string(&reported.source).unwrap(), text);
        }
        fs::remove_file(folder.path().join("x.yaml.broken")).unwrap();
        fs::create_dir(folder.path().join("x.yaml.broken")).unwrap();
        fs::write(&path, "left").unwrap();
        let reported = rename_broken(&path, "X", "it is created again", "why").to_string();
        assert!(
            reported.contains("x.yaml: cannot be read as X or moved aside")
                && reported.ends_with("remove it; it is created again: why"),
            "{reported}"
        );
    }
}

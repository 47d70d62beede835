//! Files that an operator should know about: those that are not read although they seem to be meant for their folder, and secrets that every
//! user can read. Pure.

use std::collections::BTreeMap;
use std::path::Path;

use leafhost_core::grants_file;
use leafhost_core::ports::SourceProblem;

/// Maximum number of files that are named.
const MAX_NAMED: usize = 20;

/// Note about a secret that every user can read.
pub const PUBLIC: &str = "can be read by every user of this machine; run chmod o-r on it";

/// Function that takes a name, and true for a folder, and returns the reason why that file is not read, with the remedy; `None` if the file
/// does not seem to be meant for the watched folder.
pub type Judge = fn(&str, bool) -> Option<&'static str>;

/// Files of a folder that an operator should know about.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Stray {
    /// Reasons of the first files by name.
    named: BTreeMap<String, &'static str>,
    /// Number of the others.
    more: usize,
}

impl Stray {
    /// Adds a file.
    pub fn add(&mut self, name: &str, why: &'static str) {
        self.named.insert(name.to_owned(), why);
        if self.named.len() > MAX_NAMED {
            self.named.pop_last();
            self.more += 1;
        }
    }

    /// Returns a note for each named file, and one for all others.
    pub fn notes(&self, folder: &Path) -> Vec<SourceProblem> {
        let named = self.named.iter();
        let mut notes: Vec<SourceProblem> = named
            .map(|(name, why)| SourceProblem::new(folder.join(name).display().to_string(), *why))
            .collect();
        if self.more > 0 {
            let message = format!(
                "has {} more such files; correct the reported ones first",
                self.more
            );
            notes.push(SourceProblem::new(folder.display().to_string(), message));
        }
        notes
    }
}

/// Judges a file of the folder of Configurations.
pub fn among_configurations(name: &str, is_folder: bool) -> Option<&'static str> {
    let lower = name.to_ascii_lowercase();
    let ends = |suffixes: &[&str]| suffixes.iter().any(|suffix| lower.ends_with(suffix));
    if is_ignored(name) {
        None
    } else if is_folder {
        Some("is a folder, and files in it are not read; move its Configurations up")
    } else if ends(&[".wasm", ".wasm.gz"]) {
        Some("is a handler, which is not loaded from here; move it to the folder handlers")
    } else if ends(&[".json", ".yaml", ".yml", ".yaml.txt", ".yml.txt"]) {
        Some(
            "is not read; let its name end in .yaml or .yml in lower-case letters, also if it contains JSON",
        )
    } else {
        None
    }
}

/// Judges a file of a folder of handlers.
pub fn among_handlers(name: &str, is_folder: bool) -> Option<&'static str> {
    let lower = name.to_ascii_lowercase();
    let ends = |suffixes: &[&str]| suffixes.iter().any(|suffix| lower.ends_with(suffix));
    if is_ignored(name) {
        None
    } else if is_folder {
        Some("is a folder, and handlers in it are not loaded; move them one folder up")
    } else if ends(&[".wasm", ".wasm.gz"]) {
        Some("is not loaded; let its name end in .wasm or .wasm.gz in lower-case letters")
    } else if ends(&[grants_file::SUFFIX, ".grants.yml", ".grants.json"]) {
        Some("is not read; let its name end in .grants.yaml in lower-case letters")
    } else if ends(&[".yaml", ".yml", ".json"]) {
        Some(
            "is not read; a Configuration belongs in the folder configurations, and the grants of NAME.wasm in NAME.grants.yaml",
        )
    } else {
        None
    }
}

/// Returns true for hidden files and for `lost+found`, which file systems create.
fn is_ignored(name: &str) -> bool {
    name.starts_with('.') || name == "lost+found"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_seems_to_be_meant_for_a_folder_has_a_remedy() {
        for (name, is_folder, words) in [
            ("a.json", false, Some("end in .yaml")),
            ("a.YAML", false, Some("lower-case")),
            ("a.Yml", false, Some("lower-case")),
            ("a.yaml.txt", false, Some("end in .yaml")),
            ("udev.wasm", false, Some("folder handlers")),
            ("udev.wasm.gz", false, Some("folder handlers")),
            ("old", true, Some("move its Configurations up")),
            ("lost+found", true, None),
            (".git", true, None),
            (".a.yaml.swp", false, None),
            ("README.md", false, None),
            ("a.yaml.bak", false, None),
            ("a.yaml~", false, None),
        ] {
            let why = among_configurations(name, is_folder);
            assert_eq!(why.is_some(), words.is_some(), "{name}: {why:?}");
            assert!(why.unwrap_or_default().contains(words.unwrap_or_default()));
        }
        for (name, is_folder, words) in [
            ("cameras.yaml", false, Some("folder configurations")),
            ("udev.grants.yml", false, Some("end in .grants.yaml")),
            ("udev.Grants.yaml", false, Some("end in .grants.yaml")),
            ("udev.WASM", false, Some("lower-case")),
            ("old", true, Some("move them one folder up")),
            ("README.md", false, None),
            (".udev.wasm.part", false, None),
        ] {
            let why = among_handlers(name, is_folder);
            assert_eq!(why.is_some(), words.is_some(), "{name}: {why:?}");
            assert!(why.unwrap_or_default().contains(words.unwrap_or_default()));
        }
    }

    #[test]
    fn the_first_files_are_named_and_the_others_are_counted() {
        let mut stray = Stray::default();
        for number in (0..30).rev() {
            stray.add(&format!("{number:02}.json"), "is not read");
        }
        let notes = stray.notes(Path::new("/d"));
        assert_eq!(notes.len(), MAX_NAMED + 1);
        assert_eq!(notes[0].to_string(), "/d/00.json: is not read");
        assert!(notes[MAX_NAMED].to_string().starts_with("/d: has 10 more"));
    }
}

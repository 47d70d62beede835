//! Who wrote a spec: a hidden file beside each spec names the process's own folder.
//!
//! In the spec itself an annotation would need version 0.6.0 of the specification, and runtimes refuse unknown fields. A spec
//! without such a file was written by a version that wrote none, and belongs to whoever uses the folder.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::Read as _;
use std::path::PathBuf;

use super::{Error, SpecDir, failed, is_absent};

/// How the names of these files end. The longest class still has room for it.
const SUFFIX: &str = ".own";
/// The most bytes of one that are read: the longest path.
const MAX_OWNER: u64 = 4096;

impl SpecDir {
    /// Says by which folder of its own this process is known; specs of others are left alone then.
    #[must_use]
    pub fn owned_by(mut self, home: impl Into<String>) -> Self {
        self.home = home.into();
        self
    }

    /// Returns the folder of the other process that wrote the spec of a class.
    pub(super) fn other_owner(&self, class: &str) -> Option<String> {
        let path = self.owner_path(class);
        let is_file = fs::symlink_metadata(&path).is_ok_and(|found| found.is_file());
        if self.home.is_empty() || !is_file {
            return None;
        }
        let mut owner = String::new();
        let file = File::open(path).ok()?;
        file.take(MAX_OWNER).read_to_string(&mut owner).ok()?;
        let owner = owner.trim_end_matches('\n');
        (!owner.is_empty() && owner != self.home).then(|| owner.to_owned())
    }

    /// Notes that the spec of a class is this process's. Called before the spec is written.
    pub(super) fn note_owner(&self, class: &str) -> Result<(), Error> {
        let path = self.owner_path(class);
        let line = format!("{}\n", self.home);
        let is_noted = || fs::read(&path).is_ok_and(|held| held == line.as_bytes());
        if self.home.is_empty() || is_noted() {
            return Ok(());
        }
        self.create()?;
        self.replace_file(&path, &mut |file| {
            file.write_all(line.as_bytes())
                .map_err(|source| failed("write", &path, source))
        })
    }

    /// Removes the note on a class.
    pub(super) fn forget_owner(&self, class: &str) -> Result<(), Error> {
        let path = self.owner_path(class);
        match fs::remove_file(&path) {
            Err(error) if !is_absent(&error) => Err(failed("remove", &path, error)),
            _ => Ok(()),
        }
    }

    /// Removes this process's note if its spec is gone: it was killed between the two.
    pub(super) fn clear_owner(&self, file_name: &OsStr) -> Result<(), Error> {
        let name = file_name.to_str().and_then(|name| name.strip_prefix('.'));
        let Some(class) = name.and_then(|name| self.class_in(name, SUFFIX)) else {
            return Ok(());
        };
        let is_lone = fs::symlink_metadata(self.path(class)).is_err_and(|error| is_absent(&error));
        if is_lone && self.other_owner(class).is_none() {
            self.forget_owner(class)?;
        }
        Ok(())
    }

    fn owner_path(&self, class: &str) -> PathBuf {
        let name = format!(".{}-{class}_{}{SUFFIX}", self.vendor, self.owner);
        self.directory.join(name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::directory::{Readers, Written};
    use crate::spec::{ContainerEdits, Device, Spec};

    fn mk_spec(class: &str) -> Spec {
        let container_edits = ContainerEdits {
            env: vec!["A=b".to_owned()],
            ..ContainerEdits::default()
        };
        Spec {
            kind: format!("akri.sh/{class}"),
            devices: vec![Device {
                name: "a".to_owned(),
                container_edits,
            }],
            container_edits: ContainerEdits::default(),
        }
    }

    fn mk_dir(folder: &tempfile::TempDir, home: &str) -> SpecDir {
        let directory = SpecDir::new(folder.path(), "akri.sh", "leafhost", Readers::Everybody);
        directory.unwrap().owned_by(home)
    }

    fn names(folder: &tempfile::TempDir) -> Vec<String> {
        let entries = fs::read_dir(folder.path()).unwrap();
        let mut names: Vec<String> = entries
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }

    #[test]
    fn a_spec_of_another_process_is_neither_listed_nor_read_replaced_or_removed() {
        let folder = tempfile::tempdir().unwrap();
        let (ours, theirs) = (mk_dir(&folder, "/a/state"), mk_dir(&folder, "/b/state"));
        assert_eq!(theirs.write(&mk_spec("cams")).unwrap(), Written::Created);
        assert!(ours.classes().unwrap().is_empty());
        assert_eq!(ours.read("cams").unwrap(), None);
        assert!(!ours.remove("cams").unwrap());
        let text = ours.write(&mk_spec("cams")).unwrap_err().to_string();
        assert!(
            text.contains("/b/state") && text.contains("--cdi-dir"),
            "{text}"
        );
        assert_eq!(theirs.read("cams").unwrap(), Some(mk_spec("cams")));
        assert!(theirs.remove("cams").unwrap());
        assert_eq!(names(&folder), <[&str; 0]>::default());
        // What is gone can be written anew, by whomever it was.
        theirs.write(&mk_spec("cams")).unwrap();
        fs::remove_file(theirs.path("cams")).unwrap();
        assert_eq!(ours.write(&mk_spec("cams")).unwrap(), Written::Created);
        assert!(theirs.classes().unwrap().is_empty());
    }

    #[test]
    fn a_spec_without_an_owner_is_taken_over() {
        let folder = tempfile::tempdir().unwrap();
        mk_dir(&folder, "").write(&mk_spec("cams")).unwrap();
        let ours = mk_dir(&folder, "/a/state");
        assert_eq!(ours.classes().unwrap(), ["cams".to_owned()].into());
        assert_eq!(ours.write(&mk_spec("cams")).unwrap(), Written::Unchanged);
        assert!(mk_dir(&folder, "/b/state").classes().unwrap().is_empty());
    }

    #[test]
    fn a_note_without_its_spec_is_removed_by_who_wrote_it() {
        let folder = tempfile::tempdir().unwrap();
        let (ours, theirs) = (mk_dir(&folder, "/a/state"), mk_dir(&folder, "/b/state"));
        ours.note_owner("cams").unwrap();
        theirs.classes().unwrap();
        assert_eq!(names(&folder), [".akri.sh-cams_leafhost.own"]);
        ours.classes().unwrap();
        assert_eq!(names(&folder), <[&str; 0]>::default());
    }

    #[test]
    fn the_longest_class_has_room_for_its_note() {
        let folder = tempfile::tempdir().unwrap();
        let ours = mk_dir(&folder, "/a/state");
        let class = "c".repeat(233);
        assert_eq!(ours.write(&mk_spec(&class)).unwrap(), Written::Created);
        assert_eq!(ours.classes().unwrap(), [class].into());
    }
}

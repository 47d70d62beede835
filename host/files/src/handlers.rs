//! Handler files: components with their grants next to them.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use leafhost_core::grants_file;
use leafhost_core::ports::{
    GrantsFile, HandlerSource, LoadError, SourceFile, SourceProblem, SourceSet, SourceVersion,
};
use leafhost_core::tasks::Tasks;
use leafhost_core::wait::publish;
use leafhost_core::yaml;
use tokio::sync::watch;

use crate::folder::{self, Content, Kind, Rules, Snapshot, stray};

/// Maximum size of a component, in bytes.
pub(crate) const MAX: u64 = 32 << 20;

const RULES: Rules = Rules {
    kinds: &[
        // Otherwise, write access to the target of a link would decide what a handler may do.
        Kind {
            links: false,
            ..Kind::held(grants_file::SUFFIX, 64 << 10)
        },
        Kind {
            held: false,
            ..Kind::held(".wasm.gz", MAX)
        },
        Kind {
            held: false,
            ..Kind::held(".wasm", MAX)
        },
    ],
    nested: false,
    max_files: 1000,
    stray: Some(stray::among_handlers),
    secret: false,
};

/// Handler files of a folder.
pub struct FileHandlers {
    folder: PathBuf,
    set: watch::Receiver<Arc<SourceSet>>,
}

impl FileHandlers {
    /// Watches the folder.
    pub fn open(folder: PathBuf, tasks: &mut Tasks) -> Self {
        let snapshots = folder::watch(&folder, RULES, "folder of handlers", tasks);
        let (sender, set) = watch::channel(Arc::default());
        tasks.add_loop("handlers", follow(folder.clone(), snapshots, sender));
        Self { folder, set }
    }
}

impl HandlerSource for FileHandlers {
    fn handlers(&self) -> watch::Receiver<Arc<SourceSet>> {
        self.set.clone()
    }

    fn read(&self, name: &str, version: &SourceVersion) -> Result<SourceFile, LoadError> {
        let fetched = folder::fetch(&self.folder, &RULES, name, &version.digest);
        let bytes = fetched.map_err(|why| {
            let path = self.folder.join(name);
            let why = format!(
                "{} {why}; retrying; a file that is put there is loaded",
                path.display()
            );
            LoadError::new(name, why, true)
        })?;
        Ok(SourceFile {
            name: name.to_owned(),
            bytes,
            grants: version.grants.clone(),
        })
    }
}

/// Returns the notes about files of a folder of handlers that are not loaded. Reads no file. Blocks.
pub(crate) fn notes(path: &Path) -> Vec<SourceProblem> {
    folder::notes(path, &RULES)
}

async fn follow(
    folder: PathBuf,
    mut snapshots: watch::Receiver<Arc<Snapshot>>,
    set: watch::Sender<Arc<SourceSet>>,
) {
    loop {
        let snapshot = snapshots.borrow_and_update().clone();
        publish(&set, Arc::new(assemble(&folder, &snapshot)));
        if snapshots.changed().await.is_err() {
            return;
        }
    }
}

/// Assembles the sources. Pure.
fn assemble(folder: &Path, snapshot: &Snapshot) -> SourceSet {
    let mut set = SourceSet {
        complete: snapshot.complete,
        problems: snapshot.problems_of(folder),
        warnings: snapshot.stray.notes(folder),
        ..SourceSet::default()
    };
    if !set.complete {
        return set;
    }
    let missing = snapshot.missing(folder, "handlers");
    set.partial = missing.is_some();
    set.problems.extend(missing);
    for (name, content) in &snapshot.files {
        let file = folder.join(name).display().to_string();
        if !is_component(name) {
            let orphaned = orphan(name, snapshot).map(|message| SourceProblem::new(file, message));
            set.problems.extend(orphaned.clone());
            if let Ok(Some(text)) = text(Some(content)) {
                let grants = GrantsFile { text, orphaned };
                set.grants.insert(name.clone(), grants);
            }
            continue;
        }
        let grants_name = grants_of(name, snapshot);
        let version = version(content, snapshot.files.get(&grants_name));
        if let Err(Some((of_grants, message))) = &version {
            let at = if *of_grants {
                folder.join(&grants_name).display().to_string()
            } else {
                file
            };
            let message = format!(
                "{message}; until it is corrected, a version that was accepted before stays in use"
            );
            set.problems.push(SourceProblem::new(at, message));
        }
        set.files.insert(name.clone(), version.ok());
    }
    set.problems.sort();
    set
}

/// Returns the version; else the reason why it cannot be used, with true if that is the grants' fault, or `None` if it has not settled.
fn version(
    content: &Content,
    grants: Option<&Content>,
) -> Result<SourceVersion, Option<(bool, String)>> {
    let digest = match content {
        Content::Digest(digest) => digest.clone(),
        Content::Refused(why) => return Err(Some((false, why.clone()))),
        Content::Bytes(_) | Content::Pending => return Err(None),
    };
    let grants = text(grants).map_err(|why| why.map(|why| (true, why)))?;
    Ok(SourceVersion { digest, grants })
}

/// Returns the text of a grants file; else the reason why it cannot be used, or `None` if it has not settled.
fn text(grants: Option<&Content>) -> Result<Option<Arc<str>>, Option<String>> {
    match grants {
        None => Ok(None),
        Some(Content::Bytes(bytes)) => match yaml::decode(bytes) {
            Ok(text) => Ok(Some(text.into())),
            Err(mistake) => Err(Some(mistake.with_line())),
        },
        Some(Content::Refused(why)) => Err(Some(why.clone())),
        Some(Content::Digest(_) | Content::Pending) => Err(None),
    }
}

fn is_component(name: &str) -> bool {
    RULES.kind(name).is_some_and(|kind| !kind.held)
}

/// Returns the name of a component's grants file.
fn grants_of(component: &str, snapshot: &Snapshot) -> String {
    grants_file::among(component, |file| snapshot.files.contains_key(file))
}

/// Returns the problem of a grants file that belongs to no component.
fn orphan(name: &str, snapshot: &Snapshot) -> Option<String> {
    let stem = name.strip_suffix(grants_file::SUFFIX)?;
    let mut components = snapshot.files.keys().filter(|file| is_component(file));
    let has_component =
        components.any(|file| grants_file::own(file) == name || grants_of(file, snapshot) == name);
    (!has_component).then(|| {
        format!(
            "orphaned grants file: no {stem}.wasm next to it, and no external handler {stem} has registered; add the handler or remove the file"
        )
    })
}

#[cfg(test)]
mod tests;

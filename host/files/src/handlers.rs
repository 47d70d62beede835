//! Handler files: components with their grants next to them, from one or several folders.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use futures::future::select_all;
use leafhost_core::grants_file;
use leafhost_core::ports::{
    GrantsFile, HandlerSource, LoadError, SourceFile, SourceProblem, SourceSet, SourceVersion,
};
use leafhost_core::tasks::Tasks;
use tokio::sync::watch;

use crate::blocking::publish;
use crate::folder::{self, Content, Folder, Kind, Rules, Snapshot};

const COMPONENTS: [&str; 2] = [".wasm.gz", ".wasm"];
/// Maximum size of a component, in bytes.
pub(crate) const MAX: u64 = 32 << 20;

const RULES: Rules = Rules {
    kinds: &[
        // Write access to the target of a link would decide what a handler may do.
        Kind {
            suffix: grants_file::SUFFIX,
            max: 64 << 10,
            links: false,
            held: true,
        },
        Kind {
            suffix: ".wasm.gz",
            max: MAX,
            links: true,
            held: false,
        },
        Kind {
            suffix: ".wasm",
            max: MAX,
            links: true,
            held: false,
        },
    ],
    nested: false,
    max_files: 1000,
};

/// Handler files of some folders.
pub struct FileHandlers {
    folders: Vec<PathBuf>,
    set: watch::Receiver<Arc<SourceSet>>,
}

impl FileHandlers {
    /// Watches the folders. If several have a file of one name, that of the first folder is used.
    pub fn open(folders: Vec<PathBuf>, tasks: &mut Tasks) -> Self {
        let watched = folders.iter().map(|path| {
            let folder = Folder::new(path.clone(), RULES);
            let snapshots = folder.snapshots();
            tasks.add_loop("folder of handlers", folder.watch());
            (path.clone(), snapshots)
        });
        let watched = watched.collect();
        let (sender, set) = watch::channel(Arc::default());
        tasks.add_loop("handlers", follow(watched, sender));
        Self { folders, set }
    }
}

impl HandlerSource for FileHandlers {
    fn handlers(&self) -> watch::Receiver<Arc<SourceSet>> {
        self.set.clone()
    }

    fn read(&self, name: &str, version: &SourceVersion) -> Result<SourceFile, LoadError> {
        let mut whys = Vec::new();
        for path in &self.folders {
            match folder::fetch(path, &RULES, name, &version.digest) {
                Ok(bytes) => {
                    return Ok(SourceFile {
                        name: name.to_owned(),
                        bytes,
                        grants: version.grants.clone(),
                    });
                }
                Err(why) => whys.push(format!("{} {why}", path.join(name).display())),
            }
        }
        Err(LoadError {
            source_name: name.to_owned(),
            message: format!(
                "{}; retrying; a file that is put there is loaded",
                whys.join(", ")
            ),
            missing_grants: Vec::new(),
            transient: true,
        })
    }
}

async fn follow(
    mut folders: Vec<(PathBuf, watch::Receiver<Arc<Snapshot>>)>,
    set: watch::Sender<Arc<SourceSet>>,
) {
    loop {
        let snapshots: Vec<_> = folders
            .iter_mut()
            .map(|(path, snapshots)| (path.clone(), snapshots.borrow_and_update().clone()))
            .collect();
        publish(&set, assemble(&snapshots));
        if folders.is_empty() {
            return;
        }
        let changes = folders
            .iter_mut()
            .map(|(_, snapshots)| Box::pin(snapshots.changed()));
        let (first, ..) = select_all(changes).await;
        if first.is_err() {
            return;
        }
    }
}

/// Assembles the sources. Pure.
fn assemble(folders: &[(PathBuf, Arc<Snapshot>)]) -> SourceSet {
    let mut set = SourceSet::default();
    for (path, snapshot) in folders {
        set.problems.extend(snapshot.problems_of(path));
    }
    if !folders.iter().all(|(_, snapshot)| snapshot.complete) {
        return set;
    }
    set.complete = true;
    let mut owners: BTreeMap<&str, &Path> = BTreeMap::new();
    for (path, snapshot) in folders {
        let missing = snapshot.missing(path, "handlers");
        set.partial |= missing.is_some();
        set.problems.extend(missing);
        for (name, content) in &snapshot.files {
            let file = path.join(name).display().to_string();
            if !is_component(name) {
                let orphaned =
                    orphan(name, snapshot).map(|message| SourceProblem::new(file, message));
                set.problems.extend(orphaned.clone());
                if let Ok(Some(text)) = text(Some(content)) {
                    set.grants
                        .entry(name.clone())
                        .or_insert(GrantsFile { text, orphaned });
                }
                continue;
            }
            if let Some(other) = owners.get(name.as_str()) {
                let other = other.join(name);
                let message = format!("is not used: {} comes first", other.display());
                set.problems.push(SourceProblem::new(file, message));
                continue;
            }
            owners.insert(name, path);
            let grants_name = grants_of(name, snapshot);
            let version = version(content, snapshot.files.get(&grants_name));
            if let Err(Some((of_grants, message))) = &version {
                let at = if *of_grants {
                    path.join(&grants_name).display().to_string()
                } else {
                    file
                };
                let message = format!(
                    "{message}; until that is right, a version that was accepted before keeps serving"
                );
                set.problems.push(SourceProblem::new(at, message));
            }
            set.files.insert(name.clone(), version.ok());
        }
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
        Some(Content::Bytes(bytes)) => match std::str::from_utf8(bytes) {
            Ok(text) => Ok(Some(text.into())),
            Err(error) => Err(Some(format!("is not UTF-8 text: {error}"))),
        },
        Some(Content::Refused(why)) => Err(Some(why.clone())),
        Some(Content::Digest(_) | Content::Pending) => Err(None),
    }
}

fn is_component(name: &str) -> bool {
    COMPONENTS.iter().any(|suffix| name.ends_with(suffix))
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

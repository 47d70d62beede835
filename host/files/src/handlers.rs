//! Handler files: components with their grants next to them, from one or several folders.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use futures::future::select_all;
use leafhost_core::handler::{Digest, Registration};
use leafhost_core::ports::{
    HandlerSource, LoadError, SourceFile, SourceProblem, SourceSet, SourceVersion,
};
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::blocking::blocking;
use crate::folder::{self, Content, Folder, Kind, Rules, Snapshot};

mod accepted;
mod loads;
use accepted::Accepted;
use loads::Loads;

const GRANTS: &str = ".grants.yaml";
const COMPONENTS: [&str; 2] = [".wasm.gz", ".wasm"];
/// The most bytes of a component.
const MAX: u64 = 32 << 20;

const RULES: Rules = Rules {
    kinds: &[
        // Whoever may write where a link leads to would decide what a handler may do.
        Kind {
            suffix: GRANTS,
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

/// Where handler files lie.
struct Places(Vec<PathBuf>);

impl Places {
    /// Reads the file of that name that has that digest. Blocks.
    fn fetch(&self, name: &str, digest: &Digest) -> Result<Arc<[u8]>, String> {
        let mut whys = Vec::new();
        for path in &self.0 {
            match folder::fetch(path, &RULES, name, digest) {
                Ok(bytes) => return Ok(bytes),
                Err(why) => whys.push(format!("{} {why}", path.join(name).display())),
            }
        }
        Err(whys.join(", "))
    }
}

/// The handler files of some folders. Dropping it ends its tasks.
pub struct FileHandlers {
    set: watch::Receiver<Arc<SourceSet>>,
    accepted: Arc<Accepted>,
    loads: Loads,
    _tasks: JoinSet<()>,
}

impl FileHandlers {
    /// Watches the folders; of files with one name the one in the first folder counts. What was accepted is kept in
    /// `kept`, and which are being loaded in `state`.
    pub async fn open(
        folders: Vec<PathBuf>,
        kept: PathBuf,
        state: PathBuf,
    ) -> std::io::Result<Self> {
        let mut tasks = JoinSet::new();
        let loads = blocking(move || Loads::open(state)).await?;
        let accepted = Accepted::open(kept, Places(folders.clone()), &mut tasks).await?;
        let watched = folders
            .into_iter()
            .map(|path| {
                let folder = Folder::new(path.clone(), RULES);
                let snapshots = folder.snapshots();
                tasks.spawn(folder.watch());
                (path, snapshots)
            })
            .collect();
        let (sender, set) = watch::channel(Arc::default());
        tasks.spawn(follow(watched, Arc::clone(&accepted), sender));
        Ok(Self {
            set,
            accepted,
            loads,
            _tasks: tasks,
        })
    }
}

impl HandlerSource for FileHandlers {
    fn handlers(&self) -> watch::Receiver<Arc<SourceSet>> {
        self.set.clone()
    }

    fn read(&self, name: &str, version: &SourceVersion) -> Result<SourceFile, LoadError> {
        match self.accepted.read(name, &version.digest) {
            Ok(bytes) => Ok(SourceFile {
                name: name.to_owned(),
                bytes,
                grants: version.grants.clone(),
            }),
            Err(why) => Err(LoadError {
                source_name: name.to_owned(),
                message: format!(
                    "{why}; it is tried again, and a file that is put there is loaded"
                ),
                missing_grants: Vec::new(),
                transient: true,
            }),
        }
    }

    fn accept(&self, file: &SourceFile, handler: &str) {
        self.accepted.keep(file, handler);
    }

    fn accepted(&self, name: &str) -> Option<SourceVersion> {
        self.accepted.get(name)
    }

    fn registration(&self, name: &str) -> Option<Registration> {
        self.accepted.registration(name)
    }

    fn deaths(&self, version: &SourceVersion) -> u32 {
        self.loads.deaths(version)
    }

    fn loading(&self, versions: &[SourceVersion]) {
        if let Err(error) = self.loads.set(versions) {
            // What is loaded serves all the same.
            tracing::debug!(%error, "cannot write down what is being loaded");
        }
    }
}

async fn follow(
    mut folders: Vec<(PathBuf, watch::Receiver<Arc<Snapshot>>)>,
    accepted: Arc<Accepted>,
    set: watch::Sender<Arc<SourceSet>>,
) {
    let mut unkept = accepted.problem();
    loop {
        let snapshots: Vec<_> = folders
            .iter_mut()
            .map(|(path, snapshots)| (path.clone(), snapshots.borrow_and_update().clone()))
            .collect();
        if snapshots.iter().all(|(_, snapshot)| snapshot.complete) {
            let before = set.borrow().clone();
            let mut earlier = accepted.all();
            earlier.extend(before.files.clone());
            let mut next = assemble(&snapshots, &earlier);
            next.problems.extend(unkept.borrow_and_update().clone());
            next.problems.sort();
            // A folder that is not there says nothing of its files: it may come back with them.
            if snapshots.iter().all(|(_, snapshot)| snapshot.exists) {
                accepted.forget_all_but(&next.files);
            }
            publish(&set, next);
        } else {
            let mut next = SourceSet::default();
            next.problems.extend(folder_problems(&snapshots));
            publish(&set, next);
        }
        if folders.is_empty() {
            return;
        }
        let folders = folders
            .iter_mut()
            .map(|(_, snapshots)| Box::pin(snapshots.changed()));
        let open = tokio::select! {
            (open, ..) = select_all(folders) => open,
            open = unkept.changed() => open,
        };
        if open.is_err() {
            return;
        }
    }
}

/// The sources; as it was before where a file cannot be used, and, while a folder is missing, where there is none: a folder that is
/// not there says nothing of its files. Pure.
fn assemble(
    folders: &[(PathBuf, Arc<Snapshot>)],
    earlier: &BTreeMap<String, SourceVersion>,
) -> SourceSet {
    let mut set = SourceSet {
        complete: true,
        ..SourceSet::default()
    };
    set.problems.extend(folder_problems(folders));
    let mut owners: BTreeMap<&str, &Path> = BTreeMap::new();
    for (path, snapshot) in folders {
        let folder = path.display().to_string();
        if !snapshot.exists {
            let (is, make) = match snapshot.obstructed {
                None => ("is missing", "make it"),
                Some(is) => (is, "move away what is there, make it"),
            };
            let message = if earlier.is_empty() {
                format!("{is}; {make} and put handlers there")
            } else {
                format!(
                    "{is}, and the handlers that were accepted keep serving; bring it back, or {make} and leave it empty if they are to go"
                )
            };
            set.problems.push(problem(folder, message));
        }
        for (name, content) in &snapshot.files {
            let file = path.join(name).display().to_string();
            let Some(stem) = stem(name) else {
                set.problems
                    .extend(orphan(name, snapshot).map(|message| problem(file, message)));
                continue;
            };
            if let Some(other) = owners.get(name.as_str()) {
                let other = other.join(name);
                let message = format!("is not used: {} comes first", other.display());
                set.problems.push(problem(file, message));
                continue;
            }
            owners.insert(name, path);
            let grants_name = format!("{stem}{GRANTS}");
            let grants = snapshot.files.get(&grants_name);
            match version(content, grants) {
                Ok(version) => drop(set.files.insert(name.clone(), version)),
                Err(wrong) => {
                    let earlier = earlier.get(name).cloned();
                    if let Some((of_grants, mut message)) = wrong {
                        let at = if of_grants {
                            path.join(&grants_name).display().to_string()
                        } else {
                            file
                        };
                        if earlier.is_some() {
                            message +=
                                "; until that is right, the last accepted version keeps serving";
                        }
                        set.problems.push(problem(at, message));
                    }
                    set.files
                        .extend(earlier.map(|version| (name.clone(), version)));
                }
            }
        }
    }
    if folders.iter().any(|(_, snapshot)| !snapshot.exists) {
        for (name, version) in earlier {
            set.files
                .entry(name.clone())
                .or_insert_with(|| version.clone());
        }
    }
    set.problems.sort();
    set
}

fn publish(set: &watch::Sender<Arc<SourceSet>>, next: SourceSet) {
    set.send_if_modified(|published| {
        let differs = **published != next;
        if differs {
            *published = Arc::new(next);
        }
        differs
    });
}

/// What is wrong with the folders themselves.
fn folder_problems(folders: &[(PathBuf, Arc<Snapshot>)]) -> Vec<SourceProblem> {
    let of = |(path, snapshot): &(PathBuf, Arc<Snapshot>)| {
        let folder = path.display().to_string();
        let messages = snapshot.problems.iter().cloned();
        messages
            .map(|message| problem(folder.clone(), message))
            .collect::<Vec<_>>()
    };
    folders.iter().flat_map(of).collect()
}

/// The version; or whether it is the grants that cannot be used, and why; or nothing if it has not settled.
fn version(
    content: &Content,
    grants: Option<&Content>,
) -> Result<SourceVersion, Option<(bool, String)>> {
    let digest = match content {
        Content::Digest(digest) => digest.clone(),
        Content::Refused(why) => return Err(Some((false, why.clone()))),
        Content::Bytes(_) | Content::Pending => return Err(None),
    };
    let grants = match grants {
        None => None,
        Some(Content::Bytes(bytes)) => {
            let text = std::str::from_utf8(bytes)
                .map_err(|error| Some((true, format!("is not UTF-8 text: {error}"))))?;
            Some(text.into())
        }
        Some(Content::Refused(why)) => return Err(Some((true, why.clone()))),
        Some(Content::Digest(_) | Content::Pending) => return Err(None),
    };
    Ok(SourceVersion { digest, grants })
}

fn stem(name: &str) -> Option<&str> {
    COMPONENTS
        .iter()
        .find_map(|suffix| name.strip_suffix(suffix))
}

/// What is wrong with grants that belong to no component.
fn orphan(name: &str, snapshot: &Snapshot) -> Option<String> {
    let stem = name.strip_suffix(GRANTS)?;
    let has_component = COMPONENTS
        .iter()
        .any(|suffix| snapshot.files.contains_key(&format!("{stem}{suffix}")));
    (!has_component).then(|| {
        format!(
            "orphaned grants file: no {stem}.wasm next to it; add the handler or remove the file"
        )
    })
}

fn problem(source: String, message: String) -> SourceProblem {
    SourceProblem {
        source,
        line: None,
        path: String::new(),
        message,
        configuration: None,
    }
}

#[cfg(test)]
mod tests;

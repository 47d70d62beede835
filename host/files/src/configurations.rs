//! Configurations as YAML files, several documents per file, with their properties.
//!
//! The last good text of each file is stored in the state folder and serves while the file is broken, even after a restart.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use leafhost_core::configuration::MAX_CONFIGURATIONS;
use leafhost_core::names::ConfigurationKey;
use leafhost_core::ports::{ConfigurationSet, ConfiguredDiscovery, SourceProblem};
use leafhost_core::tasks::Tasks;
use leafhost_core::text;
use leafhost_core::timeouts::FOLDER_BACKSTOP;
use leafhost_core::wait::publish;
use leafhost_core::yaml;
use leafhost_disk::atomic;
use tokio::sync::watch;

use crate::blocking::blocking;
use crate::damaged;
use crate::folder::{self, Content, Kind, Rules, Snapshot, stray};
use crate::handlers;
use crate::properties::{self, Values};
use crate::state::{Error, fail};

mod claims;
mod documents;
use claims::Served;
pub use documents::{Document, Reading, read as check_file};

const RULES: Rules = Rules {
    kinds: &[Kind::held(".yaml", 1 << 20), Kind::held(".yml", 1 << 20)],
    nested: false,
    max_files: 1000,
    stray: Some(stray::among_configurations),
    secret: false,
};

/// Last good text of each file, with the accepted documents only.
type Kept = BTreeMap<String, Arc<str>>;
/// Maximum number of Configurations named in one message.
const MAX_NAMED: usize = 5;

type Configurations = watch::Receiver<Arc<ConfigurationSet>>;

/// State from earlier readings.
#[derive(Debug, Clone, Default, PartialEq)]
struct Memory {
    kept: Kept,
    served: Served,
}

impl Memory {
    /// Creates the state from stored texts; a Configuration that is in two files has no serving file yet.
    fn new(kept: Kept) -> Self {
        let mut served: BTreeMap<ConfigurationKey, Option<String>> = BTreeMap::new();
        for (name, text) in &kept {
            for document in documents::read(name, text).documents {
                let file = served.entry(document.configuration.key);
                file.and_modify(|file| *file = None)
                    .or_insert_with(|| Some(name.clone()));
            }
        }
        let served = served.into_iter();
        Self {
            served: served
                .filter_map(|(key, file)| Some((key, file?)))
                .collect(),
            kept,
        }
    }
}

/// Watches `configurations`, `secrets` and `configmaps` in `folder`; the last good texts are stored in `kept`. Also returns the problems of
/// those texts.
pub async fn watch(
    folder: PathBuf,
    kept: PathBuf,
    tasks: &mut Tasks,
) -> Result<(Configurations, Vec<SourceProblem>), Error> {
    let (path, memory) = blocking(move || {
        let memory = read_kept(&kept).map(|(kept, problems)| (Memory::new(kept), problems));
        (kept, memory)
    })
    .await;
    let (memory, problems) = memory.map_err(fail("read", &path))?;
    let mut watched = |name: &str, rules| {
        let path = folder.join(name);
        folder::watch(path, rules, "folder of Configurations", tasks)
    };
    let folders = [
        watched("configurations", RULES),
        watched("secrets", properties::SECRETS),
        watched("configmaps", properties::RULES),
    ];
    let (sender, set) = watch::channel(Arc::default());
    let following = follow(folder, folders, path, memory, sender);
    tasks.add_loop("Configurations", following);
    Ok((set, problems))
}

/// Reads a standalone folder once, as the agent does without stored texts. Blocks.
pub fn check_folder(folder: &Path) -> Reading {
    let values = Values::now(folder);
    let path = folder.join("configurations");
    let snapshot = Snapshot::now(&path, &RULES);
    let mut memory = Memory::default();
    let mut set = assemble(&path, &snapshot, &values, &mut memory);
    set.warnings
        .extend(handlers::notes(&folder.join("handlers")));
    let mut documents = Vec::new();
    for (name, content) in &snapshot.files {
        let shown = path.join(name).display().to_string();
        let mut served = read(&shown, content, None).documents;
        served.retain(|document| memory.served.get(key(document)) == Some(name));
        documents.append(&mut served);
    }
    Reading {
        documents,
        problems: set.problems,
        warnings: set.warnings,
        ..Reading::default()
    }
}

async fn follow(
    folder: PathBuf,
    [mut configurations, mut secrets, mut configmaps]: [watch::Receiver<Arc<Snapshot>>; 3],
    kept_folder: PathBuf,
    mut memory: Memory,
    set: watch::Sender<Arc<ConfigurationSet>>,
) {
    let path = folder.join("configurations");
    let shown = folder.display().to_string();
    let mut stored = memory.kept.clone();
    loop {
        let snapshot = configurations.borrow_and_update().clone();
        let values = Values {
            folder: shown.clone(),
            secrets: secrets.borrow_and_update().clone(),
            configmaps: configmaps.borrow_and_update().clone(),
        };
        let next = if snapshot.complete && values.secrets.complete && values.configmaps.complete {
            let (path, kept_folder) = (path.clone(), kept_folder.clone());
            let next;
            (next, memory, stored) = blocking(move || {
                let mut next = assemble(&path, &snapshot, &values, &mut memory);
                next.problems
                    .extend(store(&kept_folder, &mut stored, &memory.kept));
                next.problems.sort();
                (next, memory, stored)
            })
            .await;
            next
        } else {
            ConfigurationSet {
                problems: folder_problems(&path, &snapshot, &values),
                ..ConfigurationSet::default()
            }
        };
        publish(&set, Arc::new(next));
        let changed = tokio::select! {
            changed = configurations.changed() => changed,
            changed = secrets.changed() => changed,
            changed = configmaps.changed() => changed,
            () = tokio::time::sleep(FOLDER_BACKSTOP), if stored != memory.kept => Ok(()),
        };
        if changed.is_err() {
            return;
        }
    }
}

/// Assembles the set from the current files and the last good texts of broken ones. Pure.
fn assemble(
    path: &Path,
    snapshot: &Snapshot,
    values: &Values,
    memory: &mut Memory,
) -> ConfigurationSet {
    let at = |file: &str| path.join(file).display().to_string();
    let mut set = ConfigurationSet {
        complete: true,
        problems: folder_problems(path, snapshot, values),
        warnings: snapshot.stray.notes(path),
        ..ConfigurationSet::default()
    };
    set.problems
        .extend(snapshot.missing(path, "Configurations"));
    let secrets = Path::new(&values.folder).join("secrets");
    set.warnings.extend(values.secrets.stray.notes(&secrets));
    let Memory { kept, served } = memory;
    let lost: BTreeMap<String, Content>;
    let files = if snapshot.exists {
        kept.retain(|file, _| snapshot.files.contains_key(file));
        &snapshot.files
    } else {
        // A missing folder proves nothing about its files.
        lost = kept
            .keys()
            .map(|name| (name.clone(), Content::Pending))
            .collect();
        &lost
    };
    let readings: Vec<(&str, Reading)> = files
        .iter()
        .map(|(name, content)| {
            let kept = kept.get(name).map(|text| &**text);
            (name.as_str(), read(&at(name), content, kept))
        })
        .collect();
    let offers: Vec<_> = readings
        .iter()
        .flat_map(|(name, reading)| reading.documents.iter().map(|d| (*name, key(d))))
        .collect();
    *served = claims::choose(&offers, served);
    for (name, reading) in readings {
        let file = at(name);
        set.problems.extend(reading.problems);
        set.warnings.extend(reading.warnings);
        let problem = |path: &str, message, configuration| SourceProblem {
            path: path.to_owned(),
            configuration,
            ..SourceProblem::new(&file, message)
        };
        let (mut texts, mut beyond) = (Vec::new(), Vec::new());
        for document in reading.documents {
            let Document {
                configuration,
                text,
                ..
            } = document;
            let key = configuration.key.clone();
            match served.get(&key) {
                Some(file) if file == name => {}
                Some(other) => {
                    let message = format!(
                        "{key} is already defined in {}, which stays in use; rename this one, or remove one of the two",
                        at(other)
                    );
                    // The problem belongs to this file, not to the Configuration.
                    set.problems.push(problem("metadata.name", message, None));
                    continue;
                }
                None => {
                    beyond.push(key);
                    continue;
                }
            }
            texts.push(text);
            let properties = values.resolve(&configuration);
            if let Err(wrong) = &properties {
                let message = format!("{}; the handler is not called", wrong.message);
                let problem = problem(&wrong.path, message, Some(key.clone()));
                set.problems.push(problem);
            }
            let discovery = ConfiguredDiscovery {
                configuration,
                properties,
            };
            set.accepted.insert(key, Arc::new(discovery));
        }
        if !beyond.is_empty() {
            let message = format!(
                "has {} Configurations beyond the {MAX_CONFIGURATIONS} that an agent takes, which are not used: {}; remove some, or let one find more devices",
                beyond.len(),
                text::few(&beyond, MAX_NAMED)
            );
            set.problems.push(problem("", message, None));
        }
        if texts.is_empty() {
            kept.remove(name);
        } else {
            let text = texts.join("\n---\n");
            // An equal text keeps its allocation, which is shared with the stored one.
            if kept.get(name).is_none_or(|kept| **kept != *text) {
                kept.insert(name.to_owned(), text.into());
            }
        }
    }
    set.problems.sort();
    set.warnings.sort();
    set
}

/// Reads a file; if it has problems, adds the `kept` documents.
fn read(file: &str, content: &Content, kept: Option<&str>) -> Reading {
    let refused = |line, why: String| Reading {
        problems: vec![SourceProblem {
            line,
            ..SourceProblem::new(file, why)
        }],
        ..Reading::default()
    };
    let mut reading = match content {
        Content::Digest(_) | Content::Pending => Reading::default(),
        Content::Refused(why) => refused(None, why.clone()),
        Content::Bytes(bytes) => match yaml::decode(bytes) {
            Ok(text) => documents::read(file, text),
            Err(mistake) => refused(mistake.line, mistake.message),
        },
    };
    if !reading.problems.is_empty() || !matches!(content, Content::Bytes(_)) {
        retain(file, kept, &mut reading);
    }
    reading
}

/// Returns the problems of the folders themselves.
fn folder_problems(path: &Path, snapshot: &Snapshot, values: &Values) -> Vec<SourceProblem> {
    let mut problems = snapshot.problems_of(path);
    for (name, snapshot) in [
        ("secrets", &values.secrets),
        ("configmaps", &values.configmaps),
    ] {
        let folder = format!("{}/{name}", values.folder);
        problems.extend(snapshot.problems_of(folder));
    }
    problems
}

/// Adds to the reading of a file with problems the earlier documents that the file no longer contains, because an unreadable document may
/// be any of them. If all faulty documents could be read to their end and have names, earlier documents with other names are gone.
fn retain(file: &str, kept: Option<&str>, reading: &mut Reading) {
    let earlier = kept.map(|text| documents::read(file, text).documents);
    let now: BTreeSet<_> = reading.documents.iter().map(key).cloned().collect();
    let mut retained: Vec<Document> = earlier.unwrap_or_default();
    retained.retain(|document| {
        let may_be = |problem: &SourceProblem| {
            let own = problem.configuration.as_ref();
            own.is_none_or(|own| own == key(document))
        };
        let open = reading.problems.is_empty() || reading.problems.iter().any(may_be);
        open && !now.contains(key(document))
    });
    for (index, problem) in reading.problems.iter_mut().enumerate() {
        let keys: Vec<_> = retained
            .iter()
            .map(key)
            .filter(|key| problem.configuration.as_ref().is_none_or(|own| own == *key))
            .cloned()
            .collect();
        if !keys.is_empty() {
            problem.message += "; until it is corrected, the last accepted version of ";
            problem.message += &text::few(&keys, MAX_NAMED);
            problem.message += " stays in use";
        }
        // From here on `problem.configuration` is only displayed.
        if problem.configuration.is_none() {
            let only = keys.first().filter(|_| keys.len() == 1);
            problem.configuration = reading.supposed.get(&index).or(only).cloned();
        }
    }
    reading.documents.append(&mut retained);
}

fn key(document: &Document) -> &ConfigurationKey {
    &document.configuration.key
}

/// Reads the stored texts; returns them with the problems of their files.
fn read_kept(folder: &Path) -> std::io::Result<(Kept, Vec<SourceProblem>)> {
    let mut kept = Kept::new();
    let mut problems = Vec::new();
    for name in atomic::open(folder)? {
        if RULES.kind(&name).is_none() {
            continue;
        }
        let path = folder.join(&name);
        match String::from_utf8(std::fs::read(&path)?) {
            Ok(text) => drop(kept.insert(name, text.into())),
            Err(error) => {
                let outcome = format!("{name} is used as soon as it is valid");
                let why = error.to_string();
                let problem = damaged::rename_broken(&path, "kept Configurations", &outcome, &why);
                problems.push(problem);
            }
        }
    }
    Ok((kept, problems))
}

/// Writes the texts of `kept` that are not stored yet, and removes stored ones that are no longer in `kept`. Returns the failures as a
/// problem; the next call retries.
fn store(folder: &Path, stored: &mut Kept, kept: &Kept) -> Option<SourceProblem> {
    let names: BTreeSet<String> = stored.keys().chain(kept.keys()).cloned().collect();
    let mut failed: Vec<(String, std::io::Error)> = Vec::new();
    for name in names {
        let wanted = kept.get(&name);
        if stored.get(&name) == wanted {
            continue;
        }
        let done = match wanted {
            Some(text) => atomic::write(folder, &name, text.as_bytes()),
            None => atomic::remove(folder, &name),
        };
        match (done, wanted) {
            (Ok(()), Some(text)) => drop(stored.insert(name, Arc::clone(text))),
            (Ok(()), None) => drop(stored.remove(&name)),
            (Err(error), _) => failed.push((name, error)),
        }
    }
    let (name, error) = failed.first()?;
    Some(SourceProblem::new(
        folder.display().to_string(),
        format!(
            "cannot store the accepted version of {name} ({} such files): it stays in use, but not after a restart with an invalid file: {}: {error}",
            failed.len(),
            atomic::remedy(error),
        ),
    ))
}

#[cfg(test)]
mod tests;

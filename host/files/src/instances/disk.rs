//! The files of Instances. Blocks.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use leafhost_core::instance::{Instance, InstanceKey};
use leafhost_core::names::{DigestLength, device_hash};
use leafhost_core::ports::{InstanceSet, SourceProblem};
use leafhost_disk::atomic;
use tempfile::NamedTempFile;

use crate::state::{Error, fail};
use crate::{damaged, own_yaml};

/// Instances to write; `None` for those to remove.
pub type Writes = BTreeMap<InstanceKey, Option<Arc<Instance>>>;

/// Instances that were not written, each with the reason and the remedy.
pub type Failures = BTreeMap<InstanceKey, String>;

fn describe(path: &Path, error: &io::Error) -> String {
    format!("{}: {}: {error}", path.display(), atomic::remedy(error))
}

/// Reads all Instances; renames files that are not Instances, and returns their problems.
pub fn read(folder: &Path) -> Result<(InstanceSet, Vec<SourceProblem>), Error> {
    let (mut instances, mut problems) = (BTreeMap::new(), Vec::new());
    fs::create_dir_all(folder).map_err(fail("create", folder))?;
    for entry in fs::read_dir(folder).map_err(fail("read", folder))? {
        let namespace = entry.map_err(fail("read", folder))?.path();
        if !namespace.is_dir() {
            continue;
        }
        for name in atomic::open(&namespace).map_err(fail("read", &namespace))? {
            if Path::new(&name).extension() != Some(OsStr::new("yaml")) {
                continue;
            }
            let path = namespace.join(&name);
            let bytes = fs::read(&path).map_err(fail("read", &path))?;
            match parse(&bytes).and_then(|instance| {
                let key = instance.key();
                let same = path == file(folder, &key);
                same.then_some((key, instance))
                    .ok_or_else(|| "its name and namespace are not those of the file".to_owned())
            }) {
                Ok((key, instance)) => {
                    instances.insert(key, Arc::new(instance));
                }
                Err(why) => {
                    let outcome = "its device gets a new one";
                    let problem = damaged::rename_broken(&path, "an Instance", outcome, &why);
                    problems.push(problem);
                }
            }
        }
    }
    problems.sort();
    Ok((InstanceSet::read(instances), problems))
}

/// Maximum number of files that are prepared and have no name yet; each holds a descriptor.
const AT_ONCE: usize = 256;

/// Writes and removes Instances. Syncs each folder once; returns the failures.
pub fn write(folder: &Path, writes: &Writes) -> Failures {
    let mut failed = Failures::new();
    let mut touched: BTreeMap<PathBuf, Vec<&InstanceKey>> = BTreeMap::new();
    let writes: Vec<_> = writes.iter().collect();
    for chunk in writes.chunks(AT_ONCE) {
        for (key, done) in write_chunk(folder, chunk) {
            match done {
                Ok(()) => {
                    let namespace = folder.join(&key.namespace);
                    touched.entry(namespace).or_default().push(key);
                }
                Err(error) => {
                    failed.insert(key.clone(), describe(&file(folder, key), &error));
                }
            }
        }
    }
    for (namespace, keys) in touched {
        if let Err(error) = atomic::sync(&namespace) {
            let message = describe(&namespace, &error);
            failed.extend(keys.into_iter().map(|key| (key.clone(), message.clone())));
        }
    }
    failed
}

type Done<'a> = (&'a InstanceKey, io::Result<()>);

fn write_chunk<'a>(
    folder: &Path,
    chunk: &[(&'a InstanceKey, &Option<Arc<Instance>>)],
) -> Vec<Done<'a>> {
    let mut done = Vec::new();
    let mut prepared = Vec::new();
    for (key, instance) in chunk {
        match instance {
            Some(instance) => match prepare(folder, key, instance) {
                Ok(new) => prepared.push((*key, new)),
                Err(error) => done.push((*key, Err(error))),
            },
            None => done.push((*key, remove(&file(folder, key)))),
        }
    }
    let contents: Vec<_> = prepared.iter().map(|(_, new)| new.as_file()).collect();
    let synced = atomic::sync_all(&contents);
    for ((key, new), synced) in prepared.into_iter().zip(synced) {
        let placed = synced.and_then(|()| atomic::persist(new, &file(folder, key)));
        done.push((key, placed));
    }
    done
}

fn prepare(folder: &Path, key: &InstanceKey, instance: &Instance) -> io::Result<NamedTempFile> {
    let text = own_yaml::write(instance)?;
    let namespace = folder.join(&key.namespace);
    if !namespace.is_dir() {
        fs::create_dir_all(&namespace)?;
        atomic::sync(folder)?;
    }
    atomic::prepare(&namespace, text.as_bytes())
}

fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Returns the file of an Instance. Cuts a name that is too long for a file name, and makes it unique by a digest.
fn file(folder: &Path, key: &InstanceKey) -> PathBuf {
    let InstanceKey { namespace, name } = key;
    let stem = match name.get(..200) {
        Some(head) => format!("{head}~{}", device_hash(name, None, DigestLength::Eight)),
        None => name.clone(),
    };
    folder.join(namespace).join(format!("{stem}.yaml"))
}

fn parse(bytes: &[u8]) -> Result<Instance, String> {
    let instance: Instance = own_yaml::read(bytes).map_err(|error| error.to_string())?;
    if instance.metadata.uid.is_empty() {
        return Err("it has no uid".to_owned());
    }
    Ok(instance)
}

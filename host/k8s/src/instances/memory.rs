//! The Instances on disk, as they were last known: an agent that starts while the API server is away serves running pods by them.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, BufReader, BufWriter, Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use leafhost_core::instance::{Instance, InstanceKey};
use leafhost_core::ports::InstanceSet;
use tokio::sync::watch;

type Instances = BTreeMap<InstanceKey, Arc<Instance>>;

/// Changes that come together are written together.
const TOGETHER: Duration = Duration::from_secs(1);
/// The most that is read.
const MOST: u64 = 256 << 20;

/// What was last written; nothing if there is no such file, or none that can be read.
pub fn read(path: &Path) -> Option<Instances> {
    let file = match File::open(path) {
        Ok(file) => BufReader::new(file.take(MOST)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return None,
        Err(error) => {
            let path = path.display();
            tracing::warn!(%path, %error, "cannot read the Instances of an earlier run");
            return None;
        }
    };
    let instances: Vec<Instance> = serde_json::from_reader(file)
        .inspect_err(|error| {
            let path = path.display();
            tracing::warn!(%path, %error, "the Instances of an earlier run are damaged; the API server has them");
        })
        .ok()?;
    let keyed = |instance: Instance| (instance.key(), Arc::new(instance));
    Some(instances.into_iter().map(keyed).collect())
}

/// Writes the complete set after each change, until nothing more can come.
pub async fn keep(path: PathBuf, mut set: watch::Receiver<Arc<InstanceSet>>) {
    let mut is_told = false;
    while set.changed().await.is_ok() {
        tokio::time::sleep(TOGETHER).await;
        let current = Arc::clone(&set.borrow_and_update());
        if !current.complete {
            continue;
        }
        let file = path.clone();
        let written = tokio::task::spawn_blocking(move || write(&file, &current.instances)).await;
        match written {
            Ok(Ok(())) => is_told = false,
            Ok(Err(error)) if !is_told => {
                is_told = true;
                let path = path.display();
                tracing::warn!(%path, %error, "cannot keep the Instances for a start without the API server; free or repair the disk");
            }
            Ok(Err(_)) => {}
            Err(_) => return,
        }
    }
}

fn write(path: &Path, instances: &Instances) -> io::Result<()> {
    let folder = path.parent().unwrap_or(Path::new("/"));
    fs::create_dir_all(folder)?;
    let file = tempfile::NamedTempFile::new_in(folder)?;
    let mut writer = BufWriter::new(&file);
    let all: Vec<&Instance> = instances.values().map(AsRef::as_ref).collect();
    serde_json::to_writer(&mut writer, &all)?;
    writer.flush()?;
    drop(writer);
    file.as_file().sync_all()?;
    file.persist(path)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_written_is_read_and_a_damaged_file_is_none() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("cluster/instances.json");
        assert_eq!(read(&path), None);
        let instance: Instance = serde_json::from_value(serde_json::json!({
            "apiVersion": "akri.sh/v0", "kind": "Instance",
            "metadata": {"name": "a-1", "namespace": "default", "uid": "u"}, "spec": {"configurationName": "a"},
        }))
        .unwrap();
        let all = Instances::from([(instance.key(), Arc::new(instance))]);
        write(&path, &all).unwrap();
        assert_eq!(read(&path), Some(all));
        fs::write(&path, "[{").unwrap();
        assert_eq!(read(&path), None);
    }
}

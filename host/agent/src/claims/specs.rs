//! CDI specs of claims: one class for each claim, in the folder of the specs of Configurations.

use std::collections::BTreeMap;

use async_trait::async_trait;
use leafhost_cdi::{ContainerEdits, Device, Spec, SpecDir};
use leafhost_core::claim::ports::ClaimSpecs;
use leafhost_core::edits::Edits;
use leafhost_core::slices::DRIVER;
use leafhost_core::text::chain;
use tokio::sync::Mutex;
use tokio::task::spawn_blocking;

use crate::cdi::spec::container_edits;

/// Prefix of the classes of claims.
const CLASS: &str = "claim-";

/// Returns the vendor of the specs.
pub fn vendor() -> String {
    format!("k8s.{DRIVER}")
}

/// Writes the CDI specs of claims.
#[derive(Debug)]
pub struct CdiClaimSpecs {
    folder: SpecDir,
    /// Lock held while the folder is used: listing the folder removes temporary files.
    turn: Mutex<()>,
}

impl CdiClaimSpecs {
    /// Creates a writer for a folder of that [`vendor`].
    pub fn new(folder: SpecDir) -> Self {
        let turn = Mutex::default();
        Self { folder, turn }
    }

    async fn work<T: Send + 'static>(
        &self,
        work: impl FnOnce(SpecDir) -> Result<T, leafhost_cdi::Error> + Send + 'static,
    ) -> Result<T, String> {
        let _turn = self.turn.lock().await;
        let folder = self.folder.clone();
        match spawn_blocking(move || work(folder)).await {
            Ok(done) => done.map_err(|error| chain(&error)),
            Err(_) => Err("writing CDI specs panicked; this is a bug, see the log".to_owned()),
        }
    }
}

#[async_trait]
impl ClaimSpecs for CdiClaimSpecs {
    async fn write(
        &self,
        uid: &str,
        devices: &BTreeMap<String, Edits>,
    ) -> Result<BTreeMap<String, String>, String> {
        let kind = format!("{}/{CLASS}{uid}", vendor());
        let called = |name: &String| (name.clone(), format!("{kind}={name}"));
        let names = devices.keys().map(called).collect();
        if devices.is_empty() {
            return Ok(names);
        }
        let device = |(name, edits): (&String, &Edits)| Device {
            name: name.clone(),
            container_edits: container_edits(edits, format!("LEAFHOST_DEVICE={kind}={name}")),
        };
        let spec = Spec {
            devices: devices.iter().map(device).collect(),
            container_edits: ContainerEdits::default(),
            kind,
        };
        self.work(move |folder| folder.write(&spec).map(drop))
            .await?;
        Ok(names)
    }

    async fn remove(&self, uid: &str) -> Result<(), String> {
        let class = format!("{CLASS}{uid}");
        self.work(move |folder| folder.remove(&class).map(drop))
            .await
    }

    async fn all(&self) -> Result<Vec<String>, String> {
        let classes = self.work(|folder| folder.classes()).await?;
        let uids = classes.iter().filter_map(|class| class.strip_prefix(CLASS));
        Ok(uids.map(str::to_owned).collect())
    }
}

#[cfg(test)]
mod tests {
    use leafhost_cdi::Readers;
    use leafhost_core::device::DeviceNode as Node;

    use super::*;

    #[tokio::test]
    async fn each_claim_has_a_spec_of_its_own() {
        let dir = tempfile::tempdir().unwrap();
        let folder = SpecDir::new(dir.path(), &vendor(), "leafhost", Readers::Root).unwrap();
        let specs = CdiClaimSpecs::new(folder.clone());
        let mut edits = Edits::default();
        edits.env.insert("ID".to_owned(), "a".to_owned());
        let node = Node {
            container_path: "/dev/a".to_owned(),
            host_path: "/dev/a".to_owned(),
            permissions: "rw".to_owned(),
        };
        edits.nodes.insert(node.container_path.clone(), node);
        let devices = BTreeMap::from([
            ("gpu-a1-s1".to_owned(), edits),
            ("gpu-b2".to_owned(), Edits::default()),
        ]);
        let names = specs.write("5f-1", &devices).await.unwrap();
        assert_eq!(names["gpu-a1-s1"], "k8s.leafhost.dev/claim-5f-1=gpu-a1-s1");
        let spec = folder.read("claim-5f-1").unwrap().unwrap();
        assert_eq!(spec.devices[0].container_edits.env, ["ID=a"]);
        assert_eq!(
            spec.devices[1].container_edits.env,
            ["LEAFHOST_DEVICE=k8s.leafhost.dev/claim-5f-1=gpu-b2"]
        );
        assert_eq!(specs.all().await.unwrap(), ["5f-1"]);
        specs.remove("5f-1").await.unwrap();
        specs.remove("5f-1").await.unwrap();
        assert!(specs.all().await.unwrap().is_empty());
    }
}

//! Comparison of the kubelet's stand-in with the real one, with a scripted plugin on the other side.

use std::collections::BTreeSet;

use anyhow::Result;
use leafhost_kubelet::records::{PodResources, read_checkpoint};
use leafhost_tests::kubelet::pods::PodSpec;
use leafhost_tests::kubelet::{Kubelet, checkpoint};
use tempfile::TempDir;

use crate::plugin::Plugin;

mod admission;
mod plugins;
mod restarts;

const CAMERAS: &str = "akri.sh/cameras";

struct Node {
    _folder: TempDir,
    kubelet: Kubelet,
    plugin: Plugin,
}

impl Node {
    /// Starts a kubelet, and a plugin that has registered and listed.
    async fn with(ids: &[&str]) -> Result<Self> {
        let node = Self::without(ids).await?;
        node.plugin.appear(&node.kubelet.device_plugins()).await?;
        let count = ids.len();
        node.kubelet.until_capacity(CAMERAS, count, count).await?;
        Ok(node)
    }

    async fn without(ids: &[&str]) -> Result<Self> {
        let folder = tempfile::tempdir()?;
        let kubelet = Kubelet::new(folder.path());
        kubelet.start().await?;
        Ok(Self {
            _folder: folder,
            kubelet,
            plugin: Plugin::new(CAMERAS, ids),
        })
    }

    async fn run(&self, name: &str, count: usize) -> Result<String> {
        let spec = PodSpec::asking(name, CAMERAS, count);
        let (uid, admitted) = self.kubelet.run_pod(&spec).await?;
        admitted?;
        Ok(uid)
    }

    fn held(&self, uid: &str) -> BTreeSet<String> {
        self.kubelet.held(uid, "main", CAMERAS)
    }

    /// Returns ID, pod and container of each allocation, by PodResources.
    async fn listed(&self) -> Result<Vec<(String, String, String)>> {
        let listed = PodResources::new(self.kubelet.pod_resources())
            .list()
            .await?;
        let holders = listed.holders.into_iter();
        Ok(holders
            .flat_map(|((_, id), all)| {
                all.into_iter()
                    .map(move |h| (id.clone(), h.pod, h.container))
            })
            .collect())
    }

    /// Returns UID, container and IDs of each entry of the checkpoint.
    fn saved(&self) -> Vec<(String, String, BTreeSet<String>)> {
        let path = self.kubelet.device_plugins().join(checkpoint::NAME);
        let read = read_checkpoint(&path).unwrap().unwrap();
        let entries = read.entries.into_iter();
        entries.map(|e| (e.pod_uid, e.container, e.ids)).collect()
    }
}

fn ids(ids: &[&str]) -> BTreeSet<String> {
    ids.iter().map(|&id| id.to_owned()).collect()
}

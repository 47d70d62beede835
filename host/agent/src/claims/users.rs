//! Asks the kubelet which claims the containers of this node use.

use std::collections::BTreeSet;
use std::path::Path;

use async_trait::async_trait;
use leafhost_core::claim::ports::ClaimUsers;
use leafhost_kubelet::records::PodResources;

/// Client of PodResources.
pub struct KubeletClaims(PodResources);

impl KubeletClaims {
    /// Creates a client for the kubelet with this folder.
    pub fn new(kubelet_dir: &Path) -> Self {
        Self(PodResources::new(
            kubelet_dir.join("pod-resources/kubelet.sock"),
        ))
    }
}

#[async_trait]
impl ClaimUsers for KubeletClaims {
    async fn used(&self) -> Option<BTreeSet<(String, String)>> {
        self.0.list().await.ok().map(|listed| listed.claims)
    }
}

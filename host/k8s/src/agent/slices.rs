//! Slices of this node, which offer its local devices to the scheduler, written only if they differ.
//!
//! A kubelet deletes all slices of its node when it starts, and 30 seconds after it has lost the driver. This module restores them as soon
//! as it sees the deletion.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use async_trait::async_trait;
use k8s_openapi::api::resource::v1::ResourceSlice;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::{Api, Client};
use leafhost_core::claim::ports::{Offered, ReadError, SliceFeatures, SliceReport, SliceStore};
use leafhost_core::slices::{DRIVER, Reach};
use tokio::sync::watch;
use tokio::time::Instant;

use crate::agent::identity::{self, NodeObject};
use crate::bounded_store::BoundedStore;
use crate::reconciler::{Reconcile, Reconciler, Write};
use crate::slices::{corrected, packed, probe};
use crate::watch::Watch;

/// Interval between two checks of the Node object while none exists.
const GONE: Duration = Duration::from_secs(10);

/// Writer of a node's slices.
pub struct KubeSlices {
    client: Client,
    owner: Owner,
    given: Option<String>,
}

/// Node that owns the slices.
#[derive(Debug, Clone)]
struct Owner {
    node: String,
    uid: String,
}

impl KubeSlices {
    /// Creates a writer for the node with this uid; `given` is the operator's node name. The client must not retry requests by itself.
    pub fn new(client: Client, node: &str, node_uid: &str, given: Option<&str>) -> Self {
        let owner = Owner {
            node: node.to_owned(),
            uid: node_uid.to_owned(),
        };
        let given = given.map(str::to_owned);
        Self {
            client,
            owner,
            given,
        }
    }

    /// Checks the Node object after a write was refused or undone, since the Node owns the slices.
    async fn ask(&self, reconciler: &mut Reconciler<Owner>) {
        match identity::node_object(&self.client, self.given.as_deref()).await {
            Ok(NodeObject::Bound(uid)) if uid != reconciler.rules.uid => {
                reconciler.rules.uid = uid;
                reconciler.resume();
            }
            Ok(NodeObject::Gone) => {
                reconciler.is_stale = true;
                reconciler.pause(Instant::now() + GONE, "its Node is gone");
            }
            _ => {}
        }
    }
}

#[async_trait]
impl SliceStore for KubeSlices {
    async fn features(&self) -> Result<SliceFeatures, ReadError> {
        let node = &self.owner.node;
        probe(&self.client, node, Reach::Node(node.clone())).await
    }

    async fn keep(
        &self,
        mut offered: watch::Receiver<Offered>,
        report: watch::Sender<SliceReport>,
    ) {
        // A cluster whose Configurations need no slices may lack the API.
        let is_known = |offered: &Offered| *offered != Offered::Unknown;
        if offered.wait_for(is_known).await.is_err() {
            return;
        }
        let api: Api<ResourceSlice> = Api::all(self.client.clone());
        let selector = format!("spec.driver={DRIVER},spec.nodeName={}", self.owner.node);
        let watch = Watch::new(api.clone()).fields(&selector);
        let mut reconciler = Reconciler::new(self.owner.clone(), api, watch);
        let mut now = SliceReport::default();
        let mut acted = false;
        // Names of all slices seen so far.
        let mut known = BTreeSet::new();
        offered.mark_changed();
        loop {
            let newest = offered.borrow_and_update().clone();
            let acts = newest != Offered::Unknown;
            if acts && !acted {
                // A kubelet that has registered the driver again has deleted the slices on purpose.
                reconciler.resume();
            }
            acted = acts;
            if let Some(found) = reconciler.found() {
                known.extend(found.names().cloned());
                now.slices = found.names().count();
                if acts {
                    let wanted = reconciler.rules.wanted(&newest, found);
                    reconciler.want(wanted);
                }
            }
            now.problem = reconciler.problem();
            crate::publish(&report, now.clone());
            tokio::select! {
                changed = offered.changed() => if changed.is_err() {
                    return;
                },
                due = reconciler.due(acts) => if let Some((name, write)) = due {
                    if std::mem::take(&mut reconciler.is_stale) {
                        self.ask(&mut reconciler).await;
                    } else {
                        let is_restored = matches!(write, Write::Create(_)) && known.contains(&name);
                        let count = if is_restored { &mut now.restored } else { &mut now.changed };
                        if reconciler.write(name, write).await {
                            *count = count.saturating_add(1);
                        }
                    }
                },
            }
        }
    }
}

impl Owner {
    fn wanted(
        &self,
        offered: &Offered,
        found: &BoundedStore<ResourceSlice>,
    ) -> BTreeMap<String, ResourceSlice> {
        let wanted = match offered {
            Offered::Devices(devices) => {
                BTreeMap::from([(Reach::Node(self.node.clone()), (**devices).clone())])
            }
            Offered::Unknown | Offered::Unwanted => BTreeMap::new(),
        };
        // A slice of another pool is removed.
        let mut made = packed(&self.node, &wanted, found.values());
        for slice in made.values_mut() {
            slice.metadata.owner_references = Some(vec![OwnerReference {
                api_version: "v1".to_owned(),
                kind: "Node".to_owned(),
                name: self.node.clone(),
                uid: self.uid.clone(),
                controller: Some(true),
                block_owner_deletion: None,
            }]);
        }
        made
    }
}

impl Reconcile for Owner {
    type Object = ResourceSlice;

    const LOST: &'static str = "it is deleted again and again; find out whether the node's kubelet knows the driver, or who deletes it";

    fn corrected(&self, found: &ResourceSlice, wanted: &ResourceSlice) -> Option<ResourceSlice> {
        corrected(found, wanted)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
    use leafhost_core::slices::{Devices, SliceDevice, Taint};

    use super::*;

    #[test]
    fn a_slice_is_written_where_it_means_something_else_and_taints_keep_their_time() {
        let owner = Owner {
            node: "node-a".to_owned(),
            uid: "u".to_owned(),
        };
        let taint = Taint {
            key: "leafhost.dev/unhealthy".to_owned(),
            evicts: false,
        };
        let device = SliceDevice {
            capacity: [("memory".to_owned(), "24576Mi".to_owned())].into(),
            taints: [taint].into(),
            ..SliceDevice::default()
        };
        let devices = Devices::from([("gpu-1".to_owned(), device)]);
        let devices = Offered::Devices(Arc::new(devices));
        let made = owner.wanted(&devices, &BoundedStore::default());
        let (name, wanted) = made.into_iter().next().unwrap();
        // The slice as the API server stores it.
        let mut found = wanted.clone();
        let kept = &mut found.spec.devices.as_mut().unwrap()[0];
        kept.capacity
            .as_mut()
            .unwrap()
            .get_mut("memory")
            .unwrap()
            .value = Quantity("24Gi".to_owned());
        let added = Some(Time(jiff::Timestamp::UNIX_EPOCH));
        kept.taints.as_mut().unwrap()[0]
            .time_added
            .clone_from(&added);
        assert_eq!(owner.write(Some(&found), Some(&wanted)), None);
        let mut edited = found.clone();
        edited.spec.pool.generation = 7;
        let Some(Write::Replace(right)) = owner.write(Some(&edited), Some(&wanted)) else {
            panic!("it stays as somebody has edited it");
        };
        assert_eq!(right.spec.pool.generation, 1);
        assert_eq!(
            right.spec.devices.unwrap()[0].taints.as_ref().unwrap()[0].time_added,
            added
        );
        // A slice that the agent did not create is deleted.
        let mut foreign = found.clone();
        foreign.spec.node_name = None;
        foreign.spec.all_nodes = Some(true);
        assert!(matches!(
            owner.write(Some(&foreign), None),
            Some(Write::Delete(_))
        ));
        let mut store = BoundedStore::default();
        owner.hold(&mut store, true, found);
        assert_eq!(
            owner
                .wanted(&devices, &store)
                .into_keys()
                .collect::<Vec<_>>(),
            [name]
        );
    }
}

//! The slices of this node: what the scheduler is offered of its local devices, written only where it differs.
//!
//! A kubelet deletes all slices of its node when it starts, and 30 seconds after it has lost the driver. They are written again as soon as that is seen.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use k8s_openapi::api::resource::v1::ResourceSlice;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::api::PostParams;
use kube::{Api, Client, ResourceExt as _};
use leafhost_core::claim::ports::{ReadError, SliceFeatures, SliceReport, SliceStore};
use leafhost_core::slices::{DRIVER, Devices, Reach, Slice, SliceDevice, Taint, pack};
use tokio::sync::watch;
use tokio::time::Instant;

use crate::agent::identity::{self, NodeObject};
use crate::answers::{self, Kind};
use crate::keeper::{Keep, Keeper, Write};
use crate::reports::Shelf;
use crate::requests::put_by;
use crate::slices::{object, slice};
use crate::watch::Watch;

/// Separates two questions which Node object there is, while there is none.
const GONE: Duration = Duration::from_secs(10);
/// Limits the time of a request.
const REQUEST: Duration = Duration::from_secs(5);

/// Where the node's slices go.
pub struct KubeSlices {
    client: Client,
    owner: Owner,
    given: Option<String>,
}

/// The node that the slices are of.
#[derive(Debug, Clone)]
struct Owner {
    node: String,
    uid: String,
}

impl KubeSlices {
    /// Of the node with that uid; `given` is the name that the operator says. The client must not repeat requests by itself.
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

    /// Asks which Node object there is, if what is written was refused or deleted: the slices are its.
    async fn ask(&self, keeper: &mut Keeper<Owner>) {
        match identity::node_object(&self.client, self.given.as_deref()).await {
            Ok(NodeObject::Bound(uid)) if uid != keeper.keep.uid => {
                keeper.keep.uid = uid;
                keeper.resume();
            }
            Ok(NodeObject::Gone) => {
                keeper.is_doubtful = true;
                keeper.pause(Instant::now() + GONE, "its Node is gone");
            }
            _ => {}
        }
    }
}

#[async_trait]
impl SliceStore for KubeSlices {
    async fn features(&self) -> Result<SliceFeatures, ReadError> {
        let device = SliceDevice {
            shares: Some(2),
            taints: [Taint {
                key: "leafhost.dev/probe".to_owned(),
                evicts: false,
            }]
            .into(),
            ..SliceDevice::default()
        };
        let probe = Slice {
            pool: self.owner.node.clone(),
            generation: 1,
            count: 1,
            reach: Reach::Node(self.owner.node.clone()),
            devices: [("probe".to_owned(), device)].into(),
        };
        let name = format!(
            "{DRIVER}-probe-{}",
            leafhost_core::names::digest(&self.owner.node)
        );
        // Nothing is created, and what would be is shown.
        let params = PostParams {
            dry_run: true,
            ..put_by("leafhost")
        };
        let api: Api<ResourceSlice> = Api::all(self.client.clone());
        let probe = object(&name, &probe);
        let kept = answers::within(REQUEST, api.create(&params, &probe)).await;
        let kept = kept.map_err(|failure| ReadError {
            message: match failure.kind {
                Kind::Undefined => "this cluster has no resource.k8s.io/v1: Kubernetes 1.34 or newer is needed, or leafhost.dev/allocation: device-plugin".to_owned(),
                Kind::Denied => format!("{}; allow the agent's service account to create resourceslices", failure.message),
                _ => failure.told(),
            },
            is_transient: !matches!(failure.kind, Kind::Undefined | Kind::Denied | Kind::Refused),
        })?;
        let device = slice(&kept).and_then(|slice| slice.devices.into_values().next());
        let device = device.unwrap_or_default();
        Ok(SliceFeatures {
            shares: device.shares.is_some(),
            taints: !device.taints.is_empty(),
        })
    }

    async fn keep(
        &self,
        mut devices: watch::Receiver<Option<Arc<Devices>>>,
        report: watch::Sender<SliceReport>,
    ) {
        // A cluster whose Configurations need none need not have the API.
        if devices.wait_for(Option::is_some).await.is_err() {
            return;
        }
        let api: Api<ResourceSlice> = Api::all(self.client.clone());
        let selector = format!("spec.driver={DRIVER},spec.nodeName={}", self.owner.node);
        let watch = Watch::new(api.clone()).fields(&selector);
        let mut keeper = Keeper::new(self.owner.clone(), api, watch);
        devices.mark_changed();
        loop {
            let offered = devices.borrow_and_update().clone();
            if let (Some(offered), Some(found)) = (offered, keeper.found()) {
                let wanted = keeper.keep.wanted(&offered, found);
                keeper.want(wanted);
            }
            let now = SliceReport {
                slices: keeper.found().map_or(0, |found| found.names().count()),
                problem: keeper.problem(),
            };
            report.send_if_modified(|before| {
                let differs = *before != now;
                *before = now;
                differs
            });
            let is_offered = devices.borrow().is_some();
            tokio::select! {
                changed = devices.changed() => if changed.is_err() {
                    return;
                },
                due = keeper.due(is_offered) => if let Some((name, write)) = due {
                    if std::mem::take(&mut keeper.is_doubtful) {
                        self.ask(&mut keeper).await;
                    } else {
                        keeper.write(name, write).await;
                    }
                },
            }
        }
    }
}

impl Owner {
    fn wanted(
        &self,
        devices: &Devices,
        found: &Shelf<ResourceSlice>,
    ) -> BTreeMap<String, ResourceSlice> {
        let reach = Reach::Node(self.node.clone());
        let wanted = BTreeMap::from([(reach, devices.clone())]);
        let stored = found
            .values()
            .filter_map(|one| Some((one.name_any(), slice(one)?)));
        // Another pool's is removed.
        let stored = stored
            .filter(|(_, slice)| slice.pool == self.node)
            .collect();
        let packed = pack(&self.node, &wanted, &stored).into_iter();
        let owned = packed.map(|(name, slice)| {
            let mut made = object(&name, &slice);
            made.metadata.owner_references = Some(vec![OwnerReference {
                api_version: "v1".to_owned(),
                kind: "Node".to_owned(),
                name: self.node.clone(),
                uid: self.uid.clone(),
                controller: Some(true),
                block_owner_deletion: None,
            }]);
            (name, made)
        });
        owned.collect()
    }
}

impl Keep for Owner {
    type Object = ResourceSlice;

    const LOST: &'static str = "it is deleted again and again; see whether the node's kubelet knows the driver, or who deletes it";

    fn write(
        &self,
        found: Option<&ResourceSlice>,
        wanted: Option<&ResourceSlice>,
    ) -> Option<Write<ResourceSlice>> {
        let Some(found) = found else {
            return wanted.map(|wanted| Write::Create(Box::new(wanted.clone())));
        };
        if found.metadata.deletion_timestamp.is_some() {
            return None;
        }
        let Some(wanted) = wanted else {
            return Some(Write::Delete(found.uid().unwrap_or_default()));
        };
        let is_owned = found.metadata.owner_references == wanted.metadata.owner_references;
        if is_owned && slice(found).is_some() && slice(found) == slice(wanted) {
            return None;
        }
        let mut right = found.clone();
        right
            .metadata
            .owner_references
            .clone_from(&wanted.metadata.owner_references);
        right.spec.clone_from(&wanted.spec);
        keep_times(found, &mut right);
        Some(Write::Replace(Box::new(right)))
    }

    fn hold(&self, held: &mut Shelf<ResourceSlice>, _is_wanted: bool, object: ResourceSlice) {
        let bytes = serde_json::to_vec(&object).map_or(usize::MAX, |bytes| bytes.len());
        if held
            .put(&object.name_any(), &self.node, bytes, object)
            .is_err()
            && held.is_news()
        {
            tracing::warn!(
                "this node has more slices than are read; remove what is not the agent's"
            );
        }
    }
}

/// Keeps the times at which taints were added, which the API server has set.
fn keep_times(found: &ResourceSlice, right: &mut ResourceSlice) {
    let devices = found.spec.devices.iter().flatten();
    let times: BTreeMap<_, _> = devices
        .flat_map(|device| {
            let taints = device.taints.iter().flatten();
            taints.map(|taint| {
                let place = (device.name.clone(), taint.key.clone(), taint.effect.clone());
                (place, taint.time_added.clone())
            })
        })
        .collect();
    for device in right.spec.devices.iter_mut().flatten() {
        for taint in device.taints.iter_mut().flatten() {
            let place = (device.name.clone(), taint.key.clone(), taint.effect.clone());
            taint.time_added = times.get(&place).cloned().flatten();
        }
    }
}

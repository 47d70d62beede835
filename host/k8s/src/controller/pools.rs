//! Slices of shared devices, which offer devices that several nodes see to the scheduler; only the controller writes them.
//!
//! They offer the devices only to nodes whose kubelets use the driver, that is nodes with a slice of their agent.

use std::collections::{BTreeMap, BTreeSet};
use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::resource::v1::ResourceSlice;
use kube::api::ListParams;
use kube::{Api, Client, ResourceExt as _};
use leafhost_core::claim::ports::SliceFeatures;
use leafhost_core::cluster::ClusterViews;
use leafhost_core::names::ConfigurationKey;
use leafhost_core::pools::{Pools, pools};
use leafhost_core::slices::{DRIVER, Reach};
use leafhost_core::status_store::ConfigurationStates;
use leafhost_core::text::few;
use leafhost_core::wait::changed;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::bounded_store::BoundedStore;
use crate::controller::left_over::has_some;
use crate::controller::log_problem;
use crate::index::follow;
use crate::reconciler::{Reconcile, Reconciler};
use crate::slices::{corrected, packed, probe};
use crate::watch::Watch;
use crate::{backoff, until};

/// Time for which a node still counts without a slice: a starting kubelet deletes the slices of its node, and the agent writes them again.
const LEAVES: Duration = Duration::from_secs(40);
/// Interval between two probes of the slice fields that the API server keeps, since its version may change.
const ASK_AGAIN: Duration = Duration::from_hours(1);
/// Maximum number of attribute names in a log line.
const NAMED: usize = 5;

/// Values of the label `kubernetes.io/hostname` by node; `None` until the nodes were listed.
pub type Hostnames = Option<Arc<BTreeMap<String, String>>>;

/// Writes the slices until the future is dropped. Writes nothing while this process is not the leader.
pub async fn keep(client: Client, views: ClusterViews, hostnames: watch::Receiver<Hostnames>) {
    let (sender, nodes) = watch::channel(None);
    let mut configurations = views.configurations.clone();
    // A cluster whose Configurations never use DRA may lack the API.
    let is_wanted = |known: &Arc<ConfigurationStates>| known.has_dra();
    let api: Api<ResourceSlice> = Api::all(client.clone());
    let of_pools = format!("spec.driver={DRIVER},spec.nodeName=");
    let some_left = has_some(&api, &ListParams::default().fields(&of_pools)).await;
    if !some_left && configurations.wait_for(is_wanted).await.is_err() {
        return pending().await;
    }
    let locals = Watch::new(api.clone()).fields(&format!("spec.driver={DRIVER},spec.nodeName!="));
    let node = |slice: ResourceSlice, _: Option<&String>| slice.spec.node_name;
    let publish = move |all: &BTreeMap<String, String>| {
        let nodes: BTreeSet<String> = all.values().cloned().collect();
        crate::publish(&sender, Some(Arc::new(nodes)));
    };
    let name = ResourceSlice::name_any;
    let following = follow(locals, "ResourceSlices", name, node, publish);
    let shared = Watch::new(api.clone()).fields(&of_pools);
    let task = PoolTask {
        client,
        views,
        hostnames,
        nodes,
        able: BTreeMap::new(),
        reconciler: Reconciler::new(SharedSlices, api, shared),
        asked: Asked::default(),
        pools: None,
        left_out: BTreeSet::new(),
        logged: None,
    };
    tokio::join!(following, task.run());
}

struct PoolTask {
    client: Client,
    views: ClusterViews,
    hostnames: watch::Receiver<Hostnames>,
    /// Nodes that have a slice; `None` until the slices were listed.
    nodes: watch::Receiver<Option<Arc<BTreeSet<String>>>>,
    /// Nodes that count, each with the time at which it ceases to count if it has no slice now.
    able: BTreeMap<String, Option<Instant>>,
    reconciler: Reconciler<SharedSlices>,
    asked: Asked,
    /// Wanted pools; `None` while they are unknown.
    pools: Option<Pools>,
    /// Attributes last logged as not fitting.
    left_out: BTreeSet<String>,
    /// Last logged problem.
    logged: Option<String>,
}

/// Slice fields that the API server keeps, and the time of the next probe.
#[derive(Default)]
struct Asked {
    features: Option<SliceFeatures>,
    failures: u32,
    error: Option<String>,
    next: Option<Instant>,
}

impl PoolTask {
    async fn run(mut self) {
        let mut is_news = true;
        let mut asks = false;
        let mut leaves = None;
        loop {
            let leads = *self.views.leads.borrow_and_update();
            if std::mem::take(&mut is_news) {
                let wanted = self.wanted();
                asks = leads && wanted.as_ref().is_some_and(|wanted| !wanted.is_empty());
                if asks {
                    self.ask().await;
                }
                leaves = self.count_nodes(Instant::now());
                self.pools = self.plan(wanted);
            }
            if let (Some(pools), Some(found)) = (&self.pools, self.reconciler.found()) {
                let slices = all_slices(pools, found);
                self.reconciler.want(slices);
            }
            let asked = &self.asked;
            let unasked = asked.error.clone().filter(|_| asked.features.is_none());
            let problem = unasked.or_else(|| self.reconciler.problem());
            log_problem(&mut self.logged, problem, "the slices of shared devices");
            let acts = leads && self.pools.is_some();
            let again = self.asked.next.filter(|_| asks);
            let next = leaves.into_iter().chain(again).min();
            tokio::select! {
                due = self.reconciler.due(acts) => {
                    if let Some((name, write)) = due {
                        self.reconciler.write(name, write).await;
                    }
                    continue;
                }
                () = changed(&mut self.views.configurations) => {}
                () = changed(&mut self.views.instances) => {}
                () = changed(&mut self.hostnames) => {}
                () = changed(&mut self.views.leads) => {}
                () = changed(&mut self.nodes) => {}
                () = until(next) => {}
            }
            is_news = true;
        }
    }

    /// Returns the Configurations whose devices the scheduler allocates, each with true if it evicts pods, or `None` while they are
    /// unknown.
    fn wanted(&mut self) -> Option<BTreeMap<ConfigurationKey, bool>> {
        let known = self.views.configurations.borrow_and_update();
        let all = known.dra().map(|(key, state)| (key.clone(), state.evicts));
        known.complete.then(|| all.collect())
    }

    /// Probes which slice fields the API server keeps, if a probe is due.
    async fn ask(&mut self) {
        if self.asked.next.is_some_and(|next| next > Instant::now()) {
            return;
        }
        let pool = format!("{DRIVER}/probe");
        let reach = Reach::Hostnames([DRIVER.to_owned()].into());
        let wait = match probe(&self.client, &pool, reach).await {
            Ok(features) => {
                self.asked = Asked {
                    features: Some(features),
                    ..Asked::default()
                };
                ASK_AGAIN
            }
            Err(error) => {
                self.asked.failures = self.asked.failures.saturating_add(1);
                self.asked.error = Some(error.message);
                backoff(self.asked.failures)
            }
        };
        self.asked.next = Some(Instant::now() + wait);
    }

    /// Updates the nodes that count: those with a slice, and for a while those that had one. Returns the time at which the next node ceases
    /// to count.
    fn count_nodes(&mut self, now: Instant) -> Option<Instant> {
        let nodes = self.nodes.borrow_and_update().clone()?;
        for (node, leaves) in &mut self.able {
            if nodes.contains(node) {
                *leaves = None;
            } else {
                leaves.get_or_insert(now + LEAVES);
            }
        }
        self.able
            .retain(|_, leaves| leaves.is_none_or(|leaves| leaves > now));
        for node in nodes.iter() {
            self.able.insert(node.clone(), None);
        }
        self.able.values().flatten().min().copied()
    }

    /// Returns the pools to offer, or `None` while they are unknown.
    fn plan(&mut self, wanted: Option<BTreeMap<ConfigurationKey, bool>>) -> Option<Pools> {
        let instances = Arc::clone(&self.views.instances.borrow_and_update());
        let hostnames = self.hostnames.borrow_and_update().clone()?;
        let is_known = instances.is_known() && self.nodes.borrow().is_some();
        let wanted = wanted.filter(|_| is_known)?;
        // Without wanted Configurations the features do not matter.
        let nothing = wanted.is_empty().then(SliceFeatures::default);
        let features = self.asked.features.or(nothing)?;
        let able = hostnames
            .iter()
            .filter(|(node, _)| self.able.contains_key(*node));
        let able = able.map(|(node, name)| (node.clone(), name.clone()));
        let (pools, left_out) = pools(&instances, &wanted, &able.collect(), features);
        if self.left_out != left_out {
            if !left_out.is_empty() {
                let names = few(&left_out, NAMED);
                tracing::warn!(
                    names,
                    "attributes of shared devices are left out of slices: at most 32 fit, each name once with or without leafhost.dev/"
                );
            }
            self.left_out = left_out;
        }
        Some(pools)
    }
}

/// Returns the wanted slices of all pools. Existing slices of other pools are not among them, so they are deleted.
fn all_slices(
    pools: &Pools,
    found: &BoundedStore<ResourceSlice>,
) -> BTreeMap<String, ResourceSlice> {
    let mut by_pool = BTreeMap::<&str, Vec<&ResourceSlice>>::new();
    for slice in found.values() {
        by_pool
            .entry(&slice.spec.pool.name)
            .or_default()
            .push(slice);
    }
    let slices = pools.iter().flat_map(|(pool, wanted)| {
        let found = by_pool.get(&**pool).into_iter().flatten();
        packed(pool, wanted, found.copied())
    });
    slices.collect()
}

/// Rules for the slices of all pools. Only the controller writes them, and a pool has as many as its devices need.
struct SharedSlices;

impl Reconcile for SharedSlices {
    type Object = ResourceSlice;

    const LOST: &'static str = "it is deleted again and again; find out who deletes it";

    fn corrected(&self, found: &ResourceSlice, wanted: &ResourceSlice) -> Option<ResourceSlice> {
        corrected(found, wanted)
    }
}

#[cfg(test)]
mod tests {
    use leafhost_core::slices::{Devices, SliceDevice};

    use super::*;
    use crate::reconciler::Write;

    #[test]
    fn each_pool_has_its_slices_and_those_of_other_pools_go() {
        let device = |name: &str| Devices::from([(name.to_owned(), SliceDevice::default())]);
        let reach = |node: &str| Reach::Hostnames([node.to_owned()].into());
        let two = Pools::from([
            (
                "a/cams".to_owned(),
                BTreeMap::from([
                    (reach("x"), device("cams-1")),
                    (reach("y"), device("cams-2")),
                ]),
            ),
            (
                "b/plc".to_owned(),
                BTreeMap::from([(reach("x"), device("plc-1"))]),
            ),
        ]);
        let made = all_slices(&two, &BoundedStore::default());
        assert_eq!(made.len(), 3);
        let mut store = BoundedStore::default();
        for slice in made.values() {
            SharedSlices.hold(&mut store, true, slice.clone());
        }
        assert_eq!(all_slices(&two, &store), made);
        let one: Pools = two.into_iter().take(1).collect();
        let left = all_slices(&one, &store);
        assert_eq!(left.len(), 2);
        let writes = made
            .iter()
            .filter_map(|(name, found)| SharedSlices.write(Some(found), left.get(name)));
        let writes: Vec<_> = writes.collect();
        assert!(matches!(&writes[..], [Write::Delete(_)]), "{writes:?}");
    }
}

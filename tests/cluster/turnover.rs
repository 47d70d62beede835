//! Pods of two nodes without machines that start and end at random. At the end the slots in use by the Instances are those that the kubelets have
//! allocated, and no slot was allocated twice.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use leafhost_tests::cluster::{Api, Cluster, Namespace};
use leafhost_tests::contest::{Grant, book, overlaps};
use leafhost_tests::kubelet::model::Refusal;
use leafhost_tests::kubelet::pods::PodSpec;
use leafhost_tests::random::Random;
use leafhost_tests::slot_history::{Holders, Recorder, holders};
use leafhost_tests::stand_in_node::{StandInNode, instances_path, name_of};
use leafhost_tests::wait::eventually;
use leafhost_tests::write_proxy::WriteProxy;
use serde_json::{Value, json};
use tokio::runtime::Runtime;

/// With this grace: the claim of an agent that was killed before it answered is freed after it.
pub const GRACE: [&str; 2] = ["--slot-grace", "5s"];
/// Name of the Configuration of all devices.
pub const CONFIGURATION: &str = "turnover";
pub const SLOTS: u32 = 3;
/// Number of pods per node at a time.
const PODS: usize = 5;
/// Prefix of the names of nodes that do not exist.
const GONE: &str = "gone-";

/// Node with an agent, whose writes pass through a proxy.
pub struct Site {
    pub node: StandInNode,
    pub proxy: WriteProxy,
    pods: Vec<Running>,
}

/// Pod that has a slot.
struct Running {
    uid: String,
    instance: String,
    slot: String,
    from: Instant,
}

pub struct Turnover<'a> {
    cluster: &'a Cluster,
    pub space: &'a Namespace<'a>,
    runtime: &'a Runtime,
    grants: Mutex<Vec<Grant>>,
    /// Number of nodes so far that do not exist. The controller releases the slots of one node only once a minute.
    gone: AtomicUsize,
}

impl<'a> Turnover<'a> {
    pub fn new(cluster: &'a Cluster, space: &'a Namespace<'a>, runtime: &'a Runtime) -> Self {
        Self {
            cluster,
            space,
            runtime,
            grants: Mutex::default(),
            gone: AtomicUsize::default(),
        }
    }

    /// Creates a node and starts its agent.
    pub fn site(&self, name: &str) -> Result<Site> {
        let node = StandInNode::new(self.cluster, self.runtime.handle(), name)?;
        let proxy = WriteProxy::start(self.api())?;
        let mut site = Site {
            node,
            proxy,
            pods: Vec::new(),
        };
        let home = &mut site.node.home;
        home.write("kubeconfig", site.proxy.kubeconfig())?;
        home.join(&home.path().join("kubeconfig"));
        home.start(&GRACE)?;
        self.space.show_log(&home.log_file());
        Ok(site)
    }

    pub fn api(&self) -> &Api {
        self.cluster.api()
    }

    fn instances(&self) -> Result<Vec<Value>> {
        let list = self.api().get(&instances_path(self.space.name()))?;
        Ok(list["items"].as_array().context("no items")?.clone())
    }

    fn holders(&self) -> Result<Holders> {
        Ok(self.instances()?.iter().flat_map(holders).collect())
    }

    /// Starts or ends a pod of the node; returns a text that says which.
    pub fn step(&self, site: &mut Site, random: &mut Random) -> Result<String> {
        let kubelet = &site.node.kubelet;
        if site.pods.len() < PODS && random.below(2) == 0 {
            let all = kubelet.capacities().into_iter();
            let free: Vec<String> = all
                .filter(|(resource, (_, healthy))| {
                    resource.starts_with("akri.sh/turnover-") && *healthy > 0
                })
                .map(|(resource, _)| resource)
                .collect();
            let Some(resource) = random.pick(&free) else {
                return Ok("nothing is free".to_owned());
            };
            let (uid, admitted) = self
                .runtime
                .block_on(kubelet.run_pod(&PodSpec::asking("pod", resource, 1)))?;
            if let Err(refusal) = admitted {
                ensure!(!matches!(refusal, Refusal::Crashed(_)), "{refusal}");
                kubelet.delete_pod(&uid)?;
                return Ok(refusal.to_string());
            }
            let slot = kubelet.held(&uid, "main", resource).into_iter().next();
            site.pods.push(Running {
                slot: slot.context("a pod was admitted without its device")?,
                instance: resource.trim_start_matches("akri.sh/").to_owned(),
                uid,
                from: Instant::now(),
            });
            return Ok("a pod runs".to_owned());
        }
        if site.pods.is_empty() {
            return Ok("no pod runs".to_owned());
        }
        let index = random.below(u64::try_from(site.pods.len())?);
        let pod = site.pods.swap_remove(usize::try_from(index)?);
        let path = format!("{}/{}", instances_path(self.space.name()), pod.instance);
        let holder = holders(&self.api().get(&path)?).remove(&pod.slot);
        let node = site.node.name();
        ensure!(
            holder.as_deref() == Some(node),
            "{} is given on {node} and has {holder:?}",
            pod.slot
        );
        let grant = Grant {
            slot: pod.slot,
            node: node.to_owned(),
            from: pod.from,
            until: Instant::now(),
        };
        self.grants
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(grant);
        kubelet.delete_pod(&pod.uid)?;
        Ok("a pod has ended".to_owned())
    }

    /// Writes the claim of a slot for a node that does not exist, as its agent would have.
    pub fn claim_for_gone(&self, random: &mut Random) -> Result<()> {
        let instances = self.instances()?;
        let instance = random.pick(&instances).context("no Instance")?;
        let name = name_of(instance);
        let used = holders(instance);
        let mut slots = (0..SLOTS).map(|number| format!("{name}-{number}"));
        let slot = slots
            .find(|slot| !used.contains_key(slot))
            .context("no slot is free")?;
        let node = format!("{GONE}{}", self.gone.fetch_add(1, Ordering::Relaxed));
        let claim = json!({"metadata": {"resourceVersion": instance["metadata"]["resourceVersion"]}, "spec": {"deviceUsage": {slot: node}}});
        let path = format!("{}/{name}", instances_path(self.space.name()));
        self.api().merge(&path, &claim).map(drop)
    }

    /// Fails if a node that does not exist holds a slot.
    pub fn has_none_of_gone(&self) -> Result<()> {
        let holders = self.holders()?;
        ensure!(
            holders.values().all(|node| !node.starts_with(GONE)),
            "{holders:?}"
        );
        Ok(())
    }

    /// Waits until the Instances have the slots of all pods and no others; compares the recorded versions with the grants of the kubelets. Returns
    /// the number of pods that ran and the number of versions of the Instances.
    pub fn finish(&self, sites: &[Site], recorder: Recorder) -> Result<(usize, usize)> {
        let last = eventually(
            "the Instances have the slots of all pods and no others",
            || {
                let now = self.holders()?;
                let books: Vec<Holders> = sites.iter().map(|site| book(&site.node)).collect();
                let union: Holders = books
                    .iter()
                    .flatten()
                    .map(|(slot, node)| (slot.clone(), node.clone()))
                    .collect();
                ensure!(
                    books.iter().map(Holders::len).sum::<usize>() == union.len(),
                    "both have a slot: {books:?}"
                );
                ensure!(
                    now == union,
                    "the Instances have {now:?}, the kubelets {union:?}"
                );
                Ok(now)
            },
        )
        .with_context(|| self.space.state())?;
        let history = recorder.finish()?;
        let grants = self.grants.lock().unwrap_or_else(PoisonError::into_inner);
        overlaps(&grants)?;
        ensure!(
            history.holders() == last,
            "the watch has seen {:?}",
            history.holders()
        );
        Ok((grants.len(), history.versions))
    }
}

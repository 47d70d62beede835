//! Pods of two nodes without machines that start and end at random. At the end the slots in use by the Instances are those that the kubelets have
//! allocated, and no slot was allocated twice.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};
use leafhost_tests::cluster::{Api, Cluster, Namespace};
use leafhost_tests::contest::{Grant, agreed, crowds};
use leafhost_tests::kubelet::model::Refusal;
use leafhost_tests::kubelet::pods::PodSpec;
use leafhost_tests::random::Random;
use leafhost_tests::requirement;
use leafhost_tests::slot_history::{Holders, Recorder, holders};
use leafhost_tests::stand_in_node::{StandInNode, configure, instances_path, name_of};
use leafhost_tests::write_proxy::WriteProxy;
use serde_json::{Value, json};
use tempfile::NamedTempFile;
use tokio::runtime::Runtime;

use crate::away::Own;
use crate::races;

/// With this grace: the claim of an agent that was killed before it answered is freed after it.
pub const GRACE: [&str; 2] = ["--slot-grace", "5s"];
/// Name of the Configuration of all devices.
const CONFIGURATION: &str = "turnover";
const SLOTS: u32 = 3;
/// Upper bound for a kill or a release that a test has caused.
pub const REACHED: Duration = Duration::from_mins(2);
/// Pause between two steps of a node.
const PACE: Duration = Duration::from_millis(25);
/// Interval of a node's heartbeats.
const BEAT: Duration = Duration::from_secs(10);
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
    pub cluster: &'static Cluster,
    pub space: &'a Namespace<'a>,
    /// Log of all controllers.
    pub log: NamedTempFile,
    runtime: &'a Runtime,
    grants: Mutex<Vec<Grant>>,
    /// Number of nodes so far that do not exist. The controller releases the slots of one node only once a minute.
    gone: AtomicUsize,
}

/// Calls `on_node` for each of two nodes in a loop, with the number of calls before, at least `rounds` times and until `meanwhile` has ended, which gets
/// the PIDs of the agents. Checks the end.
pub fn run(
    name: &str,
    seed: u64,
    rounds: usize,
    on_node: impl Fn(&Turnover<'_>, usize, &mut Site, usize, &mut Random) -> Result<()> + Sync,
    meanwhile: impl FnOnce(&Turnover<'_>, &[u32], &mut Random) -> Result<()>,
) -> Result<()> {
    if requirement::lacks(Cluster::missing())? {
        return Ok(());
    }
    let own = Own::start(1)?;
    let cluster = own.0;
    let mut random = Random::new(seed);
    let runtime = races::runtime()?;
    let space = cluster.namespace(name)?;
    let log = NamedTempFile::new()?;
    space.show_log(log.path());
    let turnover = Turnover {
        cluster,
        space: &space,
        log,
        runtime: &runtime,
        grants: Mutex::default(),
        gone: AtomicUsize::default(),
    };
    let names = [format!("{name}-0"), format!("{name}-1")];
    let mut sites = [turnover.site(&names[0])?, turnover.site(&names[1])?];
    let agents = [sites[0].node.home.pid()?, sites[1].node.home.pid()?];
    let recorder = Recorder::start(cluster.api(), space.name())?;
    std::thread::scope(|scope| {
        let (mut threads, mut ends) = (Vec::new(), Vec::new());
        for (number, site) in sites.iter_mut().enumerate() {
            let (turnover, on_node, mut random) = (&turnover, &on_node, random.split());
            let (end, ended) = mpsc::channel::<()>();
            ends.push(end);
            threads.push(scope.spawn(move || -> Result<()> {
                let mut beat = Instant::now();
                site.node.beat()?;
                for round in 0.. {
                    on_node(turnover, number, site, round, &mut random)?;
                    if beat.elapsed() > BEAT {
                        beat = Instant::now();
                        site.node.beat()?;
                    }
                    let goes_on = ended.recv_timeout(PACE) == Err(RecvTimeoutError::Timeout);
                    if !goes_on && round + 1 >= rounds {
                        break;
                    }
                }
                Ok(())
            }));
        }
        let done = meanwhile(&turnover, &agents, &mut random);
        drop(ends);
        for thread in threads {
            let ended = thread.join();
            ended.map_err(|_| anyhow!("a thread panicked"))??;
        }
        done
    })
    .with_context(|| space.state())?;
    turnover.finish(&sites, recorder)
}

impl Turnover<'_> {
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

    /// Applies the Configuration with this number of devices.
    pub fn configure(&self, count: usize) -> Result<()> {
        let devices = (0..count).map(|number| format!("device-{number}"));
        let devices: Vec<String> = devices.collect();
        configure(
            self.cluster,
            self.space.name(),
            CONFIGURATION,
            SLOTS,
            &devices,
        )
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

    /// Waits until the Instances have the slots of all pods and no others; compares the recorded versions with the grants of the kubelets.
    fn finish(&self, sites: &[Site], recorder: Recorder) -> Result<()> {
        let nodes: Vec<&StandInNode> = sites.iter().map(|site| &site.node).collect();
        let last = agreed(self.api(), self.space.name(), &nodes);
        let last = last.with_context(|| self.space.state())?;
        let history = recorder.finish()?;
        let grants = self.grants.lock().unwrap_or_else(PoisonError::into_inner);
        crowds(&grants, 1)?;
        println!("{} pods, {} versions", grants.len(), history.versions);
        ensure!(
            history.holders() == last,
            "the watch has seen {:?}",
            history.holders()
        );
        Ok(())
    }
}

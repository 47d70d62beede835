//! Agents and controllers are killed at their writes to the API server, before a write is done and before they learn that it is: no
//! Instance is lost or made again, and no slot is lost or given twice.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use leafhost_tests::cluster::{Api, Cluster, Namespace};
use leafhost_tests::contest::{Grant, book, overlaps};
use leafhost_tests::kubelet::model::Refusal;
use leafhost_tests::kubelet::pods::PodSpec;
use leafhost_tests::random::{self, Random};
use leafhost_tests::requirement;
use leafhost_tests::slot_history::{Holders, Recorder, holders};
use leafhost_tests::stand_in_node::{StandInNode, configure, instances_path, name_of};
use leafhost_tests::wait::{eventually, within};
use leafhost_tests::write_proxy::{Cut, WriteProxy};
use nix::sys::signal::Signal;
use serde_json::{Value, json};
use tempfile::NamedTempFile;
use tokio::runtime::Runtime;

use crate::away::Own;
use crate::controller::Controller;
use crate::races;

/// A claim of an agent that was killed before it answered is free again after this.
const GRACE: [&str; 2] = ["--slot-grace", "5s"];
const SLOTS: u32 = 3;
/// Devices at the beginning; one more comes every so many kills of the first agent.
const DEVICES: usize = 4;
const MORE: usize = 8;
/// Pods of a node at a time.
const PODS: usize = 5;
/// How long it may take until the chosen write comes.
const REACHED: Duration = Duration::from_mins(2);
/// How often a node says that it is well when nothing else happens on it.
const BEAT: Duration = Duration::from_secs(10);
/// A node that is not there.
const GONE: &str = "gone";

#[test]
fn agents_and_controllers_killed_at_their_writes_lose_nothing_and_give_nothing_twice() -> Result<()>
{
    kill(24, 2, 4)
}

/// `SOAK_ROUNDS` and `SOAK_SEED` set the number of kills and the random sequence.
#[test]
#[ignore = "takes an hour: make soak"]
fn soak_agents_and_controllers_killed_at_their_writes() -> Result<()> {
    let kills = random::rounds(1000_usize);
    kill(kills * 45 / 100, kills / 10, random::seed()?)
}

/// Kills each of two agents so many times, and whichever of two controllers acts.
fn kill(agents: usize, controllers: usize, seed: u64) -> Result<()> {
    if requirement::lacks(Cluster::missing())? {
        return Ok(());
    }
    let own = Own::start(1)?;
    let cluster = own.0;
    let mut random = Random::new(seed);
    let runtime = races::runtime()?;
    let space = cluster.namespace("kill")?;
    let mut victims = Vec::new();
    for number in 0..2 {
        let name = format!("kill-{number}");
        let node = StandInNode::new(cluster, runtime.handle(), &name)?;
        let proxy = WriteProxy::start(cluster.api())?;
        let mut victim = Victim {
            node,
            proxy,
            pods: Vec::new(),
        };
        victim
            .node
            .home
            .write("kubeconfig", victim.proxy.kubeconfig())?;
        victim
            .node
            .home
            .join(&victim.node.home.path().join("kubeconfig"));
        victim.node.home.start(&GRACE)?;
        space.show_log(&victim.node.home.log_file());
        victims.push(victim);
    }
    let recorder = Recorder::start(cluster.api(), space.name())?;
    let field = Field {
        cluster,
        space: &space,
        runtime: &runtime,
        grants: Mutex::default(),
        devices: AtomicUsize::new(DEVICES),
    };
    let log = NamedTempFile::new()?;
    space.show_log(log.path());
    let mut seeds = [random.split(), random.split(), random.split()].into_iter();
    let mut next = || seeds.next().context("no seed");
    let grow = |is_first: bool, round: usize| is_first && round.is_multiple_of(MORE);
    std::thread::scope(|scope| {
        let mut threads = Vec::new();
        let mut ends = Vec::new();
        for (number, victim) in victims.iter_mut().enumerate() {
            let (field, mut random) = (&field, next()?);
            let (end, ended) = mpsc::channel::<()>();
            ends.push(end);
            threads.push(scope.spawn(move || {
                (0..agents).try_for_each(|round| {
                    field.kill_agent(victim, grow(number == 0, round), &mut random)
                })?;
                // Its node is there as long as controllers look.
                while ended.recv_timeout(BEAT) == Err(RecvTimeoutError::Timeout) {
                    victim.node.beat()?;
                }
                Ok(())
            }));
        }
        let (field, mut random) = (&field, next()?);
        threads.push(scope.spawn(move || {
            let _ends = ends;
            field.kill_controllers(&log, controllers, &mut random)
        }));
        threads.into_iter().try_for_each(|thread| {
            let ended = thread.join();
            ended.map_err(|_| anyhow::anyhow!("a thread panicked"))?
        })
    })
    .with_context(|| space.state())?;

    let last = eventually(
        "the Instances have the slots of all pods and no others",
        || {
            let now = field.holders()?;
            let books: Vec<Holders> = victims.iter().map(|victim| book(&victim.node)).collect();
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
    .with_context(|| space.state())?;
    let history = recorder.finish()?;
    let grants = field.grants.lock().unwrap_or_else(PoisonError::into_inner);
    overlaps(&grants)?;
    println!(
        "{} kills of agents, {controllers} of controllers; {} pods, {} versions of {} Instances",
        2 * agents,
        grants.len(),
        history.versions,
        field.devices.load(Ordering::Relaxed)
    );
    ensure!(
        history.holders() == last,
        "the watch has seen {:?}",
        history.holders()
    );
    Ok(())
}

/// A node whose agent is killed.
struct Victim {
    node: StandInNode,
    proxy: WriteProxy,
    pods: Vec<Running>,
}

/// A pod that has a slot.
struct Running {
    uid: String,
    instance: String,
    slot: String,
    from: Instant,
}

struct Field<'a> {
    cluster: &'a Cluster,
    space: &'a Namespace<'a>,
    runtime: &'a Runtime,
    grants: Mutex<Vec<Grant>>,
    devices: AtomicUsize,
}

fn cut(random: &mut Random) -> Cut {
    if random.below(2) == 0 {
        Cut::Before
    } else {
        Cut::After
    }
}

impl Field<'_> {
    fn api(&self) -> &Api {
        self.cluster.api()
    }

    fn instances(&self) -> Result<Vec<Value>> {
        let list = self.api().get(&instances_path(self.space.name()))?;
        Ok(list["items"].as_array().context("no items")?.clone())
    }

    fn holders(&self) -> Result<Holders> {
        Ok(self.instances()?.iter().flat_map(holders).collect())
    }

    /// Lets pods of the node start and end until the agent is killed at one of its writes, and starts it again.
    fn kill_agent(&self, victim: &mut Victim, grows: bool, random: &mut Random) -> Result<()> {
        victim.node.beat()?;
        victim
            .proxy
            .aim(victim.node.home.pid()?, random.below(4), cut(random))?;
        if grows {
            let count = self.devices.fetch_add(1, Ordering::Relaxed) + 1;
            let devices: Vec<String> = (0..count)
                .map(|number| format!("device-{number}"))
                .collect();
            configure(self.cluster, self.space.name(), "kill", SLOTS, &devices)?;
        }
        let killed = within(REACHED, "a write of the agent", || {
            ensure!(victim.proxy.has_struck(), "{}", self.step(victim, random)?);
            Ok(())
        });
        killed.with_context(|| victim.node.home.log())?;
        victim.node.home.stop(Signal::SIGKILL)?;
        victim.node.home.start(&GRACE)
    }

    /// A pod of the node starts or ends; which.
    fn step(&self, victim: &mut Victim, random: &mut Random) -> Result<String> {
        let kubelet = &victim.node.kubelet;
        if victim.pods.len() < PODS && random.below(2) == 0 {
            let all = kubelet.capacities().into_iter();
            let free: Vec<String> = all
                .filter(|(resource, (_, healthy))| {
                    resource.starts_with("akri.sh/kill-") && *healthy > 0
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
            victim.pods.push(Running {
                slot: slot.context("a pod was admitted without its device")?,
                instance: resource.trim_start_matches("akri.sh/").to_owned(),
                uid,
                from: Instant::now(),
            });
            return Ok("a pod runs".to_owned());
        }
        if victim.pods.is_empty() {
            return Ok("no pod runs".to_owned());
        }
        let index = random.below(u64::try_from(victim.pods.len())?);
        let pod = victim.pods.swap_remove(usize::try_from(index)?);
        let path = format!("{}/{}", instances_path(self.space.name()), pod.instance);
        let holder = holders(&self.api().get(&path)?).remove(&pod.slot);
        let node = victim.node.name();
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

    /// Kills whichever of two controllers is about to free a slot, or has freed it, and starts it again.
    fn kill_controllers(
        &self,
        log: &NamedTempFile,
        count: usize,
        random: &mut Random,
    ) -> Result<()> {
        let folder = tempfile::tempdir()?;
        let mut all = Vec::new();
        for number in 0..2 {
            let proxy = WriteProxy::start(self.api())?;
            let kubeconfig = folder.path().join(number.to_string());
            std::fs::write(&kubeconfig, proxy.kubeconfig())?;
            let controller = Controller::start_as(&kubeconfig, "kube-system", log)?;
            all.push((proxy, kubeconfig, controller));
        }
        for _ in 0..count {
            let cut = cut(random);
            for (proxy, _, controller) in &all {
                proxy.aim(controller.pid(), 0, cut)?;
            }
            within(REACHED, "a slot of a node that is gone", || {
                self.claim_for_gone(random)
            })?;
            within(REACHED, "a write of a controller", || {
                ensure!(
                    all.iter().any(|(proxy, ..)| proxy.has_struck()),
                    "none was killed"
                );
                Ok(())
            })?;
            for (proxy, kubeconfig, controller) in &mut all {
                if proxy.rest() {
                    *controller = Controller::start_as(kubeconfig, "kube-system", log)?;
                }
            }
            within(REACHED, "the slot is free", || {
                let holders = self.holders()?;
                ensure!(holders.values().all(|node| node != GONE), "{holders:?}");
                Ok(())
            })?;
        }
        Ok(())
    }

    /// Writes a claim as that node's agent would have.
    fn claim_for_gone(&self, random: &mut Random) -> Result<()> {
        let instances = self.instances()?;
        let instance = random.pick(&instances).context("no Instance")?;
        let name = name_of(instance);
        let used = holders(instance);
        let mut slots = (0..SLOTS).map(|number| format!("{name}-{number}"));
        let slot = slots
            .find(|slot| !used.contains_key(slot))
            .context("no slot is free")?;
        let claim = json!({"metadata": {"resourceVersion": instance["metadata"]["resourceVersion"]}, "spec": {"deviceUsage": {slot: GONE}}});
        let path = format!("{}/{name}", instances_path(self.space.name()));
        self.api().merge(&path, &claim).map(drop)
    }
}

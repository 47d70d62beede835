//! Pods that start and end, a bounded number at a time, while something else happens, and the checks at the end of each crowd: no slot is allocated
//! twice at a time, pods fail only for the reasons that the crowd accepts, and all slots are free.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail, ensure};
use leafhost_tests::cluster::{Cluster, Namespace, Pod};
use leafhost_tests::contest::{Grant, crowds};
use leafhost_tests::random::Random;
use leafhost_tests::scheduling::wait;
use leafhost_tests::slot_history::{Recorder, holders};
use leafhost_tests::wait::within;
use serde_json::Value;

use crate::device::variable;
use crate::scheduled::given;

/// Path of the Instances of all namespaces.
pub const INSTANCES: &str = "/apis/akri.sh/v0/instances";

/// Pause between two looks at a pod: many workers look at once.
const LOOK: Duration = Duration::from_millis(75);

/// Rules of a crowd.
pub struct Rules {
    /// Number of pods at a time.
    pub size: usize,
    /// Number of pods that run in the end; without it the crowd goes on until the other things have happened.
    pub pods: Option<usize>,
    /// Number of pods that may have a device at a time.
    pub capacity: usize,
    /// Upper bound for each step of a pod: its creation, its start, its end.
    pub patience: Duration,
    /// Time after which a pod that is not bound ends.
    pub gives_up: Option<Duration>,
    /// Phase of a pod that has its device: `Running`, or `Succeeded` if it ends by itself.
    pub phase: &'static str,
    /// Shortest time in that phase and the difference to the longest, in milliseconds.
    pub lasts: (u64, u64),
    /// Upper bound for all slots to be free after the end of the last pod.
    pub freed: Duration,
    /// Returns true if pods may fail in this way.
    pub accepts: fn(&Failure) -> bool,
}

/// Way in which a pod gets its device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// The kubelet chooses any device of this Configuration.
    Any(&'static str),
    /// The pod names the Instance.
    Instance,
    /// The pod has a claim, for which the scheduler chooses a device.
    Claim,
    /// The pod describes its device, which the extender chooses.
    Chosen,
}

/// Pod to create.
pub struct Wish {
    pub pod: Pod,
    pub kind: Kind,
}

/// Pod that failed.
#[derive(Debug)]
pub struct Failure {
    #[expect(dead_code, reason = "printed")]
    name: String,
    pub kind: Kind,
    /// Reason and message of the pod's status.
    pub why: String,
    /// State of its container.
    pub state: String,
    /// True if the pod wanted any device of a Configuration, and its node had a free one afterwards.
    pub had_free: bool,
}

/// Results of the pods.
#[derive(Debug, Default)]
pub struct Tally {
    pub grants: Vec<Grant>,
    pub failed: Vec<Failure>,
    /// Number of pods that were not bound in time.
    without: usize,
    /// Times from a pod's creation until it ran, failed or gave up.
    waits: Vec<Duration>,
}

/// Function that returns the next pod of a worker, with this name.
pub type Wishes<'c> = dyn Fn(&Crowd<'_>, usize, &str, &mut Random) -> Result<Wish> + Sync + 'c;

/// Pods of a namespace.
pub struct Crowd<'c> {
    cluster: &'static Cluster,
    space: &'c Namespace<'static>,
    /// Path of the Instances that the pods use.
    path: &'c str,
    rules: Rules,
    wishes: &'c Wishes<'c>,
    /// Number of pods that have not started, if it is limited.
    left: AtomicUsize,
    /// Grants of the running pods, by name of the pod.
    running: Mutex<BTreeMap<String, Grant>>,
    tally: Mutex<Tally>,
    is_over: AtomicBool,
    /// Read while a pod starts or ends; written while none may.
    turn: RwLock<()>,
}

impl<'c> Crowd<'c> {
    pub fn new(
        cluster: &'static Cluster,
        space: &'c Namespace<'static>,
        path: &'c str,
        rules: Rules,
        wishes: &'c Wishes<'c>,
    ) -> Self {
        Self {
            cluster,
            space,
            path,
            left: AtomicUsize::new(rules.pods.unwrap_or(usize::MAX)),
            rules,
            wishes,
            running: Mutex::default(),
            tally: Mutex::default(),
            is_over: AtomicBool::new(false),
            turn: RwLock::default(),
        }
    }

    /// Runs the pods during `meanwhile`, and checks the end.
    pub fn run(
        &self,
        recorder: Recorder,
        random: &mut Random,
        meanwhile: impl FnOnce() -> Result<()>,
    ) -> Result<Tally> {
        let mut ended = Instant::now();
        let outcome = std::thread::scope(|scope| {
            let workers: Vec<_> = (0..self.rules.size)
                .map(|worker| {
                    let random = random.split();
                    scope.spawn(move || self.work(worker, random))
                })
                .collect();
            let happened = meanwhile();
            ended = Instant::now();
            if self.rules.pods.is_none() || happened.is_err() {
                self.is_over.store(true, Ordering::Release);
            }
            for worker in workers {
                let ended = worker.join();
                ended.map_err(|_| anyhow!("a thread panicked"))??;
            }
            happened
        });
        outcome.with_context(|| self.space.state())?;
        let settled = ended.elapsed();
        within(self.rules.freed, "all slots are free", || {
            in_use(&self.instances()?)
        })
        .with_context(|| self.space.state())?;
        let history = recorder.finish()?;
        let mut tally = std::mem::take(&mut *lock(&self.tally));
        tally.report();
        println!(
            "all pods ended {settled:?} after the last disturbance; {} versions, a slot went to another node {} times",
            history.versions, history.passed_on
        );
        crowds(&tally.grants, self.rules.capacity)?;
        ensure!(history.holders().is_empty(), "{:?}", history.holders());
        let pods = tally.grants.len();
        ensure!(
            self.rules.pods.is_none_or(|all| all == pods),
            "{pods} pods ran"
        );
        let all = tally.failed.iter();
        let others: Vec<_> = all.filter(|one| !(self.rules.accepts)(one)).collect();
        ensure!(others.is_empty(), "{others:#?}");
        Ok(tally)
    }

    /// Returns true until the last pod of a limited number has started.
    pub fn has_more(&self) -> bool {
        self.left.load(Ordering::Acquire) > 0
    }

    /// Returns true if a pod did something that no pod may do.
    pub fn has_gone_wrong(&self) -> bool {
        self.is_over.load(Ordering::Acquire)
    }

    /// Returns the Instances that the pods use.
    pub fn instances(&self) -> Result<Vec<Value>> {
        let list = self.cluster.get(self.path)?;
        Ok(list["items"].as_array().context("no items")?.clone())
    }

    fn work(&self, worker: usize, mut random: Random) -> Result<()> {
        for round in 0.. {
            let next = |left: usize| left.checked_sub(1);
            let (set, get) = (Ordering::AcqRel, Ordering::Acquire);
            if self.has_gone_wrong() || self.left.fetch_update(set, get, next).is_err() {
                break;
            }
            let name = format!("pod-{worker}-{round}");
            match self.one(worker, &name, &mut random) {
                Ok(true) => {}
                Ok(false) => {
                    self.left.fetch_add(1, set);
                }
                Err(error) => {
                    self.is_over.store(true, Ordering::Release);
                    return Err(error.context(format!("pod {name}")));
                }
            }
        }
        Ok(())
    }

    /// Runs one pod from its creation to its end; returns false if it did not run.
    fn one(&self, worker: usize, name: &str, random: &mut Random) -> Result<bool> {
        let turn = self.turn();
        let Wish { pod, kind } = (self.wishes)(self, worker, name, random)?;
        let patience = self.rules.patience;
        within(patience, "it is created", || {
            match self.space.create(&pod) {
                // A killed API server may have created it.
                Err(error) if !format!("{error:#}").contains("AlreadyExists") => Err(error),
                _ => Ok(()),
            }
        })?;
        let created = Instant::now();
        let node = within(patience, "it runs", || {
            let pod = self.space.pod(name)?;
            let (node, status) = (text(&pod["spec"]["nodeName"]), &pod["status"]);
            let most = self.rules.gives_up;
            let is_late = most.is_some_and(|most| created.elapsed() >= most);
            match text(&status["phase"]).as_str() {
                phase if phase == self.rules.phase => return Ok(Some(node)),
                "Failed" => {
                    let failure = Failure {
                        name: name.to_owned(),
                        kind,
                        why: format!("{}: {}", text(&status["reason"]), text(&status["message"])),
                        state: status["containerStatuses"][0]["state"].to_string(),
                        had_free: self.has_free(&node, kind),
                    };
                    lock(&self.tally).failed.push(failure);
                }
                "Pending" if is_late && node.is_empty() => lock(&self.tally).without += 1,
                other => {
                    wait(LOOK);
                    bail!("it is {other}: {:#}", status["conditions"])
                }
            }
            Ok(None)
        })?;
        lock(&self.tally).waits.push(created.elapsed());
        let Some(node) = node else {
            return self.end(name).map(|()| false);
        };
        let slot = within(patience, "it has its device", || match kind {
            Kind::Chosen => {
                let (_, instances) = given(self.cluster, self.space, name)?;
                Ok(instances.first().cloned().unwrap_or_default())
            }
            _ => {
                let log = self.space.logs(name, "main")?;
                variable(&log, "DEBUG_ECHO_DESCRIPTION")
                    .with_context(|| format!("it printed {log:?}"))
            }
        })?;
        let from = Instant::now();
        let mut grant = Grant {
            slot,
            node,
            from,
            until: from,
        };
        lock(&self.running).insert(name.to_owned(), grant.clone());
        drop(turn);
        let (least, more) = self.rules.lasts;
        wait(Duration::from_millis(least + random.below(more)));
        let _turn = self.turn();
        if self.rules.phase == "Running" {
            grant.until = Instant::now();
        }
        lock(&self.running).remove(name);
        lock(&self.tally).grants.push(grant);
        self.end(name).map(|()| true)
    }

    /// Deletes a pod and waits until it is gone.
    fn end(&self, name: &str) -> Result<()> {
        let pods = self.space.collection("pods");
        within(self.rules.patience, "it is gone", || {
            match self.space.pod(name) {
                Err(error) if format!("{error:#}").contains("NotFound") => Ok(()),
                Ok(pod) if pod["metadata"]["deletionTimestamp"].is_null() => {
                    let path = format!("{pods}/{name}?gracePeriodSeconds=1");
                    self.cluster.api().delete(&path)?;
                    bail!("it is deleted")
                }
                Ok(_) => {
                    wait(LOOK);
                    bail!("it is there")
                }
                Err(error) => Err(error),
            }
        })
    }

    /// Returns true if a node sees a free slot of the Configuration.
    fn has_free(&self, node: &str, kind: Kind) -> bool {
        let Kind::Any(name) = kind else {
            return false;
        };
        let is_free = |one: &Value| {
            let nodes = one["spec"]["nodes"].as_array();
            let sees = nodes.is_some_and(|all| all.iter().any(|seen| *seen == *node));
            let is_its = one["spec"]["configurationName"] == *name;
            is_its && sees && holders(one).len() < self.rules.capacity
        };
        self.instances().is_ok_and(|all| all.iter().any(is_free))
    }

    fn turn(&self) -> RwLockReadGuard<'_, ()> {
        self.turn.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps pods from starting and ending until the running pods and the Instances agree and `more` returns.
    pub fn agree(&self, more: impl FnOnce() -> Result<()>) -> Result<()> {
        let (begun, patience) = (Instant::now(), self.rules.patience);
        let _none = self.turn.write().unwrap_or_else(PoisonError::into_inner);
        let took = begun.elapsed();
        ensure!(took < patience, "pods began or ended for {took:?}");
        let running = lock(&self.running).clone();
        let what = "the Instances name the pods that have their devices";
        within(patience, what, || {
            let mut left = running.clone();
            let instances = self.instances()?;
            let device_of = |one: &Value| one["spec"]["leafhost"]["id"].as_str().map(str::to_owned);
            for one in &instances {
                let nodes = &one["status"]["nodes"];
                for (slot, node) in holders(one) {
                    let pod = nodes[&node]["holders"][&slot].as_str();
                    let pod =
                        pod.and_then(|pod| pod.strip_prefix(self.space.name())?.strip_prefix('/'));
                    let pod =
                        pod.with_context(|| format!("{slot} of {node} has no pod: {nodes}"))?;
                    let has = left.remove(pod);
                    let has = has
                        .with_context(|| format!("{slot} has {pod}, which ended or has another"))?;
                    ensure!(
                        has.node == node && Some(&has.slot) == device_of(one).as_ref(),
                        "{pod} has {has:?}, not {slot} of {node}"
                    );
                }
            }
            // A pod outlives its Instance while its Configuration moves.
            let there: BTreeSet<String> = instances.iter().filter_map(device_of).collect();
            left.retain(|_, has| there.contains(&has.slot));
            ensure!(left.is_empty(), "no slot has {left:?}");
            Ok(())
        })?;
        more()
    }
}

impl Tally {
    /// Returns the number of pods that ran on each node.
    pub fn nodes(&self) -> BTreeMap<&str, usize> {
        let mut nodes = BTreeMap::new();
        for grant in &self.grants {
            *nodes.entry(grant.node.as_str()).or_default() += 1;
        }
        nodes
    }

    fn report(&mut self) {
        self.waits.sort();
        println!(
            "{} pods ran, {:?}; {} were not bound in time; half of all took {:?} until then, the last {:?}; {} failed: {:#?}",
            self.grants.len(),
            self.nodes(),
            self.without,
            self.waits.get(self.waits.len() / 2),
            self.waits.last(),
            self.failed.len(),
            self.failed
        );
    }
}

/// Fails if a slot of these Instances is used or reserved.
pub fn in_use(instances: &[Value]) -> Result<()> {
    for instance in instances {
        let usage = instance["spec"]["deviceUsage"].as_object();
        let used = usage.into_iter().flatten().filter(|(_, by)| *by != "");
        let used: Vec<_> = used.collect();
        ensure!(used.is_empty(), "{used:?}, {}", instance["status"]);
        let reserved = &instance["spec"]["leafhost"]["reserved"];
        let is_empty = reserved.as_object().is_none_or(serde_json::Map::is_empty);
        ensure!(is_empty, "{reserved:#}");
    }
    Ok(())
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

fn lock<T>(value: &Mutex<T>) -> MutexGuard<'_, T> {
    value.lock().unwrap_or_else(PoisonError::into_inner)
}

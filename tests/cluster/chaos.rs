//! Pods of two nodes start and end while Configurations move between namespaces, nodes are disconnected or recreated, and agents, kubelets, the
//! controller and the API server end: no slot is allocated twice, and no pod is refused while a slot is free.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use leafhost_tests::cluster::{Cluster, Container, Namespace, Node, Pod};
use leafhost_tests::contest::{Grant, crowds};
use leafhost_tests::random::{self, Random};
use leafhost_tests::requirement;
use leafhost_tests::slot_history::{Recorder, holders};
use leafhost_tests::stand_in_node::{configure_with, name_of};
use leafhost_tests::wait::within;
use nix::sys::signal::Signal;
use serde_json::Value;
use tempfile::NamedTempFile;

use crate::away::Own;
use crate::controller::Controller;
use crate::device::{Site, variable};

const INSTANCES: &str = "/apis/akri.sh/v0/instances";
/// Names of the Configurations. Each has three devices with two slots.
const NAMES: [&str; 2] = ["east", "west"];
const CAPACITY: usize = 2;
/// Number of pods per node at a time. All nodes together want fewer slots than one Configuration has.
const PODS: usize = 2;
/// Upper bound for a pod's wait for a slot; its Configuration may be moving.
const PATIENCE: Duration = Duration::from_secs(20);
/// Upper bound for an outage of the API server or of a node.
const OUTAGE: Duration = Duration::from_mins(3);
/// Minimum number of pods that ran per pod that was refused.
const RAN_PER_REFUSAL: usize = 50;
/// Number of events after which pods and Instances must agree.
const EVENTS: usize = 3;
/// With this grace: a slot whose pod ends while agent and kubelet restart is freed only after it.
const AGENT: [&str; 2] = ["--slot-grace", "30s"];

#[test]
fn two_minutes_of_chaos_give_no_slot_twice() -> Result<()> {
    chaos(Duration::from_mins(2), 6)
}

/// Runs for `SOAK_ROUNDS` minutes with the random sequence of `SOAK_SEED`.
#[test]
#[ignore = "takes an hour: make soak"]
fn soak_an_hour_of_chaos_gives_no_slot_twice() -> Result<()> {
    let minutes = random::rounds(60);
    chaos(Duration::from_mins(minutes), random::seed()?)
}

/// Event that happens to the cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Move,
    CutOff,
    NodeMadeAgain,
    AgentKilled,
    AgentStopped,
    KubeletKilled,
    ControllerKilled,
    ServerKilled,
    EtcdKilled,
}

const ALL: [Event; 9] = [
    Event::Move,
    Event::CutOff,
    Event::NodeMadeAgain,
    Event::AgentKilled,
    Event::AgentStopped,
    Event::KubeletKilled,
    Event::ControllerKilled,
    Event::ServerKilled,
    Event::EtcdKilled,
];

fn chaos(lasting: Duration, seed: u64) -> Result<()> {
    if requirement::lacks(Cluster::missing())? {
        return Ok(());
    }
    let mut random = Random::new(seed);
    let own = Own::start(2)?;
    let cluster = own.0;
    cluster.define()?;
    let homes = [cluster.namespace("first")?, cluster.namespace("second")?];
    let pods = cluster.namespace("pods")?;
    let mut sites = Vec::new();
    for taken in cluster.take_nodes(2)? {
        let mut site = Site::on(cluster, taken)?;
        site.home.add_handler("debug-echo")?;
        site.home.join(cluster.kubeconfig());
        site.home.start(&AGENT)?;
        pods.show_log(&site.home.log_file());
        sites.push(site);
    }
    let log = NamedTempFile::new()?;
    pods.show_log(log.path());
    let recorder = Recorder::start_anywhere(cluster)?;
    let crowd = Crowd {
        cluster,
        pods: &pods,
        running: Mutex::default(),
        tally: Mutex::default(),
        is_over: AtomicBool::new(false),
        is_still: AtomicBool::new(false),
        still: AtomicUsize::new(0),
    };
    let mut chaos = Chaos {
        cluster,
        homes: &homes,
        places: [0, 1],
        sites,
        controller: None,
        log: &log,
        random: random.split(),
        happened: BTreeMap::new(),
    };
    chaos.start_controller()?;
    for name in 0..NAMES.len() {
        chaos.apply(name)?;
    }
    let nodes: Vec<&Node> = chaos.sites.iter().map(|site| site.node).collect();
    let outcome = std::thread::scope(|scope| {
        let mut workers = Vec::new();
        for node in nodes {
            for number in 0..PODS {
                let (crowd, random) = (&crowd, random.split());
                workers.push(scope.spawn(move || crowd.work(node, number, random)));
            }
        }
        let happened = chaos.go_on(lasting, &crowd);
        crowd.is_over.store(true, Ordering::Release);
        for worker in workers {
            let ended = worker.join();
            ended.map_err(|_| anyhow::anyhow!("a thread panicked"))??;
        }
        happened
    });
    outcome.with_context(|| pods.state())?;
    let history = recorder.finish()?;
    let tally = std::mem::take(&mut *lock(&crowd.tally));
    println!(
        "{} pods ran, {} were refused, {} ended otherwise, {} found no slot in time; {} versions; events {:?}",
        tally.grants.len(),
        tally.refused.len(),
        tally.failed.len(),
        tally.without,
        history.versions,
        chaos.happened
    );
    println!(
        "refused: {:#?}\notherwise: {:#?}",
        tally.refused, tally.failed
    );
    crowds(&tally.grants, CAPACITY)?;
    ensure!(tally.grants.len() >= 2 * PODS, "next to nothing ran");
    ensure!(
        tally.refused.len() * RAN_PER_REFUSAL <= tally.grants.len(),
        "too many pods were refused"
    );
    Ok(())
}

struct Chaos<'c> {
    cluster: &'static Cluster,
    homes: &'c [Namespace<'static>; 2],
    /// Index in `homes` of each Configuration's namespace.
    places: [usize; 2],
    sites: Vec<Site>,
    controller: Option<Controller>,
    log: &'c NamedTempFile,
    random: Random,
    happened: BTreeMap<Event, usize>,
}

impl Chaos<'_> {
    /// Triggers all events in random order, again and again until the time is up.
    fn go_on(&mut self, lasting: Duration, crowd: &Crowd<'_>) -> Result<()> {
        let end = Instant::now() + lasting;
        let mut left = Vec::new();
        loop {
            if left.is_empty() {
                if Instant::now() >= end {
                    return Ok(());
                }
                left = ALL.to_vec();
            }
            for _ in 0..EVENTS {
                let place = self.random.below(u64::try_from(left.len())?);
                let event = left.remove(usize::try_from(place)?);
                println!("{event:?}");
                self.happen(event)
                    .with_context(|| format!("after {event:?}"))?;
                *self.happened.entry(event).or_default() += 1;
                pause(1000 + self.random.below(4000));
            }
            let which: Vec<_> = self.happened.iter().collect();
            crowd
                .agree(&self.sites)
                .with_context(|| format!("{which:?} happened"))?;
        }
    }

    fn happen(&mut self, event: Event) -> Result<()> {
        let some = usize::try_from(self.random.below(2))?;
        match event {
            Event::Move => return self.move_away(some),
            Event::ControllerKilled => {
                self.controller = None;
                return self.start_controller();
            }
            Event::ServerKilled | Event::EtcdKilled => {
                self.cluster.server().kill()?;
                if event == Event::EtcdKilled {
                    self.cluster.etcd().kill()?;
                }
                pause(self.random.below(4000));
                if event == Event::EtcdKilled {
                    self.cluster.etcd().start_again()?;
                }
                self.cluster.server().start_again()?;
                return self.cluster.wait_served();
            }
            _ => {}
        }
        let lasts = self.random.below(10_000);
        let site = self.sites.get_mut(some).context("no such node")?;
        match event {
            Event::CutOff => {
                site.node.connect(false)?;
                pause(5000 + lasts);
                site.node.connect(true)?;
            }
            Event::NodeMadeAgain => {
                let path = format!("/api/v1/nodes/{}", site.node.name());
                self.cluster.api().delete(&path)?;
                pause(lasts / 4);
                site.node.restart_kubelet()?;
            }
            Event::KubeletKilled => {
                site.node.stop_kubelet(Signal::SIGKILL)?;
                pause(lasts / 4);
                site.node.start_kubelet()?;
                site.node.wait_ready()?;
            }
            killed => {
                let signal = match killed {
                    Event::AgentStopped => Signal::SIGTERM,
                    _ => Signal::SIGKILL,
                };
                site.home.stop(signal)?;
                pause(lasts / 4);
                site.home.start(&AGENT)?;
            }
        }
        Ok(())
    }

    /// Deletes a Configuration and applies it in the other namespace.
    fn move_away(&mut self, which: usize) -> Result<()> {
        let name = NAMES.get(which).context("no such Configuration")?;
        let place = self
            .places
            .get_mut(which)
            .context("no such Configuration")?;
        let home = self.homes.get(*place).context("no such namespace")?;
        let path = format!(
            "/apis/akri.sh/v0/namespaces/{}/configurations/{name}",
            home.name()
        );
        self.cluster.api().delete(&path)?;
        *place = 1 - *place;
        pause(self.random.below(3000));
        self.apply(which)
    }

    fn apply(&self, which: usize) -> Result<()> {
        let name = NAMES.get(which).context("no such Configuration")?;
        let place = self.places.get(which).context("no such Configuration")?;
        let home = self.homes.get(*place).context("no such namespace")?;
        let devices: Vec<String> = (0..3).map(|number| format!("{name}-{number}")).collect();
        let resources = ("leafhost.dev/resources", "configuration");
        let annotations: &[_] = if which == 0 { &[resources] } else { &[] };
        let capacity = u32::try_from(CAPACITY)?;
        configure_with(
            self.cluster,
            home.name(),
            name,
            capacity,
            &devices,
            annotations,
        )
    }

    fn start_controller(&mut self) -> Result<()> {
        let controller = Controller::start_as(self.cluster.kubeconfig(), "kube-system", self.log)?;
        self.controller = Some(controller);
        Ok(())
    }
}

/// Results of the pods.
#[derive(Default)]
struct Tally {
    grants: Vec<Grant>,
    /// Messages of agents that refused a pod that wanted any device of a Configuration, while one was free.
    refused: Vec<String>,
    /// Messages of other failures: an agent was killed meanwhile, or all slots of the Instance were in use.
    failed: Vec<String>,
    without: usize,
}

/// Pods that start and end.
struct Crowd<'c> {
    cluster: &'static Cluster,
    pods: &'c Namespace<'static>,
    /// Node and device of each running pod, by name.
    running: Mutex<BTreeMap<String, (String, String)>>,
    tally: Mutex<Tally>,
    is_over: AtomicBool,
    /// True while no pod may start or end.
    is_still: AtomicBool,
    /// Number of threads that wait because of `is_still`.
    still: AtomicUsize,
}

impl Crowd<'_> {
    fn work(&self, node: &Node, number: usize, mut random: Random) -> Result<()> {
        for round in 0.. {
            self.wait_while_still();
            if self.is_over.load(Ordering::Acquire) {
                break;
            }
            let pod = format!("{}-{number}-{round}", node.name());
            self.one(node, &pod, &mut random)
                .with_context(|| format!("pod {pod}"))?;
        }
        // A thread that has ended counts as waiting.
        self.still.fetch_add(1, Ordering::AcqRel);
        Ok(())
    }

    /// Runs one pod from its creation to its end.
    fn one(&self, node: &Node, name: &str, random: &mut Random) -> Result<()> {
        let (resource, is_any) = self.wish(random)?;
        let main = Container::new("main").device(&resource, 1);
        let pod = Pod::new(name, &[main]).on(node);
        patiently("the pod is created", || match self.pods.create(&pod) {
            // The answer of an earlier attempt was lost.
            Err(error) if format!("{error:#}").contains("AlreadyExists") => Ok(()),
            other => other.map(drop),
        })?;
        let begun = Instant::now();
        let ended = loop {
            let phase = self.phase(name);
            let is_late = begun.elapsed() >= PATIENCE;
            match phase {
                Ok((phase, _)) if phase == "Running" => break None,
                Ok((phase, why)) if phase == "Failed" => break Some(why),
                Ok((phase, _)) if is_late && phase == "Pending" && !self.is_bound(name) => {
                    lock(&self.tally).without += 1;
                    return self.end(name);
                }
                other if begun.elapsed() >= OUTAGE => {
                    let (phase, _) = other?;
                    anyhow::bail!("it is {phase} for {OUTAGE:?}");
                }
                _ => pause(100),
            }
        };
        if let Some(why) = ended {
            let mut tally = lock(&self.tally);
            let is_refused = is_any && is_ours(&why) && self.has_free(node, &resource);
            let list = if is_refused {
                &mut tally.refused
            } else {
                &mut tally.failed
            };
            list.push(format!("{name}: {why}"));
            drop(tally);
            return self.end(name);
        }
        let variables = |log: &str| variable(log, "DEBUG_ECHO_DESCRIPTION");
        let device = patiently("the pod's variables are printed", || {
            let log = self.pods.logs(name, "main")?;
            variables(&log).with_context(|| format!("it printed {log:?}"))
        })?;
        let mut grant = Grant {
            slot: device.clone(),
            node: node.name().to_owned(),
            from: Instant::now(),
            until: Instant::now(),
        };
        let running = (node.name().to_owned(), device);
        lock(&self.running).insert(name.to_owned(), running);
        pause(500 + random.below(5000));
        self.wait_while_still();
        grant.until = Instant::now();
        lock(&self.running).remove(name);
        lock(&self.tally).grants.push(grant);
        self.end(name)
    }

    /// Returns the resource that a pod requests, and true if it takes any device of its Configuration.
    fn wish(&self, random: &mut Random) -> Result<(String, bool)> {
        let which = usize::try_from(random.below(2))?;
        let name = NAMES.get(which).context("no such Configuration")?;
        if which == 1 && random.below(3) == 0 {
            let all = patiently("the Instances are listed", || self.instances())?;
            let own = all.iter().map(name_of);
            let own: BTreeSet<&str> = own.filter(|one| one.starts_with(name)).collect();
            let own: Vec<&str> = own.into_iter().collect();
            if let Some(instance) = random.pick(&own) {
                return Ok((format!("akri.sh/{instance}"), false));
            }
        }
        Ok((format!("akri.sh/{name}"), true))
    }

    /// Returns true if a Configuration has a free slot of a device that the node sees.
    fn has_free(&self, node: &Node, resource: &str) -> bool {
        let name = resource.trim_start_matches("akri.sh/");
        let is_free = |one: &Value| {
            let nodes = one["spec"]["nodes"].as_array();
            let sees = nodes.is_some_and(|all| all.iter().any(|seen| *seen == *node.name()));
            let is_its = one["spec"]["configurationName"] == *name;
            is_its && sees && holders(one).len() < CAPACITY
        };
        self.instances().is_ok_and(|all| all.iter().any(is_free))
    }

    fn phase(&self, name: &str) -> Result<(String, String)> {
        let pod = self.pods.pod(name)?;
        let text = |field: &str| pod["status"][field].as_str().unwrap_or_default().to_owned();
        let why = format!("{}: {}", text("reason"), text("message"));
        Ok((text("phase"), why))
    }

    fn is_bound(&self, name: &str) -> bool {
        let pod = self.pods.pod(name);
        pod.is_ok_and(|pod| pod["spec"]["nodeName"].is_string())
    }

    fn end(&self, name: &str) -> Result<()> {
        let path = format!("{}/{name}", self.pods.collection("pods"));
        patiently("the pod is gone", || {
            let is_gone = |error: &anyhow::Error| format!("{error:#}").contains("NotFound");
            match self
                .cluster
                .api()
                .delete(&format!("{path}?gracePeriodSeconds=1"))
            {
                Err(error) if is_gone(&error) => Ok(()),
                other => {
                    other?;
                    pause(200);
                    anyhow::bail!("it is there")
                }
            }
        })
    }

    fn instances(&self) -> Result<Vec<Value>> {
        let list = self.cluster.get(INSTANCES)?;
        Ok(list["items"].as_array().context("no items")?.clone())
    }

    fn wait_while_still(&self) {
        if !self.is_still.load(Ordering::Acquire) {
            return;
        }
        self.still.fetch_add(1, Ordering::AcqRel);
        while self.is_still.load(Ordering::Acquire) {
            pause(50);
        }
        self.still.fetch_sub(1, Ordering::AcqRel);
    }

    /// Keeps pods from starting and ending until pods and Instances agree and all nodes offer slots of all Configurations.
    fn agree(&self, sites: &[Site]) -> Result<()> {
        self.is_still.store(true, Ordering::Release);
        let agreed = self.compare().and_then(|()| offered(sites));
        self.is_still.store(false, Ordering::Release);
        agreed
    }

    fn compare(&self) -> Result<()> {
        within(OUTAGE, "no pod begins or ends", || {
            let still = self.still.load(Ordering::Acquire);
            ensure!(still == 2 * PODS, "{still} threads wait");
            Ok(())
        })?;
        let running = lock(&self.running).clone();
        within(
            OUTAGE,
            "the Instances name the pods that have their devices",
            || {
                let mut left = running.clone();
                let instances = self.instances()?;
                let device_of =
                    |one: &Value| one["spec"]["leafhost"]["id"].as_str().map(str::to_owned);
                for one in &instances {
                    let nodes = &one["status"]["nodes"];
                    for (slot, node) in holders(one) {
                        let pod = nodes[&node]["holders"][&slot].as_str();
                        let pod = pod
                            .and_then(|pod| pod.strip_prefix(self.pods.name())?.strip_prefix('/'));
                        let pod =
                            pod.with_context(|| format!("{slot} of {node} has no pod: {nodes}"))?;
                        let has = left.remove(pod);
                        let (on, device) = has.with_context(|| {
                            format!("{slot} has {pod}, which ended or has another")
                        })?;
                        ensure!(
                            on == node && Some(&device) == device_of(one).as_ref(),
                            "{pod} has {device} on {on}, not {slot} of {node}"
                        );
                    }
                }
                // A pod outlives its Instance while its Configuration moves.
                let there: BTreeSet<String> = instances.iter().filter_map(device_of).collect();
                left.retain(|_, (_, device)| there.contains(device));
                ensure!(left.is_empty(), "no slot has {left:?}");
                Ok(())
            },
        )
    }
}

/// Waits until all nodes offer slots of all Configurations.
fn offered(sites: &[Site]) -> Result<()> {
    let begun = Instant::now();
    for site in sites {
        for name in NAMES {
            let resource = format!("akri.sh/{name}");
            within(OUTAGE, "the node offers slots", || {
                let (_, allocatable) = site.amounts(&resource)?;
                ensure!(allocatable > 0, "{} has no {resource}", site.node.name());
                Ok(())
            })?;
        }
    }
    println!("all nodes offer slots after {:?}", begun.elapsed());
    Ok(())
}

/// Returns true if an agent refused the pod, not the kubelet for lack of an agent.
fn is_ours(why: &str) -> bool {
    let lost = ["error reading from server", "transport", "connection error"];
    why.contains("rpc error") && !lost.iter().any(|lost| why.contains(lost))
}

/// Repeats an action until it succeeds.
fn patiently<T>(what: &str, act: impl FnMut() -> Result<T>) -> Result<T> {
    within(OUTAGE, what, act)
}

#[expect(clippy::disallowed_methods, reason = "chaos takes its time")]
fn pause(millis: u64) {
    sleep(Duration::from_millis(millis));
}

fn lock<T>(value: &Mutex<T>) -> MutexGuard<'_, T> {
    value.lock().unwrap_or_else(PoisonError::into_inner)
}

//! Pods with claims and with the extended resource start and end on two nodes while agents, kubelets and the controller are killed and the backend of
//! their Configuration changes back and forth: no slot is allocated twice, none is lost, and no pod with a claim fails.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use leafhost_tests::cluster::{Cluster, Container, Namespace, Pod};
use leafhost_tests::contest::{Grant, crowds};
use leafhost_tests::random::{self, Random};
use leafhost_tests::requirement;
use leafhost_tests::slot_history::{Recorder, holders};
use leafhost_tests::stand_in_node::configure_with;
use leafhost_tests::wait::within;
use nix::sys::signal::Signal;
use serde_json::{Value, json};
use tempfile::NamedTempFile;

use crate::away::Own;
use crate::controller::Controller;
use crate::device::{Site, variable};

const CAPACITY: usize = 3;
/// Number of pods at a time.
const CROWD: usize = 12;
/// Upper bound for a pod to run, or to be deleted: a kubelet retries a failed Prepare after about 90 seconds.
const PATIENCE: Duration = Duration::from_mins(6);
/// With this grace: a slot whose pod ends while agent and kubelet restart is freed only after it.
const AGENT: [&str; 2] = ["--slot-grace", "30s"];

/// Size of the test.
struct Size {
    cameras: usize,
    pods: usize,
}

#[test]
fn claims_and_kills_give_no_slot_twice_and_lose_none() -> Result<()> {
    let size = Size {
        cameras: 3,
        pods: 30,
    };
    run(&size, 11)
}

/// Runs `SOAK_ROUNDS` pods with the random sequence of `SOAK_SEED`.
#[test]
#[ignore = "takes a quarter of an hour: make soak"]
fn soak_claims_and_kills_give_no_slot_twice_and_lose_none() -> Result<()> {
    let size = Size {
        cameras: 20,
        pods: random::rounds(300),
    };
    run(&size, random::seed()?)
}

/// Event that happens to the cluster.
#[derive(Debug, Clone, Copy)]
enum Event {
    AgentKilled,
    AgentStopped,
    KubeletKilled,
    ControllerKilled,
    Turned,
}

const ALL: [Event; 5] = [
    Event::AgentKilled,
    Event::KubeletKilled,
    Event::ControllerKilled,
    Event::Turned,
    Event::AgentStopped,
];

fn run(size: &Size, seed: u64) -> Result<()> {
    if requirement::lacks(Cluster::missing())? {
        return Ok(());
    }
    let mut random = Random::new(seed);
    let own = Own::start(2)?;
    let cluster = own.0;
    cluster.define()?;
    let space = cluster.namespace("crowd")?;
    let mut sites = Vec::new();
    for taken in cluster.take_nodes(2)? {
        let mut site = Site::on(cluster, taken)?;
        site.home.add_handler("debug-echo")?;
        site.home.join(cluster.kubeconfig());
        let folder = site.node.cdi();
        site.home.publish_in(&folder);
        site.home.start(&AGENT)?;
        space.show_log(&site.home.log_file());
        sites.push(site);
    }
    let log = NamedTempFile::new()?;
    space.show_log(log.path());
    let recorder = Recorder::start_anywhere(cluster)?;
    let crowd = Crowd {
        cluster,
        space: &space,
        left: AtomicUsize::new(size.pods),
        is_over: AtomicBool::new(false),
        grants: Mutex::default(),
        failed: Mutex::default(),
    };
    let mut events = Events {
        cluster,
        space: &space,
        cameras: size.cameras,
        sites,
        controller: None,
        log: &log,
        random: random.split(),
        happened: Vec::new(),
    };
    events.start_controller()?;
    events.configure("dra")?;
    cluster.apply(&template(space.name()).to_string())?;
    let outcome = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..CROWD)
            .map(|number| {
                let (crowd, random) = (&crowd, random.split());
                scope.spawn(move || crowd.work(number, random))
            })
            .collect();
        let happened = events.go_on(&crowd);
        crowd.is_over.store(true, Ordering::Release);
        for worker in workers {
            let ended = worker.join();
            ended.map_err(|_| anyhow::anyhow!("a thread panicked"))??;
        }
        happened
    });
    outcome.with_context(|| space.state())?;
    within(PATIENCE, "all slots are free", || {
        let list = cluster.get("/apis/akri.sh/v0/instances")?;
        let all = list["items"].as_array().context("no items")?;
        let held: Vec<_> = all.iter().flat_map(|one| holders(one)).collect();
        ensure!(held.is_empty(), "{held:?}");
        Ok(())
    })
    .with_context(|| space.state())?;
    let history = recorder.finish()?;
    history.judge()?;
    let grants = std::mem::take(&mut *crowd.grants.lock().unwrap_or_else(PoisonError::into_inner));
    let failed = std::mem::take(&mut *crowd.failed.lock().unwrap_or_else(PoisonError::into_inner));
    println!(
        "{} pods ran, {} failed: {failed:#?}; {} versions; {:?}",
        grants.len(),
        failed.len(),
        history.versions,
        events.happened
    );
    crowds(&grants, CAPACITY)?;
    ensure!(
        failed.iter().all(|(_, has_claim)| !has_claim),
        "a pod with a claim has failed"
    );
    ensure!(
        grants.len() + failed.len() == size.pods,
        "{} pods ran",
        grants.len()
    );
    Ok(())
}

fn template(space: &str) -> Value {
    json!({
        "apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaimTemplate", "metadata": {"name": "a-camera", "namespace": space},
        "spec": {"spec": {"devices": {"requests": [{"name": "camera", "exactly": {"deviceClassName": "cameras.akri.sh"}}]}}},
    })
}

struct Events<'c> {
    cluster: &'static Cluster,
    space: &'c Namespace<'static>,
    cameras: usize,
    sites: Vec<Site>,
    controller: Option<Controller>,
    log: &'c NamedTempFile,
    random: Random,
    happened: Vec<Event>,
}

impl Events<'_> {
    /// Triggers the events in turn until all pods have ended.
    fn go_on(&mut self, crowd: &Crowd<'_>) -> Result<()> {
        for event in ALL.iter().cycle() {
            if crowd.left.load(Ordering::Acquire) == 0 {
                break;
            }
            pause(2000 + self.random.below(4000));
            println!("{event:?}");
            self.happen(*event).with_context(|| format!("{event:?}"))?;
            self.happened.push(*event);
        }
        Ok(())
    }

    fn happen(&mut self, event: Event) -> Result<()> {
        let some = usize::try_from(self.random.below(2))?;
        let lasts = self.random.below(4000);
        let site = self.sites.get_mut(some).context("no such node")?;
        match event {
            Event::AgentKilled | Event::AgentStopped => {
                let signal = match event {
                    Event::AgentStopped => Signal::SIGTERM,
                    _ => Signal::SIGKILL,
                };
                site.home.stop(signal)?;
                pause(lasts);
                site.home.start(&AGENT)?;
            }
            Event::KubeletKilled => {
                site.node.stop_kubelet(Signal::SIGKILL)?;
                pause(lasts);
                site.node.start_kubelet()?;
                site.node.wait_ready()?;
            }
            Event::ControllerKilled => {
                self.controller = None;
                self.start_controller()?;
            }
            Event::Turned => {
                self.configure("device-plugin")?;
                pause(5000 + lasts);
                self.configure("dra")?;
            }
        }
        Ok(())
    }

    fn configure(&self, allocation: &str) -> Result<()> {
        let cameras: Vec<String> = (0..self.cameras)
            .map(|number| format!("camera-{number}"))
            .collect();
        let annotation = ("leafhost.dev/allocation", allocation);
        let capacity = u32::try_from(CAPACITY)?;
        configure_with(
            self.cluster,
            self.space.name(),
            "cameras",
            capacity,
            &cameras,
            &[annotation],
        )
    }

    fn start_controller(&mut self) -> Result<()> {
        let controller = Controller::start_as(self.cluster.kubeconfig(), "kube-system", self.log)?;
        self.controller = Some(controller);
        Ok(())
    }
}

/// Pods that start and end.
struct Crowd<'c> {
    cluster: &'static Cluster,
    space: &'c Namespace<'static>,
    /// Number of pods that have not ended yet, including those that have not started.
    left: AtomicUsize,
    is_over: AtomicBool,
    grants: Mutex<Vec<Grant>>,
    /// Messages of failed pods, each with true if the pod had a claim.
    failed: Mutex<Vec<(String, bool)>>,
}

impl Crowd<'_> {
    fn work(&self, number: usize, mut random: Random) -> Result<()> {
        for round in 0.. {
            if self.is_over.load(Ordering::Acquire) {
                break;
            }
            let taken = self
                .left
                .fetch_update(Ordering::AcqRel, Ordering::Acquire, |left| {
                    left.checked_sub(1)
                });
            if taken.is_err() {
                break;
            }
            let pod = format!("pod-{number}-{round}");
            self.one(&pod, &mut random)
                .with_context(|| format!("pod {pod}"))?;
        }
        Ok(())
    }

    /// Runs one pod from its creation to its end.
    fn one(&self, name: &str, random: &mut Random) -> Result<()> {
        // A kubelet may be denied the claim of an extended resource for a moment, and retries after 80 seconds.
        let has_claim = random.below(8) > 0;
        let main = Container::new("main");
        let pod = if has_claim {
            let claims = json!([{"name": "camera", "resourceClaimTemplateName": "a-camera"}]);
            Pod::new(name, &[main.claim("camera")]).with("resourceClaims", claims)
        } else {
            Pod::new(name, &[main.device("akri.sh/cameras", 1)])
        };
        self.space.create(&pod)?;
        let (node, failed) = within(PATIENCE, "it runs", || {
            let pod = self.space.pod(name)?;
            let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
            let (status, node) = (&pod["status"], text(&pod["spec"]["nodeName"]));
            match status["phase"].as_str() {
                Some("Running") => Ok((node, None)),
                Some("Failed") => Ok((
                    node,
                    Some(format!(
                        "{}: {}",
                        text(&status["reason"]),
                        text(&status["message"])
                    )),
                )),
                other => bail!("it is {other:?}: {:#}", status["conditions"]),
            }
        })?;
        if let Some(why) = failed {
            let mut all = self.failed.lock().unwrap_or_else(PoisonError::into_inner);
            all.push((format!("{name}: {why}"), has_claim));
            drop(all);
            return self.end(name);
        }
        let device = within(PATIENCE, "its variables are printed", || {
            let log = self.space.logs(name, "main")?;
            variable(&log, "DEBUG_ECHO_DESCRIPTION").with_context(|| format!("it printed {log:?}"))
        })?;
        let from = Instant::now();
        pause(500 + random.below(4000));
        let grant = Grant {
            slot: device,
            node,
            from,
            until: Instant::now(),
        };
        self.grants
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(grant);
        self.end(name)
    }

    fn end(&self, name: &str) -> Result<()> {
        let path = format!(
            "{}/{name}?gracePeriodSeconds=1",
            self.space.collection("pods")
        );
        self.cluster.api().delete(&path)?;
        within(PATIENCE, "it is gone", || match self.space.pod(name) {
            Err(error) if format!("{error:#}").contains("NotFound") => Ok(()),
            other => {
                other?;
                bail!("it is there")
            }
        })
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "pods and what kills them take their time"
)]
fn pause(millis: u64) {
    sleep(Duration::from_millis(millis));
}

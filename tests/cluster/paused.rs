//! Agents, controllers and the API server stop for a while, in any combination and order, and resume where they were, with writes that they decided
//! on before. No slot is lost or allocated twice, and controllers still release the slots of deleted nodes.

use std::fmt::{self, Display};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use leafhost_tests::cluster::Cluster;
use leafhost_tests::random::{self, Random};
use leafhost_tests::requirement;
use leafhost_tests::slot_history::Recorder;
use leafhost_tests::stand_in_node::{configure, until_seen};
use leafhost_tests::wait::within;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tempfile::NamedTempFile;

use crate::away::Own;
use crate::controller::Controller;
use crate::races;
use crate::turnover::{CONFIGURATION, SLOTS, Turnover};

const DEVICES: usize = 5;
/// Longest stop of a process, in milliseconds: longer than the Lease of a controller lasts.
const LONGEST: u64 = 20_000;
/// Longest stop of the API server, in milliseconds: shorter, so that its clients wait for the answer.
const SERVER: u64 = 5_000;
/// Pause between two steps of a node.
const PACE: Duration = Duration::from_millis(25);
/// Interval of a node's heartbeats.
const BEAT: Duration = Duration::from_secs(10);
const REACHED: Duration = Duration::from_mins(2);

#[test]
fn processes_that_stand_still_and_go_on_give_no_slot_twice_and_lose_none() -> Result<()> {
    pause(6, 7)
}

/// Runs `SOAK_ROUNDS` rounds with the random sequence of `SOAK_SEED`.
#[test]
#[ignore = "takes a quarter of an hour: make soak"]
fn soak_processes_that_stand_still_and_go_on() -> Result<()> {
    pause(random::rounds(60), random::seed()?)
}

fn pause(rounds: usize, seed: u64) -> Result<()> {
    if requirement::lacks(Cluster::missing())? {
        return Ok(());
    }
    let own = Own::start(1)?;
    let cluster = own.0;
    let mut random = Random::new(seed);
    let runtime = races::runtime()?;
    let space = cluster.namespace("paused")?;
    let turnover = Turnover::new(cluster, &space, &runtime);
    let mut sites = [turnover.site("paused-0")?, turnover.site("paused-1")?];
    let devices: Vec<String> = (0..DEVICES)
        .map(|number| format!("device-{number}"))
        .collect();
    configure(cluster, space.name(), CONFIGURATION, SLOTS, &devices)?;
    until_seen(cluster.api(), space.name(), DEVICES, 2).with_context(|| space.state())?;
    let recorder = Recorder::start(cluster.api(), space.name())?;
    let log = NamedTempFile::new()?;
    space.show_log(log.path());
    let start = || Controller::start_as(cluster.kubeconfig(), "kube-system", &log);
    let controllers = [start()?, start()?];
    let mut processes = vec![Process::Server(cluster)];
    for controller in &controllers {
        processes.push(Process::Controller(controller.pid()));
    }
    for site in &sites {
        processes.push(Process::Agent(site.node.home.pid()?));
    }

    std::thread::scope(|scope| {
        let mut threads = Vec::new();
        let mut ends = Vec::new();
        for site in &mut sites {
            let (turnover, mut random) = (&turnover, random.split());
            let (end, ended) = mpsc::channel::<()>();
            ends.push(end);
            threads.push(scope.spawn(move || -> Result<()> {
                let mut beat = Instant::now();
                site.node.beat()?;
                while ended.recv_timeout(PACE) == Err(RecvTimeoutError::Timeout) {
                    turnover.step(site, &mut random)?;
                    if beat.elapsed() > BEAT {
                        beat = Instant::now();
                        site.node.beat()?;
                    }
                }
                Ok(())
            }));
        }
        let done = (0..rounds).try_for_each(|_| round(&turnover, &processes, &mut random));
        drop(ends);
        for thread in threads {
            let ended = thread.join();
            ended.map_err(|_| anyhow::anyhow!("a thread panicked"))??;
        }
        done
    })
    .with_context(|| space.state())?;

    let (pods, versions) = turnover.finish(&sites, recorder)?;
    println!("{rounds} times; {pods} pods, {versions} versions of {DEVICES} Instances");
    Ok(())
}

/// Stops some of the processes while nodes keep running and a slot must be released; then waits for the release.
fn round(turnover: &Turnover<'_>, processes: &[Process], random: &mut Random) -> Result<()> {
    within(REACHED, "a slot of a node that is gone", || {
        turnover.claim_for_gone(random)
    })?;
    let mut still = Vec::new();
    let mut others: Vec<&Process> = processes.iter().collect();
    let mut most = LONGEST;
    for _ in 0..=random.below(3) {
        let index = random.below(u64::try_from(others.len())?);
        let process = others.swap_remove(usize::try_from(index)?);
        println!("{process} stands still");
        still.push(Still::begin(process)?);
        if matches!(process, Process::Server(_)) {
            most = SERVER;
        }
    }
    let lasting = Duration::from_millis(random.below(most));
    println!("for {lasting:?}");
    let begun = Instant::now();
    within(lasting * 2, "they stand still", || {
        ensure!(begun.elapsed() >= lasting, "not long enough");
        Ok(())
    })?;
    // Resume in the order of the stops, or in the reverse order.
    if random.below(2) == 0 {
        still.reverse();
    }
    still.into_iter().try_for_each(Still::end)?;
    within(REACHED, "the slot is free", || turnover.has_none_of_gone())
}

enum Process {
    Server(&'static Cluster),
    Controller(u32),
    Agent(u32),
}

impl Process {
    fn signal(&self, signal: Signal) -> Result<()> {
        match self {
            Self::Server(cluster) => cluster.server().signal(signal),
            Self::Controller(pid) | Self::Agent(pid) => {
                Ok(kill(Pid::from_raw(i32::try_from(*pid)?), signal)?)
            }
        }
    }
}

impl Display for Process {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Server(_) => f.write_str("API server"),
            Self::Controller(pid) => write!(f, "controller {pid}"),
            Self::Agent(pid) => write!(f, "agent {pid}"),
        }
    }
}

/// Stopped process, which resumes when this is dropped.
struct Still<'a>(&'a Process);

impl<'a> Still<'a> {
    fn begin(process: &'a Process) -> Result<Self> {
        process.signal(Signal::SIGSTOP)?;
        Ok(Self(process))
    }

    fn end(self) -> Result<()> {
        self.0.signal(Signal::SIGCONT)
    }
}

impl Drop for Still<'_> {
    fn drop(&mut self) {
        let _ = self.0.signal(Signal::SIGCONT);
    }
}

//! Agents and controllers are killed at their writes to the API server, before the write or before its answer: no Instance is lost or recreated, and
//! no slot is lost or allocated twice.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use leafhost_tests::cluster::Cluster;
use leafhost_tests::random::{self, Random};
use leafhost_tests::requirement;
use leafhost_tests::slot_history::Recorder;
use leafhost_tests::stand_in_node::configure;
use leafhost_tests::wait::within;
use leafhost_tests::write_proxy::{Cut, WriteProxy};
use nix::sys::signal::Signal;
use tempfile::NamedTempFile;

use crate::away::Own;
use crate::controller::Controller;
use crate::races;
use crate::turnover::{CONFIGURATION, GRACE, SLOTS, Site, Turnover};

/// Number of devices at the beginning; one is added every `MORE` kills of the first agent.
const DEVICES: usize = 4;
const MORE: usize = 8;
/// Upper bound for the chosen write to happen.
const REACHED: Duration = Duration::from_mins(2);
/// Interval of a node's heartbeats when nothing else happens on it.
const BEAT: Duration = Duration::from_secs(10);

#[test]
fn agents_and_controllers_killed_at_their_writes_lose_nothing_and_give_nothing_twice() -> Result<()>
{
    kill(24, 2, 4)
}

/// Kills `SOAK_ROUNDS` times with the random sequence of `SOAK_SEED`.
#[test]
#[ignore = "takes an hour: make soak"]
fn soak_agents_and_controllers_killed_at_their_writes() -> Result<()> {
    let kills = random::rounds(1000_usize);
    kill(kills * 45 / 100, kills / 10, random::seed()?)
}

/// Kills each of two agents `agents` times, and the active one of two controllers `controllers` times.
fn kill(agents: usize, controllers: usize, seed: u64) -> Result<()> {
    if requirement::lacks(Cluster::missing())? {
        return Ok(());
    }
    let own = Own::start(1)?;
    let cluster = own.0;
    let mut random = Random::new(seed);
    let runtime = races::runtime()?;
    let space = cluster.namespace("kill")?;
    let turnover = Turnover::new(cluster, &space, &runtime);
    let mut sites = vec![turnover.site("kill-0")?, turnover.site("kill-1")?];
    let recorder = Recorder::start(cluster.api(), space.name())?;
    let field = Field {
        cluster,
        turnover: &turnover,
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
        for (number, site) in sites.iter_mut().enumerate() {
            let (field, mut random) = (&field, next()?);
            let (end, ended) = mpsc::channel::<()>();
            ends.push(end);
            threads.push(scope.spawn(move || {
                (0..agents).try_for_each(|round| {
                    field.kill_agent(site, grow(number == 0, round), &mut random)
                })?;
                // The node must stay Ready while controllers watch.
                while ended.recv_timeout(BEAT) == Err(RecvTimeoutError::Timeout) {
                    site.node.beat()?;
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

    let (pods, versions) = turnover.finish(&sites, recorder)?;
    println!(
        "{} kills of agents, {controllers} of controllers; {pods} pods, {versions} versions of {} Instances",
        2 * agents,
        field.devices.load(Ordering::Relaxed)
    );
    Ok(())
}

struct Field<'a> {
    cluster: &'a Cluster,
    turnover: &'a Turnover<'a>,
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
    /// Starts and ends pods of the node until the agent is killed at one of its writes, and starts it again.
    fn kill_agent(&self, site: &mut Site, grows: bool, random: &mut Random) -> Result<()> {
        site.node.beat()?;
        site.proxy
            .aim(site.node.home.pid()?, random.below(4), cut(random))?;
        if grows {
            let count = self.devices.fetch_add(1, Ordering::Relaxed) + 1;
            let devices: Vec<String> = (0..count)
                .map(|number| format!("device-{number}"))
                .collect();
            configure(
                self.cluster,
                self.turnover.space.name(),
                CONFIGURATION,
                SLOTS,
                &devices,
            )?;
        }
        let killed = within(REACHED, "a write of the agent", || {
            ensure!(
                site.proxy.has_struck(),
                "{}",
                self.turnover.step(site, random)?
            );
            Ok(())
        });
        killed.with_context(|| site.node.home.log())?;
        site.node.home.stop(Signal::SIGKILL)?;
        site.node.home.start(&GRACE)
    }

    /// Kills the controller that is about to free a slot, or has freed it, and starts it again.
    fn kill_controllers(
        &self,
        log: &NamedTempFile,
        count: usize,
        random: &mut Random,
    ) -> Result<()> {
        let folder = tempfile::tempdir()?;
        let mut all = Vec::new();
        for number in 0..2 {
            let proxy = WriteProxy::start(self.cluster.api())?;
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
                self.turnover.claim_for_gone(random)
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
                self.turnover.has_none_of_gone()
            })?;
        }
        Ok(())
    }
}

//! Agents and controllers are killed at their writes to the API server, before the write or before its answer: no Instance is lost or recreated, and
//! no slot is lost or allocated twice.

use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::{Context, Result, ensure};
use leafhost_tests::random::{self, Random};
use leafhost_tests::wait::within;
use leafhost_tests::write_proxy::{Cut, WriteProxy};
use nix::sys::signal::Signal;

use crate::controller::Controller;
use crate::turnover::{self, GRACE, REACHED, Site, Turnover};

/// Number of devices at the beginning; one is added every `MORE` kills of the first agent.
const DEVICES: usize = 4;
const MORE: usize = 8;

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
    let devices = AtomicUsize::new(DEVICES);
    turnover::run(
        "kill",
        seed,
        agents,
        |turnover, number, site, round, random| {
            if round >= agents {
                return Ok(());
            }
            let is_more = number == 0 && round.is_multiple_of(MORE);
            let count = is_more.then(|| devices.fetch_add(1, Ordering::Relaxed) + 1);
            kill_agent(turnover, site, count, random)
        },
        |turnover, _, random| kill_controllers(turnover, controllers, random),
    )?;
    println!(
        "{} kills of agents, {controllers} of controllers; {} Instances",
        2 * agents,
        devices.load(Ordering::Relaxed)
    );
    Ok(())
}

fn cut(random: &mut Random) -> Cut {
    if random.below(2) == 0 {
        Cut::Before
    } else {
        Cut::After
    }
}

/// Starts and ends pods of the node until the agent is killed at one of its writes, and starts it again. Changes the number of devices before.
fn kill_agent(
    turnover: &Turnover<'_>,
    site: &mut Site,
    devices: Option<usize>,
    random: &mut Random,
) -> Result<()> {
    site.node.beat()?;
    site.proxy
        .aim(site.node.home.pid()?, random.below(4), cut(random))?;
    if let Some(devices) = devices {
        turnover.configure(devices)?;
    }
    let killed = within(REACHED, "a write of the agent", || {
        ensure!(site.proxy.has_struck(), "{}", turnover.step(site, random)?);
        Ok(())
    });
    killed.with_context(|| site.node.home.log())?;
    site.node.home.stop(Signal::SIGKILL)?;
    site.node.home.start(&GRACE)
}

/// Kills the controller that is about to free a slot, or has freed it, and starts it again.
fn kill_controllers(turnover: &Turnover<'_>, count: usize, random: &mut Random) -> Result<()> {
    let folder = tempfile::tempdir()?;
    let mut all = Vec::new();
    for number in 0..2 {
        let proxy = WriteProxy::start(turnover.cluster.api())?;
        let kubeconfig = folder.path().join(number.to_string());
        std::fs::write(&kubeconfig, proxy.kubeconfig())?;
        let controller = Controller::start_as(&kubeconfig, "kube-system", &turnover.log)?;
        all.push((proxy, kubeconfig, controller));
    }
    for _ in 0..count {
        let cut = cut(random);
        for (proxy, _, controller) in &all {
            proxy.aim(controller.pid(), 0, cut)?;
        }
        within(REACHED, "a slot of a node that is gone", || {
            turnover.claim_for_gone(random)
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
                *controller = Controller::start_as(kubeconfig, "kube-system", &turnover.log)?;
            }
        }
        within(REACHED, "the slot is free", || turnover.has_none_of_gone())?;
    }
    Ok(())
}

//! Agents, controllers and the API server stop for a while, in any combination and order, and resume where they were, with writes that they decided
//! on before. No slot is lost or allocated twice, and controllers still release the slots of deleted nodes.

use std::time::Duration;

use anyhow::{Context, Result};
use leafhost_tests::random::{self, Random};
use leafhost_tests::scheduling::wait;
use leafhost_tests::stand_in_node::until_seen;
use leafhost_tests::wait::within;

use crate::controller::Controller;
use crate::disturbances::Paused;
use crate::turnover::{self, REACHED, Turnover};

const DEVICES: usize = 5;
/// Longest stop of a process, in milliseconds: longer than the Lease of a controller lasts.
const LONGEST: u64 = 20_000;
/// Longest stop of the API server, in milliseconds: shorter, so that its clients wait for the answer.
const SERVER: u64 = 5_000;
const API_SERVER: &str = "API server";

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
    turnover::run(
        "paused",
        seed,
        0,
        |turnover, _, site, _, random| turnover.step(site, random).map(drop),
        |turnover, agents, random| {
            let cluster = turnover.cluster;
            turnover.configure(DEVICES)?;
            until_seen(cluster.api(), turnover.space.name(), DEVICES, agents.len())?;
            let start = || Controller::start_as(cluster.kubeconfig(), "kube-system", &turnover.log);
            let controllers = [start()?, start()?];
            let mut processes = vec![(API_SERVER, cluster.server().pid()?)];
            processes.extend(controllers.iter().map(|one| ("controller", one.pid())));
            processes.extend(agents.iter().map(|agent| ("agent", *agent)));
            (0..rounds).try_for_each(|_| round(turnover, &processes, random))
        },
    )
}

/// Stops some of the processes while nodes keep running and a slot must be released; then waits for the release.
fn round(turnover: &Turnover<'_>, processes: &[(&str, u32)], random: &mut Random) -> Result<()> {
    within(REACHED, "a slot of a node that is gone", || {
        turnover.claim_for_gone(random)
    })?;
    let mut still = Vec::new();
    let mut others = processes.to_vec();
    let mut most = LONGEST;
    for _ in 0..=random.below(3) {
        let index = random.below(u64::try_from(others.len())?);
        let (what, pid) = others.swap_remove(usize::try_from(index)?);
        println!("{what} {pid} stands still");
        still.push(Paused::stop(pid).with_context(|| what.to_owned())?);
        if what == API_SERVER {
            most = SERVER;
        }
    }
    let lasting = Duration::from_millis(random.below(most));
    println!("for {lasting:?}");
    wait(lasting);
    // Resume in the order of the stops, or in the reverse order.
    if random.below(2) == 0 {
        still.reverse();
    }
    still.into_iter().try_for_each(Paused::end)?;
    within(REACHED, "the slot is free", || turnover.has_none_of_gone())
}

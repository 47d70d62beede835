//! Kills of the agent and its compiler child at every write.

use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};

use anyhow::{Context, Result, bail, ensure};
use leafhost_tests::agent::Home;
use leafhost_tests::random::{self, Random};
use leafhost_tests::trace::{Point, Trace, Walk, Who};
use leafhost_tests::wait::eventually;
use nix::sys::signal::Signal;

use crate::disk_state::{self, identities, instances, is_as_expected};
use crate::scenarios::{self, Scenario};

/// Number of concurrent runs; they mostly wait.
const AT_ONCE: usize = 4;
/// Number of attempts per point: the order of threads varies, so a run may not reach it.
const TRIES: usize = 3;

/// Runs the scenario in a copy of `base`, kills the agent at `target`, starts it again, and checks the result.
fn run(scenario: &Scenario, base: &Home, target: Option<&Point>) -> Result<Walk> {
    let mut home = base.copy()?;
    let after = (scenario.after)();
    let before = identities(&instances(&home)?);
    let trace = Trace::start(home.command(&[])?, home.path(), target.cloned());
    let outcome = live(scenario, &home, &trace);
    let killed = outcome.as_ref().is_ok_and(|reached| !reached);
    if killed {
        let left = identities(&instances(&home).context("after the kill")?);
        home.start(&[]).context("it starts again")?;
        eventually("the end after a kill", || is_as_expected(&home, &after))
            .with_context(|| home.log())?;
        let found = identities(&instances(&home)?);
        let re_created = disk_state::re_created(&left, &found);
        ensure!(
            re_created.is_empty(),
            "re-created after the kill: {re_created:?}\n{left:?}\n{found:?}\n{}",
            home.log()
        );
        home.stop(Signal::SIGTERM)?;
        is_as_expected(&home, &after).context("after it was stopped")?;
    }
    let walk = trace.join()?;
    outcome?;
    ensure!(
        killed
            || target.is_none()
            || !walk.struck
            || target.is_some_and(|p| p.kind.who == Who::Child),
        "it was killed and lives"
    );
    let found = identities(&instances(&home)?);
    let re_created = disk_state::re_created(&before, &found);
    ensure!(
        re_created.is_empty(),
        "re-created: {re_created:?}\n{before:?}\n{found:?}\n{}\n{}",
        changes(&walk),
        home.log()
    );
    Ok(walk)
}

/// Returns the renames and removals in the order of the run.
fn changes(walk: &Walk) -> String {
    let decisive = walk.points.iter().filter(|point| point.kind.is_decisive());
    let lines: Vec<_> = decisive.map(ToString::to_string).collect();
    lines.join("\n")
}

/// Waits until the traced agent has finished the scenario and stops it; false if it was killed before.
fn live(scenario: &Scenario, home: &Home, trace: &Trace) -> Result<bool> {
    let after = (scenario.after)();
    eventually("the agent runs", || {
        let runs = home.path().join("state/agent.sock").exists();
        ensure!(runs || trace.agent_has_ended(), "it does not");
        Ok(())
    })?;
    (scenario.change)(home)?;
    let reached = eventually("the end", || {
        if trace.agent_has_ended() {
            return Ok(false);
        }
        is_as_expected(home, &after)?;
        Ok(true)
    });
    if let Ok(false) = reached {
        return Ok(false);
    }
    trace.signal(Signal::SIGTERM)?;
    eventually("it stops", || {
        ensure!(trace.has_ended(), "it runs");
        Ok(())
    })?;
    let reached = reached.with_context(|| home.log())?;
    // The agent may have been killed at one of its last writes.
    Ok(reached && !home.path().join("state/agent.sock").exists())
}

/// Kills at all points, or at the decisive ones and a random sample.
fn walk(scenario: &Scenario, sample: Option<(usize, u64)>) -> Result<()> {
    let base = scenario.home()?;
    let counted = run(scenario, &base, None).context("without a kill")?;
    // The socket of an agent need not survive a power failure.
    let not_durable = counted.not_durable.iter();
    let not_durable: Vec<_> = not_durable
        .filter(|text| !text.starts_with("state/agent.sock"))
        .collect();
    ensure!(not_durable.is_empty(), "not durable: {not_durable:#?}");
    // Writes to /proc end with the process.
    let kept = counted
        .points
        .iter()
        .filter(|point| !point.kind.path.starts_with("/proc/"));
    let all: BTreeSet<Point> = kept.cloned().collect();
    ensure!(all.len() > 20, "the walk itself is broken: {all:?}");
    for point in &all {
        ensure!(
            !point.kind.path.starts_with('/'),
            "a write outside of its folders: {point}"
        );
    }
    println!("{}: {} points", scenario.name, all.len());
    let chosen = match sample {
        None => all.clone(),
        Some((more, seed)) => {
            let mut random = Random::new(seed);
            let (decisive, rest): (Vec<_>, Vec<_>) = all
                .iter()
                .cloned()
                .partition(|point| point.kind.is_decisive());
            let picked = (0..more).filter_map(|_| random.pick(&rest).cloned());
            decisive.iter().cloned().chain(picked).collect()
        }
    };
    let queue = Queue {
        left: Mutex::new(chosen.iter().cloned().map(|point| (point, 0)).collect()),
        known: Mutex::new(all),
        whole: sample.is_none(),
        struck: Mutex::default(),
        unmet: Mutex::default(),
        failures: Mutex::default(),
    };
    std::thread::scope(|scope| {
        for _ in 0..AT_ONCE {
            scope.spawn(|| queue.work(scenario, &base));
        }
    });
    queue.judge(scenario)
}

struct Queue {
    left: Mutex<Vec<(Point, usize)>>,
    known: Mutex<BTreeSet<Point>>,
    /// True if points first seen in later runs are tried, too.
    whole: bool,
    struck: Mutex<BTreeSet<Point>>,
    unmet: Mutex<BTreeSet<Point>>,
    failures: Mutex<Vec<String>>,
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Queue {
    fn work(&self, scenario: &Scenario, base: &Home) {
        loop {
            let Some((point, tries)) = lock(&self.left).pop() else {
                return;
            };
            match run(scenario, base, Some(&point)) {
                Err(error) => lock(&self.failures).push(format!("{point}: {error:#}")),
                Ok(walk) => {
                    if self.whole {
                        let mut known = lock(&self.known);
                        for new in walk.points {
                            if known.insert(new.clone()) {
                                lock(&self.left).push((new, 0));
                            }
                        }
                    }
                    if walk.struck {
                        lock(&self.struck).insert(point);
                    } else if tries + 1 < TRIES {
                        lock(&self.left).push((point, tries + 1));
                    } else {
                        lock(&self.unmet).insert(point);
                    }
                }
            }
        }
    }

    fn judge(self, scenario: &Scenario) -> Result<()> {
        let (struck, unmet) = (lock(&self.struck), lock(&self.unmet));
        let failures = lock(&self.failures);
        println!(
            "{}: killed at {} points, {} were not met again, {} failures",
            scenario.name,
            struck.len(),
            unmet.len(),
            failures.len()
        );
        for point in unmet.iter() {
            println!("not met: {point}");
        }
        if !failures.is_empty() {
            bail!("{}", failures.join("\n\n"));
        }
        ensure!(
            unmet.len() * 4 <= struck.len(),
            "too many points were not met"
        );
        Ok(())
    }
}

#[test]
fn a_first_start_is_killed_at_its_writes() -> Result<()> {
    walk(&scenarios::FIRST_START, Some((6, 1)))
}

#[test]
fn a_change_is_killed_at_its_writes() -> Result<()> {
    walk(&scenarios::CHANGE, Some((6, 2)))
}

#[test]
fn a_withdrawal_is_killed_at_its_writes() -> Result<()> {
    walk(&scenarios::WITHDRAWAL, Some((6, 3)))
}

/// Kills at all points. Their order depends on the threads, so there is no seed.
#[test]
#[ignore = "takes many minutes: make soak"]
fn soak_every_write() -> Result<()> {
    let _ = random::rounds(1);
    for scenario in [
        scenarios::FIRST_START,
        scenarios::CHANGE,
        scenarios::WITHDRAWAL,
    ] {
        walk(&scenario, None)?;
    }
    Ok(())
}

//! Thousands of handler swaps, each followed by a call for every Configuration: no resource grows, and no Instance is recreated.

use std::collections::BTreeMap;
use std::fs;

use anyhow::{Context, Result, ensure};
use leafhost_tests::agent::Home;
use leafhost_tests::random;
use leafhost_tests::wait::eventually;
use nix::sys::signal::Signal;

use crate::disk_state::{self, Expected, identities, instances, is_as_expected};
use crate::scenarios;

/// Configurations of the handler, each called after a swap.
const CONFIGURATIONS: [&str; 10] = ["ca", "cb", "cc", "cd", "ce", "cf", "cg", "ch", "ci", "cj"];
/// Number of components whose native code is kept.
const CACHED: usize = 64;
/// Number of swaps per new component.
const NEW: u64 = 100;

/// Resources of a process.
#[derive(Debug, Clone, Copy)]
struct Taken {
    kib: u64,
    threads: u64,
    files: usize,
}

impl Taken {
    fn of(home: &Home) -> Result<Self> {
        let process = home.pid()?;
        let status = fs::read_to_string(format!("/proc/{process}/status"))?;
        let number = |name: &str| -> Result<u64> {
            let line = status.lines().find_map(|line| line.strip_prefix(name));
            let digits = line.and_then(|line| line.split_whitespace().next());
            Ok(digits.with_context(|| format!("no {name}"))?.parse()?)
        };
        Ok(Self {
            kib: number("VmRSS:")?,
            threads: number("Threads:")?,
            files: fs::read_dir(format!("/proc/{process}/fd"))?.count(),
        })
    }
}

fn calls(home: &Home) -> Result<u64> {
    let metrics = home.get("/metrics")?;
    let line = metrics
        .lines()
        .find_map(|line| line.strip_prefix("leafhost_handler_calls_total{handler=\"debugEcho\"} "));
    Ok(line.context("no calls")?.trim().parse()?)
}

fn swap(rounds: u64) -> Result<()> {
    let mut home = Home::new()?;
    for name in CONFIGURATIONS {
        home.write(
            &format!("configurations/{name}.yaml"),
            scenarios::echo(name, "[a, b]", 1),
        )?;
    }
    home.add_handler("debug-echo")?;
    let expected = Expected {
        instances: CONFIGURATIONS.iter().map(|name| (*name, (2, 1))).collect(),
        handlers: ["debug-echo.wasm"].into(),
    };
    home.start(&[])?;
    eventually("the beginning", || is_as_expected(&home, &expected))?;
    let before = identities(&instances(&home)?);
    // Until then the memory and thread pools grow.
    let warm = rounds / 2;
    let mut settled = None;
    for round in 0..rounds {
        let number = if round % NEW == NEW - 1 {
            round
        } else {
            round % 2
        };
        let had = calls(&home)?;
        let bytes = scenarios::version("debug-echo", u32::try_from(number)?)?;
        scenarios::replace(&home, "debug-echo.wasm", &bytes)?;
        let wanted = had + u64::try_from(CONFIGURATIONS.len())?;
        eventually("every Configuration is asked again", || {
            let now = calls(&home)?;
            ensure!(now >= wanted, "swap {round}: {now} calls, not {wanted}");
            Ok(())
        })
        .with_context(|| home.log())?;
        if round == warm {
            settled = Some(Taken::of(&home)?);
        }
    }
    let settled = settled.context("no swap at all")?;
    eventually("the end", || is_as_expected(&home, &expected))?;
    let after = identities(&instances(&home)?);
    ensure!(before == after, "Instances were made anew: {after:?}");
    let taken = Taken::of(&home)?;
    let cached = disk_state::files(&home.path().join("state/native"))?.len();
    println!(
        "{rounds} swaps, {} calls, {cached} files of native code; after {warm} swaps {settled:?}, in the end {taken:?}",
        calls(&home)?
    );
    // Thread and memory pools fluctuate; a leak grows with every swap.
    ensure!(taken.kib * 100 <= settled.kib * 110, "memory grows");
    ensure!(taken.files <= settled.files + 4, "open files grow");
    ensure!(taken.threads <= settled.threads + 16, "threads grow");
    ensure!(cached <= CACHED + 1, "native code grows");
    let log = home.log();
    let mut warnings: BTreeMap<&str, u64> = BTreeMap::new();
    for line in log
        .lines()
        .filter(|line| line.contains(" WARN ") || line.contains(" ERROR "))
    {
        let text = line.split_once(' ').map_or(line, |(_, text)| text);
        *warnings.entry(text).or_default() += 1;
    }
    let often: Vec<_> = warnings.iter().filter(|(_, count)| **count > 1).collect();
    ensure!(often.is_empty(), "told again and again: {often:?}");
    home.stop(Signal::SIGTERM)?;
    Ok(())
}

#[test]
fn repeated_handler_swaps_leak_nothing() -> Result<()> {
    swap(40)
}

/// Swaps `SOAK_ROUNDS` times; ten times as many calls follow.
#[test]
#[ignore = "takes an hour: make soak"]
fn soak_swapped_handlers() -> Result<()> {
    swap(random::rounds(10_000))
}

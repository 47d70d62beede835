//! A camera that comes and one that goes: from what it says to the Instance.
//!
//! The agent probes every ten seconds, and what happens meanwhile waits. So it happens at all times of these ten seconds.

use std::fs;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use leafhost_tests::agent::Home;
use leafhost_tests::lan::Lan;
use leafhost_tests::wait::within;

use crate::cameras::{agent, crowd, pass};
use crate::table::Line;
use crate::{median_and_worst, seconds};

/// Cameras that stay.
const STAYING: u16 = 10;
/// Cameras that come and go, one after the other.
const MOVING: u16 = 10;
/// One comes after another: seven seconds have no divisor in common with ten.
const COMES: Duration = Duration::from_secs(7);
/// So long after it has come one goes.
const GOES: Duration = Duration::from_millis(3_500);
const PATIENCE: Duration = Duration::from_secs(30);

pub fn measure() -> Result<Vec<Line>> {
    let lan = Lan::new()?;
    let client = lan.host("client")?;
    let mut cameras = crowd(&lan.host("cameras")?, STAYING + MOVING, 0)?;
    for number in STAYING..STAYING + MOVING {
        cameras.tell(&format!("off {number}"))?;
    }
    // It answers when it has obeyed.
    cameras.ask("requests")?;
    let (home, _) = agent(&client, STAYING.into())?;
    let (mut comings, mut goings) = (Vec::new(), Vec::new());
    let mut comes = Instant::now();
    for number in STAYING..STAYING + MOVING {
        pass(comes.saturating_duration_since(Instant::now()))?;
        cameras.tell(&format!("on {number}"))?;
        cameras.ask("requests")?;
        let said = Instant::now();
        cameras.tell(&format!("hello {number}"))?;
        comings.push(until(&home, "an Instance", usize::from(STAYING) + 1)? - said);

        pass((comes + GOES).saturating_duration_since(Instant::now()))?;
        cameras.tell(&format!("off {number}"))?;
        cameras.ask("requests")?;
        let said = Instant::now();
        cameras.tell(&format!("bye {number}"))?;
        goings.push(until(&home, "no Instance", STAYING.into())? - said);
        comes += COMES;
    }
    Ok(vec![
        line("camera says Hello → its Instance", &mut comings),
        line("camera says Bye → its Instance withdrawn", &mut goings),
    ])
}

fn line(what: &str, times: &mut [Duration]) -> Line {
    let in_order: Vec<_> = times.iter().copied().map(seconds).collect();
    let (median, worst) = median_and_worst(times);
    Line {
        what: format!("{what}, worst of {MOVING}"),
        value: seconds(worst),
        target: "≤ 2 s".into(),
        beside: format!("median {}; {}", seconds(median), in_order.join(", ")),
    }
}

/// When there were so many files of Instances.
fn until(home: &Home, what: &str, count: usize) -> Result<Instant> {
    let folder = home.path().join("state/instances/default");
    within(PATIENCE, what, || {
        let names = fs::read_dir(&folder).with_context(|| format!("no {}", folder.display()))?;
        let found = names
            .filter_map(Result::ok)
            .filter(|entry| entry.path().extension().is_some_and(|is| is == "yaml"))
            .count();
        ensure!(found == count, "{found} Instances");
        Ok(Instant::now())
    })
    .with_context(|| home.log())
}

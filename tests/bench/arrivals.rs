//! Time from a camera's Hello or Bye to the change of its Instance.
//!
//! The agent probes every ten seconds and handles Hello and Bye only after a probe. So they are sent at different
//! times: when a probe begins, a second later, and so on.

use std::fs;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use leafhost_tests::agent::Home;
use leafhost_tests::lan::Lan;
use leafhost_tests::peer::Peer;
use leafhost_tests::wait::{pass, within};

use crate::calls::{self, Call};
use crate::cameras::{agent, start_cameras};
use crate::table::Line;
use crate::{median_and_worst, seconds};

/// Number of cameras that stay.
const STAYING: u16 = 10;
/// Number of cameras that appear and disappear one after another.
const MOVING: u16 = 10;
/// Time between two probes.
const INTERVAL: Duration = Duration::from_secs(10);
/// Time for which a moving camera stays.
const STAYS: Duration = Duration::from_secs(5);
/// Delay after which a due probe has begun and is far from its end; the status is read slightly late.
const BEGUN: Duration = Duration::from_millis(100);
const TIMEOUT: Duration = Duration::from_secs(30);

pub fn measure() -> Result<Vec<Line>> {
    let lan = Lan::new()?;
    let client = lan.host("client")?;
    let mut cameras = start_cameras(&lan.host("cameras")?, STAYING + MOVING, 0)?;
    for number in STAYING..STAYING + MOVING {
        cameras.tell(&format!("off {number}"))?;
    }
    // The answer shows that the commands were executed.
    cameras.ask("requests")?;
    let (home, mut last) = agent(&client, STAYING.into())?;
    let (mut arrivals, mut departures) = (Vec::new(), Vec::new());
    for number in 0..MOVING {
        let probed = a_probes_begin(&home, &mut last)?;
        let mut comes = probed + BEGUN + Duration::from_secs(number.into());
        if comes < Instant::now() {
            comes += INTERVAL;
        }
        let moving = STAYING + number;
        let found = usize::from(STAYING) + 1;
        arrivals.push(say(
            &mut cameras,
            &home,
            comes,
            "on",
            "hello",
            moving,
            found,
        )?);
        let goes = comes + STAYS;
        let found = STAYING.into();
        departures.push(say(&mut cameras, &home, goes, "off", "bye", moving, found)?);
    }
    // Puts the camera that leaves at the start of a probe first.
    departures.rotate_left(usize::from(MOVING / 2));
    Ok(vec![
        line("camera says Hello → its Instance", &mut arrivals),
        line("camera says Bye → its Instance withdrawn", &mut departures),
    ])
}

/// Waits for the end of a probe and returns the time at which it began.
fn a_probes_begin(home: &Home, last: &mut Call) -> Result<Instant> {
    loop {
        *last = calls::next(home, Some(last))?;
        if last.events.iter().any(|event| event == "timer") {
            return Instant::now()
                .checked_sub(last.wall)
                .context("it began before the clock did");
        }
    }
}

/// Switches a camera and makes it send Hello or Bye at a time; returns the time until the Instances change.
fn say(
    cameras: &mut Peer,
    home: &Home,
    when: Instant,
    switch: &str,
    what: &str,
    number: u16,
    found: usize,
) -> Result<Duration> {
    pass(when.saturating_duration_since(Instant::now()))?;
    cameras.tell(&format!("{switch} {number}"))?;
    // The answer shows that the commands were executed.
    cameras.ask("requests")?;
    let said = Instant::now();
    cameras.tell(&format!("{what} {number}"))?;
    Ok(until(home, what, found)? - said)
}

fn line(what: &str, times: &mut [Duration]) -> Line {
    let in_order: Vec<_> = times.iter().copied().map(seconds).collect();
    let (median, worst) = median_and_worst(times);
    Line {
        what: format!("{what}, worst of {MOVING}"),
        value: seconds(worst),
        target: "≤ 2 s".into(),
        reference: format!(
            "median {}; said as a probe begins, a second later, …: {}",
            seconds(median),
            in_order.join(", ")
        ),
    }
}

/// Waits until there are `count` Instance files and returns the time.
fn until(home: &Home, what: &str, count: usize) -> Result<Instant> {
    let folder = home.path().join("state/instances/default");
    within(TIMEOUT, what, || {
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

//! Wake-ups of the threads of an idle agent.
//!
//! The agent has its own network, because events of the machine's would wake it.

use std::collections::BTreeMap;
use std::fs;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use leafhost_tests::agent::Home;
use leafhost_tests::lan::{self, Host, Lan};
use leafhost_tests::requirement;
use leafhost_tests::wait::pass;

use crate::busy_agent::{configuration, one_of_each};
use crate::installed::HANDLERS;
use crate::process::field;
use crate::table::Line;

/// Time for the start to finish.
const CALM: Duration = Duration::from_secs(15);
const IDLE: Duration = Duration::from_secs(30);
/// Time between two readings of the threads; an idle thread lives longer.
const STEP: Duration = Duration::from_millis(50);
/// Number of threads listed, those with the most wake-ups first.
const NAMED: usize = 5;

/// Handlers that wait until something happens.
const WAITING: [&str; 3] = ["debug-echo", "mock-gpu", "udev"];

pub fn measure() -> Result<Vec<Line>> {
    if requirement::lacks(lan::missing())? {
        return Ok(Vec::new());
    }
    let lan = Lan::new()?;
    let waiting = idle(&lan.host("waits")?, &WAITING, |home| {
        one_of_each(home, &WAITING)?;
        for device in ["full", "zero"] {
            let details = format!("udevRules: ['SUBSYSTEM==\"mem\", KERNEL==\"{device}\"']");
            let text = configuration(device, "udev", &details);
            home.write(&format!("configurations/{device}.yaml"), text)?;
        }
        // Two of debug-echo, four of mock-gpu, three of udev.
        Ok(9)
    })?;
    // Two of debug-echo, four of mock-gpu, one of udev.
    let probing = idle(&lan.host("probes")?, &HANDLERS, |home| {
        one_of_each(home, &HANDLERS)?;
        Ok(7)
    })?;
    let line = |what: &str, target: &str, woken: &Woken| Line {
        what: format!(
            "idle agent, five Configurations{what}: wake-ups per second of the busiest thread"
        ),
        value: format!("{:.2}", rate(woken.most)),
        target: target.into(),
        reference: format!(
            "all {} threads together {:.2}; {}",
            woken.threads,
            rate(woken.all),
            woken.named
        ),
    };
    Ok(vec![
        line(" of handlers that wait for events", "≤ 1", &waiting),
        line(
            ", two of them with handlers that probe every ten seconds",
            "–",
            &probing,
        ),
    ])
}

/// Wake-ups of the threads.
struct Woken {
    /// Number of threads seen.
    threads: usize,
    all: u32,
    most: u32,
    /// Threads with most wake-ups, by name.
    named: String,
}

fn rate(count: u32) -> f64 {
    f64::from(count) / IDLE.as_secs_f64()
}

/// Measures an idle agent once it has found as many devices as `configure` returns.
fn idle(
    host: &Host,
    handlers: &[&str],
    configure: impl Fn(&Home) -> Result<usize>,
) -> Result<Woken> {
    let mut home = Home::on_host(host, "node-a")?;
    for name in handlers {
        home.add_handler(name)?;
    }
    let found = configure(&home)?;
    home.start(&[])?;
    home.instances(found)?;
    pass(CALM)?;
    let pid = home.pid()?;
    let before = waits(pid)?;
    let mut after = before.clone();
    let begun = Instant::now();
    while begun.elapsed() < IDLE {
        pass(STEP)?;
        after.extend(waits(pid)?);
    }
    ensure!(after.len() > 2, "no threads: {after:?}");
    let mut woken: Vec<(u32, &str)> = after
        .iter()
        .map(|(thread, count)| {
            let before = before.get(thread).copied().unwrap_or_default();
            (count - before, thread.1.as_str())
        })
        .collect();
    woken.sort_by(|one, other| other.cmp(one));
    let named: Vec<String> = woken
        .iter()
        .take(NAMED)
        .map(|(count, name)| format!("{name} {:.2}", rate(*count)))
        .collect();
    Ok(Woken {
        threads: after.len(),
        all: woken.iter().map(|(count, _)| count).sum(),
        most: woken.first().map_or(0, |(count, _)| *count),
        named: named.join(", "),
    })
}

/// Returns the voluntary context switches of each thread, by number and name.
fn waits(pid: u32) -> Result<BTreeMap<(u32, String), u32>> {
    let mut waits = BTreeMap::new();
    for entry in fs::read_dir(format!("/proc/{pid}/task"))? {
        let folder = entry?.path();
        let Ok(status) = fs::read_to_string(folder.join("status")) else {
            // The thread has ended.
            continue;
        };
        let name = fs::read_to_string(folder.join("comm")).unwrap_or_default();
        let thread = folder.file_name().and_then(|name| name.to_str());
        let thread = thread.context("no number")?.parse()?;
        let count = field(&status, "voluntary_ctxt_switches:")?;
        waits.insert((thread, name.trim().to_owned()), count);
    }
    Ok(waits)
}

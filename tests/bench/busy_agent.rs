//! An agent with all five handlers and many sessions, which the bench triggers.
//!
//! A session that wakes often is called once a second at most. For many calls there are many sessions: Configurations
//! of `udev` that events of common devices wake in turn.

use std::fs;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use leafhost_tests::agent::Home;
use leafhost_tests::wait::pass;
use serde_json::Value;

use crate::installed::{DEVICES_OF_EACH, HANDLERS, ONE_OF_EACH, as_installed};
use crate::process::Memory;
use crate::statistics::metric;

/// Devices for which the bench triggers change events.
const DEVICES: [&str; 5] = ["full", "null", "random", "urandom", "zero"];
/// Number of Configurations of `udev` for each of them.
const SESSIONS: usize = 10;
/// Time between events of two devices.
const BEAT: Duration = Duration::from_millis(200);
/// Number of events per device while memory is measured.
const ROUNDS: u32 = 10;
/// Number of measurements between two events.
const LOOKS: u32 = 4;
/// Total number of Configurations.
pub const CONFIGURATIONS: usize = DEVICES.len() * SESSIONS + HANDLERS.len();

/// Returns a Configuration of a handler.
pub fn configuration(name: &str, handler: &str, details: &str) -> String {
    let details = details.trim_end().replace('\n', "\n      ");
    format!(
        "apiVersion: akri.sh/v0\nkind: Configuration\nmetadata: {{name: \"{name}\"}}\nspec:\n  discoveryHandler:\n    name: {handler}\n    discoveryDetails: |\n      {details}\n"
    )
}

/// Adds [`ONE_OF_EACH`] for the handlers in `files`.
pub fn one_of_each(home: &Home, files: &[&str]) -> Result<()> {
    let chosen = ONE_OF_EACH.iter().filter(|(file, ..)| files.contains(file));
    for (_, name, handler, details) in chosen {
        let text = configuration(name, handler, details);
        home.write(&format!("configurations/{name}.yaml"), text)?;
    }
    Ok(())
}

/// Agent with all handlers and many sessions.
pub struct BusyAgent {
    home: Home,
    metrics: String,
    rounds: u32,
}

impl BusyAgent {
    /// Starts the agent and waits until its handlers are loaded; none is called yet.
    pub fn new(port: u16) -> Result<Self> {
        let mut home = Home::new()?;
        as_installed(&mut home)?;
        for name in HANDLERS {
            home.add_handler(name)?;
        }
        let metrics = format!("127.0.0.1:{port}");
        home.start(&["--metrics-listen", &metrics])?;
        home.until("the handlers are loaded", |status| {
            let handlers = status.get("handlers").and_then(|all| all.as_array());
            let is_loaded =
                |handler: &&Value| handler.get("status").is_some_and(|is| is == "Waiting");
            handlers.is_some_and(|all| all.iter().filter(is_loaded).count() == HANDLERS.len())
        })?;
        Ok(Self {
            home,
            metrics,
            rounds: 0,
        })
    }

    /// Adds the Configurations; returns when all sessions have answered once.
    pub fn configure(&self) -> Result<()> {
        one_of_each(&self.home, &HANDLERS)?;
        for device in DEVICES {
            for number in 0..SESSIONS {
                let name = format!("{device}-{number}");
                let details = format!("udevRules: ['SUBSYSTEM==\"mem\", KERNEL==\"{device}\"']");
                let text = configuration(&name, "udev", &details);
                self.home
                    .write(&format!("configurations/{name}.yaml"), text)?;
            }
        }
        let count = DEVICES.len() * SESSIONS + DEVICES_OF_EACH;
        self.home.instances(count).map(drop)
    }

    /// Returns the agent's home.
    pub fn home(&self) -> &Home {
        &self.home
    }

    /// Returns the sum of the metrics with this prefix.
    pub fn metric(&self, name: &str) -> Result<f64> {
        metric(&self.metrics, name)
    }

    /// Triggers `udev` sessions until all handlers together had `until` calls. With `changes`, each round also
    /// rewrites two Configurations, which changes no device.
    pub fn call(&mut self, until: u32, changes: bool) -> Result<()> {
        let calls = |agent: &Self| agent.metric("leafhost_handler_calls_total");
        // Even ten calls a second would stay within this limit.
        let limit = Duration::from_mins(1) + Duration::from_millis(100) * until;
        let begun = Instant::now();
        while calls(self)? < f64::from(until) {
            ensure!(begun.elapsed() < limit, "too few calls: {}", calls(self)?);
            for device in DEVICES {
                changed(device)?;
                pass(BEAT)?;
            }
            self.rounds += 1;
            if changes {
                let mark = format!("# {}", self.rounds);
                for (name, handler, details) in [
                    ("echo", "debugEcho", "descriptions: [a, b]"),
                    ("gpus", "mock-gpu", "count: 4"),
                ] {
                    let text = configuration(name, handler, &format!("{details}\n{mark}"));
                    self.home
                        .write(&format!("configurations/{name}.yaml"), text)?;
                }
            }
        }
        Ok(())
    }

    /// Returns the median of many memory measurements, at all times between two events.
    pub fn memory(&self) -> Result<Memory> {
        let pid = self.home.pid()?;
        let mut looks = Vec::new();
        for _ in 0..ROUNDS {
            for device in DEVICES {
                changed(device)?;
                for _ in 0..LOOKS {
                    pass(BEAT / LOOKS)?;
                    looks.push(Memory::of(pid)?);
                }
            }
        }
        looks.sort_by_key(|look| look.resident);
        looks.get(looks.len() / 2).copied().context("no look")
    }
}

/// Triggers a change event of a device.
fn changed(device: &str) -> Result<()> {
    let event = format!("/sys/class/mem/{device}/uevent");
    fs::write(&event, "change").with_context(|| format!("cannot write {event}"))
}

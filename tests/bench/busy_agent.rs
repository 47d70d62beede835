//! An agent with all five handlers in use and many sessions, which are called whenever the bench says so.
//!
//! A session that others wake often is called once a second. So that calls are many, there are many sessions: Configurations
//! of `udev`, woken in turn by events of devices that every machine has.

use std::ffi::OsStr;
use std::fs;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use leafhost_tests::agent::Home;
use leafhost_tests::program::source_tree;
use serde_json::Value;

use crate::process::{Memory, pass};
use crate::reached::Watched;
use crate::statistics::metric;

/// Devices that say from time to time that they changed, though nothing did.
const DEVICES: [&str; 5] = ["full", "null", "random", "urandom", "zero"];
/// Configurations of `udev` for each of them.
const SESSIONS: usize = 10;
/// From one event to the next of another device.
const BEAT: Duration = Duration::from_millis(200);
/// While its memory is looked at, so often each device.
const ROUNDS: u32 = 10;
/// Looks from one event to the next.
const LOOKS: u32 = 4;
/// How many Configurations there are.
pub const CONFIGURATIONS: usize = DEVICES.len() * SESSIONS + HANDLERS.len();
/// All handlers that come with the agent.
pub const HANDLERS: [&str; 5] = ["debug-echo", "mock-gpu", "onvif", "opcua", "udev"];

/// Has the agent run with the environment that it has as an installed service.
pub fn as_installed(home: &mut Home) -> Result<()> {
    let unit = source_tree().join("deploy/systemd/leafhost.service");
    let text = fs::read_to_string(unit).context("no unit")?;
    let lines = text.lines();
    let set: Vec<(&str, &OsStr)> = lines
        .filter_map(|line| line.strip_prefix("Environment="))
        .flat_map(str::split_whitespace)
        .filter_map(|set| set.split_once('='))
        .map(|(name, value)| (name, value.as_ref()))
        .collect();
    ensure!(!set.is_empty(), "the unit sets nothing");
    home.set_environment(&set);
    Ok(())
}

/// A handler's Configuration of the same name.
pub fn configuration(name: &str, handler: &str, details: &str) -> String {
    let details = details.trim_end().replace('\n', "\n      ");
    format!(
        "apiVersion: akri.sh/v0\nkind: Configuration\nmetadata: {{name: {name}}}\nspec:\n  discoveryHandler:\n    name: {handler}\n    discoveryDetails: |\n      {details}\n"
    )
}

/// A Configuration of each of these handlers, which finds little or nothing on most machines and costs them nothing.
pub fn one_of_each(home: &Home, files: &[&str]) -> Result<()> {
    let all = [
        ("debug-echo", "echo", "debugEcho", "descriptions: [a, b]"),
        ("mock-gpu", "gpus", "mock-gpu", "count: 4"),
        ("onvif", "cameras", "onvif", "discoveryTimeoutSeconds: 1"),
        (
            "opcua",
            "plcs",
            "opcua",
            "opcuaDiscoveryMethod: {standard: {discoveryUrls: [\"opc.tcp://127.0.0.1:4840/\"]}}",
        ),
        (
            "udev",
            "null",
            "udev",
            "udevRules: ['SUBSYSTEM==\"mem\", KERNEL==\"null\"']",
        ),
    ];
    for (_, name, handler, details) in all.into_iter().filter(|(file, ..)| files.contains(file)) {
        let text = configuration(name, handler, details);
        home.write(&format!("configurations/{name}.yaml"), text)?;
    }
    Ok(())
}

/// The agent.
pub struct BusyAgent {
    home: Home,
    metrics: String,
    rounds: u32,
    watched: Option<Watched>,
}

impl BusyAgent {
    /// One with its handlers loaded that has called none of them for devices.
    pub fn new(port: u16) -> Result<Self> {
        Self::begin(port, |home, arguments| home.start(arguments).map(|()| None))
    }

    /// The same, of which is seen what it reaches.
    pub fn watched(port: u16) -> Result<Self> {
        Self::begin(port, |home, arguments| {
            Watched::start(home.command(arguments)?, &home.log_file()).map(Some)
        })
    }

    fn begin(
        port: u16,
        start: impl FnOnce(&mut Home, &[&str]) -> Result<Option<Watched>>,
    ) -> Result<Self> {
        let mut home = Home::new()?;
        as_installed(&mut home)?;
        for name in HANDLERS {
            home.add_handler(name)?;
        }
        let metrics = format!("127.0.0.1:{port}");
        let watched = start(&mut home, &["--metrics-listen", &metrics])?;
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
            watched,
        })
    }

    /// Ends it; the functions that it has reached, if that was to be seen.
    pub fn stop(self) -> Result<Vec<String>> {
        self.watched.map_or(Ok(Vec::new()), Watched::stop)
    }

    /// Names the devices to look for; returns when all sessions have answered once.
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
        // One each and one more, two echoes, four GPUs.
        let count = DEVICES.len() * SESSIONS + 1 + 2 + 4;
        self.home.instances(count).map(drop)
    }

    /// Its files.
    pub fn home(&self) -> &Home {
        &self.home
    }

    /// What of its metrics begins so, in sum.
    pub fn metric(&self, name: &str) -> Result<f64> {
        metric(&self.metrics, name)
    }

    /// Has the `udev` sessions called until there were so many calls of all handlers; with `changes`, two other Configurations are
    /// written anew in every round, too, which changes no device.
    pub fn call(&mut self, until: u32, changes: bool) -> Result<()> {
        let calls = |agent: &Self| agent.metric("leafhost_handler_calls_total");
        // Ten a second would be few.
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

    /// Its memory in use: the median of many looks, at all times between one event and the next.
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

/// Has a device say that it changed.
fn changed(device: &str) -> Result<()> {
    let event = format!("/sys/class/mem/{device}/uevent");
    fs::write(&event, "change").with_context(|| format!("cannot write {event}"))
}

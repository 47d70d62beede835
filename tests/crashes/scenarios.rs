//! Scenarios in which the agent is killed: a first start, a change of everything, and withdrawals.

use std::fs;

use anyhow::Result;
use leafhost_tests::agent::Home;
use leafhost_tests::program;
use leafhost_tests::wait::eventually;
use nix::sys::signal::Signal;

use crate::disk_state::{Expected, is_as_expected};

/// State before, change, and expected state after it.
#[derive(Clone, Copy)]
pub struct Scenario {
    /// Name in the report.
    pub name: &'static str,
    /// Creates the files before the first start.
    pub begin: fn(&Home) -> Result<()>,
    /// Expected state before the change; `None` if the agent is not started before.
    pub before: Option<fn() -> Expected>,
    /// Changes the files while the agent runs.
    pub change: fn(&Home) -> Result<()>,
    /// Expected state after the change.
    pub after: fn() -> Expected,
}

impl Scenario {
    /// Creates a home in the state before the change.
    pub fn home(&self) -> Result<Home> {
        let mut home = Home::new()?;
        (self.begin)(&home)?;
        if let Some(before) = self.before {
            let before = before();
            home.start(&[])?;
            eventually("the beginning", || is_as_expected(&home, &before))?;
            home.stop(Signal::SIGTERM)?;
        }
        Ok(home)
    }
}

pub const FIRST_START: Scenario = Scenario {
    name: "first start",
    begin: |home| {
        home.add_handler("debug-echo")?;
        home.write("configurations/echo.yaml", echo("echo", "[a, b]", 2))
    },
    before: None,
    change: |_| Ok(()),
    after: || Expected {
        instances: [("echo", (2, 2))].into(),
        handlers: ["debug-echo.wasm"].into(),
    },
};

pub const CHANGE: Scenario = Scenario {
    name: "change",
    begin: |home| {
        home.add_handler("debug-echo")?;
        home.write("configurations/echo.yaml", echo("echo", "[a, b]", 2))?;
        home.write("configurations/more.yaml", echo("more", "[c]", 1))
    },
    before: Some(|| Expected {
        instances: [("echo", (2, 2)), ("more", (1, 1))].into(),
        handlers: ["debug-echo.wasm"].into(),
    }),
    change: |home| {
        home.remove("configurations/more.yaml")?;
        replace(home, "debug-echo.wasm", &version("debug-echo", 2)?)?;
        home.write("configurations/echo.yaml", echo("echo", "[b, d]", 3))
    },
    after: || Expected {
        instances: [("echo", (2, 3))].into(),
        handlers: ["debug-echo.wasm"].into(),
    },
};

pub const WITHDRAWAL: Scenario = Scenario {
    name: "withdrawal",
    begin: |home| {
        home.add_handler("debug-echo")?;
        home.add_handler("mock-gpu")?;
        home.write("configurations/echo.yaml", echo("echo", "[a]", 1))?;
        home.write("configurations/gpu.yaml", gpus(3))
    },
    before: Some(|| Expected {
        instances: [("echo", (1, 1)), ("gpu", (3, 1))].into(),
        handlers: ["debug-echo.wasm", "mock-gpu.wasm"].into(),
    }),
    change: |home| {
        home.remove("configurations/echo.yaml")?;
        home.remove("handlers/debug-echo.wasm")?;
        home.write("configurations/gpu.yaml", gpus(1))
    },
    after: || Expected {
        instances: [("gpu", (1, 1))].into(),
        handlers: ["mock-gpu.wasm"].into(),
    },
};

/// Returns a Configuration of shared devices without a grace period.
pub fn echo(name: &str, descriptions: &str, capacity: u64) -> String {
    format!(
        "apiVersion: akri.sh/v0\n\
         kind: Configuration\n\
         metadata:\n  name: {name}\n  annotations: {{leafhost.dev/grace: \"0\"}}\n\
         spec:\n  discoveryHandler:\n    name: debugEcho\n    discoveryDetails: |\n      descriptions: {descriptions}\n  \
         capacity: {capacity}\n"
    )
}

fn gpus(count: u64) -> String {
    format!(
        "apiVersion: akri.sh/v0\n\
         kind: Configuration\n\
         metadata:\n  name: gpu\n\
         spec:\n  discoveryHandler:\n    name: mock-gpu\n    discoveryDetails: |\n      count: {count}\n  capacity: 1\n"
    )
}

/// Returns a handler with an additional custom section that holds the number: different bytes, same behaviour.
pub fn version(name: &str, number: u32) -> Result<Vec<u8>> {
    let mut bytes = fs::read(program::handler(name)?)?;
    // Section 0, its length, the length of its name, its name, and its content.
    bytes.extend([0, 6, 1, b'v']);
    bytes.extend(number.to_le_bytes());
    Ok(bytes)
}

/// Replaces a handler file by a rename.
pub fn replace(home: &Home, name: &str, bytes: &[u8]) -> Result<()> {
    let new = home.path().join("handlers").join(format!(".{name}"));
    fs::write(&new, bytes)?;
    fs::rename(&new, home.path().join("handlers").join(name))?;
    Ok(())
}

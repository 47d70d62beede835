//! Agent and handlers as they are installed.

use std::ffi::OsStr;
use std::fs;

use anyhow::{Context, Result, ensure};
use leafhost_tests::agent::Home;
use leafhost_tests::program::source_tree;

/// All handlers that come with the agent.
pub const HANDLERS: [&str; 5] = ["debug-echo", "mock-gpu", "onvif", "opcua", "udev"];
/// One Configuration per handler, as file of the handler, name, handler and details. They find few devices and put no load on the machine.
pub const ONE_OF_EACH: [(&str, &str, &str, &str); 5] = [
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
/// Number of devices of [`ONE_OF_EACH`].
pub const DEVICES_OF_EACH: usize = 2 + 4 + 1;

/// Sets the environment that the service unit gives the agent.
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

//! Calls of a handler: a single one by `leafhost handler run`, or those of an agent from its status.

use std::io::Write as _;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use leafhost_tests::agent::Home;
use leafhost_tests::lan::Host;
use leafhost_tests::program;
use leafhost_tests::wait::eventually;
use serde_json::Value;

/// Result and cost of a call.
#[derive(Debug, Clone)]
pub struct Call {
    pub ended: String,
    pub events: Vec<String>,
    pub wall: Duration,
    /// CPU time of the guest.
    pub cpu: Duration,
    /// Peak memory of the guest, in bytes.
    pub memory: u64,
    pub devices: usize,
}

impl Call {
    /// Reads the fields that the status and `handler run` have in common.
    fn read(of: &Value, ended: &str, devices: usize) -> Result<Self> {
        let time = |name: &str| -> Result<Duration> {
            let milliseconds = of.get(name).and_then(Value::as_f64);
            let milliseconds = milliseconds.with_context(|| format!("no {name} in {of:#}"))?;
            Ok(Duration::from_secs_f64(milliseconds / 1e3))
        };
        let events = of.get("events").and_then(Value::as_array);
        let memory = of.get("memoryBytes").and_then(Value::as_u64);
        Ok(Self {
            ended: ended.to_owned(),
            events: events
                .context("no events")?
                .iter()
                .filter_map(|event| Some(event.as_str()?.to_owned()))
                .collect(),
            wall: time("wallMs")?,
            cpu: time("cpuMs")?,
            memory: memory.context("no memory")?,
            devices,
        })
    }
}

/// Runs a first call; returns its cost and the IDs of the devices found.
pub fn first(host: &Host, handler: &str, details: &str) -> Result<(Call, Vec<String>)> {
    let mut file = tempfile::NamedTempFile::new()?;
    file.write_all(details.as_bytes())?;
    let mut command = host.command(program::leafhost()?);
    command
        .args(["handler", "run"])
        .arg(program::handler(handler)?)
        .arg("--details")
        .arg(file.path())
        .args(["-o", "json"]);
    let document: Value = serde_json::from_str(&program::finish(command)?.good()?)?;
    let devices = document.get("devices").and_then(Value::as_array);
    let ids: Vec<String> = devices
        .context("no devices")?
        .iter()
        .filter_map(|device| Some(device.get("id")?.as_str()?.to_owned()))
        .collect();
    let call = document.get("call").context("no call")?;
    Ok((Call::read(call, "", ids.len())?, ids))
}

/// Waits for the next call of the agent's only session after `before` and returns it.
pub fn next(home: &Home, before: Option<&Call>) -> Result<Call> {
    eventually("a call", || {
        let status = home.status()?;
        let session = status.pointer("/configurations/0/sessions/0");
        let session = session.context("no session")?;
        let ended = session.get("lastCall").and_then(Value::as_str);
        let ended = ended.context("no call yet")?;
        ensure!(
            before.is_none_or(|before| before.ended != ended),
            "the call at {ended} was the last"
        );
        let result = session.get("result").and_then(Value::as_str);
        // Cameras that have left make the answer partial.
        ensure!(
            matches!(result, Some("ok" | "partial")),
            "the call failed: {session:#}"
        );
        let devices = session.get("devices").and_then(Value::as_u64);
        let devices = usize::try_from(devices.context("no devices")?)?;
        Call::read(session, ended, devices)
    })
    .with_context(|| home.log())
}

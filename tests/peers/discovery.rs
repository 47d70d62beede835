//! Discovery on a host with `leafhost handler run`.

use std::collections::BTreeMap;
use std::io::Write as _;

use anyhow::{Context, Result, ensure};
use leafhost_tests::lan::Host;
use leafhost_tests::program;
use serde_json::Value;
use tempfile::NamedTempFile;

/// Result of a discovery.
#[derive(Debug)]
pub struct Found(pub Value);

/// Runs a handler on a host with these details, its shipped grants and more arguments.
pub fn discover(host: &Host, handler: &str, details: &str, more: &[&str]) -> Result<Found> {
    let mut file = NamedTempFile::new()?;
    file.write_all(details.as_bytes())?;
    let mut command = host.command(program::leafhost()?);
    command
        .args(["handler", "run"])
        .arg(program::handler(handler)?)
        .arg("--details")
        .arg(file.path())
        .args(["-o", "json"])
        .args(more);
    let ended = program::finish(command)?;
    ensure!(ended.code == Some(0), "{ended:?}");
    let document = serde_json::from_str(&ended.out).context("no JSON")?;
    Ok(Found(document))
}

impl Found {
    pub fn devices(&self) -> Vec<&Value> {
        let devices = self.0.get("devices").and_then(Value::as_array);
        devices.into_iter().flatten().collect()
    }

    /// Returns the IDs, sorted.
    pub fn ids(&self) -> Vec<&str> {
        let mut ids: Vec<_> = self
            .devices()
            .into_iter()
            .filter_map(|device| device.get("id")?.as_str())
            .collect();
        ids.sort_unstable();
        ids
    }

    /// Returns the only device.
    pub fn device(&self) -> Result<Device<'_>> {
        match self.devices().as_slice() {
            [device] => Ok(Device(device)),
            devices => anyhow::bail!("{} devices: {:#}", devices.len(), self.0),
        }
    }

    /// Returns the device whose ID has this prefix.
    pub fn device_at(&self, begin: &str) -> Result<Device<'_>> {
        self.devices()
            .into_iter()
            .map(Device)
            .find(|device| device.text("/id").is_some_and(|id| id.starts_with(begin)))
            .with_context(|| format!("no device at {begin}: {:#}", self.0))
    }

    /// Returns rule and reason of each explanation whose subject contains `subject`.
    pub fn skipped(&self, subject: &str) -> Vec<(&str, &str)> {
        let all = self.0.get("skipped").and_then(Value::as_array);
        all.into_iter()
            .flatten()
            .filter_map(|one| {
                let text = |name| one.get(name)?.as_str();
                text("subject")?
                    .contains(subject)
                    .then_some((text("rule")?, text("reason")?))
            })
            .collect()
    }
}

/// Device of a discovery.
#[derive(Debug, Clone, Copy)]
pub struct Device<'a>(pub &'a Value);

impl<'a> Device<'a> {
    pub fn text(self, pointer: &str) -> Option<&'a str> {
        self.0.pointer(pointer)?.as_str()
    }

    pub fn properties(self) -> BTreeMap<&'a str, &'a str> {
        self.0
            .get("properties")
            .and_then(Value::as_object)
            .into_iter()
            .flatten()
            .filter_map(|(name, value)| Some((name.as_str(), value.as_str()?)))
            .collect()
    }

    /// Returns a text attribute.
    pub fn attribute(self, name: &str) -> Option<&'a str> {
        self.text(&format!("/attributes/{name}/string"))
    }

    /// Returns a boolean attribute.
    pub fn has(self, name: &str) -> Option<bool> {
        self.0
            .pointer(&format!("/attributes/{name}/bool"))?
            .as_bool()
    }
}

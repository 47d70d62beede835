//! A real kernel event: a block device appears and is an Instance; it goes and the Instance goes.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use leafhost_tests::agent::Home;
use leafhost_tests::wait::eventually;
use serde_json::Value;

const ZRAM: &str = r#"apiVersion: akri.sh/v0
kind: Configuration
metadata:
  name: zram
spec:
  discoveryHandler:
    name: udev
    discoveryDetails: |
      udevRules:
        - SUBSYSTEM=="block", KERNEL=="zram*"
"#;

/// A compressed block device made by writing to sysfs, removed on drop.
struct Zram(String);

impl Zram {
    fn add() -> Result<Self> {
        let id = fs::read_to_string("/sys/class/zram-control/hot_add")
            .context("cannot add a zram device")?;
        Ok(Self(id.trim().to_owned()))
    }
}

impl Drop for Zram {
    fn drop(&mut self) {
        let _ = fs::write("/sys/class/zram-control/hot_remove", &self.0);
    }
}

#[test]
fn a_device_plugged_in_is_an_instance_and_unplugged_is_none() -> Result<()> {
    if !Path::new("/sys/class/zram-control/hot_add").exists() || !nix::unistd::geteuid().is_root() {
        let remedy = "sudo modprobe zram && sudo make test-all";
        if std::env::var("CI").is_ok_and(|ci| ci == "true") {
            bail!("no zram here, bring it with: {remedy}");
        }
        eprintln!("skipped: no zram here, bring it with: {remedy}");
        return Ok(());
    }
    let mut home = Home::new()?;
    home.add_handler("udev")?;
    home.write("configurations/zram.yaml", ZRAM)?;
    home.start(&[])?;
    home.until("the handler is Active", |status| {
        status
            .pointer("/handlers/0/status")
            .is_some_and(|status| status == "Active")
    })?;
    let before = home
        .status()?
        .get("instances")
        .and_then(Value::as_array)
        .map_or(0, Vec::len);
    let zram = Zram::add()?;
    let node = format!("/dev/zram{}", zram.0);
    home.instances(before + 1)?;
    let status = home.status()?;
    ensure!(
        status.to_string().contains(&node),
        "{node} is not in {status:#}"
    );
    let spec = home.cdi().join("akri.sh-zram_leafhost.json");
    eventually("the CDI spec names the node", || {
        ensure!(fs::read_to_string(&spec)?.contains(&node), "not yet");
        Ok(())
    })?;
    drop(zram);
    home.instances(before)?;
    Ok(())
}

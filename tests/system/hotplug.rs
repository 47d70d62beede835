//! Real kernel event: a block device appears and gets an Instance; it disappears and the Instance is withdrawn.

use std::fs;

use anyhow::{Result, ensure};
use leafhost_tests::agent::Home;
use leafhost_tests::requirement;
use leafhost_tests::wait::eventually;
use leafhost_tests::zram::{self, Zram};

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

#[test]
fn a_plugged_in_device_has_an_instance_until_it_is_unplugged() -> Result<()> {
    if requirement::lacks(zram::missing())? {
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
    let before = fs::read_dir("/sys/block")?
        .filter_map(|entry| Some(entry.ok()?.file_name()))
        .filter(|name| name.to_string_lossy().starts_with("zram"))
        .count();
    home.instances(before)?;
    let zram = Zram::add()?;
    let node = zram.node();
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

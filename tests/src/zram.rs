//! Real hot-plugged device: a compressed RAM disk, added through sysfs.

use std::fs;

use anyhow::{Context, Result};

use crate::requirement::{self, Missing};

const ADD: &str = "/sys/class/zram-control/hot_add";

/// Returns what this machine lacks for such devices.
pub fn missing() -> Option<Missing> {
    let remedy = "sudo modprobe zram && sudo -E make test-all";
    requirement::root(remedy).or_else(|| requirement::files(&[ADD], remedy))
}

/// Device, removed on drop.
#[derive(Debug)]
pub struct Zram(String);

impl Zram {
    /// Adds a device with the lowest free number.
    pub fn add() -> Result<Self> {
        let id = fs::read_to_string(ADD).context("cannot add a zram device")?;
        Ok(Self(id.trim().to_owned()))
    }

    /// Returns the name, such as `zram1`.
    pub fn name(&self) -> String {
        format!("zram{}", self.0)
    }

    /// Returns the path of the device node, such as `/dev/zram1`.
    pub fn node(&self) -> String {
        format!("/dev/{}", self.name())
    }
}

impl Drop for Zram {
    fn drop(&mut self) {
        if let Err(error) = fs::write("/sys/class/zram-control/hot_remove", &self.0) {
            eprintln!("{} stays: {error}", self.name());
        }
    }
}

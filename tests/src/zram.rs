//! A real device that comes and goes: a compressed block device, made by reading from sysfs.

use std::fs;

use anyhow::{Context, Result};

use crate::requirement::{self, Missing};

const ADD: &str = "/sys/class/zram-control/hot_add";

/// What this machine lacks for it.
pub fn missing() -> Option<Missing> {
    let remedy = "sudo modprobe zram && sudo -E make test-all";
    requirement::root(remedy).or_else(|| requirement::files(&[ADD], remedy))
}

/// The device, removed on drop.
#[derive(Debug)]
pub struct Zram(String);

impl Zram {
    /// A new one, with the lowest free number.
    pub fn add() -> Result<Self> {
        let id = fs::read_to_string(ADD).context("cannot add a zram device")?;
        Ok(Self(id.trim().to_owned()))
    }

    /// `zram1`, for instance.
    pub fn name(&self) -> String {
        format!("zram{}", self.0)
    }

    /// `/dev/zram1`, for instance.
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

//! The result of udev: `udevadm test` with rules that each set a property.

use std::collections::BTreeSet;
use std::error::Error;
use std::fmt::Write as _;
use std::fs;
use std::process::{Command, Stdio};

use leafhost_udev::Rule;

use crate::sample::{Sample, Samples};

const RULES: &str = "/run/udev/rules.d/10-leafhost.rules";
const MARK: &str = "LEAFHOST_RULE_";

/// Returns devices and the rules that hold for them, by index. If `only` is not empty, tests only the devices in it.
pub fn holding(
    rules: &[Rule],
    samples: &Samples,
    only: &BTreeSet<(usize, usize)>,
) -> Result<BTreeSet<(usize, usize)>, Box<dyn Error>> {
    write(rules, samples.database_keys())?;
    let chosen: BTreeSet<usize> = only.iter().map(|(device, _)| *device).collect();
    let mut holding = BTreeSet::new();
    for (device, sample) in samples.all.iter().enumerate() {
        if chosen.is_empty() || chosen.contains(&device) {
            holding.extend(ask(sample)?.into_iter().map(|rule| (device, rule)));
        }
    }
    Ok(holding)
}

/// Returns true if a rule holds for a device.
pub fn holds(rule: &Rule, sample: &Sample) -> Result<bool, Box<dyn Error>> {
    let keys: Vec<&str> = sample.database.iter().map(String::as_str).collect();
    write(std::slice::from_ref(rule), keys)?;
    Ok(!ask(sample)?.is_empty())
}

/// Writes a rules file. udevd's rules have already stored the properties in its database; these rules import them.
fn write<'a>(
    rules: &[Rule],
    keys: impl IntoIterator<Item = &'a str>,
) -> Result<(), Box<dyn Error>> {
    let mut text = String::new();
    for key in keys {
        writeln!(text, "IMPORT{{db}}=\"{key}\"")?;
    }
    for (index, rule) in rules.iter().enumerate() {
        writeln!(text, "{rule}, ENV{{{MARK}{index}}}=\"1\"")?;
    }
    fs::write(RULES, text)?;
    Ok(())
}

fn ask(sample: &Sample) -> Result<Vec<usize>, Box<dyn Error>> {
    let before = fs::read(&sample.database_file);
    let output = Command::new("udevadm")
        .args(["test", "--action=change"])
        .arg(format!("/sys{}", sample.devpath))
        .stdin(Stdio::piped())
        .output();
    // udevadm has stored the results of the rules; the next device may ask for those of this one.
    match before {
        Ok(before) => fs::write(&sample.database_file, before)?,
        Err(_) => drop(fs::remove_file(&sample.database_file)),
    }
    let output = output?;
    let said = String::from_utf8_lossy(&output.stderr);
    // udevadm warns of `device/` and `../` in names and accepts them.
    let mut complaints = said
        .lines()
        .filter(|line| line.contains(&format!("{RULES}:")) && !line.contains("future kernels"));
    let complaint = complaints.next();
    if !output.status.success() || complaint.is_some() {
        let said = complaint.unwrap_or(&said);
        return Err(format!("udevadm test {}: {said}", sample.devpath).into());
    }
    let told = String::from_utf8_lossy(&output.stdout);
    let rules = told.lines().filter_map(|line| {
        let index = line.strip_prefix(MARK)?.strip_suffix("=1")?;
        index.parse().ok()
    });
    Ok(rules.collect())
}

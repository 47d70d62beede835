//! Time per device for few and for very many devices of one handler.
//!
//! The time runs from the reading of the Configurations until all Instances and CDI specs are on disk. The result
//! compares the time per device of 10,000 and of 1,000, for which constant costs no longer matter.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use leafhost_tests::agent::Home;
use leafhost_tests::wait::pass;
use serde_json::Value;

use crate::busy_agent::configuration;
use crate::installed::as_installed;
use crate::process::{Memory, mb};
use crate::statistics::quantile;
use crate::table::Line;
use crate::watch::{Watch, What, is_placed};

/// Time for which a file must be unchanged before the agent reads it.
const SETTLE: Duration = Duration::from_millis(200);
const CONFIGURATIONS: usize = 3;
/// Number of devices, and number of repetitions.
const STEPS: [(usize, usize); 4] = [(10, 5), (100, 5), (1_000, 5), (10_000, 3)];

pub fn measure() -> Result<Vec<Line>> {
    let mut each = Vec::new();
    let mut memory = 0;
    for (devices, times) in STEPS {
        let mut took = Vec::new();
        for _ in 0..times {
            let (time, resident) = appear(devices)?;
            took.push(time.div_f64(f64::from(u32::try_from(devices)?)));
            memory = resident;
        }
        took.sort();
        each.push(quantile(&took, 0.5));
    }
    let [ten, hundred, thousand, all] = each.as_slice() else {
        anyhow::bail!("{} steps", each.len());
    };
    let us = |time: &Duration| format!("{:.0} µs", time.as_secs_f64() * 1e6);
    Ok(vec![Line {
        what: format!(
            "10,000 devices from {CONFIGURATIONS} Configurations of one handler: time a device, over that of 1,000"
        ),
        value: format!("{:.2} ×", all.as_secs_f64() / thousand.as_secs_f64()),
        target: "≤ 1.2 ×".into(),
        reference: format!(
            "a device takes {} of 10, {} of 100, {} of 1,000, {} of 10,000, its Instance and CDI entry synced (medians); agent's memory then {}",
            us(ten),
            us(hundred),
            us(thousand),
            us(all),
            mb(memory)
        ),
    }])
}

/// Finds `devices` devices; returns the time and the agent's memory in KiB.
fn appear(devices: usize) -> Result<(Duration, u32)> {
    let mut home = Home::new()?;
    as_installed(&mut home)?;
    home.add_handler("mock-gpu")?;
    let folder = home.path().join("state/instances/default");
    fs::create_dir_all(&folder)?;
    fs::create_dir_all(home.cdi())?;
    home.start(&[])?;
    home.until("the handler is loaded", |status| {
        status.pointer("/handlers/0").is_some()
    })?;
    pass(Duration::from_millis(500))?;
    let watch = Watch::new(&[folder.clone(), home.cdi().to_owned()])?;
    for number in 0..CONFIGURATIONS {
        let count = (devices + CONFIGURATIONS - 1 - number) / CONFIGURATIONS;
        let text = configuration(
            &format!("gpus-{number}"),
            "mock-gpu",
            &format!("count: {count}"),
        );
        home.write(&format!("configurations/gpus-{number}.yaml"), text)?;
    }
    let counts = Instant::now() + SETTLE;
    let mut instances = 0;
    let mut entries: BTreeMap<PathBuf, usize> = BTreeMap::new();
    while instances < devices || entries.values().sum::<usize>() < devices {
        let placed = watch.next("all devices", |what| {
            is_placed(what, "yaml") || is_placed(what, "json")
        });
        let placed = placed
            .with_context(|| format!("{instances} Instances, {entries:?}\n{}", home.log()))?;
        let What::Placed(path) = placed.what else {
            continue;
        };
        if path.starts_with(&folder) {
            instances += 1;
        } else {
            entries.insert(path.clone(), specified(&path)?);
        }
    }
    for folder in [&folder, home.cdi()] {
        File::open(folder)?.sync_all()?;
    }
    let took = Instant::now().saturating_duration_since(counts);
    ensure!(
        instances == devices,
        "{instances} files for {devices} devices"
    );
    Ok((took, Memory::of(home.pid()?)?.resident))
}

/// Returns the number of devices of a CDI spec, without the one that stands for all.
fn specified(path: &PathBuf) -> Result<usize> {
    let spec: Value = serde_json::from_slice(&fs::read(path)?)?;
    let devices = spec.get("devices").and_then(Value::as_array);
    let devices = devices.context("no devices")?.iter();
    let names = devices.filter_map(|device| device.get("name")?.as_str());
    Ok(names.filter(|name| *name != "all").count())
}

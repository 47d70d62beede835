//! Many cameras on one network: the first scan, scans without changes, and slow cameras among good ones.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use leafhost_tests::agent::Home;
use leafhost_tests::lan::{Host, Lan};
use leafhost_tests::peer::{self, Peer};
use leafhost_tests::program::processor_time;
use leafhost_tests::wait::pass;

use crate::calls::{self, Call};
use crate::table::Line;
use crate::{median_and_worst, seconds};

/// Details of the Configuration: the default, explicit because `WINDOW` depends on it.
const DETAILS: &str = "discoveryTimeoutSeconds: 1\n";
/// Time for which the handler waits for probe answers: `discoveryTimeoutSeconds` and half a second.
const WINDOW: Duration = Duration::from_millis(1_500);
const CAMERAS: u16 = 100;
const MANY: u16 = 500;
/// Number of repetitions of the first scan.
const TIMES: usize = 5;
/// Number of measured scans without changes.
const LOOKS: usize = 4;
/// Time for which the agent is not used.
const QUIET: Duration = Duration::from_secs(40);
/// Time between two scans.
const INTERVAL: Duration = Duration::from_secs(10);

pub fn measure() -> Result<Vec<Line>> {
    let mut lines = hundred()?;
    lines.push(dripping()?);
    lines.push(five_hundred()?);
    Ok(lines)
}

/// Starts cameras on a host; the last `dripping` ones answer byte by byte.
pub fn start_cameras(host: &Host, count: u16, dripping: u16) -> Result<Peer> {
    let mut command = peer::rust(host, "leafhost-cameras")?;
    command
        .args(["--address", &host.address()?.to_string()])
        .args(["--count", &count.to_string()])
        .args(["--dripping", &dripping.to_string()]);
    Peer::start(command)
}

/// Starts an agent that finds `found` cameras; returns its first call.
pub fn agent(host: &Host, found: usize) -> Result<(Home, Call)> {
    let mut home = Home::on_host(host, "node-a")?;
    home.add_handler("onvif")?;
    home.write(
        "configurations/cameras.yaml",
        format!(
            "apiVersion: akri.sh/v0\nkind: Configuration\nmetadata: {{name: cameras}}\nspec:\n  capacity: 2\n  discoveryHandler:\n    name: onvif\n    discoveryDetails: '{}'\n",
            DETAILS.trim()
        ),
    )?;
    home.start(&["--instance-resources", "1000"])?;
    let first = calls::next(&home, None)?;
    ensure!(first.devices == found, "the first look found {first:?}");
    home.instances(found)?;
    Ok((home, first))
}

fn hundred() -> Result<Vec<Line>> {
    let lan = Lan::new()?;
    let client = lan.host("client")?;
    let _cameras = start_cameras(&lan.host("cameras")?, CAMERAS, 0)?;
    let (mut walls, mut cpus) = (Vec::new(), Vec::new());
    for _ in 0..TIMES {
        let (call, ids) = calls::first(&client, "onvif", DETAILS)?;
        ensure!(ids.len() == usize::from(CAMERAS), "found {}", ids.len());
        walls.push(call.wall);
        cpus.push(call.cpu);
    }
    let (median, worst) = median_and_worst(&mut walls);
    let (cpu, _) = median_and_worst(&mut cpus);
    let first = Line {
        what: format!("{CAMERAS} cameras: first discover, worst of {TIMES}"),
        value: seconds(worst),
        target: format!("≤ {}", seconds(WINDOW + Duration::from_secs(1))),
        reference: format!(
            "median {}; the probe's window is {}; the guest computes {}",
            seconds(median),
            seconds(WINDOW),
            ms(cpu)
        ),
    };
    Ok(vec![first, unchanged(&client)?])
}

fn unchanged(client: &Host) -> Result<Line> {
    let (home, first) = agent(client, CAMERAS.into())?;
    // The second scan ends after everything that the first one started.
    let mut last = calls::next(&home, Some(&first))?;
    let before = files(&home)?;
    ensure!(before.len() > usize::from(CAMERAS), "{before:?}");
    let mut cpus = Vec::new();
    for _ in 0..LOOKS {
        // A status request makes the agent work, so it is sent after the scan.
        pass(INTERVAL + Duration::from_millis(300))?;
        last = calls::next(&home, Some(&last))?;
        ensure!(last.devices == usize::from(CAMERAS), "{last:?}");
        ensure!(last.events == ["timer"], "{last:?}");
        cpus.push(last.cpu);
    }
    let pid = home.pid()?;
    let used = processor_time(pid)?;
    pass(QUIET)?;
    let used = processor_time(pid)?.saturating_sub(used);
    let looks = QUIET.as_secs_f64() / INTERVAL.as_secs_f64();
    let after = files(&home)?;
    let changed = changed(&before, &after);
    let (median, worst) = median_and_worst(&mut cpus);
    Ok(Line {
        what: format!(
            "the same, nothing changed: guest's CPU a call, worst of {LOOKS} / files written"
        ),
        value: format!("{} / {}", ms(worst), changed.len()),
        target: "≤ 30 ms / 0".into(),
        reference: format!(
            "median {}; all of the agent {} of CPU a call; {} files watched{}",
            ms(median),
            ms(used.div_f64(looks)),
            before.len(),
            changed
                .first()
                .map(|path| format!(", changed: {}", path.display()))
                .unwrap_or_default()
        ),
    })
}

fn dripping() -> Result<Line> {
    let lan = Lan::new()?;
    let client = lan.host("client")?;
    let cameras = lan.host("cameras")?;
    let _cameras = start_cameras(&cameras, CAMERAS * 2, CAMERAS)?;
    let (call, ids) = calls::first(&client, "onvif", DETAILS)?;
    let port = |id: &String| -> Option<u16> {
        let (_, rest) = id.split_once(&format!("{}:", cameras.address().ok()?))?;
        rest.split('/').next()?.parse().ok()
    };
    let ports: Vec<u16> = ids.iter().filter_map(port).collect();
    ensure!(ports.len() == ids.len(), "{ids:?}");
    let first_dripping = 10_000 + CAMERAS;
    let good = ports.iter().filter(|port| **port < first_dripping).count();
    Ok(Line {
        what: format!(
            "{CAMERAS} dripping cameras beside {CAMERAS} good ones: good ones in the first answer"
        ),
        value: good.to_string(),
        target: CAMERAS.to_string(),
        reference: format!(
            "dripping ones in it: {}; the call took {}, the guest computed {}",
            ids.len() - good,
            seconds(call.wall),
            ms(call.cpu)
        ),
    })
}

fn five_hundred() -> Result<Line> {
    let lan = Lan::new()?;
    let client = lan.host("client")?;
    let _cameras = start_cameras(&lan.host("cameras")?, MANY, 0)?;
    let (home, first) = agent(&client, MANY.into())?;
    let second = calls::next(&home, Some(&first))?;
    let third = calls::next(&home, Some(&second))?;
    let most = first.memory.max(second.memory).max(third.memory);
    Ok(Line {
        what: format!("guest memory with {MANY} cameras"),
        value: mib(most),
        target: "≤ 32 MiB".into(),
        reference: format!(
            "first call {}, {}, computing {}; third {}, {}, computing {}",
            mib(first.memory),
            seconds(first.wall),
            ms(first.cpu),
            mib(third.memory),
            seconds(third.wall),
            ms(third.cpu)
        ),
    })
}

/// Version of a file: inode and modification time.
type Written = (u64, i64, i64);

/// Returns all files that the agent writes, except its log.
fn files(home: &Home) -> Result<BTreeMap<PathBuf, Written>> {
    let mut found = BTreeMap::new();
    let mut folders = vec![home.path().join("state"), home.cdi().to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).with_context(|| format!("no {}", folder.display()))? {
            let path = entry?.path();
            let about = fs::symlink_metadata(&path)?;
            if about.is_dir() {
                folders.push(path);
            } else if about.is_file() {
                found.insert(path, (about.ino(), about.mtime(), about.mtime_nsec()));
            }
        }
    }
    Ok(found)
}

fn changed<'a>(
    before: &'a BTreeMap<PathBuf, Written>,
    after: &'a BTreeMap<PathBuf, Written>,
) -> Vec<&'a Path> {
    let gone = before.keys().filter(|path| !after.contains_key(*path));
    let new = after
        .iter()
        .filter(|(path, at)| before.get(*path) != Some(*at));
    gone.chain(new.map(|(path, _)| path))
        .map(PathBuf::as_path)
        .collect()
}

fn ms(time: Duration) -> String {
    format!("{:.1} ms", time.as_secs_f64() * 1e3)
}

fn mib(bytes: u64) -> String {
    let kib = u32::try_from(bytes / 1024).unwrap_or(u32::MAX);
    format!("{:.1} MiB", f64::from(kib) / 1024.0)
}

//! Time from the kernel's event of a real device to the synced Instance.
//!
//! A session that wakes often is called once a second at most, and the withdrawal of a flapping device is delayed. So
//! several sessions take turns, and every device is a new one.

use std::fs::{self, File};
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use leafhost_tests::agent::Home;
use leafhost_tests::program;
use leafhost_tests::requirement::{self, Missing};
use leafhost_tests::wait::pass;
use leafhost_tests::zram::{self, Zram};

use crate::busy_agent::configuration;
use crate::disk;
use crate::statistics::{ms, quantile};
use crate::table::Line;
use crate::watch::{Watch, What, is_placed};

/// Number of devices of each kind.
const DEVICES: usize = 200;
/// Number of sessions: one per last digit of a device's name.
const SESSIONS: usize = 10;
/// Time between two devices, so that each session is called less than twice a second.
const SPACING: Duration = Duration::from_millis(200);

/// Device that is removed on drop.
enum Plugged {
    Zram(Zram),
    Veth(String),
}

impl Plugged {
    fn name(&self) -> String {
        match self {
            Self::Zram(zram) => zram.name(),
            Self::Veth(name) => name.clone(),
        }
    }
}

impl Drop for Plugged {
    fn drop(&mut self) {
        if let Self::Veth(name) = self {
            let _ = program::run("ip", ["link", "del", name]);
        }
    }
}

fn zram(_number: usize) -> Result<Plugged> {
    Ok(Plugged::Zram(Zram::add()?))
}

fn veth(number: usize) -> Result<Plugged> {
    let (name, peer) = (format!("lhp{number}"), format!("lhq{number}"));
    let add = ["link", "add", &name, "type", "veth", "peer", "name", &peer];
    program::run("ip", add)?.good()?;
    Ok(Plugged::Veth(name))
}

/// Kind of device.
struct Kind {
    what: &'static str,
    subsystem: &'static str,
    /// Prefix of the devices' names.
    prefix: &'static str,
    missing: fn() -> Option<Missing>,
    plug: fn(usize) -> Result<Plugged>,
}

const KINDS: [Kind; 2] = [
    Kind {
        what: "block device (zram)",
        subsystem: "block",
        prefix: "zram",
        missing: zram::missing,
        plug: zram,
    },
    Kind {
        what: "network card (veth)",
        subsystem: "net",
        prefix: "lhp",
        missing: || requirement::files(&["/usr/sbin/ip"], "make setup-test"),
        plug: veth,
    },
];

pub fn measure() -> Result<Vec<Line>> {
    let mut lines = Vec::new();
    for kind in KINDS {
        if !requirement::lacks((kind.missing)())? {
            lines.push(plugs(&kind)?);
        }
    }
    Ok(lines)
}

fn plugs(kind: &Kind) -> Result<Line> {
    let mut home = Home::new()?;
    home.add_handler("udev")?;
    for digit in 0..SESSIONS {
        let rule = format!(
            "udevRules: ['SUBSYSTEM==\"{}\", KERNEL==\"{}*{digit}\"']",
            kind.subsystem, kind.prefix
        );
        let name = format!("plugs-{digit}");
        let text = configuration(&name, "udev", &rule);
        home.write(&format!("configurations/{name}.yaml"), text)?;
    }
    let folder = home.path().join("state/instances/default");
    fs::create_dir_all(&folder)?;
    home.start(&[])?;
    home.until("all sessions have answered", |status| {
        let sessions = (0..SESSIONS).filter(|number| {
            let result = format!("/configurations/{number}/sessions/0/result");
            status.pointer(&result).is_some_and(|result| result == "ok")
        });
        sessions.count() == SESSIONS
    })?;
    let watch = Watch::new(std::slice::from_ref(&folder))?;
    let mut plugged = Vec::new();
    let (mut heard, mut ordered, mut wrote) = (Vec::new(), Vec::new(), Vec::new());
    for number in 0..DEVICES {
        watch.all();
        let begun = Instant::now();
        let device = (kind.plug)(number)?;
        let name = device.name();
        plugged.push(device);
        let message = watch.next("the kernel's message", |what| is_of(what, &name))?;
        let digit = name.chars().last().context("no name")?;
        let placed = watch.next("the Instance", |what| is_instance(what, digit))?;
        File::open(&folder)?.sync_all()?;
        let synced = Instant::now();
        heard.push(synced - message.at);
        ordered.push(synced - begun);
        if let What::Placed(path) = placed.what {
            wrote.push(disk::write(&path)?);
        }
        pass(SPACING.saturating_sub(begun.elapsed()))?;
    }
    drop(plugged);
    for times in [&mut heard, &mut ordered, &mut wrote] {
        times.sort();
    }
    Ok(Line {
        what: format!(
            "{} plugged in: kernel's message → Instance synced to disk, p99 of {}",
            kind.what,
            heard.len()
        ),
        value: ms(quantile(&heard, 0.99)),
        target: "≤ 50 ms".into(),
        reference: format!(
            "p50 {}, worst {}; from before the device is ordered p99 {}; the same bytes written and synced p50 {} p99 {}",
            ms(quantile(&heard, 0.5)),
            ms(quantile(&heard, 1.0)),
            ms(quantile(&ordered, 0.99)),
            ms(quantile(&wrote, 0.5)),
            ms(quantile(&wrote, 0.99))
        ),
    })
}

/// Returns true if this is the kernel's event for the new device.
fn is_of(what: &What, name: &str) -> bool {
    let What::Device(message) = what else {
        return false;
    };
    let is_last = |path: &str| path.rsplit('/').next() == Some(name);
    message.strip_prefix("add@").is_some_and(is_last)
}

/// Returns true if this is an Instance of the Configuration for this last digit.
fn is_instance(what: &What, digit: char) -> bool {
    let prefix = format!("plugs-{digit}-");
    let is_its = |path: &Path| {
        let name = path.file_name().and_then(|name| name.to_str());
        name.is_some_and(|name| name.starts_with(&prefix))
    };
    is_placed(what, "yaml") && matches!(what, What::Placed(path) if is_its(path))
}

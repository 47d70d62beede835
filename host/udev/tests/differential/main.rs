//! Compares generated rules with `udevadm test`, over recorded devices and those of this machine.
//!
//! udevadm reads rules, its database and sysfs from fixed places. The test therefore runs itself again in a mount namespace with its own
//! copies of those places; nothing of the machine is changed. `LEAFHOST_SEED` repeats a run; `LEAFHOST_RECORDING` names other devices, as
//! `umockdev-record --all` writes them.
#![allow(
    missing_docs,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::print_stdout,
    reason = "a test file"
)]

mod exceptions;
mod generate;
mod oracle;
mod recorded;
mod sample;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::SystemTime;

use leafhost_udev::{Error, Rule, Subsystems, find};

use generate::Generator;
use sample::Samples;

const INSIDE: &str = "LEAFHOST_TEST_INSIDE_NAMESPACE";
const SEED: &str = "LEAFHOST_SEED";
const RECORDING: &str = "LEAFHOST_RECORDING";
/// Number of rules per run of udevadm.
const AT_ONCE: usize = 1_000;
/// Number of rules per `find`.
const RULES_PER_FIND: usize = 16;
const RECORDED: &str = "recorded";
const MACHINE: &str = "machine";

/// Mounts separate rules and database; for recorded devices also a sysfs.
const MOUNT_SCRIPT: &str = r#"
kept=$1
shift
[ ! -d /run/udev/data ] || cp -r /run/udev/data "$kept"
mount -t tmpfs none /run
mkdir -p /run/udev/rules.d /run/udev/data
for folder in /etc/udev/rules.d /usr/local/lib/udev/rules.d /usr/lib/udev/rules.d; do
  [ ! -d "$folder" ] || mount -t tmpfs none "$folder"
done
mount -t tmpfs none /dev
if [ "$LEAFHOST_TEST_INSIDE_NAMESPACE" = recorded ]; then
  mount -t tmpfs none /sys
elif [ -d "$kept/data" ]; then
  cp -r "$kept/data" /run/udev
fi
exec "$@"
"#;

type Outcome = Result<(), Box<dyn std::error::Error>>;

/// Kind of the generated rules.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// Terms of all fields.
    Any,
    /// A glob of ports, such as `KERNELS=="1-1.*"`, and other terms.
    Ports,
}

#[test]
fn rules_match_recorded_devices_as_udev_does() -> Outcome {
    compare(
        "rules_match_recorded_devices_as_udev_does",
        &[RECORDED],
        Kind::Any,
        300,
    )
}

#[test]
fn rules_match_this_machines_devices_as_udev_does() -> Outcome {
    compare(
        "rules_match_this_machines_devices_as_udev_does",
        &[MACHINE],
        Kind::Any,
        300,
    )
}

#[test]
#[ignore = "takes minutes: make soak"]
fn soak_ten_thousand_rules_match_as_udev_does() -> Outcome {
    compare(
        "soak_ten_thousand_rules_match_as_udev_does",
        &[RECORDED, MACHINE],
        Kind::Any,
        10_000,
    )
}

#[test]
fn globs_of_ports_match_recorded_devices_as_udev_does() -> Outcome {
    compare(
        "globs_of_ports_match_recorded_devices_as_udev_does",
        &[RECORDED],
        Kind::Ports,
        300,
    )
}

#[test]
#[ignore = "takes minutes: make soak"]
fn soak_ten_thousand_globs_of_ports_match_as_udev_does() -> Outcome {
    compare(
        "soak_ten_thousand_globs_of_ports_match_as_udev_does",
        &[RECORDED],
        Kind::Ports,
        10_000,
    )
}

/// Compares generated rules for the devices of each source.
fn compare(test: &str, sources: &[&str], kind: Kind, rules: usize) -> Outcome {
    if let Ok(source) = std::env::var(INSIDE) {
        return inside(&source, kind, rules);
    }
    if let Some(missing) = missing() {
        if std::env::var("CI").is_ok_and(|ci| ci == "true") {
            return Err(missing.into());
        }
        eprintln!("skipped: {missing}");
        return Ok(());
    }
    for source in sources {
        go_inside(test, source)?;
    }
    Ok(())
}

/// Returns what the machine lacks for the test.
fn missing() -> Option<String> {
    let runs = |command: &mut Command| command.output().is_ok_and(|out| out.status.success());
    if !runs(Command::new("udevadm").arg("--version")) {
        return Some("there is no udevadm; install it with: apt install udev".to_owned());
    }
    if !runs(Command::new("unshare").args(["--map-root-user", "--mount", "true"])) {
        let remedy = "run the test as root, or allow user namespaces";
        return Some(format!("unshare may not make a mount namespace; {remedy}"));
    }
    None
}

fn go_inside(test: &str, source: &str) -> Outcome {
    let kept = Path::new(env!("CARGO_TARGET_TMPDIR"))
        .join(format!("{test}-{source}-{}", std::process::id()));
    std::fs::create_dir_all(&kept)?;
    let seed = std::env::var(SEED).unwrap_or_else(|_| now().to_string());
    let output = Command::new("unshare")
        .args([
            "--map-root-user",
            "--mount",
            "sh",
            "-euc",
            MOUNT_SCRIPT,
            "sh",
        ])
        .arg(&kept)
        .arg(std::env::current_exe()?)
        .args(["--exact", test, "--nocapture", "--include-ignored"])
        .env(INSIDE, source)
        .env(SEED, seed)
        // These folders look like sysfs but are regular files.
        .env(
            "SYSTEMD_DEVICE_VERIFY_SYSFS",
            if source == RECORDED { "0" } else { "1" },
        )
        .stdin(Stdio::piped())
        .output();
    std::fs::remove_dir_all(&kept)?;
    let output = output?;
    let told = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success() && told.contains("1 passed"),
        "{told}{}",
        String::from_utf8_lossy(&output.stderr)
    );
    print!("{told}");
    Ok(())
}

fn now() -> u128 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    since.map_or(0, |since| since.as_micros())
}

/// Devices and rules, by index.
type Pairs = BTreeSet<(usize, usize)>;

fn inside(source: &str, kind: Kind, rules: usize) -> Outcome {
    let seed: u64 = std::env::var(SEED)?.parse()?;
    println!("{source} devices: {SEED}={seed}");
    if source == RECORDED {
        let ours = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests");
        let recordings = match std::env::var(RECORDING) {
            Ok(other) => vec![other.into()],
            Err(_) => vec![ours.join("camera.umockdev"), ours.join("pc.umockdev")],
        };
        for recording in recordings {
            recorded::plug(&std::fs::read_to_string(recording)?)?;
        }
    }
    let samples = Samples::read()?;
    let mut generator = Generator::new(seed, &samples);
    let mut left = rules;
    let (mut held, mut named, mut wrong) = (0, BTreeMap::new(), Vec::new());
    while left > 0 {
        let batch: Vec<Rule> = (0..left.min(AT_ONCE))
            .map(|_| match kind {
                Kind::Any => generator.rule(),
                Kind::Ports => generator.rule_with_ports(),
            })
            .collect();
        // Such a glob has no second meaning, so no difference is excused by it.
        let are_globs = |rule: &Rule| rule.terms().next().is_some_and(|term| !term.is_regex());
        assert!(kind == Kind::Any || batch.iter().all(are_globs));
        left -= batch.len();
        let (pairs, differences) = differences(&batch, &samples)?;
        held += pairs;
        let mut told: BTreeSet<usize> = BTreeSet::new();
        for (device, rule) in differences {
            let sample = &samples.all[device];
            match exceptions::why(&batch[rule], &samples.chain(device)) {
                Some(why) => *named.entry(why).or_insert(0) += 1,
                // Devices that differ only in number are tested once.
                None if told.insert(rule) => {
                    let by_udev = oracle::holds(&batch[rule], sample)?;
                    let who = if by_udev { "udev" } else { "here" };
                    wrong.push(format!(
                        "{}\n  holds for {} by {who} only",
                        batch[rule], sample.devpath
                    ));
                }
                None => {}
            }
        }
    }
    println!(
        "{rules} rules on {} devices hold {held} times; all but {} rules agree, and {named:?} as named",
        samples.all.len(),
        wrong.len(),
    );
    assert!(held > rules, "these rules hold next to nowhere");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    Ok(())
}

/// Returns the number of rules that match in udev, and the differences to this crate; compares twice, because sysfs may change.
fn differences(
    rules: &[Rule],
    samples: &Samples,
) -> Result<(usize, Pairs), Box<dyn std::error::Error>> {
    let by_udev = oracle::holding(rules, samples, &Pairs::new())?;
    let found_here = found(rules, samples)?;
    let mut differ: Pairs = found_here.symmetric_difference(&by_udev).copied().collect();
    if !differ.is_empty() {
        let (again, here) = (
            oracle::holding(rules, samples, &differ)?,
            found(rules, samples)?,
        );
        differ.retain(|pair| again.contains(pair) != here.contains(pair));
    }
    Ok((by_udev.len(), differ))
}

/// Returns the devices found by this crate and the rules that hold for them.
fn found(rules: &[Rule], samples: &Samples) -> Result<Pairs, Box<dyn std::error::Error>> {
    let mut found = Pairs::new();
    let mut looks: Vec<(usize, &[Rule])> = rules.chunks(RULES_PER_FIND).enumerate().collect();
    for (chunk, _) in &mut looks {
        *chunk *= RULES_PER_FIND;
    }
    while let Some((first, some)) = looks.pop() {
        let devices = match find(some, &Subsystems::new(["*"])) {
            Ok(found) => found.devices,
            // A search has a time limit, however busy the machine is.
            Err(Error::TooSlow(_)) if some.len() > 1 => {
                let (some, others) = some.split_at(some.len() / 2);
                looks.extend([(first, some), (first + some.len(), others)]);
                continue;
            }
            Err(error) => return Err(error.into()),
        };
        for device in devices {
            let Some(index) = samples.index(&device.devpath) else {
                continue;
            };
            for rule in device.rules {
                found.insert((index, first + usize::try_from(rule)?));
            }
        }
    }
    Ok(found)
}

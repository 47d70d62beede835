//! Loss of the agent's resources: the disk is full or read-only, no file can be opened, the clock is set back. The agent keeps serving, reports the
//! problem and the remedy, and recovers by itself.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use leafhost_tests::agent::Home;
use leafhost_tests::mounts::{self, Mounts};
use leafhost_tests::program;
use leafhost_tests::requirement;
use leafhost_tests::wait::{eventually, within};
use nix::sys::signal::Signal;
use serde_json::Value;

/// Remedy in the message.
const MORE_THREADS: &str =
    "raise the number of processes the agent may have (TasksMax, pids, ulimit -u)";
/// Upper bound for a recovery. Retries double from a second, so it takes at most twice as long as the obstacle lasted.
const TIMEOUT: Duration = Duration::from_mins(3);

fn echo(descriptions: &str, capacity: u64, grace: &str) -> String {
    format!(
        "apiVersion: akri.sh/v0\n\
         kind: Configuration\n\
         metadata:\n  name: echo\n  annotations: {{leafhost.dev/grace: {grace:?}}}\n\
         spec:\n  discoveryHandler:\n    name: debugEcho\n    discoveryDetails: |\n      descriptions: {descriptions}\n  \
         capacity: {capacity}\n"
    )
}

fn uids(status: &Value) -> BTreeMap<String, String> {
    let instances = status.get("instances").and_then(Value::as_array);
    let text = |instance: &Value, pointer| {
        let text = instance.pointer(pointer).and_then(Value::as_str);
        text.unwrap_or_default().to_owned()
    };
    let all = instances.into_iter().flatten();
    all.map(|one| (text(one, "/metadata/name"), text(one, "/metadata/uid")))
        .collect()
}

/// Returns the sum of a metric over the series whose labels contain these words.
fn metric(home: &Home, name: &str, words: &str) -> Result<f64> {
    let lines = home.get("/metrics")?;
    let lines = lines
        .lines()
        .filter(|line| line.starts_with(name) && line.contains(words));
    let values = lines.filter_map(|line| line.rsplit_once(' ')?.1.parse::<f64>().ok());
    Ok(values.sum())
}

/// Reports of the agent that must appear during an obstacle.
struct Signs {
    /// Texts in the status and in the log.
    words: &'static [&'static str],
    /// Components that must count a problem.
    parts: &'static [&'static str],
}

/// Runs an agent through an obstacle. Meanwhile its Configuration gets another device and slot, and its handler is
/// replaced.
fn run_into(
    mut home: Home,
    begin: impl Fn(&Home) -> Result<()>,
    end: impl Fn(&Home) -> Result<()>,
    signs: &Signs,
) -> Result<()> {
    home.add_handler("debug-echo")?;
    home.write("configurations/echo.yaml", echo("[a, b]", 1, "0"))?;
    home.start(&[])?;
    let before = uids(&home.until("two Instances", |status| uids(status).len() == 2)?);
    let old = home.until("it is kept", |status| status.to_string().contains("Active"))?;
    let version = |status: &Value| status.pointer("/handlers/0/digest").cloned();
    begin(&home)?;
    let mut bytes = fs::read(program::handler("debug-echo")?)?;
    bytes.extend([0, 2, 1, b'v']);
    home.write("handlers/debug-echo.wasm", bytes)?;
    home.write("configurations/echo.yaml", echo("[a, b, c]", 2, "0"))?;
    for word in signs.words {
        home.until(&format!("the status says {word:?}"), |status| {
            status.to_string().contains(word)
        })?;
        eventually(&format!("the log says {word:?}"), || {
            ensure!(home.log().contains(word), "{}", home.log());
            Ok(())
        })?;
    }
    for part in signs.parts {
        eventually(&format!("{part} are counted"), || {
            let count = metric(&home, "leafhost_problems", &format!("part=\"{part}\""))?;
            ensure!(count > 0.0, "none");
            Ok(())
        })?;
    }
    ensure!(home.get("/healthz")?.contains("ok"), "it does not serve");
    let during = uids(&home.status()?);
    let stay = before
        .iter()
        .all(|(name, uid)| during.get(name) == Some(uid));
    ensure!(stay, "an Instance went: {during:?}");
    end(&home)?;
    let after = within(TIMEOUT, "it goes on by itself", || {
        let status = home.status()?;
        let capacities = status.get("instances").and_then(Value::as_array);
        let capacities = capacities.into_iter().flatten();
        let twos = capacities.filter(|one| one.pointer("/spec/capacity") == Some(&2.into()));
        ensure!(twos.count() == 3, "not as configured: {status:#}");
        ensure!(version(&status) != version(&old), "the old handler serves");
        for word in signs.words {
            ensure!(!status.to_string().contains(word), "still: {status:#}");
        }
        for part in signs.parts {
            let count = metric(&home, "leafhost_problems", &format!("part=\"{part}\""))?;
            ensure!(count == 0.0, "{part}: {count}");
        }
        Ok(status)
    })
    .with_context(|| home.log())?;
    let after = uids(&after);
    let stay = before
        .iter()
        .all(|(name, uid)| after.get(name) == Some(uid));
    ensure!(stay, "an Instance was re-created: {after:?}");
    home.stop(Signal::SIGTERM)?;
    Ok(())
}

#[test]
fn a_full_disk_is_reported_and_does_not_stop_the_agent() -> Result<()> {
    if requirement::lacks(mounts::missing())? {
        return Ok(());
    }
    let mounts = Arc::new(Mounts::new()?);
    let mut home = Home::new()?;
    let state = home.path().join("state");
    fs::create_dir(&state)?;
    mounts.small_disk(&state, 24 << 10)?;
    home.live_in(&mounts);
    let ballast = mounts.outside(&state.join("ballast"));
    let fill = ballast.clone();
    run_into(
        home,
        move |_| fill_up(&fill),
        move |_| Ok(fs::remove_file(&ballast)?),
        &Signs {
            words: &[
                "the disk is full; free some space",
                "free some space; retrying",
            ],
            parts: &["instances", "handlers", "configurations"],
        },
    )
}

/// Fills the disk to the last byte.
fn fill_up(path: &Path) -> Result<()> {
    let mut file = File::create(path)?;
    for size in [1 << 20, 1 << 12, 1] {
        let block = vec![0; size];
        while file.write_all(&block).is_ok() {}
    }
    Ok(())
}

#[test]
fn a_read_only_state_folder_is_reported_and_does_not_stop_the_agent() -> Result<()> {
    if requirement::lacks(mounts::missing())? {
        return Ok(());
    }
    read_only(
        &["state/instances", "state/accepted", "state/native"],
        &Signs {
            words: &["read-only; name another folder with --state-dir"],
            parts: &["instances", "handlers", "configurations"],
        },
    )
}

#[test]
fn an_agent_starts_with_a_read_only_folder_for_native_code_and_reports_it() -> Result<()> {
    if requirement::lacks(mounts::missing())? {
        return Ok(());
    }
    let mounts = Arc::new(Mounts::new()?);
    let mut home = Home::new()?;
    let native = home.path().join("state/native");
    fs::create_dir_all(&native)?;
    mounts.bind(&native)?;
    home.live_in(&mounts);
    home.add_handler("debug-echo")?;
    home.write("configurations/echo.yaml", echo("[a, b]", 1, "0"))?;
    let words = "cannot store native code: Read-only file system";
    // First before anything was written there, then with the files of an earlier run.
    for is_first in [true, false] {
        mounts.set_read_only(&native, true)?;
        home.start(&[])?;
        home.until("it serves and says so", |status| {
            let status_text = status.to_string();
            uids(status).len() == 2 && status_text.contains("Active") && status_text.contains(words)
        })?;
        home.stop(Signal::SIGTERM)?;
        if is_first {
            mounts.set_read_only(&native, false)?;
            home.start(&[])?;
            home.until("it serves", |status| {
                uids(status).len() == 2 && !status.to_string().contains(words)
            })?;
            eventually("the code is kept", || {
                let kept = fs::read_dir(mounts.outside(&native))?.count();
                ensure!(kept == 2, "{kept} files");
                Ok(())
            })?;
            home.stop(Signal::SIGTERM)?;
        }
    }
    Ok(())
}

#[test]
fn a_read_only_cdi_folder_is_reported_and_does_not_stop_the_agent() -> Result<()> {
    if requirement::lacks(mounts::missing())? {
        return Ok(());
    }
    read_only(
        &["cdi"],
        &Signs {
            words: &["read-only; name another folder with --cdi-dir"],
            parts: &["cdi"],
        },
    )
}

fn read_only(folders: &[&str], signs: &Signs) -> Result<()> {
    let mounts = Arc::new(Mounts::new()?);
    let mut home = Home::new()?;
    let folders: Vec<PathBuf> = folders.iter().map(|name| home.path().join(name)).collect();
    for folder in &folders {
        fs::create_dir_all(folder)?;
        mounts.bind(folder)?;
    }
    home.live_in(&mounts);
    let set = |read_only| {
        let (mounts, folders) = (Arc::clone(&mounts), folders.clone());
        move |_: &Home| {
            let mut folders = folders.iter();
            folders.try_for_each(|folder| mounts.set_read_only(folder, read_only))
        }
    };
    run_into(home, set(true), set(false), signs)
}

#[test]
fn handlers_run_with_a_state_folder_on_a_noexec_mount() -> Result<()> {
    if requirement::lacks(mounts::missing())? {
        return Ok(());
    }
    let mounts = Arc::new(Mounts::new()?);
    let mut home = Home::new()?;
    let state = home.path().join("state");
    fs::create_dir(&state)?;
    mounts.bind(&state)?;
    let options = "remount,bind,noexec";
    mounts.mount(["-o".as_ref(), options.as_ref(), state.as_os_str()])?;
    home.live_in(&mounts);
    home.add_handler("debug-echo")?;
    home.write("configurations/echo.yaml", echo("[a, b]", 1, "0"))?;
    home.start(&[])?;
    home.until("two Instances", |status| uids(status).len() == 2)?;
    home.stop(Signal::SIGTERM).map(drop)
}

/// Sets the limit of open files of a process.
fn limit_files(process: u32, limit: &str) -> Result<()> {
    let (process, limit) = (format!("--pid={process}"), format!("--nofile={limit}:"));
    program::run("prlimit", [process, limit])?.good().map(drop)
}

/// Returns the open file descriptors of a process, without those that are open only briefly, such as a closing connection.
fn lasting_files(process: u32) -> Result<Vec<u32>> {
    let mut looks: Vec<Vec<u32>> = Vec::new();
    eventually("its open files stay the same", || {
        let mut open = Vec::new();
        for entry in fs::read_dir(format!("/proc/{process}/fd"))? {
            open.push(entry?.file_name().to_string_lossy().parse()?);
        }
        open.sort_unstable();
        looks.retain(|look| *look == open);
        looks.push(open.clone());
        ensure!(looks.len() > 5, "changed: {open:?}");
        Ok(open)
    })
}

#[test]
fn an_agent_that_cannot_open_files_serves_on_and_reports_it() -> Result<()> {
    let home = Home::new()?;
    run_into(
        home,
        |home| {
            let process = home.pid()?;
            let open = lasting_files(process)?;
            let free = (0..4096).find(|fd| !open.contains(fd));
            let free: u32 = free.context("all numbers are taken")?;
            limit_files(process, &free.to_string())
        },
        |home| limit_files(home.pid()?, "1024"),
        &Signs {
            words: &["too many files are open; raise the agent's limit (ulimit -n, LimitNOFILE)"],
            parts: &["configurations", "handlers"],
        },
    )
}

/// Control group with a limit of processes and threads.
struct Processes {
    folder: PathBuf,
}

impl Processes {
    /// Creates a group without a limit; `None` if the kernel has no pids controller.
    fn new(name: &str) -> Option<Self> {
        let name = format!("leafhost-{}-{name}", std::process::id());
        // The pids hierarchy (v1) or the unified one (v2).
        for root in ["/sys/fs/cgroup/pids", "/sys/fs/cgroup"] {
            let folder = Path::new(root).join(&name);
            if fs::create_dir(&folder).is_err() {
                continue;
            }
            let group = Self { folder };
            if group.folder.join("pids.max").exists() {
                return Some(group);
            }
        }
        None
    }

    /// Moves a process into the group.
    fn take(&self, process: u32) -> Result<()> {
        self.set("cgroup.procs", &process.to_string())
    }

    /// Sets the limit of processes and threads.
    fn limit(&self, most: &str) -> Result<()> {
        self.set("pids.max", most)
    }

    fn set(&self, file: &str, value: &str) -> Result<()> {
        let path = self.folder.join(file);
        fs::write(&path, value).with_context(|| format!("cannot write {}", path.display()))
    }
}

impl Drop for Processes {
    fn drop(&mut self) {
        // The group can be removed once its last process is gone.
        let _ = eventually("the group is empty", || Ok(fs::remove_dir(&self.folder)?));
    }
}

/// Creates a group for a test; `None` if the machine cannot provide one.
fn processes(name: &str) -> Result<Option<Processes>> {
    if requirement::lacks(mounts::missing())? {
        return Ok(None);
    }
    let group = Processes::new(name);
    let lacking = group.is_none().then(|| requirement::Missing {
        what: "a group of processes with a limit (cgroup, pids)".to_owned(),
        command: "mount -t cgroup -o pids pids /sys/fs/cgroup/pids",
    });
    requirement::lacks(lacking)?;
    Ok(group)
}

#[test]
fn an_agent_that_cannot_start_threads_or_the_compiler_serves_on_and_reports_it() -> Result<()> {
    let Some(group) = processes("serves")? else {
        return Ok(());
    };
    run_into(
        Home::new()?,
        |home| {
            group.take(home.pid()?)?;
            group.limit("1")
        },
        |_| group.limit("max"),
        &Signs {
            words: &["cannot run the compiler", MORE_THREADS],
            parts: &["handlers"],
        },
    )
}

const FAKETIME: &str = "faketime/libfaketime.so.1";

fn faketime() -> Option<PathBuf> {
    let folders = fs::read_dir("/usr/lib").ok()?.flatten();
    folders
        .map(|folder| folder.path().join(FAKETIME))
        .find(|library| library.is_file())
}

#[test]
fn a_clock_set_back_loses_no_instance_and_lengthens_no_grace() -> Result<()> {
    let lacking = faketime().is_none().then(|| requirement::Missing {
        what: "the library of faketime".to_owned(),
        command: "make setup-test",
    });
    if requirement::lacks(lacking)? {
        return Ok(());
    }
    let library = faketime().context("it was there")?;
    let mut home = Home::new()?;
    let clock = home.path().join("clock");
    let set = |offset: &str| -> Result<()> {
        let new = clock.with_extension("new");
        fs::write(&new, offset)?;
        Ok(fs::rename(new, &clock)?)
    };
    set("+0")?;
    home.set_environment(&[
        ("LD_PRELOAD", library.as_os_str()),
        ("FAKETIME_TIMESTAMP_FILE", clock.as_os_str()),
        ("FAKETIME_NO_CACHE", "1".as_ref()),
        ("FAKETIME_DONT_FAKE_MONOTONIC", "1".as_ref()),
        ("NO_FAKE_STAT", "1".as_ref()),
    ]);
    home.add_handler("debug-echo")?;
    home.write("configurations/echo.yaml", echo("[a, b, c]", 1, "5s"))?;
    home.start(&[])?;
    let before = uids(&home.until("three Instances", |status| uids(status).len() == 3)?);
    // The clock goes back by over a year while the agent runs: one device disappears and its grace passes.
    set("-400d")?;
    home.write("configurations/echo.yaml", echo("[a, b]", 1, "5s"))?;
    let after = home.until("two Instances", |status| uids(status).len() == 2)?;
    let same = |now: &Value| {
        uids(now)
            .iter()
            .all(|(name, uid)| before.get(name) == Some(uid))
    };
    ensure!(same(&after), "re-created: {after:#}");
    // The clock goes further back while a grace is pending that an earlier agent recorded.
    home.write("configurations/echo.yaml", echo("[a]", 1, "8s"))?;
    home.until("a device is missing", |status| {
        status.to_string().contains("missingSince")
    })?;
    home.stop(Signal::SIGKILL)?;
    set("-800d")?;
    home.start(&[])?;
    let after = home.until("one Instance", |status| uids(status).len() == 1)?;
    ensure!(same(&after), "re-created: {after:#}");
    // The clock goes ahead, so that all native code seems old.
    set("+800d")?;
    home.write("configurations/echo.yaml", echo("[a, d]", 2, "5s"))?;
    let after = home.until("the Instance of d", |status| uids(status).len() == 2)?;
    let one = |status: &Value| {
        uids(status)
            .into_iter()
            .find(|(name, _)| before.contains_key(name))
    };
    ensure!(
        one(&after).is_some_and(|(name, uid)| before.get(&name) == Some(&uid)),
        "re-created: {after:#}"
    );
    home.stop(Signal::SIGTERM)?;
    home.start(&[])?;
    let again = home.until("both", |status| uids(status).len() == 2)?;
    ensure!(uids(&again) == uids(&after), "re-created: {again:#}");
    Ok(())
}

//! Time from a new handler file, whose Configuration waits, to the first Instance.

use std::fs::{self, File};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use leafhost_tests::agent::Home;
use leafhost_tests::program;
use leafhost_tests::wait::pass;

use crate::busy_agent::configuration;
use crate::disk;
use crate::statistics::{ms, quantile};
use crate::table::Line;
use crate::watch::{Watch, What, is_placed};

/// Time for which a file must be unchanged before the agent reads it.
const SETTLE: Duration = Duration::from_millis(200);
/// Number of times each handler is added.
const TIMES: usize = 5;
/// File names, handlers, and details that find something on every machine.
const HANDLERS: [(&str, &str, &str); 3] = [
    ("debug-echo", "debugEcho", "descriptions: [a]"),
    ("mock-gpu", "mock-gpu", "count: 1"),
    (
        "udev",
        "udev",
        "udevRules: ['SUBSYSTEM==\"mem\", KERNEL==\"null\"']",
    ),
];

pub fn measure() -> Result<Vec<Line>> {
    let (mut fresh, mut cached) = (Vec::new(), Vec::new());
    let (mut compiled, mut wrote) = (Vec::new(), Vec::new());
    for handler in HANDLERS {
        for _ in 0..TIMES {
            compiled.push(compile(handler.0)?);
            let (took, home) = drop_in(handler, None)?;
            fresh.push(took);
            let native = home.path().join("state/native");
            let (took, home) = drop_in(handler, Some(&native))?;
            cached.push(took);
            wrote.push(disk::write(&instance(&home)?)?);
        }
    }
    let line = |what: &str, times: &mut Vec<Duration>, target: &str, reference: String| {
        times.sort();
        Line {
            what: format!(
                "handler dropped and settled → first Instance on disk, {what}, worst of {}",
                times.len()
            ),
            value: ms(quantile(times, 1.0)),
            target: target.to_owned(),
            reference: format!("median {}; {reference}", ms(quantile(times, 0.5))),
        }
    };
    compiled.sort();
    wrote.sort();
    let alone = format!(
        "the compiler alone median {}, worst {}",
        ms(quantile(&compiled, 0.5)),
        ms(quantile(&compiled, 1.0))
    );
    let bytes = format!(
        "the Instance's bytes written and synced median {}, worst {}",
        ms(quantile(&wrote, 0.5)),
        ms(quantile(&wrote, 1.0))
    );
    Ok(vec![
        line("not cached", &mut fresh, "≤ 500 ms", alone),
        line("from the cache", &mut cached, "≤ 50 ms", bytes),
    ])
}

/// Adds a handler to a running agent, with or without its native code in the cache; returns the time to the first Instance.
fn drop_in(
    (file, handler, details): (&str, &str, &str),
    native: Option<&Path>,
) -> Result<(Duration, Home)> {
    let mut home = Home::new()?;
    home.add_handler(file)?;
    home.remove(&format!("handlers/{file}.wasm"))?;
    home.write(
        "configurations/waits.yaml",
        configuration("waits", handler, details),
    )?;
    let folder = home.path().join("state/instances/default");
    fs::create_dir_all(&folder)?;
    if let Some(native) = native {
        let to = home.path().join("state");
        program::run("cp", ["-a".as_ref(), native.as_os_str(), to.as_os_str()])?.good()?;
    }
    home.start(&[])?;
    home.until("the Configuration waits", |status| {
        status.pointer("/configurations/0").is_some()
    })?;
    // The agent has read its folders and is idle by then.
    pass(Duration::from_millis(500))?;
    let before = code(&home)?;
    let watch = Watch::new(std::slice::from_ref(&folder))?;
    home.add_handler(file)?;
    let closed = Instant::now();
    let placed = watch.next("the Instance", |what| is_placed(what, "yaml"));
    let placed = placed.with_context(|| home.log())?;
    File::open(&folder)?.sync_all()?;
    let took = closed.elapsed().saturating_sub(SETTLE);
    ensure!(matches!(placed.what, What::Placed(_)));
    let made = code(&home)? - before;
    ensure!(
        made == usize::from(native.is_none()),
        "{made} files of native code were made"
    );
    Ok((took, home))
}

/// Returns the number of files of native code.
fn code(home: &Home) -> Result<usize> {
    let entries = fs::read_dir(home.path().join("state/native"))?;
    let is_one = |path: &Path| path.extension().is_some_and(|is| is == "native");
    Ok(entries
        .filter_map(Result::ok)
        .filter(|entry| is_one(&entry.path()))
        .count())
}

/// Returns the file of the only Instance.
fn instance(home: &Home) -> Result<std::path::PathBuf> {
    let folder = home.path().join("state/instances/default");
    let mut entries = fs::read_dir(folder)?.filter_map(Result::ok);
    let found = entries.find(|entry| entry.path().extension().is_some_and(|is| is == "yaml"));
    Ok(found.context("no Instance")?.path())
}

/// Runs the compiler as the agent does and returns the time.
fn compile(file: &str) -> Result<Duration> {
    let wasm = File::open(program::handler(file)?)?;
    let native = tempfile::tempfile()?;
    let mut command = Command::new(program::build_folder()?.join("leafhost-compile"));
    command.env_clear().stdin(wasm).stdout(native);
    let begun = Instant::now();
    let status = command.status().context("cannot run the compiler")?;
    let took = begun.elapsed();
    ensure!(status.success(), "the compiler ended with {status}");
    Ok(took)
}

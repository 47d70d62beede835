//! Folders, texts and limits of the process that are not as an agent would wish.

use std::fs;

use anyhow::{Context, Result, ensure};
use leafhost_tests::program;
use leafhost_tests::wait::eventually;
use serde_json::Value;

use crate::loading::{GRANTS, alias_bomb};
use crate::yard::{Guest, Yard, configuration, session};

#[test]
fn texts_that_stand_for_more_than_they_are_long_are_refused_by_name() -> Result<()> {
    let mut yard = Yard::with(Guest::default(), GRANTS)?;
    yard.serve("good")?;
    // Of our own handlers those that read YAML, each with a field that it reads.
    let handlers = [
        ("debug-echo", "debugEcho", "descriptions"),
        ("onvif", "onvif", "ipAddresses"),
        ("opcua", "opcua", "opcuaDiscoveryMethod"),
        ("udev", "udev", "udevRules"),
    ];
    for (file, ..) in handlers {
        yard.home.add_handler(file)?;
    }
    yard.home.until("all are loaded", |status| {
        let all = status.get("handlers").and_then(Value::as_array);
        let waits = |handler: &&Value| handler.get("status").is_some_and(|at| at == "Waiting");
        all.is_some_and(|all| all.iter().filter(waits).count() == handlers.len())
    })?;
    let bomb = alias_bomb();
    yard.bears(|yard| {
        for (_, handler, field) in handlers {
            let name = format!("bomb-{}", handler.to_lowercase());
            let text = configuration(&name, handler, &format!("{bomb}{field}: *a8\n"));
            yard.home
                .write(&format!("configurations/{name}.yaml"), text)?;
        }
        for (_, handler, field) in handlers {
            let name = format!("bomb-{}", handler.to_lowercase());
            yard.home.until(&format!("{handler} refuses"), |status| {
                let invalid = session(status, &name).pointer("/invalidDetails/0");
                invalid.is_some_and(|problem| problem.to_string().contains(field))
            })?;
        }
        // As a Configuration itself, beside good ones in the same file.
        let good = configuration("hostile-0", "hostile", "good");
        let text = format!("{good}---\n{bomb}");
        yard.home.write("configurations/hostile-0.yaml", text)?;
        yard.tells("has aliases that stand for too much")?;
        yard.home.write("configurations/hostile-0.yaml", good)?;
        Ok(())
    })
}

#[test]
fn a_folder_full_of_garbage_pushes_no_handler_and_no_configuration_out() -> Result<()> {
    let mut yard = Yard::with(Guest::default(), GRANTS)?;
    yard.serve("good")?;
    yard.bears(|yard| {
        for (folder, suffix) in [("handlers", "wasm"), ("configurations", "yaml")] {
            for number in 0..10_000 {
                // Before all others in the order of names.
                let name = format!("{folder}/a-{number:05}.{suffix}");
                fs::write(yard.home.path().join(name), "garbage")?;
            }
        }
        yard.tells("files beyond the first 1000 by name")?;
        yard.tells("a-00000.wasm")?;
        Ok(())
    })?;
    // Names are shown, too.
    let name = "configurations/\u{1b}[2J\u{1b}]0;owned\u{7}\n.yaml";
    yard.home.write(name, "garbage")?;
    yard.home.stop(nix::sys::signal::Signal::SIGKILL)?;
    yard.home.start(&[])?;
    yard.bears(|_| Ok(()))?;
    let shown = yard.home.leafhost(&["status"])?.good()?;
    let raw = |text: &str| text.contains(['\u{1b}', '\u{7}']);
    assert!(!raw(&shown), "{shown:?}");
    assert!(!raw(&yard.home.log()), "the log has the terminal's codes");
    Ok(())
}

/// Bounds the open files of the agent that runs.
fn limit(yard: &Yard, files: usize) -> Result<()> {
    let process = yard.home.pid()?.to_string();
    let bound = format!("--nofile={files}:");
    program::run("prlimit", ["--pid", &process, &bound])?.good()?;
    Ok(())
}

#[test]
fn at_its_limit_of_files_the_agent_serves_on_and_takes_what_is_new_once_it_may() -> Result<()> {
    let mut yard = Yard::with(Guest::default(), GRANTS)?;
    yard.serve("good")?;
    let process = yard.home.pid()?;
    let open = || Ok::<_, anyhow::Error>(fs::read_dir(format!("/proc/{process}/fd"))?.count());
    let another = Guest {
        name: "another",
        ..Guest::default()
    };
    yard.bears(|yard| {
        limit(yard, open()?)?;
        yard.home.write("handlers/another.grants.yaml", GRANTS)?;
        yard.home.write("handlers/another.wasm", another.wasm()?)?;
        let text = configuration("another", "another", "good");
        yard.home.write("configurations/another.yaml", text)?;
        eventually("the log names the limit", || {
            let log = yard.home.log();
            ensure!(log.contains("Too many open files"), "{log}");
            Ok(())
        })?;
        limit(yard, 1024)?;
        yard.published("another", 1).map(drop)
    })
    .context("with so few files")
}

#[test]
fn a_file_of_hundreds_of_configurations_makes_no_timer_late() -> Result<()> {
    let mut yard = Yard::with(Guest::default(), GRANTS)?;
    yard.suffer_crowd(300)?;
    let calls = || yard.metric("leafhost_handler_calls_total{handler=\"hostile\"}");
    let before = calls()?;
    // They are all called, too.
    eventually("the crowd is called", || {
        let more = calls()? - before;
        ensure!(more >= 600.0, "{more} calls");
        Ok(())
    })?;
    yard.neighbour_is_well()
}

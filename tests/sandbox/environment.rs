//! Folders, texts and process limits that are hostile to the agent.

use std::fs;

use anyhow::{Context, Result, ensure};
use leafhost_tests::program;
use leafhost_tests::wait::eventually;
use serde_json::Value;

use crate::fixture::{Fixture, Guest, configuration, session};
use crate::loading::{GRANTS, alias_bomb};

#[test]
fn yaml_alias_bombs_are_refused_and_reported() -> Result<()> {
    let mut fixture = Fixture::with(Guest::default(), GRANTS)?;
    fixture.serve("good")?;
    // Our handlers that read YAML, each with one of its fields.
    let handlers = [
        ("debug-echo", "debugEcho", "descriptions"),
        ("onvif", "onvif", "ipAddresses"),
        ("opcua", "opcua", "opcuaDiscoveryMethod"),
        ("udev", "udev", "udevRules"),
    ];
    for (file, ..) in handlers {
        fixture.home.add_handler(file)?;
    }
    fixture.home.until("all are loaded", |status| {
        let all = status.get("handlers").and_then(Value::as_array);
        let waits = |handler: &&Value| handler.get("status").is_some_and(|at| at == "Waiting");
        all.is_some_and(|all| all.iter().filter(waits).count() == handlers.len())
    })?;
    let bomb = alias_bomb();
    fixture.unaffected_by(|fixture| {
        for (_, handler, field) in handlers {
            let name = format!("bomb-{}", handler.to_lowercase());
            let text = configuration(&name, handler, &format!("{bomb}{field}: *a8\n"));
            fixture
                .home
                .write(&format!("configurations/{name}.yaml"), text)?;
        }
        for (_, handler, field) in handlers {
            let name = format!("bomb-{}", handler.to_lowercase());
            fixture
                .home
                .until(&format!("{handler} refuses"), |status| {
                    let invalid = session(status, &name).pointer("/invalidDetails/0");
                    invalid.is_some_and(|problem| problem.to_string().contains(field))
                })?;
        }
        // As a Configuration, next to good ones in the same file.
        let good = configuration("hostile-0", "hostile", "good");
        let text = format!("{good}---\n{bomb}");
        fixture.home.write("configurations/hostile-0.yaml", text)?;
        fixture.until_reported("has aliases that stand for too much")?;
        fixture.home.write("configurations/hostile-0.yaml", good)?;
        Ok(())
    })
}

#[test]
fn garbage_files_displace_no_handler_and_no_configuration() -> Result<()> {
    let mut fixture = Fixture::with(Guest::default(), GRANTS)?;
    fixture.serve("good")?;
    fixture.unaffected_by(|fixture| {
        for (folder, suffix) in [("handlers", "wasm"), ("configurations", "yaml")] {
            for number in 0..10_000 {
                // Sorted before all other names.
                let name = format!("{folder}/a-{number:05}.{suffix}");
                fs::write(fixture.home.path().join(name), "garbage")?;
            }
        }
        fixture.until_reported("files beyond the first 1000 by name")?;
        fixture.until_reported("a-00000.wasm")?;
        Ok(())
    })?;
    // File names are displayed as well.
    let name = "configurations/\u{1b}[2J\u{1b}]0;owned\u{7}\n.yaml";
    fixture.home.write(name, "garbage")?;
    fixture.home.stop(nix::sys::signal::Signal::SIGKILL)?;
    fixture.home.start(&[])?;
    fixture.unaffected_by(|_| Ok(()))?;
    let shown = fixture.home.leafhost(&["status"])?.good()?;
    let raw = |text: &str| text.contains(['\u{1b}', '\u{7}']);
    assert!(!raw(&shown), "{shown:?}");
    assert!(
        !raw(&fixture.home.log()),
        "the log has the terminal's codes"
    );
    Ok(())
}

/// Sets the limit of open files of the running agent.
fn limit(fixture: &Fixture, files: usize) -> Result<()> {
    let process = fixture.home.pid()?.to_string();
    let bound = format!("--nofile={files}:");
    program::run("prlimit", ["--pid", &process, &bound])?.good()?;
    Ok(())
}

#[test]
fn at_its_limit_of_open_files_the_agent_serves_on_and_loads_new_files_later() -> Result<()> {
    let mut fixture = Fixture::with(Guest::default(), GRANTS)?;
    fixture.serve("good")?;
    let process = fixture.home.pid()?;
    let open = || Ok::<_, anyhow::Error>(fs::read_dir(format!("/proc/{process}/fd"))?.count());
    let another = Guest {
        name: "another",
        ..Guest::default()
    };
    fixture
        .unaffected_by(|fixture| {
            limit(fixture, open()?)?;
            fixture.home.write("handlers/another.grants.yaml", GRANTS)?;
            fixture
                .home
                .write("handlers/another.wasm", another.wasm()?)?;
            let text = configuration("another", "another", "good");
            fixture.home.write("configurations/another.yaml", text)?;
            eventually("the log names the limit", || {
                let log = fixture.home.log();
                ensure!(log.contains("Too many open files"), "{log}");
                Ok(())
            })?;
            limit(fixture, 1024)?;
            fixture.instances_of("another", 1).map(drop)
        })
        .context("with so few files")
}

#[test]
fn a_file_of_hundreds_of_configurations_delays_no_timer() -> Result<()> {
    let mut fixture = Fixture::with(Guest::default(), GRANTS)?;
    fixture.serve_many(300)?;
    let calls = || fixture.metric("leafhost_handler_calls_total{handler=\"hostile\"}");
    let before = calls()?;
    // All of them are called.
    eventually("all of them are called", || {
        let more = calls()? - before;
        ensure!(more >= 600.0, "{more} calls");
        Ok(())
    })?;
    fixture.check_neighbour()
}

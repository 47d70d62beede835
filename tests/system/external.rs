//! Handlers built for Akri in other languages, with other gRPC libraries (C-core in Python's grpcio, and grpc-go), and the real agent.

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use leafhost_tests::agent::Home;
use leafhost_tests::peer::{self, Peer};
use leafhost_tests::wait::{eventually, within};
use leafhost_tests::{program, requirement};
use nix::sys::signal::Signal;
use serde_json::Value;

const CONFIGURATION: &str = r"apiVersion: akri.sh/v0
kind: Configuration
metadata: {name: py}
spec:
  discoveryHandler:
    name: pyEcho
    discoveryDetails: |
      find: all
    discoveryProperties:
      - {name: user, value: admin}
";

/// Creates a home whose agent lets handlers register in `akri`; `None` if grpcio is missing.
fn home() -> Result<Option<(Home, PathBuf)>> {
    let python = peer::python_folder()?.join("bin/python");
    let name = python.to_str().context("the path is no text")?;
    if requirement::lacks(requirement::files(&[name], "make setup-test"))? {
        return Ok(None);
    }
    let home = Home::new()?;
    home.write("configurations/py.yaml", CONFIGURATION)?;
    home.write("handlers/pyEcho.grants.yaml", "devices: {env: ['PY_*']}")?;
    Ok(Some((home, python)))
}

fn start(home: &mut Home, more: &[&str]) -> Result<()> {
    let folder = home.path().join("akri");
    let folder = folder.to_str().context("the path is no text")?.to_owned();
    home.start(&[&["--external-handlers-dir", &folder], more].concat())
}

fn handler(home: &Home, python: &PathBuf, socket: &str) -> Result<Peer> {
    let mut command = Command::new(python);
    command
        .env("PROTO", program::source_tree().join("host/external/proto"))
        .arg(program::source_tree().join("tests/system/external.py"))
        .arg(home.path().join("akri"))
        .args(["pyEcho", socket]);
    Peer::start(command)
}

fn ask(peer: &mut Peer, line: &str, answer: &str) -> Result<()> {
    let said = peer.ask(line)?;
    ensure!(said == answer, "{line}: {said}");
    Ok(())
}

/// Waits until the handler's sources, each with its status, fit.
fn sources(home: &Home, fits: impl Fn(&[(String, String)]) -> bool) -> Result<()> {
    eventually("the handler's sources", || {
        let status = home.status()?;
        let handlers = status.get("handlers").and_then(Value::as_array);
        let text = |view: &Value, field: &str| {
            let value = view.get(field).and_then(Value::as_str);
            value.unwrap_or_default().to_owned()
        };
        let found: Vec<(String, String)> = handlers
            .into_iter()
            .flatten()
            .filter(|view| text(view, "kind") == "external")
            .map(|view| (text(view, "endpoint"), text(view, "status")))
            .collect();
        ensure!(fits(&found), "{found:?}");
        Ok(())
    })
}

fn ids(instances: &[Value]) -> Vec<&str> {
    ids_in(instances, "/spec/brokerProperties/PY_ID")
}

fn ids_in<'a>(instances: &'a [Value], field: &str) -> Vec<&'a str> {
    let id = |one: &'a Value| one.pointer(field);
    let mut ids: Vec<&str> = instances
        .iter()
        .filter_map(id)
        .filter_map(Value::as_str)
        .collect();
    ids.sort_unstable();
    ids
}

#[test]
fn a_handler_in_python_registers_and_what_it_sees_are_instances_over_restarts_of_both() -> Result<()>
{
    let Some((mut home, python)) = home()? else {
        return Ok(());
    };
    start(&mut home, &[])?;
    let mut peer = handler(&home, &python, "a.sock")?;
    ask(&mut peer, "set one two", "set")?;
    ask(&mut peer, "register", "registered")?;
    let instances = home.instances(2)?;
    assert_eq!(ids(&instances), ["one", "two"]);
    let first = instances.first().context("none")?;
    for (name, expected) in [("PY_DETAILS", "find: all"), ("PY_USER", "admin")] {
        let value = first.pointer(&format!("/spec/brokerProperties/{name}"));
        assert_eq!(value.and_then(Value::as_str), Some(expected), "{first}");
    }
    let endpoint = home.path().join("akri/a.sock").canonicalize()?;
    let endpoint = endpoint.to_str().context("the path is no text")?.to_owned();
    let active = [(endpoint.clone(), "Active".to_owned())];
    sources(&home, |found| *found == active)?;
    let shown = home.leafhost(&["status", "handlers"])?.good()?;
    ensure!(shown.contains(&format!("external {endpoint}")), "{shown}");
    let uid = |instances: &[Value]| -> Vec<Value> {
        let uids = instances
            .iter()
            .filter_map(|one| one.pointer("/metadata/uid"));
        uids.cloned().collect()
    };
    let before = uid(&instances);

    // The agent comes back; the handler only sees the end of its stream and registers nothing.
    home.stop(Signal::SIGKILL)?;
    start(&mut home, &[])?;
    sources(&home, |found| *found == active)?;
    ask(&mut peer, "set one two three", "set")?;
    let instances = home.instances(3)?;
    assert!(
        before
            .iter()
            .all(|uid_before| uid(&instances).contains(uid_before))
    );

    // The handler is killed: nothing is withdrawn, and another one on the same endpoint takes over.
    peer.kill()?;
    sources(
        &home,
        |found| matches!(found, [(_, status)] if status == "Offline"),
    )?;
    assert_eq!(home.instances(3)?.len(), 3);
    let mut peer = handler(&home, &python, "a.sock")?;
    ask(&mut peer, "set three", "set")?;
    ask(&mut peer, "register", "registered")?;
    sources(&home, |found| *found == active)?;
    assert_eq!(peer.ask("asked")?, "1");

    // A second endpoint of the same name adds the devices that the first one does not have.
    let mut other = handler(&home, &python, "b.sock")?;
    ask(&mut other, "set three four", "set")?;
    ask(&mut other, "register", "registered")?;
    sources(&home, |found| {
        found.len() == 2 && found.iter().all(|(_, status)| status == "Active")
    })?;
    eventually("both endpoints' devices", || {
        let status = home.status()?;
        let instances = status.get("instances").and_then(Value::as_array);
        let instances = instances.context("no instances")?;
        ensure!(ids(instances).contains(&"four"), "{instances:?}");
        Ok(())
    })?;
    peer.end()?;
    other.end()?;
    home.stop(Signal::SIGTERM)?;
    let socket = home.path().join("akri/agent-registration.sock");
    ensure!(fs::symlink_metadata(socket).is_err(), "the socket stays");
    Ok(())
}

#[test]
fn a_handler_that_stays_away_loses_its_devices_and_is_found_again_without_registering() -> Result<()>
{
    let Some((mut home, python)) = home()? else {
        return Ok(());
    };
    start(&mut home, &["--handler-eviction", "2s"])?;
    let mut peer = handler(&home, &python, "a.sock")?;
    ask(&mut peer, "set one", "set")?;
    ask(&mut peer, "register", "registered")?;
    home.instances(1)?;
    peer.kill()?;
    home.instances(0)?;
    sources(&home, <[_]>::is_empty)?;

    // Registrations outlive the agent, even while their handler is down.
    home.stop(Signal::SIGTERM)?;
    start(&mut home, &["--handler-eviction", "2s"])?;
    let mut peer = handler(&home, &python, "a.sock")?;
    ask(&mut peer, "set one two", "set")?;
    within(Duration::from_secs(90), "the handler is found", || {
        let status = home.status()?;
        let instances = status.get("instances").and_then(Value::as_array);
        ensure!(instances.is_some_and(|found| found.len() == 2), "{status}");
        Ok(())
    })?;
    home.stop(Signal::SIGTERM)?;
    peer.end()?;
    Ok(())
}

/// Number of sessions that report as much text as a set may have.
const WORDY: usize = 8;
/// Number of devices of each session, and bytes of text of each device.
const DEVICES: usize = 127;
const TEXT: usize = 64_000;
/// Maximum memory of the agent with these sessions, in MiB.
const MEMORY: u64 = 420;

#[test]
fn as_much_text_as_there_may_be_takes_the_agent_no_more_memory_than_it_may() -> Result<()> {
    let Some((mut home, python)) = home()? else {
        return Ok(());
    };
    for number in 1..WORDY {
        let configuration = CONFIGURATION.replace("{name: py}", &format!("{{name: py{number}}}"));
        home.write(&format!("configurations/py{number}.yaml"), configuration)?;
    }
    // With the environment of an installed agent.
    home.set_environment(&[("MALLOC_ARENA_MAX", "1".as_ref())]);
    start(&mut home, &[])?;
    let mut peer = handler(&home, &python, "a.sock")?;
    ask(&mut peer, &format!("fill {DEVICES} {TEXT}"), "filled")?;
    ask(&mut peer, "register", "registered")?;
    home.instances(WORDY * DEVICES)?;
    // The agent checks all specs again, and one is missing.
    let spec = home.cdi().join("akri.sh-py_leafhost.json");
    eventually("the spec", || {
        fs::remove_file(&spec).context("it is not there yet")
    })?;
    let more = CONFIGURATION.replace("{name: py}", "{name: more}");
    home.write("configurations/more.yaml", more.replace("pyEcho", "none"))?;
    eventually("the spec again", || Ok(fs::metadata(&spec).map(drop)?))?;
    let peak = || -> Result<u64> {
        let status = fs::read_to_string(format!("/proc/{}/status", home.pid()?))?;
        let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
        let peak = peak.and_then(|peak| peak.split_whitespace().next());
        Ok(peak.context("no VmHWM")?.parse::<u64>()? >> 10)
    };
    let full = peak()?;
    println!(
        "agent with {WORDY} sessions of {DEVICES} devices of {TEXT} bytes: at most {full} MiB"
    );

    // As many additional sessions find no room, and the others keep working.
    for number in WORDY..2 * WORDY {
        let configuration = CONFIGURATION.replace("{name: py}", &format!("{{name: py{number}}}"));
        home.write(&format!("configurations/py{number}.yaml"), configuration)?;
    }
    home.until("the budget is named", |status| {
        let views = status.get("configurations").and_then(Value::as_array);
        let is_told = |view: &&Value| view.to_string().contains("at most 64 MiB");
        views.is_some_and(|all| all.iter().filter(is_told).count() == WORDY)
    })?;
    home.instances(WORDY * DEVICES)?;
    let beyond = peak()?;
    println!("the same with as many sessions more: at most {beyond} MiB");
    ensure!(beyond <= MEMORY, "{full} MiB, then {beyond} MiB");
    home.stop(Signal::SIGTERM)?;
    peer.end()?;
    Ok(())
}

#[test]
fn a_handler_in_go_registers_by_address_and_by_path_and_its_end_is_noticed() -> Result<()> {
    let program = peer::go_handler()?;
    let name = program.to_str().context("the path is no text")?;
    if requirement::lacks(requirement::files(&[name], "make setup-test"))? {
        return Ok(());
    }
    for register in ["register", "register-by-path"] {
        let mut home = Home::new()?;
        let configuration = CONFIGURATION.replace("pyEcho", "goEcho").replace(
            "name: py",
            "name: go, annotations: {leafhost.dev/grace: 0s}",
        );
        home.write("configurations/go.yaml", configuration)?;
        home.write("handlers/goEcho.grants.yaml", "devices: {env: ['GO_*']}")?;
        start(&mut home, &[])?;
        let mut command = Command::new(&program);
        command.arg(home.path().join("akri"));
        command.args(["goEcho", "a.sock"]);
        let mut peer = Peer::start(command)?;
        ask(&mut peer, "set one two", "set")?;
        ask(&mut peer, register, "registered")?;
        let field = "/spec/brokerProperties/GO_ID";
        let instances = home.instances(2)?;
        assert_eq!(ids_in(&instances, field), ["one", "two"], "{register}");
        let details = instances
            .first()
            .and_then(|one| one.pointer("/spec/brokerProperties/GO_DETAILS"));
        assert_eq!(details.and_then(Value::as_str), Some("find: all"));
        let is = |wanted: &'static str| move |found: &[(String, String)]| matches!(found, [(_, status)] if status == wanted);
        sources(&home, is("Active"))?;
        ask(&mut peer, "set two", "set")?;
        assert_eq!(ids_in(&home.instances(1)?, field), ["two"], "{register}");
        assert_eq!(peer.ask("asked")?, "1", "{register}");
        peer.kill()?;
        sources(&home, is("Offline"))?;
        home.stop(Signal::SIGTERM)?;
    }
    Ok(())
}

/// Returns the first block of a language in a text.
fn block<'a>(text: &'a str, language: &str) -> Result<&'a str> {
    let (_, rest) = text
        .split_once(&format!("\n```{language}\n"))
        .context("no block")?;
    let (block, _) = rest.split_once("```\n").context("no end")?;
    Ok(block)
}

#[test]
fn the_handler_in_the_documentation_works_as_written() -> Result<()> {
    const GRANTS: &str = r#"devices: {nodes: ["/dev/ttyUSB*"], env: [FILES_PATH]}"#;
    let Some((mut home, python)) = home()? else {
        return Ok(());
    };
    let text = fs::read_to_string(program::source_tree().join("docs/external.md"))?;
    let (_, text) = text
        .split_once("\n## Write a handler in Python or Go\n")
        .context("no section")?;
    ensure!(text.contains(GRANTS), "{text}");
    // Every machine has this device.
    let here = |text: &str| text.replace("/dev/ttyUSB*", "/dev/random");
    home.write("configurations/sticks.yaml", here(block(text, "yaml")?))?;
    home.write("handlers/files.grants.yaml", here(GRANTS))?;
    home.write("files.py", block(text, "python")?)?;
    let proto = program::source_tree().join("host/external/proto/discovery.proto");
    home.write("discovery.proto", fs::read(proto)?)?;
    start(&mut home, &[])?;
    let mut command = Command::new(&python);
    command.arg(home.path().join("files.py"));
    command.arg(home.path().join("akri"));
    let _peer = Peer::begin(command)?;
    let instances = home.instances(1)?;
    assert_eq!(
        ids_in(&instances, "/spec/brokerProperties/FILES_PATH"),
        ["/dev/random"]
    );
    Ok(())
}

//! Handlers that are added, changed, broken and removed while the agent runs.

use std::fs;

use anyhow::{Context, Result, ensure};
use leafhost_tests::agent::Home;
use leafhost_tests::program;
use leafhost_tests::wait::eventually;
use nix::sys::signal::Signal;
use serde_json::Value;

use crate::instances::{DEBUG_ECHO, home_with_echo};

fn handler<'a>(status: &'a Value, source: &str) -> Option<&'a Value> {
    let all = status.get("handlers").and_then(Value::as_array)?;
    all.iter()
        .find(|handler| handler.get("source").and_then(Value::as_str) == Some(source))
}

fn field<'a>(status: &'a Value, source: &str, name: &str) -> &'a str {
    handler(status, source)
        .and_then(|handler| handler.get(name))
        .and_then(Value::as_str)
        .unwrap_or_default()
}

#[test]
fn a_handler_added_to_a_running_agent_serves_its_waiting_configuration() -> Result<()> {
    let mut home = Home::new()?;
    home.write("configurations/echo.yaml", DEBUG_ECHO)?;
    home.start(&[])?;
    home.until("the missing handler is named", |status| {
        status
            .pointer("/configurations/0/problems")
            .is_some_and(|problems| problems.to_string().contains("debugEcho"))
    })?;
    home.add_handler("debug-echo")?;
    home.instances(2)?;
    Ok(())
}

#[test]
fn an_agent_with_a_small_address_space_calls_its_handlers() -> Result<()> {
    let mut home = home_with_echo()?;
    // 64 GiB of address space.
    home.limit('v', 64 << 20);
    home.start(&[])?;
    home.instances(2)?;
    Ok(())
}

#[test]
fn a_handler_without_a_configuration_waits() -> Result<()> {
    let mut home = Home::new()?;
    home.add_handler("mock-gpu")?;
    home.start(&[])?;
    home.until("it waits", |status| {
        field(status, "mock-gpu.wasm", "status") == "Waiting"
    })?;
    Ok(())
}

#[test]
fn garbage_in_place_of_a_handler_is_reported_and_the_old_one_serves_on_even_after_a_restart()
-> Result<()> {
    let mut home = home_with_echo()?;
    home.start(&[])?;
    let before = home.instances(2)?;
    home.write("handlers/debug-echo.wasm", b"this is no component")?;
    let is_named = |status: &Value| {
        field(status, "debug-echo.wasm", "status") == "Active"
            && !field(status, "debug-echo.wasm", "lastError").is_empty()
    };
    home.until("the garbage is named and the old one serves", is_named)?;
    // A new Configuration shows that the old version is called.
    home.write(
        "configurations/more.yaml",
        DEBUG_ECHO.replace("name: echo", "name: more"),
    )?;
    home.instances(4)?;
    home.remove("configurations/more.yaml")?;
    assert_eq!(home.instances(2)?, before);
    home.stop(Signal::SIGKILL)?;
    home.start(&[])?;
    home.until("the accepted version serves after the restart", is_named)?;
    assert_eq!(home.instances(2)?, before);
    Ok(())
}

#[test]
fn a_replaced_handler_that_finds_the_same_devices_causes_no_write() -> Result<()> {
    let mut home = home_with_echo()?;
    home.start(&[])?;
    let before = home.instances(2)?;
    let status = home.status()?;
    let digest = field(&status, "debug-echo.wasm", "digest").to_owned();
    let mut bytes = fs::read(program::handler("debug-echo")?)?;
    // An empty custom section: different bytes, same component.
    bytes.extend_from_slice(&[0, 2, 1, b'x']);
    home.write("handlers/debug-echo.wasm", &bytes)?;
    home.until("the new bytes serve", |status| {
        let now = field(status, "debug-echo.wasm", "digest");
        !now.is_empty() && now != digest && field(status, "debug-echo.wasm", "status") == "Active"
    })?;
    assert_eq!(home.instances(2)?, before);
    Ok(())
}

#[test]
fn a_deleted_handler_goes_offline_keeps_its_devices_and_is_evicted_with_them() -> Result<()> {
    let mut home = home_with_echo()?;
    home.start(&["--handler-eviction", "15s"])?;
    home.instances(2)?;
    home.remove("handlers/debug-echo.wasm")?;
    let status = home.until("it is Offline", |status| {
        field(status, "debug-echo.wasm", "status") == "Offline"
    })?;
    let instances = status
        .get("instances")
        .and_then(Value::as_array)
        .context("no instances")?;
    assert_eq!(
        instances.len(),
        2,
        "devices stay published while the handler is Offline"
    );
    home.instances(0)?;
    home.until("it is out of the registry", |status| {
        handler(status, "debug-echo.wasm").is_none()
    })?;
    Ok(())
}

#[test]
fn a_handler_that_returns_before_its_eviction_keeps_its_instances() -> Result<()> {
    let mut home = home_with_echo()?;
    home.start(&[])?;
    let before = home.instances(2)?;
    home.remove("handlers/debug-echo.wasm")?;
    home.until("it is Offline", |status| {
        field(status, "debug-echo.wasm", "status") == "Offline"
    })?;
    home.add_handler("debug-echo")?;
    home.until("it is Active", |status| {
        field(status, "debug-echo.wasm", "status") == "Active"
    })?;
    assert_eq!(home.instances(2)?, before);
    Ok(())
}

#[test]
fn a_gzipped_handler_serves_like_a_plain_one() -> Result<()> {
    let mut home = Home::new()?;
    home.write("configurations/echo.yaml", DEBUG_ECHO)?;
    let wasm = program::handler("debug-echo")?;
    fs::copy(
        wasm.with_extension("grants.yaml"),
        home.path().join("handlers/debug-echo.grants.yaml"),
    )?;
    fs::copy(&wasm, home.path().join("plain"))?;
    program::run("gzip", [home.path().join("plain")])?.good()?;
    fs::rename(
        home.path().join("plain.gz"),
        home.path().join("handlers/debug-echo.wasm.gz"),
    )?;
    home.start(&[])?;
    home.instances(2)?;
    Ok(())
}

#[test]
fn without_grants_a_handlers_devices_are_left_out_and_reported() -> Result<()> {
    let mut home = home_with_echo()?;
    home.remove("handlers/debug-echo.grants.yaml")?;
    home.start(&[])?;
    home.until("both devices are left out", |status| {
        let left_out = status
            .pointer("/configurations/0/sessions/0/leftOut")
            .and_then(Value::as_array);
        left_out.is_some_and(|all| {
            all.len() == 2
                && all
                    .iter()
                    .all(|one| one.to_string().contains("DEBUG_ECHO_DESCRIPTION"))
        })
    })?;
    home.add_handler("debug-echo")?;
    home.instances(2)?;
    Ok(())
}

#[test]
fn a_handler_without_the_udev_grant_is_refused_and_the_grant_named() -> Result<()> {
    let mut home = Home::new()?;
    home.add_handler("udev")?;
    home.remove("handlers/udev.grants.yaml")?;
    home.start(&[])?;
    home.until("the missing grant is named", |status| {
        handler(status, "udev.wasm").and_then(|handler| handler.get("missingGrants"))
            == Some(&serde_json::json!(["udev"]))
    })?;
    Ok(())
}

#[test]
fn saving_with_an_editor_is_not_a_deletion() -> Result<()> {
    let mut home = home_with_echo()?;
    home.start(&[])?;
    let before = home.instances(2)?;
    let file = home.path().join("configurations/echo.yaml");
    for round in 0..3 {
        let other = home.path().join("configurations/4913~");
        fs::rename(&file, &other)?;
        fs::write(&file, format!("{DEBUG_ECHO}# {round}\n"))?;
        fs::remove_file(&other)?;
    }
    home.write(
        "configurations/last.yaml",
        DEBUG_ECHO.replace("name: echo", "name: last"),
    )?;
    let after = home.instances(4)?;
    let kept: Vec<_> = after
        .into_iter()
        .filter(|instance| instance.pointer("/spec/configurationName") == Some(&"echo".into()))
        .collect();
    assert_eq!(kept, before);
    Ok(())
}

#[test]
fn the_admin_endpoint_tells_health_readiness_and_metrics() -> Result<()> {
    let mut home = home_with_echo()?;
    home.start(&[])?;
    home.instances(2)?;
    let listen = home.address()?;
    let get =
        |path: &str| program::run("curl", ["-sSf", &format!("http://{listen}{path}")])?.good();
    get("/healthz")?;
    eventually("it is ready", || get("/readyz").map(drop))?;
    let metrics = get("/metrics")?;
    for line in [
        r#"akri_instance_count{configuration="echo",is_shared="true"} 2"#,
        r#"akri_discovery_response_time_count{configuration="echo"}"#,
        "akri_discovery_response_result",
    ] {
        ensure!(metrics.contains(line), "{line} is not in\n{metrics}");
    }
    Ok(())
}

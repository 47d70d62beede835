//! From a Configuration to Instances and CDI devices, and the state that a restart preserves.

use std::collections::BTreeMap;
use std::fs;

use anyhow::{Context, Result, ensure};
use leafhost_tests::agent::Home;
use leafhost_tests::program::source_tree;
use leafhost_tests::wait::eventually;
use nix::sys::signal::Signal;
use serde_json::{Value, json};

pub const DEBUG_ECHO: &str = r#"apiVersion: akri.sh/v0
kind: Configuration
metadata:
  name: echo
spec:
  discoveryHandler:
    name: debugEcho
    discoveryDetails: |
      descriptions: ["foo0", "foo1"]
  capacity: 2
  brokerProperties:
    GREETING: hello
"#;

pub fn home_with_echo() -> Result<Home> {
    let home = Home::new()?;
    home.add_handler("debug-echo")?;
    home.write("configurations/echo.yaml", DEBUG_ECHO)?;
    Ok(home)
}

fn text<'a>(value: &'a Value, pointer: &str) -> &'a str {
    value
        .pointer(pointer)
        .and_then(Value::as_str)
        .unwrap_or_default()
}

fn uids(instances: &[Value]) -> BTreeMap<String, String> {
    instances
        .iter()
        .map(|instance| {
            (
                text(instance, "/metadata/name").to_owned(),
                text(instance, "/metadata/uid").to_owned(),
            )
        })
        .collect()
}

#[test]
fn two_descriptions_become_two_instances_with_akris_names_and_slots() -> Result<()> {
    let mut home = home_with_echo()?;
    home.start(&[])?;
    let instances = home.instances(2)?;
    let names: Vec<_> = instances
        .iter()
        .map(|instance| text(instance, "/metadata/name"))
        .collect();
    assert_eq!(names, ["echo-8120fe", "echo-a19705"]);
    let first = instances.first().context("none")?;
    assert_eq!(text(first, "/spec/cdiName"), "akri.sh/echo=8120fe");
    assert_eq!(
        first.pointer("/spec/deviceUsage"),
        Some(&json!({"echo-8120fe-0": "", "echo-8120fe-1": ""}))
    );
    assert_eq!(
        first.pointer("/spec/brokerProperties"),
        Some(&json!({"DEBUG_ECHO_DESCRIPTION": "foo0", "GREETING": "hello"}))
    );
    assert_eq!(first.pointer("/spec/nodes"), Some(&json!(["node-a"])));
    assert_eq!(first.pointer("/spec/shared"), Some(&json!(true)));
    Ok(())
}

#[test]
fn cdi_specs_have_both_forms_of_every_variable_and_outlive_the_agent() -> Result<()> {
    let mut home = home_with_echo()?;
    home.start(&[])?;
    home.instances(2)?;
    let file = home.cdi().join("akri.sh-echo_leafhost.json");
    let spec: Value = eventually("the CDI spec", || {
        Ok(serde_json::from_slice(&fs::read(&file)?)?)
    })?;
    assert_eq!(text(&spec, "/kind"), "akri.sh/echo");
    let devices = spec
        .get("devices")
        .and_then(Value::as_array)
        .context("no devices")?;
    let names: Vec<_> = devices.iter().map(|device| text(device, "/name")).collect();
    assert_eq!(names, ["8120fe", "a19705", "all"]);
    let environment = devices
        .first()
        .and_then(|device| device.pointer("/containerEdits/env"))
        .context("no env")?;
    for line in [
        "DEBUG_ECHO_DESCRIPTION=foo0",
        "DEBUG_ECHO_DESCRIPTION_8120FE=foo0",
        "GREETING=hello",
        "GREETING_8120FE=hello",
    ] {
        assert!(
            environment
                .as_array()
                .is_some_and(|all| all.contains(&json!(line))),
            "{line} is not in {environment}"
        );
    }
    home.stop(Signal::SIGTERM)?;
    assert!(file.is_file());
    Ok(())
}

#[test]
fn restarts_by_term_and_by_kill_keep_every_instance_and_write_nothing() -> Result<()> {
    let mut home = Home::new()?;
    home.add_handler("debug-echo")?;
    home.add_handler("mock-gpu")?;
    home.write("configurations/echo.yaml", DEBUG_ECHO)?;
    home.write(
        "configurations/gpu.yaml",
        fs::read(source_tree().join("deploy/samples/standalone/configurations/mock-gpu.yaml"))?,
    )?;
    home.start(&[])?;
    let before = home.instances(4)?;
    for signal in [Signal::SIGTERM, Signal::SIGKILL] {
        home.stop(signal)?;
        home.start(&[])?;
        home.until("both handlers are Active", |status| {
            let handlers = status.get("handlers").and_then(Value::as_array);
            handlers.is_some_and(|all| {
                all.len() == 2
                    && all
                        .iter()
                        .all(|handler| text(handler, "/status") == "Active")
            })
        })?;
        assert_eq!(home.instances(4)?, before, "after {signal}");
    }
    Ok(())
}

#[test]
fn a_deleted_configuration_removes_only_its_instances_and_its_spec() -> Result<()> {
    let mut home = Home::new()?;
    home.add_handler("debug-echo")?;
    home.write("configurations/echo.yaml", DEBUG_ECHO)?;
    home.write(
        "configurations/more.yaml",
        DEBUG_ECHO.replace("name: echo", "name: more"),
    )?;
    home.start(&[])?;
    let kept: BTreeMap<_, _> = uids(&home.instances(4)?)
        .into_iter()
        .filter(|(name, _)| name.starts_with("echo-"))
        .collect();
    home.remove("configurations/more.yaml")?;
    assert_eq!(uids(&home.instances(2)?), kept);
    eventually("the CDI spec is gone", || {
        ensure!(
            !home.cdi().join("akri.sh-more_leafhost.json").exists(),
            "it is there"
        );
        Ok(())
    })
}

#[test]
fn the_log_says_when_a_device_came_and_went_and_why() -> Result<()> {
    let mut home = home_with_echo()?;
    home.start(&[])?;
    home.instances(2)?;
    let logged = |line: &str| {
        eventually(line, || {
            let log = home.log();
            ensure!(log.contains(line), "{log}");
            Ok(())
        })
    };
    let of = |why| format!(r#"configuration=default/echo device="foo1" why="{why}""#);
    logged(&format!("device arrived {}", of("its handler reports it")))?;
    let less = DEBUG_ECHO.replace(r#", "foo1""#, "");
    home.write("configurations/echo.yaml", &less)?;
    logged(&format!(
        "device is missing {}",
        of("its handler no longer reports it; it is withdrawn after 300 s")
    ))?;
    home.write("configurations/echo.yaml", DEBUG_ECHO)?;
    logged(&format!(
        "device returned {}",
        of("its handler reports it again")
    ))?;
    home.remove("configurations/echo.yaml")?;
    logged(&format!(
        "device withdrawn {}",
        of("the Configuration was deleted")
    ))
}

#[test]
fn capacity_and_properties_change_without_a_new_instance() -> Result<()> {
    let mut home = home_with_echo()?;
    home.start(&[])?;
    let before = uids(&home.instances(2)?);
    home.write(
        "configurations/echo.yaml",
        DEBUG_ECHO
            .replace("capacity: 2", "capacity: 5")
            .replace("hello", "hi"),
    )?;
    home.until("the change arrives", |status| {
        status.pointer("/instances/0/spec/capacity") == Some(&json!(5))
            && status.pointer("/instances/0/spec/brokerProperties/GREETING") == Some(&json!("hi"))
    })?;
    assert_eq!(uids(&home.instances(2)?), before);
    Ok(())
}

#[test]
fn mock_gpus_are_local_typed_and_stable() -> Result<()> {
    let mut home = Home::new()?;
    home.add_handler("mock-gpu")?;
    home.write(
        "configurations/gpu.yaml",
        fs::read(source_tree().join("deploy/samples/standalone/configurations/mock-gpu.yaml"))?,
    )?;
    home.start(&[])?;
    let instances = home.instances(2)?;
    for instance in &instances {
        assert_eq!(instance.pointer("/spec/shared"), Some(&json!(false)));
        assert_eq!(
            instance.pointer("/metadata/labels/leafhost.dev~1node"),
            Some(&json!("node-a"))
        );
        assert_eq!(
            instance.pointer("/spec/leafhost/attributes/model"),
            Some(&json!({"string": "LATEST-GPU-MODEL"}))
        );
        assert_eq!(
            instance.pointer("/spec/leafhost/attributes/driverVersion"),
            Some(&json!({"version": "1.0.0"}))
        );
        assert_eq!(
            instance.pointer("/spec/leafhost/capacity/memory"),
            Some(&json!("80Gi"))
        );
    }
    Ok(())
}

#[test]
fn a_configuration_whose_name_is_no_cdi_class_gets_instances_and_a_problem() -> Result<()> {
    let mut home = Home::new()?;
    home.add_handler("debug-echo")?;
    home.write(
        "configurations/t.yaml",
        DEBUG_ECHO.replace("name: echo", "name: t"),
    )?;
    home.start(&[])?;
    home.instances(2)?;
    home.until("the status says so", |status| {
        status
            .pointer("/configurations/0/problems")
            .is_some_and(|problems| problems.to_string().contains("CDI"))
    })?;
    assert!(!home.cdi().join("akri.sh-t_leafhost.json").exists());
    Ok(())
}

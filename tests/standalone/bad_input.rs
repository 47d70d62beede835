//! Bad input gets a clear error, and the last good state keeps serving.

use std::fs;

use anyhow::Result;
use leafhost_tests::agent::Home;
use leafhost_tests::program;
use nix::sys::signal::Signal;

use crate::instances::{DEBUG_ECHO, home_with_echo};

#[test]
fn a_broken_configuration_is_reported_with_file_and_field_and_its_instances_stay() -> Result<()> {
    let mut home = home_with_echo()?;
    home.start(&[])?;
    let before = home.instances(2)?;
    let broken = [
        ("not: [closed", "echo.yaml"),
        (
            &*DEBUG_ECHO.replace("capacity: 2", "capacity: 0"),
            "spec.capacity",
        ),
        (
            &DEBUG_ECHO.replace("capacity: 2", "capacity: -1"),
            "spec.capacity",
        ),
        (
            &DEBUG_ECHO.replace("kind: Configuration", "kind: Instance"),
            "kind",
        ),
        (
            &DEBUG_ECHO.replace("name: echo", "name: Echo"),
            "metadata.name",
        ),
        (
            &DEBUG_ECHO.replace("capacity: 2", "capacity: many"),
            "spec.capacity",
        ),
    ];
    for (text, words) in broken {
        home.write("configurations/echo.yaml", text)?;
        home.until(&format!("{words} is named"), |status| {
            let problems = format!(
                "{:?} {:?}",
                status.get("problems"),
                status.pointer("/configurations/0/problems")
            );
            problems.contains("echo.yaml") && problems.contains(words)
        })?;
        assert_eq!(home.instances(2)?, before, "{text}");
    }
    home.stop(Signal::SIGTERM)?;
    home.start(&[])?;
    assert_eq!(
        home.instances(2)?,
        before,
        "the last good Configuration serves after a restart"
    );
    home.write("configurations/echo.yaml", DEBUG_ECHO)?;
    home.until("all is well", |status| {
        status
            .pointer("/configurations/0/problems")
            .is_some_and(|problems| problems.as_array().is_some_and(Vec::is_empty))
    })?;
    Ok(())
}

#[test]
fn a_misspelt_field_is_a_warning_in_status_and_log_until_it_is_right() -> Result<()> {
    let mut home = home_with_echo()?;
    let misspelt = DEBUG_ECHO.replace("capacity: 2", "capcity: 2");
    home.write("configurations/echo.yaml", misspelt)?;
    home.start(&[])?;
    let is_told = |status: &serde_json::Value| {
        let warnings = status.pointer("/configurations/0/warnings");
        warnings.map(|warnings| warnings.to_string().contains("did you mean capacity?"))
    };
    home.until("the field is named", |status| is_told(status) == Some(true))?;
    home.instances(2)?;
    home.until("the log has it", |_| {
        let log = home.log();
        log.contains("unknown field capcity") && log.contains("NoEffect")
    })?;
    home.write("configurations/echo.yaml", DEBUG_ECHO)?;
    home.until("all is well", |status| is_told(status) == Some(false))?;
    Ok(())
}

#[test]
fn a_file_in_a_wrong_place_is_a_note_until_it_is_gone() -> Result<()> {
    let mut home = home_with_echo()?;
    let files = ["configurations/cams.json", "handlers/cams.yaml"];
    for file in files {
        home.write(file, DEBUG_ECHO)?;
    }
    home.start(&[])?;
    let notes = |status: &serde_json::Value| {
        let notes = status.pointer("/notes").map(ToString::to_string);
        notes.unwrap_or_default()
    };
    home.until("both are named", |status| {
        files.iter().all(|file| notes(status).contains(*file))
    })?;
    for file in files {
        fs::remove_file(home.path().join(file))?;
    }
    home.until("nothing is named", |status| notes(status) == "[]")?;
    Ok(())
}

#[test]
fn details_the_handler_refuses_are_shown_with_their_path() -> Result<()> {
    let mut home = Home::new()?;
    home.add_handler("debug-echo")?;
    home.write(
        "configurations/echo.yaml",
        DEBUG_ECHO.replace(r#"["foo0", "foo1"]"#, r#"["foo0", {a: 1}]"#),
    )?;
    home.start(&[])?;
    home.until("the path is shown", |status| {
        status
            .pointer("/configurations/0/invalidDetails/0/path")
            .is_some_and(|path| path == "descriptions[1]")
    })?;
    let checked = home
        .leafhost(&["status", "configuration", "echo"])?
        .good()?;
    assert!(checked.contains("descriptions[1]"), "{checked}");
    Ok(())
}

#[test]
fn of_two_configurations_with_one_name_the_first_file_wins_and_the_other_is_reported() -> Result<()>
{
    let mut home = home_with_echo()?;
    home.write(
        "configurations/second.yaml",
        DEBUG_ECHO.replace("foo0", "bar0"),
    )?;
    home.start(&[])?;
    let instances = home.instances(2)?;
    assert!(
        instances
            .iter()
            .any(|instance| instance.pointer("/metadata/name") == Some(&"echo-8120fe".into()))
    );
    home.until("the second is named", |status| {
        let problems = format!(
            "{:?} {:?}",
            status.get("problems"),
            status.pointer("/configurations/0/problems")
        );
        problems.contains("second.yaml")
    })?;
    Ok(())
}

#[test]
fn unreadable_grants_are_reported_and_the_old_ones_stay_in_force() -> Result<()> {
    let mut home = home_with_echo()?;
    home.start(&[])?;
    let before = home.instances(2)?;
    for (grants, words) in [
        ("devises: {}", "devises"),
        ("network: {udp: [\"10.0.0.0/33:1\"]}", "10.0.0.0/33"),
        ("devices: {env: [\"LD_PRELOAD\"]}", "LD_PRELOAD"),
    ] {
        home.write("handlers/debug-echo.grants.yaml", grants)?;
        home.until(&format!("{words} is named"), |status| {
            status
                .pointer("/handlers/0/lastError")
                .is_some_and(|error| error.to_string().contains(words))
        })?;
        assert_eq!(home.instances(2)?, before);
    }
    Ok(())
}

#[test]
fn an_incomplete_instance_file_is_never_used() -> Result<()> {
    let mut home = home_with_echo()?;
    home.start(&[])?;
    home.instances(2)?;
    home.stop(Signal::SIGKILL)?;
    let file = home.path().join("state/instances/default/echo-8120fe.yaml");
    let whole = fs::read(&file)?;
    let (half, _) = whole.split_at(whole.len() / 2);
    fs::write(&file, half)?;
    home.start(&[])?;
    let instances = home.instances(2)?;
    assert!(
        instances
            .iter()
            .all(|instance| instance.pointer("/spec/capacity").is_some())
    );
    Ok(())
}

#[test]
fn a_second_agent_on_the_same_state_folder_is_refused_and_the_first_serves_on() -> Result<()> {
    let mut home = home_with_echo()?;
    home.start(&[])?;
    home.instances(2)?;
    let path = home.path().to_str().unwrap_or_default().to_owned();
    let second = home.leafhost(&[
        "agent",
        "--standalone",
        &path,
        "--node-name",
        "node-a",
        "--listen",
        "127.0.0.1:0",
    ])?;
    assert_eq!(second.code, Some(1), "{second:?}");
    assert!(second.err.contains("state"), "{second:?}");
    home.instances(2)?;
    Ok(())
}

#[test]
fn another_node_name_on_old_state_is_refused_with_the_remedy() -> Result<()> {
    let mut home = home_with_echo()?;
    home.start(&[])?;
    home.stop(Signal::SIGTERM)?;
    let path = home.path().to_str().unwrap_or_default().to_owned();
    let other = home.leafhost(&[
        "agent",
        "--standalone",
        &path,
        "--node-name",
        "node-b",
        "--listen",
        "127.0.0.1:0",
    ])?;
    assert_eq!(other.code, Some(1), "{other:?}");
    assert!(
        other.err.contains("node-a") && other.err.contains("--node-name"),
        "{other:?}"
    );
    Ok(())
}

#[test]
fn a_state_folder_that_cannot_be_made_ends_the_start_with_its_path_and_exit_code_1() -> Result<()> {
    let home = Home::new()?;
    home.write("state", "a file where the folder should be")?;
    let path = home.path().to_str().unwrap_or_default().to_owned();
    let ended = program::run(
        program::leafhost()?,
        [
            "agent",
            "--standalone",
            &path,
            "--state-dir",
            &format!("{path}/state"),
            "--listen",
            "127.0.0.1:0",
        ],
    )?;
    assert_eq!(ended.code, Some(1), "{ended:?}");
    assert!(ended.err.contains(&format!("{path}/state")), "{ended:?}");
    Ok(())
}

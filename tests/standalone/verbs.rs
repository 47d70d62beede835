//! The commands of operators and handler authors.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::process::Command;

use anyhow::{Context, Result};
use leafhost_tests::agent::Home;
use leafhost_tests::program::{self, Ended, source_tree};
use serde_json::Value;

use crate::instances::{DEBUG_ECHO, home_with_echo};

fn leafhost(arguments: &[&str]) -> Result<Ended> {
    program::run(program::leafhost()?, arguments)
}

fn handler(name: &str) -> Result<String> {
    Ok(program::handler(name)?
        .to_str()
        .context("no text")?
        .to_owned())
}

/// Runs one discovery of the udev handler with these details.
fn run_udev(details: &str, more: &[&str]) -> Result<Ended> {
    let home = Home::new()?;
    home.write("details.yaml", details)?;
    let file = home.path().join("details.yaml");
    let wasm = handler("udev")?;
    let file = file.to_str().context("no text")?;
    leafhost(&[&["handler", "run", &wasm, "--details", file], more].concat())
}

#[test]
fn handler_run_shows_devices_and_exits_0() -> Result<()> {
    let home = Home::new()?;
    home.write("echo.yaml", DEBUG_ECHO)?;
    let file = home.path().join("echo.yaml");
    let out = leafhost(&[
        "handler",
        "run",
        &handler("debug-echo")?,
        "--configuration",
        file.to_str().unwrap_or_default(),
    ])?
    .good()?;
    assert!(out.contains("foo0") && out.contains("8120fe"), "{out}");
    Ok(())
}

#[test]
fn handler_run_on_a_wrong_rule_names_it_and_exits_1() -> Result<()> {
    let ended = run_udev("udevRules:\n  - KERNEL=\"null\"\n", &[])?;
    assert_eq!(ended.code, Some(1), "{ended:?}");
    assert!(ended.err.contains("udevRules[0]"), "{ended:?}");
    Ok(())
}

#[test]
fn handler_run_without_a_device_is_no_error_and_is_explained() -> Result<()> {
    let ended = run_udev(
        "udevRules:\n  - SUBSYSTEM==\"mem\", KERNEL==\"null\", ATTR{dev}==\"9:9\"\n",
        &["--explain"],
    )?;
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let all = format!("{}{}", ended.out, ended.err);
    assert!(
        all.contains("/devices/virtual/mem/null") && all.contains("1:3"),
        "{all}"
    );
    Ok(())
}

#[test]
fn the_udev_handler_finds_a_device_of_this_machine_with_akris_properties() -> Result<()> {
    let out = run_udev(
        "udevRules:\n  - KERNEL==\"null\", SUBSYSTEM==\"mem\"\npermissions: rw\n",
        &["-o", "json"],
    )?
    .good()?;
    let found: Value = serde_json::from_str(&out).context("no JSON")?;
    let text = found.to_string();
    for words in [
        "UDEV_DEVNODE",
        "/dev/null",
        "UDEV_DEVPATH",
        "/devices/virtual/mem/null",
    ] {
        assert!(text.contains(words), "{words} is not in {text}");
    }
    Ok(())
}

#[test]
fn a_node_has_the_path_that_the_details_give_it_and_its_group_is_named() -> Result<()> {
    let details = "udevRules:\n  - KERNEL==\"null\", SUBSYSTEM==\"mem\"\npermissions: rw\n\
                   containerPath: /dev/nothing\nleafhost.dev/identity: port\n";
    let out = run_udev(details, &["-o", "json"])?.good()?;
    let found: Value = serde_json::from_str(&out).context("no JSON")?;
    let text = found.to_string();
    let group = fs::metadata("/dev/null")?.gid();
    for words in [
        r#""UDEV_DEVNODE":"/dev/nothing""#.to_owned(),
        r#""containerPath":"/dev/nothing""#.to_owned(),
        r#""hostPath":"/dev/null""#.to_owned(),
        r#""devname":{"string":"null"}"#.to_owned(),
        // A device without hardware keeps its path.
        r#""id":"/devices/virtual/mem/null""#.to_owned(),
        format!(r#""UDEV_GID":"{group}""#),
    ] {
        assert!(text.contains(&words), "{words} is not in {text}");
    }
    Ok(())
}

#[test]
fn a_path_outside_dev_is_refused_with_its_place() -> Result<()> {
    let ended = run_udev("udevRules: []\ncontainerPath: /etc/passwd\n", &[])?;
    assert_eq!(ended.code, Some(1), "{ended:?}");
    for words in ["containerPath", "such as /dev/zigbee"] {
        assert!(ended.err.contains(words), "{ended:?}");
    }
    Ok(())
}

#[test]
fn inspect_names_imports_grants_and_digest() -> Result<()> {
    let out = leafhost(&["handler", "inspect", &handler("udev")?])?.good()?;
    for words in ["udev", "leafhost:udev/devices", "sha256"] {
        assert!(out.contains(words), "{words} is not in {out}");
    }
    let grants = leafhost(&["handler", "inspect", &handler("udev")?, "--grants"])?.good()?;
    assert!(grants.contains("udev:"), "{grants}");
    Ok(())
}

#[test]
fn a_new_handler_of_a_program_alone_has_the_sdk_in_its_folder() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let alone = folder.path().join("leafhost");
    program::copy(&program::leafhost()?, &alone)?;
    let path = folder.path().join("thermo");
    let path = path.to_str().context("no text")?;
    program::run(&alone, ["handler", "new", "thermo", "--path", path])?.good()?;
    let manifest = format!("{path}/Cargo.toml");
    let offline = ["--offline", "--format-version", "1", "--manifest-path"];
    let metadata = program::run(
        "cargo",
        [&["metadata"], &offline[..], &[&manifest]].concat(),
    )?;
    let found: Value = serde_json::from_str(&metadata.good()?)?;
    let packages = found["packages"].as_array().context("no packages")?;
    let sdk = format!("{path}/leafhost-sdk/Cargo.toml");
    assert!(packages.iter().any(|found| found["manifest_path"] == sdk));
    let again = program::run(&alone, ["handler", "new", "thermo", "--path", path])?;
    assert!(again.err.contains("is not empty"), "{again:?}");
    Ok(())
}

#[test]
fn check_validates_as_the_agent_does() -> Result<()> {
    let home = Home::new()?;
    home.add_handler("debug-echo")?;
    home.write("configurations/echo.yaml", DEBUG_ECHO)?;
    let path = home.path().to_str().unwrap_or_default().to_owned();
    leafhost(&["check", &path])?.good()?;
    home.write(
        "configurations/echo.yaml",
        DEBUG_ECHO.replace(r#"["foo0", "foo1"]"#, "7"),
    )?;
    let ended = leafhost(&["check", &path])?;
    assert_eq!(ended.code, Some(1), "{ended:?}");
    let all = format!("{}{}", ended.out, ended.err);
    assert!(
        all.contains("echo.yaml") && all.contains("descriptions"),
        "{all}"
    );
    Ok(())
}

#[test]
fn check_of_a_file_uses_the_handlers_of_its_own_installation() -> Result<()> {
    let home = Home::new()?;
    let built = program::leafhost()?;
    let install = |file: &std::path::Path, folder: &str| -> Result<std::path::PathBuf> {
        let folder = home.path().join(folder);
        fs::create_dir_all(&folder)?;
        let place = folder.join(file.file_name().context("no name")?);
        program::copy(file, &place)?;
        Ok(place)
    };
    let installed = install(&built, "bin")?;
    install(
        &built.with_file_name("leafhost-compile"),
        "libexec/leafhost",
    )?;
    install(&program::handler("debug-echo")?, "share/leafhost/handlers")?;
    let file = home.path().join("echo.yaml");
    let check = |text: String| -> Result<Ended> {
        fs::write(&file, text)?;
        program::run(&installed, ["check".as_ref(), file.as_os_str()])
    };
    let out = check(DEBUG_ECHO.to_owned())?.good()?;
    assert!(!out.contains("not checked"), "{out}");
    let ended = check(DEBUG_ECHO.replace(r#"["foo0", "foo1"]"#, "7"))?;
    assert_eq!(ended.code, Some(1), "{ended:?}");
    assert!(ended.out.contains("descriptions"), "{ended:?}");
    let ended = check(DEBUG_ECHO.replace("name: debugEcho", "name: debugecho"))?;
    let words = r#"no handler is named "debugecho"; did you mean debugEcho?"#;
    assert!(
        ended.code == Some(1) && ended.out.contains(words),
        "{ended:?}"
    );
    let other = DEBUG_ECHO.replace("name: debugEcho", "name: somethingElse");
    let out = check(other.clone())?.good()?;
    assert!(
        out.contains("skipped: ") && out.contains("not checked"),
        "{out}"
    );
    assert!(out.contains("no problem; 1 check skipped"), "{out}");
    fs::write(&file, other)?;
    let strict = ["check".as_ref(), "--strict".as_ref(), file.as_os_str()];
    let ended = program::run(&installed, strict)?;
    let words = "no problem, and 1 note, which --strict refuses";
    assert!(
        ended.code == Some(1) && ended.out.contains(words),
        "{ended:?}"
    );
    Ok(())
}

#[test]
fn check_reports_rules_that_look_like_regular_expressions() -> Result<()> {
    let home = Home::new()?;
    home.add_handler("udev")?;
    let configuration = |rule: &str| {
        format!(
            "apiVersion: akri.sh/v0\nkind: Configuration\nmetadata: {{name: cameras}}\nspec:\n  discoveryHandler:\n    name: udev\n    \
             discoveryDetails: |\n      udevRules: ['{rule}']\n"
        )
    };
    for (rule, is_told) in [(r#"DRIVERS=="uvc.*""#, true), (r#"DRIVERS=="uvc*""#, false)] {
        home.write("configurations/cameras.yaml", configuration(rule))?;
        let out = leafhost(&["check", home.path().to_str().unwrap_or_default()])?.good()?;
        let note = out.lines().find(|line| line.contains("regular expression"));
        assert_eq!(note.is_some(), is_told, "{out}");
        if let Some(note) = note {
            for words in ["note: ", "cameras.yaml:8", "udevRules[0]", "uvc.*"] {
                assert!(note.contains(words), "{note}");
            }
        }
    }
    Ok(())
}

#[test]
fn a_stopped_agent_is_reported_as_stopped() -> Result<()> {
    let home = Home::new()?;
    let ended = home.leafhost(&["status"])?;
    assert_eq!(ended.code, Some(1));
    assert!(ended.err.contains("state"), "{ended:?}");
    Ok(())
}

#[test]
fn wrong_usage_exits_2() -> Result<()> {
    assert_eq!(leafhost(&["agent", "--no-such-flag"])?.code, Some(2));
    Ok(())
}

#[test]
fn the_version_includes_the_contract() -> Result<()> {
    for line in ["--version", "version"] {
        let out = leafhost(&[line])?.good()?;
        assert!(out.contains("leafhost:discovery@0.1.0"), "{out}");
    }
    Ok(())
}

#[test]
fn the_samples_pass_the_check() -> Result<()> {
    let home = Home::new()?;
    for name in ["debug-echo", "mock-gpu", "udev"] {
        home.add_handler(name)?;
    }
    for entry in fs::read_dir(source_tree().join("deploy/samples/standalone/configurations"))? {
        let path = entry?.path();
        fs::copy(
            &path,
            home.path()
                .join("configurations")
                .join(path.file_name().context("no name")?),
        )?;
    }
    leafhost(&["check", home.path().to_str().unwrap_or_default()])?.good()?;
    Ok(())
}

#[test]
fn the_udev_examples_pass_the_check() -> Result<()> {
    let home = Home::new()?;
    home.add_handler("udev")?;
    for name in ["udev", "zigbee"] {
        let file = format!("{name}.yaml");
        let sample = source_tree().join("deploy/samples/cluster").join(&file);
        home.write(&format!("configurations/{file}"), fs::read(sample)?)?;
    }
    let manual = fs::read_to_string(source_tree().join("docs/handlers.md"))?;
    let (_, manual) = manual.split_once("\n## udev\n").context("no udev")?;
    let mut examples = 0;
    for (_, block) in manual
        .split("```")
        .enumerate()
        .filter(|(at, _)| at % 2 == 1)
    {
        let Some((_, details)) = block.split_once("discoveryDetails: |\n") else {
            continue;
        };
        examples += 1;
        let indented: Vec<String> = details.lines().map(|line| format!("    {line}")).collect();
        let text = format!(
            "apiVersion: akri.sh/v0\nkind: Configuration\nmetadata: {{name: example{examples}}}\nspec:\n  \
             discoveryHandler:\n    name: udev\n    discoveryDetails: |\n{}\n",
            indented.join("\n")
        );
        home.write(&format!("configurations/example{examples}.yaml"), text)?;
    }
    assert_eq!(examples, 4);
    let check = ["check", home.path().to_str().unwrap_or_default()];
    let out = leafhost(&check)?.good()?;
    assert!(!out.contains("note: "), "{out}");
    Ok(())
}

#[test]
fn the_camera_of_the_readme_passes_the_check() -> Result<()> {
    let home = Home::new()?;
    home.add_handler("onvif")?;
    let readme = fs::read_to_string(source_tree().join("README.md"))?;
    let (_, rest) = readme.split_once("```yaml\n").context("no YAML")?;
    let (camera, _) = rest.split_once("```").context("no end")?;
    assert!(camera.contains("name: onvif"), "{camera}");
    home.write("configurations/cameras.yaml", camera)?;
    leafhost(&["check", home.path().to_str().unwrap_or_default()])?.good()?;
    Ok(())
}

#[test]
fn the_credentials_of_the_camera_manual_pass_the_check() -> Result<()> {
    let home = Home::new()?;
    home.add_handler("onvif")?;
    let manual = fs::read_to_string(source_tree().join("docs/onvif.md"))?;
    let blocks = manual.split("```yaml\n").skip(1);
    let mut blocks = blocks.filter_map(|block| Some(block.split_once("```")?.0));
    let configuration = blocks.find(|block| block.contains("secretKeyRef"));
    let configuration = configuration.context("no example")?;
    home.write("configurations/cameras.yaml", configuration)?;
    let check = ["check", home.path().to_str().unwrap_or_default()];
    let without = leafhost(&check)?;
    assert_eq!(without.code, Some(1), "{without:?}");
    assert!(without.out.contains("camera-user"), "{without:?}");
    home.write("secrets/camera-user/username", "viewer")?;
    home.write("secrets/camera-user/password", "a long password")?;
    leafhost(&check)?.good()?;
    Ok(())
}

#[test]
fn a_completion_script_is_told_the_configurations_of_the_agent() -> Result<()> {
    let mut home = home_with_echo()?;
    home.start(&[])?;
    home.instances(2)?;
    let mut ask = Command::new(program::leafhost()?);
    ask.env("LEAFHOST_STATE_DIR", home.path().join("state"))
        .env("LEAFHOST_COMPLETE", "fish")
        .args(["--", "leafhost", "status", "instances", "ec"]);
    let names = program::finish(ask)?.good()?;
    assert!(names.lines().any(|line| line == "echo"), "{names}");
    Ok(())
}

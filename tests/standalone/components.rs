//! Size, imports and licences of the shipped components.

use std::fs;

use anyhow::Result;
use leafhost_tests::program::{self, source_tree};

const HANDLERS: [&str; 5] = ["debug-echo", "mock-gpu", "onvif", "opcua", "udev"];

#[test]
fn every_component_fits_into_a_config_map() -> Result<()> {
    for name in HANDLERS {
        let file = program::handler(name)?;
        let plain = fs::metadata(&file)?.len();
        let folder = tempfile::tempdir()?;
        let copy = folder.path().join("a.wasm");
        fs::copy(&file, &copy)?;
        program::run("gzip", ["-9", &copy.to_string_lossy()])?.good()?;
        let packed = fs::metadata(folder.path().join("a.wasm.gz"))?.len();
        // The onvif handler includes tables for the text encodings that cameras use.
        let (most, most_packed) = match name {
            "onvif" => (1_046_000, 445_000),
            "udev" => (705_000, 240_000),
            _ => (660_000, 240_000),
        };
        assert!(
            plain <= most && packed <= most_packed,
            "{name}: {plain} bytes, {packed} gzipped"
        );
    }
    Ok(())
}

#[test]
fn a_component_imports_only_what_its_code_can_reach() -> Result<()> {
    let capabilities = [
        "leafhost:net/interfaces",
        "leafhost:udev/devices",
        "wasi:http",
        "wasi:sockets",
    ];
    for (name, needs) in [
        ("debug-echo", vec![]),
        ("mock-gpu", vec![]),
        (
            "onvif",
            vec!["leafhost:net/interfaces", "wasi:http", "wasi:sockets"],
        ),
        ("opcua", vec!["wasi:sockets"]),
        ("udev", vec!["leafhost:udev/devices"]),
    ] {
        let file = program::handler(name)?;
        let said = program::run(
            program::leafhost()?,
            ["handler", "inspect", &file.to_string_lossy()],
        )?
        .good()?;
        let imported = capabilities.iter().filter(|name| said.contains(**name));
        assert_eq!(
            imported.copied().collect::<Vec<_>>(),
            needs,
            "{name}: {said}"
        );
    }
    Ok(())
}

#[test]
fn the_licences_of_what_ships_are_collected() -> Result<()> {
    let script = source_tree().join("deploy/licenses.sh");
    let text = program::run(script, [] as [&str; 0])?.good()?;
    for words in [
        "\nwasmtime-",
        "\ntokio-",
        "\nserde_yaml_ng-",
        "\n----",
        "Apache License",
        "Permission is hereby granted",
    ] {
        assert!(text.contains(words), "{words:?} is missing");
    }
    // Neither our own crates nor those that only tests use.
    for words in ["\nleafhost-", "\ncriterion-"] {
        assert!(!text.contains(words), "{words:?} is there");
    }
    Ok(())
}

//! Unusable files in place of a handler or its grants, tampered native code, and failing compilers.

use std::fs::{self, File};
use std::os::unix::fs::symlink;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use leafhost_tests::program;
use leafhost_tests::wait::eventually;
use nix::sys::signal::Signal;

use crate::fixture::{Fixture, Guest, native_code};

pub const GRANTS: &str = "udev: {subsystems: [\"*\"]}\nnetwork: {interfaces: [lo]}\n";
const WASM: &str = "handlers/hostile.wasm";
const GRANTS_FILE: &str = "handlers/hostile.grants.yaml";

/// Removes a file or an empty folder.
fn clear(path: &Path) -> Result<()> {
    match fs::symlink_metadata(path) {
        Ok(metadata) if metadata.is_dir() => fs::remove_dir(path)?,
        Ok(_) => fs::remove_file(path)?,
        Err(_) => {}
    }
    Ok(())
}

/// Replaces a file.
fn put(fixture: &Fixture, name: &str, bytes: impl AsRef<[u8]>) -> Result<()> {
    clear(&fixture.home.path().join(name))?;
    fixture.home.write(name, bytes)
}

/// Returns the component with a text replaced by another one of the same length.
fn swapped(from: &str, to: &str) -> Result<Vec<u8>> {
    ensure!(from.len() == to.len(), "{from} and {to} differ in length");
    let mut bytes = Guest::default().wasm()?;
    let mut found = 0;
    while let Some(at) = bytes
        .windows(from.len())
        .position(|at| at == from.as_bytes())
    {
        let place = bytes.get_mut(at..at + from.len());
        place.context("no place")?.copy_from_slice(to.as_bytes());
        found += 1;
    }
    ensure!(found > 0, "{from} is not in the component");
    Ok(bytes)
}

/// Returns the component with a custom section appended: different bytes, same behaviour.
fn noted(note: u8) -> Result<Vec<u8>> {
    let mut bytes = Guest::default().wasm()?;
    bytes.extend([0, 6, 4, b'n', b'o', b't', b'e', note]);
    Ok(bytes)
}

/// Creates a sparse file of 100 MiB.
fn huge(fixture: &Fixture, name: &str) -> Result<()> {
    put(fixture, name, "")?;
    let file = File::options()
        .write(true)
        .open(fixture.home.path().join(name))?;
    Ok(file.set_len(100 << 20)?)
}

/// Replaces a file by the one that `make` creates, with a rename: the agent need not wait for a writer to close it.
fn replace(fixture: &Fixture, name: &str, make: impl FnOnce(&Path) -> Result<()>) -> Result<()> {
    let path = fixture.home.path().join(name);
    let new = path.with_file_name(".made");
    make(&new)?;
    clear(&path)?;
    Ok(fs::rename(new, path)?)
}

fn fifo(path: &Path) -> Result<()> {
    program::run("mkfifo", [path])?.good().map(drop)
}

/// Change, and the expected problem.
type Case = (fn(&Fixture) -> Result<()>, &'static str);

const COMPONENTS: &[Case] = &[
    (|fixture| put(fixture, WASM, ""), "the file is empty"),
    (|fixture| put(fixture, WASM, "(component)"), "as text"),
    (
        |fixture| {
            let bytes = Guest::default().wasm()?;
            put(
                fixture,
                WASM,
                bytes.get(..bytes.len() / 2).context("short")?,
            )
        },
        "the file is cut off",
    ),
    (
        |fixture| put(fixture, WASM, b"\0asm\x01\0\0\0"),
        "this is a core module",
    ),
    (
        |fixture| put(fixture, WASM, b"\0asm\x0d\0\x01\0"),
        "no discovery handler: it does not export",
    ),
    (
        |fixture| put(fixture, WASM, b"\x1f\x8b\x08"),
        "the gzip data is cut off or damaged",
    ),
    (
        |fixture| {
            let script = "head -c 70000000 /dev/zero | gzip -1 >$0";
            replace(fixture, WASM, |path| {
                let path = path.to_string_lossy();
                program::run("sh", ["-c", script, &*path])?.good().map(drop)
            })
        },
        "the component has more than 32 MiB unpacked",
    ),
    (
        |fixture| huge(fixture, WASM),
        "has 104857600 bytes, at most 33554432 are allowed",
    ),
    (
        |fixture| {
            let name = "leafhost:discovery/handler@0.";
            let bytes = swapped(&format!("{name}1.0"), &format!("{name}2.0"))?;
            put(fixture, WASM, bytes)
        },
        "the component was built for leafhost:discovery@0.2.0; this version of Leafhost supports leafhost:discovery@0.1.0",
    ),
    (
        |fixture| {
            let name = "leafhost:udev/devices@0.";
            let bytes = swapped(&format!("{name}1.0"), &format!("{name}9.0"))?;
            put(fixture, WASM, bytes)
        },
        "the component was built for leafhost:udev@0.9.0",
    ),
    (
        |fixture| put(fixture, WASM, swapped("wasi:io/error", "what:io/error")?),
        "the component imports what:io/error",
    ),
    (
        |fixture| put(fixture, WASM, swapped("validate", "validity")?),
        "the component does not fit the contract",
    ),
    (
        |fixture| replace(fixture, WASM, fifo),
        "hostile.wasm: is not a regular file",
    ),
    (
        |fixture| replace(fixture, WASM, |path| Ok(symlink("/dev/zero", path)?)),
        "hostile.wasm: is a link out of the folder",
    ),
    (
        |fixture| replace(fixture, WASM, |path| Ok(symlink("hostile.wasm", path)?)),
        "hostile.wasm: is a link that leads nowhere",
    ),
    (
        |fixture| replace(fixture, WASM, |path| Ok(fs::create_dir(path)?)),
        "hostile.wasm: is not a regular file",
    ),
];

#[test]
fn an_unusable_handler_file_is_reported_and_the_last_good_version_serves_on() -> Result<()> {
    let mut fixture = Fixture::with(Guest::default(), GRANTS)?;
    fixture.serve("good")?;
    fixture.unaffected_by(|fixture| {
        for (put, words) in COMPONENTS {
            put(fixture)?;
            fixture.until_reported(words)?;
        }
        fixture.serve("good").map(drop)
    })?;
    put(&fixture, WASM, Guest::default().wasm()?)?;
    fixture.until_no_problems()
}

/// Returns YAML aliases: a few hundred bytes that expand to 10⁹ entries.
pub fn alias_bomb() -> String {
    let mut lines = vec![format!("a0: &a0 [{}]", ["x"; 10].join(", "))];
    for level in 1..9 {
        let inner = vec![format!("*a{}", level - 1); 10].join(", ");
        lines.push(format!("a{level}: &a{level} [{inner}]"));
    }
    lines.join("\n") + "\n"
}

const GRANTS_CASES: &[Case] = &[
    (
        |fixture| put(fixture, GRANTS_FILE, ""),
        "the handler needs the grants network, udev, which hostile.grants.yaml does not give",
    ),
    (
        |fixture| put(fixture, GRANTS_FILE, "udev: {subsystems: [\"*\"]}\n"),
        "the handler needs the grant network",
    ),
    (
        |fixture| put(fixture, GRANTS_FILE, alias_bomb()),
        "has aliases that stand for too much",
    ),
    (
        |fixture| put(fixture, GRANTS_FILE, "[".repeat(60_000)),
        "nested more than 32 deep",
    ),
    (
        |fixture| {
            put(
                fixture,
                GRANTS_FILE,
                "udev: {subsystems: [\"*\"]}\nudev: {}\n",
            )
        },
        "has udev twice",
    ),
    (
        |fixture| put(fixture, GRANTS_FILE, b"udev: \xff\xfe"),
        "hostile.grants.yaml: is not UTF-8 text",
    ),
    (
        |fixture| huge(fixture, GRANTS_FILE),
        "hostile.grants.yaml: has 104857600 bytes, at most 65536 are allowed",
    ),
    (
        |fixture| {
            replace(fixture, GRANTS_FILE, |path| {
                Ok(symlink("neighbour.grants.yaml", path)?)
            })
        },
        "hostile.grants.yaml: is a link; a file that ends in .grants.yaml must be a regular file",
    ),
    (
        |fixture| replace(fixture, GRANTS_FILE, fifo),
        "hostile.grants.yaml: is not a regular file",
    ),
];

#[test]
fn unusable_grants_are_reported_and_the_last_good_ones_stay_in_force() -> Result<()> {
    let mut fixture = Fixture::with(Guest::default(), GRANTS)?;
    fixture.serve("good")?;
    fixture.unaffected_by(|fixture| {
        for (put, words) in GRANTS_CASES {
            put(fixture)?;
            fixture.until_reported(words)?;
        }
        fixture.serve("good").map(drop)
    })?;
    // The status also lists the missing grants for programs.
    put(&fixture, GRANTS_FILE, "")?;
    fixture
        .home
        .until("the missing grants are listed", |status| {
            status
                .to_string()
                .contains(r#""missingGrants":["network","udev"]"#)
        })?;
    put(&fixture, GRANTS_FILE, GRANTS)?;
    fixture.until_no_problems()
}

/// Applies `how` to each file of native code.
fn tamper(fixture: &Fixture, how: Tampering) -> Result<()> {
    let files = native_code(fixture)?;
    ensure!(files.len() == 2, "{files:?}");
    let whole: Vec<Vec<u8>> = files.iter().map(fs::read).collect::<Result<_, _>>()?;
    for (file, other) in files.iter().zip(whole.iter().rev()) {
        how(file, other)?;
    }
    Ok(())
}

/// Change to a file of native code, given the bytes of the other handler's file.
type Tampering = fn(&Path, &[u8]) -> Result<()>;

const TAMPERINGS: &[Tampering] = &[
    |file, other| Ok(fs::write(file, other)?),
    |file, _| {
        let mut bytes = fs::read(file)?;
        let at = bytes.len() / 2;
        *bytes.get_mut(at).context("empty")? ^= 1;
        Ok(fs::write(file, bytes)?)
    },
];

#[test]
fn tampered_native_code_is_compiled_again() -> Result<()> {
    let mut fixture = Fixture::with(Guest::default(), GRANTS)?;
    fixture.serve("good")?;
    let named = "cached native code is not this agent's or damaged";
    for (round, how) in TAMPERINGS.iter().enumerate() {
        let told = fixture.home.log().matches(named).count();
        if round % 2 == 0 {
            // While the agent is stopped.
            fixture.home.stop(Signal::SIGTERM)?;
            tamper(&fixture, *how)?;
            fixture.home.start(&[])?;
        } else {
            // While the agent runs: changed grants reload the handlers.
            tamper(&fixture, *how)?;
            let grants = format!("{GRANTS}# {round}\n");
            for name in ["hostile", "neighbour"] {
                fixture
                    .home
                    .write(&format!("handlers/{name}.grants.yaml"), &grants)?;
            }
        }
        eventually("both are compiled again", || {
            let log = fixture.home.log();
            ensure!(log.matches(named).count() >= told + 2, "{log}");
            let files = native_code(&fixture)?;
            let whole = |file: &std::path::PathBuf| {
                fs::symlink_metadata(file).is_ok_and(|at| at.is_file() && at.len() > 1000)
            };
            ensure!(files.len() == 2 && files.iter().all(whole), "{files:?}");
            Ok(())
        })?;
        fixture.unaffected_by(|_| Ok(()))?;
    }
    Ok(())
}

/// Script in place of the compiler, and the expected problem.
const COMPILERS: &[(&str, &str)] = &[
    ("exit 3", "the component does not compile"),
    ("echo no idea >&2; exit 9", "exit status: 9: no idea"),
    ("kill -SEGV $$", "which a limit has ended (signal: 11"),
    ("kill -KILL $$", "signal: 9"),
    (
        "cat >/dev/null; head -c 1000000 /dev/urandom",
        "the compiler's output is not for this agent",
    ),
    (
        "cat >/dev/null",
        "the compiler's output is not for this agent",
    ),
    (
        "exec cat /dev/zero",
        "the native code of the component exceeds",
    ),
    ("exec sleep 600", "compiling took longer than 2 s"),
    ("sleep 600 & exit 3", "compiling took longer than 2 s"),
    ("exec yes >&2", "compiling took longer than 2 s"),
];

#[test]
fn a_compiler_that_hangs_floods_or_dies_is_reported_and_stops_no_running_handler() -> Result<()> {
    let mut fixture = Fixture::with(Guest::default(), GRANTS)?;
    fixture.serve("good")?;
    fixture.home.stop(Signal::SIGTERM)?;
    let compiler = fixture.home.path().join("compiler");
    program::script(&compiler, "")?;
    let path = compiler.to_string_lossy().into_owned();
    fixture
        .home
        .start(&["--compiler", &path, "--compile-timeout", "2s"])?;
    fixture.unaffected_by(|fixture| {
        for (number, (script, words)) in (0..).zip(COMPILERS) {
            // Renamed into place: a running program cannot be written to.
            let next = compiler.with_extension("next");
            program::script(&next, script)?;
            fs::rename(&next, &compiler)?;
            fixture.home.write(WASM, noted(number)?)?;
            fixture.until_reported(words)?;
        }
        fixture.serve("good").map(drop)
    })?;
    put(&fixture, WASM, Guest::default().wasm()?)?;
    fixture.until_no_problems()
}

/// Returns the lines of `state/loading`, which lists the loads in progress.
fn loads_in_progress(fixture: &Fixture) -> Result<Vec<String>> {
    let text = fs::read_to_string(fixture.home.path().join("state/loading"))?;
    Ok(text.lines().map(str::to_owned).collect())
}

#[test]
fn a_handler_during_whose_load_the_agent_dies_three_times_is_given_up() -> Result<()> {
    let mut fixture = Fixture::with(Guest::default(), GRANTS)?;
    fixture.serve("good")?;
    // Its `describe` sleeps, and the agent is killed meanwhile.
    let deadly = Guest {
        name: "deadly",
        describe: "sleep",
        ..Guest::default()
    };
    fixture.add("deadly", deadly.wasm()?, GRANTS)?;
    for deaths in 1..=3 {
        eventually("it is being loaded", || {
            let lines = loads_in_progress(&fixture)?;
            let is_deadly = |line: &&String| line.ends_with(&format!(" {deaths}"));
            ensure!(lines.iter().any(|line| is_deadly(&line)), "{lines:?}");
            Ok(())
        })?;
        fixture.home.stop(Signal::SIGKILL)?;
        fixture.home.start(&[])?;
        fixture.until_reported(&format!("the agent has died {deaths} time"))?;
        // No other handler waits for it.
        fixture.check_neighbour()?;
        fixture.instances_of("hostile", 1)?;
    }
    fixture.home.until("it is Offline", |status| {
        let all = status.get("handlers").and_then(serde_json::Value::as_array);
        all.into_iter().flatten().any(|handler| {
            handler.get("source").and_then(serde_json::Value::as_str) == Some("deadly.wasm")
                && handler.get("status").and_then(serde_json::Value::as_str) == Some("Offline")
        })
    })?;
    // A new version is loaded.
    let mended = Guest {
        describe: "good",
        ..deadly
    };
    put(&fixture, "handlers/deadly.wasm", mended.wasm()?)?;
    fixture.until_no_problems()?;
    ensure!(
        loads_in_progress(&fixture)?.len() <= 1,
        "{:?}",
        loads_in_progress(&fixture)?
    );
    fixture.check_neighbour()
}

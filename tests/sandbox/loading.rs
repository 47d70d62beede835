//! Files in the place of a handler and of its grants that no agent should take; native code and compilers that are not as they were.

use std::fs::{self, File};
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::Path;

use anyhow::{Context, Result, ensure};
use leafhost_tests::program;
use leafhost_tests::wait::eventually;
use nix::sys::signal::Signal;

use crate::yard::{Guest, Yard, native};

pub const GRANTS: &str = "udev: {subsystems: [\"*\"]}\nnetwork: {interfaces: [lo]}\n";
const WASM: &str = "handlers/hostile.wasm";
const GRANTS_FILE: &str = "handlers/hostile.grants.yaml";

/// Removes whatever is there.
fn clear(path: &Path) -> Result<()> {
    match fs::symlink_metadata(path) {
        Ok(metadata) if metadata.is_dir() => fs::remove_dir(path)?,
        Ok(_) => fs::remove_file(path)?,
        Err(_) => {}
    }
    Ok(())
}

/// Puts another file in the place of one.
fn put(yard: &Yard, name: &str, bytes: impl AsRef<[u8]>) -> Result<()> {
    clear(&yard.home.path().join(name))?;
    yard.home.write(name, bytes)
}

/// The component with one text in the place of another as long.
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

/// The component with a note at its end: other bytes that do the same.
fn noted(note: u8) -> Result<Vec<u8>> {
    let mut bytes = Guest::default().wasm()?;
    bytes.extend([0, 6, 4, b'n', b'o', b't', b'e', note]);
    Ok(bytes)
}

/// A file of 100 MB that takes no room.
fn huge(yard: &Yard, name: &str) -> Result<()> {
    put(yard, name, "")?;
    let file = File::options()
        .write(true)
        .open(yard.home.path().join(name))?;
    Ok(file.set_len(100 << 20)?)
}

/// Has what `make` makes at a path take the place of a file: a rename, after which nobody waits for a writer to close it.
fn replace(yard: &Yard, name: &str, make: impl FnOnce(&Path) -> Result<()>) -> Result<()> {
    let path = yard.home.path().join(name);
    let beside = path.with_file_name(".made");
    make(&beside)?;
    clear(&path)?;
    Ok(fs::rename(beside, path)?)
}

fn fifo(path: &Path) -> Result<()> {
    program::run("mkfifo", [path])?.good().map(drop)
}

/// What is put there, and what is then said.
type Case = (fn(&Yard) -> Result<()>, &'static str);

const COMPONENTS: &[Case] = &[
    (|yard| put(yard, WASM, ""), "the file is empty"),
    (|yard| put(yard, WASM, "(component)"), "as text"),
    (
        |yard| {
            let bytes = Guest::default().wasm()?;
            put(yard, WASM, bytes.get(..bytes.len() / 2).context("short")?)
        },
        "the file is cut off",
    ),
    (
        |yard| put(yard, WASM, b"\0asm\x01\0\0\0"),
        "this is a core module",
    ),
    (
        |yard| put(yard, WASM, b"\0asm\x0d\0\x01\0"),
        "no discovery handler: it does not export",
    ),
    (
        |yard| put(yard, WASM, b"\x1f\x8b\x08"),
        "the gzip data is cut off or damaged",
    ),
    (
        |yard| {
            let script = "head -c 70000000 /dev/zero | gzip -1 >$0";
            replace(yard, WASM, |path| {
                let path = path.to_string_lossy();
                program::run("sh", ["-c", script, &*path])?.good().map(drop)
            })
        },
        "it has more than 32 MiB unpacked",
    ),
    (
        |yard| huge(yard, WASM),
        "has 104857600 bytes, at most 33554432 are allowed",
    ),
    (
        |yard| {
            let name = "leafhost:discovery/handler@0.";
            let bytes = swapped(&format!("{name}1.0"), &format!("{name}2.0"))?;
            put(yard, WASM, bytes)
        },
        "it was made for leafhost:discovery@0.2.0; this version serves leafhost:discovery@0.1.0",
    ),
    (
        |yard| {
            let name = "leafhost:udev/devices@0.";
            let bytes = swapped(&format!("{name}1.0"), &format!("{name}9.0"))?;
            put(yard, WASM, bytes)
        },
        "it was made for leafhost:udev@0.9.0",
    ),
    (
        |yard| put(yard, WASM, swapped("wasi:io/error", "what:io/error")?),
        "it imports what:io/error",
    ),
    (
        |yard| put(yard, WASM, swapped("validate", "validity")?),
        "it does not fit the contract",
    ),
    (
        |yard| replace(yard, WASM, fifo),
        "hostile.wasm: is not a regular file",
    ),
    (
        |yard| replace(yard, WASM, |path| Ok(symlink("/dev/zero", path)?)),
        "hostile.wasm: is a link out of the folder",
    ),
    (
        |yard| replace(yard, WASM, |path| Ok(symlink("hostile.wasm", path)?)),
        "hostile.wasm: is a link that leads nowhere",
    ),
    (
        |yard| replace(yard, WASM, |path| Ok(fs::create_dir(path)?)),
        "hostile.wasm: is not a regular file",
    ),
];

#[test]
fn what_is_no_handler_is_named_and_the_version_before_serves_on() -> Result<()> {
    let mut yard = Yard::with(Guest::default(), GRANTS)?;
    yard.serve("good")?;
    yard.bears(|yard| {
        for (put, words) in COMPONENTS {
            put(yard)?;
            yard.tells(words)?;
        }
        yard.serve("good").map(drop)
    })?;
    put(&yard, WASM, Guest::default().wasm()?)?;
    yard.is_content()
}

/// Lists of lists of lists: some hundred bytes that stand for 10⁹ entries.
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
        |yard| put(yard, GRANTS_FILE, ""),
        "it needs the grants network, udev, which hostile.grants.yaml does not give",
    ),
    (
        |yard| put(yard, GRANTS_FILE, "udev: {subsystems: [\"*\"]}\n"),
        "it needs the grant network",
    ),
    (
        |yard| put(yard, GRANTS_FILE, alias_bomb()),
        "its aliases stand for too much",
    ),
    (
        |yard| put(yard, GRANTS_FILE, "[".repeat(60_000)),
        "has too many brackets",
    ),
    (
        |yard| put(yard, GRANTS_FILE, "udev: {subsystems: [\"*\"]}\nudev: {}\n"),
        "duplicate",
    ),
    (
        |yard| put(yard, GRANTS_FILE, b"udev: \xff\xfe"),
        "hostile.grants.yaml: is not UTF-8 text",
    ),
    (
        |yard| huge(yard, GRANTS_FILE),
        "hostile.grants.yaml: has 104857600 bytes, at most 65536 are allowed",
    ),
    (
        |yard| {
            replace(yard, GRANTS_FILE, |path| {
                Ok(symlink("neighbour.grants.yaml", path)?)
            })
        },
        "hostile.grants.yaml: is a link; a file that ends in .grants.yaml must be a regular file",
    ),
    (
        |yard| replace(yard, GRANTS_FILE, fifo),
        "hostile.grants.yaml: is not a regular file",
    ),
];

#[test]
fn grants_that_cannot_be_used_are_named_and_those_before_stay_in_force() -> Result<()> {
    let mut yard = Yard::with(Guest::default(), GRANTS)?;
    yard.serve("good")?;
    yard.bears(|yard| {
        for (put, words) in GRANTS_CASES {
            put(yard)?;
            yard.tells(words)?;
        }
        yard.serve("good").map(drop)
    })?;
    // The list of what is missing is there for programs, too.
    put(&yard, GRANTS_FILE, "")?;
    yard.home.until("the missing grants are listed", |status| {
        status
            .to_string()
            .contains(r#""missingGrants":["network","udev"]"#)
    })?;
    put(&yard, GRANTS_FILE, GRANTS)?;
    yard.is_content()
}

/// Does something to each of the files with native code.
fn tamper(yard: &Yard, how: Tampering) -> Result<()> {
    let files = native(yard)?;
    ensure!(files.len() == 2, "{files:?}");
    let whole: Vec<Vec<u8>> = files.iter().map(fs::read).collect::<Result<_, _>>()?;
    for (file, other) in files.iter().zip(whole.iter().rev()) {
        how(file, other)?;
    }
    Ok(())
}

/// What is done to a file of native code, given what the other handler's holds.
type Tampering = fn(&Path, &[u8]) -> Result<()>;

const TAMPERINGS: &[Tampering] = &[
    |file, other| Ok(fs::write(file, other)?),
    |file, _| {
        let mut bytes = fs::read(file)?;
        let at = bytes.len() / 2;
        *bytes.get_mut(at).context("empty")? ^= 1;
        Ok(fs::write(file, bytes)?)
    },
    |file, _| {
        clear(file)?;
        Ok(symlink("/dev/zero", file)?)
    },
    |file, _| {
        clear(file)?;
        program::run("mkfifo", [file])?.good()?;
        Ok(())
    },
];

#[test]
fn native_code_that_is_not_as_the_agent_left_it_is_compiled_again() -> Result<()> {
    let mut yard = Yard::with(Guest::default(), GRANTS)?;
    yard.serve("good")?;
    let named = "cached native code is not this agent's or damaged";
    for (round, how) in TAMPERINGS.iter().enumerate() {
        let told = yard.home.log().matches(named).count();
        if round % 2 == 0 {
            // Between two starts.
            yard.home.stop(Signal::SIGTERM)?;
            tamper(&yard, *how)?;
            yard.home.start(&[])?;
        } else {
            // While it runs: other grants have the handlers loaded again.
            tamper(&yard, *how)?;
            let grants = format!("{GRANTS}# {round}\n");
            for name in ["hostile", "neighbour"] {
                yard.home
                    .write(&format!("handlers/{name}.grants.yaml"), &grants)?;
            }
        }
        eventually("both are compiled again", || {
            let log = yard.home.log();
            ensure!(log.matches(named).count() >= told + 2, "{log}");
            let files = native(&yard)?;
            let whole = |file: &std::path::PathBuf| {
                fs::symlink_metadata(file).is_ok_and(|at| at.is_file() && at.len() > 1000)
            };
            ensure!(files.len() == 2 && files.iter().all(whole), "{files:?}");
            Ok(())
        })?;
        yard.bears(|_| Ok(()))?;
    }
    Ok(())
}

/// What the compiler does, and what is said of it.
const COMPILERS: &[(&str, &str)] = &[
    ("exit 3", "it does not compile"),
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
    ("exec cat /dev/zero", "MiB of native code"),
    ("exec sleep 600", "compiling took longer than 2 s"),
    ("sleep 600 & exit 3", "compiling took longer than 2 s"),
    ("exec yes >&2", "compiling took longer than 2 s"),
];

#[test]
fn a_compiler_that_hangs_floods_or_dies_is_named_and_costs_no_running_handler() -> Result<()> {
    let mut yard = Yard::with(Guest::default(), GRANTS)?;
    yard.serve("good")?;
    yard.home.stop(Signal::SIGTERM)?;
    let compiler = yard.home.path().join("compiler");
    let begin = "#!/bin/sh\n";
    fs::write(&compiler, begin)?;
    fs::set_permissions(&compiler, fs::Permissions::from_mode(0o755))?;
    let path = compiler.to_string_lossy().into_owned();
    yard.home
        .start(&["--compiler", &path, "--compile-timeout", "2s"])?;
    yard.bears(|yard| {
        for (number, (script, words)) in (0..).zip(COMPILERS) {
            // In the place of the one before: a program that runs cannot be written to.
            let next = compiler.with_extension("next");
            fs::write(&next, format!("{begin}{script}\n"))?;
            fs::set_permissions(&next, fs::Permissions::from_mode(0o755))?;
            fs::rename(&next, &compiler)?;
            yard.home.write(WASM, noted(number)?)?;
            yard.tells(words)?;
        }
        yard.serve("good").map(drop)
    })?;
    put(&yard, WASM, Guest::default().wasm()?)?;
    yard.is_content()
}

/// Lines of the file that says what is being loaded.
fn under_way(yard: &Yard) -> Result<Vec<String>> {
    let text = fs::read_to_string(yard.home.path().join("state/loading"))?;
    Ok(text.lines().map(str::to_owned).collect())
}

#[test]
fn what_the_agent_dies_of_while_it_is_loaded_is_given_up_and_the_others_serve() -> Result<()> {
    let mut yard = Yard::with(Guest::default(), GRANTS)?;
    yard.serve("good")?;
    // Its `describe` takes five seconds, in which the agent is killed.
    let deadly = Guest {
        name: "deadly",
        describe: "sleep",
        ..Guest::default()
    };
    yard.add("deadly", deadly.wasm()?, GRANTS)?;
    for deaths in 1..=3 {
        eventually("it is being loaded", || {
            let lines = under_way(&yard)?;
            let is_deadly = |line: &&String| line.ends_with(&format!(" {deaths}"));
            ensure!(lines.iter().any(|line| is_deadly(&line)), "{lines:?}");
            Ok(())
        })?;
        yard.home.stop(Signal::SIGKILL)?;
        yard.home.start(&[])?;
        yard.tells(&format!("the agent has died {deaths} time"))?;
        // Nobody waits for it.
        yard.neighbour_is_well()?;
        yard.published("hostile", 1)?;
    }
    yard.home.until("it is Offline", |status| {
        let all = status.get("handlers").and_then(serde_json::Value::as_array);
        all.into_iter().flatten().any(|handler| {
            handler.get("source").and_then(serde_json::Value::as_str) == Some("deadly.wasm")
                && handler.get("status").and_then(serde_json::Value::as_str) == Some("Offline")
        })
    })?;
    // Another version takes its place.
    let mended = Guest {
        describe: "good",
        ..deadly
    };
    put(&yard, "handlers/deadly.wasm", mended.wasm()?)?;
    yard.is_content()?;
    ensure!(under_way(&yard)?.len() <= 1, "{:?}", under_way(&yard)?);
    yard.neighbour_is_well()
}

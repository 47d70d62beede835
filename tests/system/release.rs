//! A release, installed from its archive: what `make dist` makes for each architecture.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use leafhost_tests::program::{self, build_folder, source_tree};
use leafhost_tests::requirement;

/// Runs programs for arm64 on this machine.
const EMULATOR: &str = "/usr/bin/qemu-aarch64";
/// Compiles C for arm64.
const COMPILER: &str = "/usr/bin/aarch64-linux-gnu-gcc";

/// What is installed, below `PREFIX`.
const FILES: [&str; 9] = [
    "bin/leafhost",
    "libexec/leafhost/leafhost-compile",
    "lib/systemd/system/leafhost.service",
    "share/bash-completion/completions/leafhost",
    "share/fish/vendor_completions.d/leafhost.fish",
    "share/leafhost/handlers/debug-echo.wasm",
    "share/leafhost/sdk/Cargo.toml",
    "share/man/man1/leafhost.1",
    "share/zsh/site-functions/_leafhost",
];

/// The archive for an architecture.
fn archive(architecture: &str) -> Result<PathBuf> {
    let build = build_folder()?;
    let target = build.parent().context("the build folder has no parent")?;
    let version = env!("CARGO_PKG_VERSION");
    Ok(target.join(format!(
        "dist/leafhost-{version}-linux-{architecture}.tar.gz"
    )))
}

/// Unpacks the archive in `folder` and installs it there with the prefix `/usr`. Returns the folder that stands for `/usr`.
fn install(archive: &Path, folder: &Path) -> Result<PathBuf> {
    let folder = folder.to_string_lossy();
    let unpacked = format!("{folder}/unpacked");
    fs::create_dir(&unpacked)?;
    let archive = archive.to_string_lossy();
    program::run(
        "tar",
        ["-xzf", &*archive, "--strip-components=1", "-C", &unpacked],
    )?
    .good()?;
    let destination = format!("DESTDIR={folder}/root");
    // No network: a release needs nothing but its own files.
    let make = [
        "-n",
        "make",
        "-C",
        &unpacked,
        "install",
        "PREFIX=/usr",
        &destination,
    ];
    program::run("unshare", make)?.good()?;
    Ok(PathBuf::from(format!("{folder}/root/usr")))
}

/// Each program becomes a script that runs it in the emulator. The emulator takes memory for the address space that a program
/// reserves, so that is limited.
fn emulate(usr: &Path, folder: &Path) -> Result<()> {
    let source = source_tree().join("tests/system/no_seccomp.c");
    let library = folder.join("no_seccomp.so");
    let (source, library) = (source.to_string_lossy(), library.to_string_lossy());
    program::run(COMPILER, ["-shared", "-fPIC", "-o", &*library, &*source])?.good()?;
    for program in ["bin/leafhost", "libexec/leafhost/leafhost-compile"] {
        let program = usr.join(program);
        let real = program.with_extension("arm64");
        fs::rename(&program, &real)?;
        let real = real.display();
        let script =
            format!("ulimit -Sv 16000000\nexec {EMULATOR} -E LD_PRELOAD={library} {real} \"$@\"");
        program::script(&program, &script)?;
    }
    Ok(())
}

fn a_release_works(architecture: &str) -> Result<()> {
    let archive = archive(architecture)?;
    let is_foreign = architecture == "arm64";
    let needed = [&*archive.to_string_lossy(), EMULATOR, COMPILER];
    let needed = needed
        .get(..if is_foreign { 3 } else { 1 })
        .unwrap_or_default();
    let missing =
        requirement::files(needed, "make dist").or_else(|| requirement::root("sudo make test-all"));
    if requirement::lacks(missing)? {
        return Ok(());
    }
    let folder = tempfile::tempdir()?;
    let usr = install(&archive, folder.path())?;
    for file in FILES {
        ensure!(usr.join(file).is_file(), "{file} is not installed");
    }
    let unit = fs::read_to_string(usr.join("lib/systemd/system/leafhost.service"))?;
    ensure!(
        unit.contains("ExecStart=/usr/bin/leafhost agent --standalone\n"),
        "{unit}"
    );

    let leafhost = usr.join("bin/leafhost");
    if is_foreign {
        emulate(&usr, folder.path())?;
    }
    let version = program::run(&leafhost, ["--version"])?.good()?;
    ensure!(version.contains(env!("CARGO_PKG_VERSION")), "{version}");
    // The compiler child, native code of this architecture, and a call.
    let handler = usr.join("share/leafhost/handlers/debug-echo.wasm");
    let details = folder.path().join("details.yaml");
    fs::write(&details, "descriptions: [one, two]\n")?;
    let arguments = [
        "handler",
        "run",
        &*handler.to_string_lossy(),
        "--details",
        &*details.to_string_lossy(),
    ]
    .map(str::to_owned);
    let found = program::run(&leafhost, arguments)?.good()?;
    ensure!(found.contains("one") && found.contains("two"), "{found}");
    Ok(())
}

#[test]
#[ignore = "needs `make dist`, which builds every release: `make test-release`"]
fn a_release_for_amd64_is_installed_without_a_network_and_calls_a_handler() -> Result<()> {
    a_release_works("amd64")
}

#[test]
#[ignore = "needs `make dist`, which builds every release: `make test-release`"]
fn a_release_for_arm64_is_installed_without_a_network_and_calls_a_handler() -> Result<()> {
    a_release_works("arm64")
}

#[test]
#[ignore = "needs `make dist`, which builds every release: `make test-release`"]
fn an_archive_that_was_changed_is_not_installed() -> Result<()> {
    let archive = archive("amd64")?;
    let missing = requirement::files(&[&archive.to_string_lossy()], "make dist")
        .or_else(|| requirement::root("sudo make test-all"));
    if requirement::lacks(missing)? {
        return Ok(());
    }
    let folder = tempfile::tempdir()?;
    install(&archive, folder.path())?;
    let unpacked = folder.path().join("unpacked");
    fs::write(unpacked.join("bin/leafhost"), "changed")?;
    let destination = format!("DESTDIR={}/other", folder.path().display());
    let unpacked = unpacked.to_string_lossy();
    let ended = program::run("make", ["-C", &*unpacked, "install", &destination])?;
    ensure!(ended.code != Some(0), "{ended:?}");
    ensure!(!folder.path().join("other").exists(), "{ended:?}");
    Ok(())
}

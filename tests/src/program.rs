//! Paths of the workspace's programs, and functions that run programs.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};

/// Returns the folder of cargo's binaries for this profile.
pub fn build_folder() -> Result<PathBuf> {
    let test = std::env::current_exe().context("cannot tell where this test is")?;
    let deps = test.parent().context("the test is in no folder")?;
    Ok(deps
        .parent()
        .context("the test is in no build folder")?
        .to_owned())
}

/// Returns the path of the `leafhost` binary of this build.
pub fn leafhost() -> Result<PathBuf> {
    let path = build_folder()?.join("leafhost");
    ensure!(
        path.is_file(),
        "{} does not exist: run `cargo build --workspace --bins --tests` first",
        path.display()
    );
    Ok(path)
}

/// Returns the path of `<name>.wasm` as `make handlers` builds it.
pub fn handler(name: &str) -> Result<PathBuf> {
    let build = build_folder()?;
    let target = build.parent().context("the build folder has no parent")?;
    let path = target.join("handlers").join(name).with_extension("wasm");
    ensure!(
        path.is_file(),
        "{} does not exist: run `make handlers` first",
        path.display()
    );
    Ok(path)
}

/// Returns the path of `<name>.wasm` as `make guests` builds it: a component for tests only.
pub fn guest(name: &str) -> Result<PathBuf> {
    let build = build_folder()?;
    let target = build.parent().context("the build folder has no parent")?;
    let path = target.join("guests").join(name).with_extension("wasm");
    ensure!(
        path.is_file(),
        "{} does not exist: run `make guests` first",
        path.display()
    );
    Ok(path)
}

/// Returns the root of the source tree.
pub fn source_tree() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
}

/// Result of a program that has ended.
#[derive(Debug)]
pub struct Ended {
    /// Exit code; `None` if a signal ended the program.
    pub code: Option<i32>,
    /// Standard output.
    pub out: String,
    /// Standard error.
    pub err: String,
}

impl Ended {
    /// Returns the standard output if the exit code is 0, else an error.
    pub fn good(self) -> Result<String> {
        ensure!(
            self.code == Some(0),
            "ended with {:?}\n{}{}",
            self.code,
            self.out,
            self.err
        );
        Ok(self.out)
    }
}

/// Runs `program` to its end.
pub fn run<A: AsRef<OsStr>>(
    program: impl AsRef<OsStr>,
    arguments: impl IntoIterator<Item = A>,
) -> Result<Ended> {
    run_in(program, arguments, Path::new("."), &[])
}

/// Runs `program` in a folder with additional environment variables, to its end.
pub fn run_in<A: AsRef<OsStr>>(
    program: impl AsRef<OsStr>,
    arguments: impl IntoIterator<Item = A>,
    folder: &Path,
    environment: &[(&str, &OsStr)],
) -> Result<Ended> {
    let mut command = Command::new(&program);
    command
        .args(arguments)
        .current_dir(folder)
        .envs(environment.iter().copied());
    finish(command)
}

/// Copies a program so that it can be run at once.
///
/// Uses `cp`, because a child that another test starts meanwhile inherits the files this process has open for writing, and Linux does not run such a
/// file.
pub fn copy(from: &Path, to: &Path) -> Result<()> {
    run("cp", [from, to])?.good().map(drop)
}

/// Writes a shell script that can be run at once, for the same reason as [`copy`].
pub fn script(path: &Path, lines: &str) -> Result<()> {
    let write = r#"printf '#!/bin/sh\n%s\n' "$1" >"$0" && chmod 755 "$0""#;
    let path = path.to_str().context("the path is no text")?;
    run("sh", ["-c", write, path, lines])?.good().map(drop)
}

/// Runs a command to its end with an empty input.
pub fn finish(mut command: Command) -> Result<Ended> {
    let output = command
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("cannot run {}", command.get_program().to_string_lossy()))?;
    Ok(Ended {
        code: output.status.code(),
        out: String::from_utf8_lossy(&output.stdout).into_owned(),
        err: String::from_utf8_lossy(&output.stderr).into_owned(),
    })
}

/// Returns the processor time that a process has used, user and system time together.
pub fn processor_time(pid: u32) -> Result<Duration> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat"))?;
    let (_, fields) = stat.rsplit_once(") ").context("no fields")?;
    // The state is the third field of the file; user time and system time are the 14th and 15th, in hundredths of a second.
    let fields = fields.split(' ').skip(11).take(2);
    let ticks: u64 = fields.map(str::parse::<u64>).sum::<Result<_, _>>()?;
    Ok(Duration::from_millis(ticks * 10))
}

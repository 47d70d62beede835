//! The compiler child: a process per component that reads the component from standard input and writes native code to its output.
//!
//! A compiler makes no promises about hostile input: it may panic, or take all memory. In a child that limits itself, that costs one
//! handler, not the agent. The child's end also frees all of its memory.

use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::process::Command;

use crate::refusal::Refusal;
use crate::threads::MORE_THREADS;

/// Name of the compiler program.
const PROGRAM: &str = "leafhost-compile";
/// Maximum size of a component's native code, in bytes: three times that of the largest ones seen.
pub(crate) const MAX_NATIVE: usize = 256 << 20;
/// Maximum number of bytes kept of the child's standard error.
const STDERR: u64 = 4096;
/// Exit status of the child if the component is invalid; its message addresses the handler's author.
pub const EXIT_INVALID: u8 = 3;
/// Exit status of the child if it could not limit itself.
pub const EXIT_LIMITS: u8 = 4;
/// Exit status of the child after a panic of the compiler.
pub const EXIT_PANIC: u8 = 5;

/// Starts children, one at a time.
#[derive(Debug)]
pub(crate) struct Compiler {
    path: Option<PathBuf>,
    timeout: Duration,
    /// Held while a child runs: compiling takes up to 400 MB, and two at once are too much for a small machine.
    one: tokio::sync::Mutex<()>,
}

impl Compiler {
    /// Creates a compiler that runs the program at `path`, or the installed one.
    pub(crate) fn new(path: Option<PathBuf>, timeout: Duration) -> Self {
        Self {
            path,
            timeout,
            one: tokio::sync::Mutex::default(),
        }
    }

    /// Compiles `wasm` to native code.
    pub(crate) async fn compile(&self, wasm: &[u8]) -> Result<Vec<u8>, Refusal> {
        let path = self.find()?;
        let run = |error: std::io::Error| {
            // fork(2) fails with this error if the limit of processes is reached.
            let is_full = error.kind() == std::io::ErrorKind::WouldBlock;
            let remedy = is_full.then(|| format!("; {MORE_THREADS}"));
            let remedy = remedy.unwrap_or_default();
            let path = path.display();
            Refusal::for_now(format!("cannot run the compiler {path}: {error}{remedy}"))
        };
        let _one = self.one.lock().await;
        let mut child = Command::new(&path)
            .env_clear()
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .map_err(run)?;
        let (stdin, stdout, stderr) =
            (child.stdin.take(), child.stdout.take(), child.stderr.take());
        let feed = async {
            if let Some(mut stdin) = stdin {
                // A child that needs no more input closes the pipe; its status shows the reason.
                let _ = stdin.write_all(wasm).await;
            }
        };
        let errors = async {
            let mut said = Vec::new();
            if let Some(stderr) = stderr {
                let mut stderr = stderr.take(STDERR);
                let _ = stderr.read_to_end(&mut said).await;
                let mut rest = stderr.into_inner();
                let _ = tokio::io::copy(&mut rest, &mut tokio::io::sink()).await;
            }
            said
        };
        let take = async {
            let mut native = Vec::new();
            if let Some(stdout) = stdout {
                let most = u64::try_from(MAX_NATIVE).unwrap_or(u64::MAX);
                // A child that writes more gets a broken pipe.
                let _ = stdout.take(most + 1).read_to_end(&mut native).await;
            }
            native
        };
        let work = async { tokio::join!(feed, take, errors, child.wait()) };
        let Ok(((), native, said, status)) = tokio::time::timeout(self.timeout, work).await else {
            let _ = child.kill().await;
            return Err(Refusal::for_now(format!(
                "compiling took longer than {} s; use a smaller component or a longer --compile-timeout",
                self.timeout.as_secs()
            )));
        };
        let status = status.map_err(run)?;
        if native.len() > MAX_NATIVE {
            return Err(Refusal::of_file(format!(
                "the native code of the component exceeds {} MiB; use a smaller component",
                MAX_NATIVE >> 20
            )));
        }
        let said = shown(&said);
        let colon = if said.is_empty() { "" } else { ": " };
        let refused =
            |why: &str| Refusal::of_file(format!("the component does not compile: {why}"));
        match status.code() {
            Some(0) => Ok(native),
            Some(code) if code == i32::from(EXIT_INVALID) || code == i32::from(EXIT_PANIC) => {
                Err(refused(&said))
            }
            // A signal other than SIGKILL comes from the child's own limits: the component needs more than any handler should.
            // SIGKILL comes from outside, such as from the kernel out of memory.
            None if status.signal() != Some(nix::libc::SIGKILL) => Err(refused(&format!(
                "the component is too much for the compiler, which a limit has ended ({status}); use a smaller component{colon}{said}"
            ))),
            _ => Err(Refusal::for_now(format!(
                "the compiler failed: {} ended with {status}{colon}{said}",
                path.display()
            ))),
        }
    }

    fn find(&self) -> Result<PathBuf, Refusal> {
        let candidates = match &self.path {
            Some(path) => vec![path.clone()],
            None => candidates(std::env::current_exe().ok().as_deref()),
        };
        let found = candidates.iter().find(|path| path.is_file());
        found.cloned().ok_or_else(|| {
            let paths = candidates.iter().map(|path| path.display().to_string());
            let paths: Vec<String> = paths.collect();
            Refusal::for_now(format!(
                "cannot find the compiler {PROGRAM}; looked for {}; install it there or name it with --compiler",
                paths.join(", ")
            ))
        })
    }
}

/// Returns the paths where the program may be installed, relative to the agent's own executable.
fn candidates(executable: Option<&Path>) -> Vec<PathBuf> {
    let Some(folder) = executable.and_then(Path::parent) else {
        return Vec::new();
    };
    let mut candidates = vec![folder.join(PROGRAM)];
    if let Some(prefix) = folder.parent() {
        candidates.push(prefix.join("libexec/leafhost").join(PROGRAM));
    }
    candidates
}

fn shown(said: &[u8]) -> String {
    let text = String::from_utf8_lossy(said);
    // The standard library adds notes for those who can set the environment of the child.
    let lines = text.lines().filter(|line| !line.starts_with("note: "));
    let lines: Vec<&str> = lines
        .map(str::trim)
        .filter(|line| !line.is_empty())
        .collect();
    leafhost_core::text::clean(&lines.join("; "), 4096)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    async fn run(script: &str, timeout: Duration) -> Result<Vec<u8>, Refusal> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("compiler");
        std::fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
        Compiler::new(Some(path), timeout)
            .compile(&vec![7; 1 << 20])
            .await
    }

    #[tokio::test]
    async fn what_the_child_did_is_told_apart() {
        let long = Duration::from_secs(20);
        for (script, words, transient) in [
            (
                "cat >/dev/null; echo no such thing >&2; exit 3",
                "no such thing",
                false,
            ),
            ("echo panicked >&2; exit 5", "panicked", false),
            ("exit 4", "status: 4", true),
            (
                "echo no memory >&2; echo note: run with X >&2; kill -ABRT $$",
                "a limit has ended (signal: 6 (SIGABRT)); use a smaller component: no memory",
                false,
            ),
            ("kill -XCPU $$", "a limit has ended", false),
            ("kill -KILL $$", "signal: 9", true),
        ] {
            let error = run(script, long).await.unwrap_err();
            assert!(error.to_string().contains(words), "{script}: {error}");
            assert_eq!(error.is_transient, transient, "{script}");
        }
        assert_eq!(run("cat", long).await.unwrap(), vec![7; 1 << 20]);
    }

    #[tokio::test]
    async fn a_child_that_hangs_is_killed() {
        let error = run("exec sleep 60", Duration::from_millis(50))
            .await
            .unwrap_err();
        assert!(error.to_string().contains("took longer"), "{error}");
        assert!(error.is_transient, "{error}");
    }

    #[tokio::test]
    async fn a_child_that_floods_standard_error_is_cut_short() {
        let error = run(
            "yes >&2 & sleep 0.1; kill $!; exit 3",
            Duration::from_secs(20),
        )
        .await
        .unwrap_err();
        assert!(error.to_string().len() < 10_000);
    }

    #[tokio::test]
    async fn a_child_that_floods_standard_output_is_not_listened_to_for_ever() {
        let error = run("exec cat /dev/zero", Duration::from_mins(1))
            .await
            .unwrap_err();
        assert!(error.to_string().contains("exceeds 256 MiB"), "{error}");
    }

    #[test]
    fn the_program_is_beside_the_agent_or_in_libexec() {
        let candidates = candidates(Some(Path::new("/usr/local/bin/leafhost")));
        let expected = [
            "/usr/local/bin/leafhost-compile",
            "/usr/local/libexec/leafhost/leafhost-compile",
        ];
        assert_eq!(candidates, expected.map(PathBuf::from));
    }

    #[tokio::test]
    async fn a_missing_program_is_named() {
        let compiler = Compiler::new(Some("/nowhere/x".into()), Duration::from_secs(1));
        let error = compiler.compile(b"").await.unwrap_err();
        assert!(error.to_string().contains("/nowhere/x"), "{error}");
        assert!(error.is_transient);
    }
}

//! Which functions of a program are reached while it runs, in the order in which they first are.
//!
//! A breakpoint stands at the beginning of each, and goes when somebody came by. Knows nothing of what the program is for.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use leafhost_tests::trace::{WITH_CHILDREN, process_of, seize};
use leafhost_tests::wait::within;
use nix::errno::Errno;
use nix::libc::PTRACE_EVENT_EXEC;
use nix::sys::ptrace;
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;
use object::{Object as _, ObjectSection as _, ObjectSymbol as _, SymbolKind};

/// Until a program that is asked to has ended.
const TIMEOUT: Duration = Duration::from_secs(20);
/// The instruction `int3`.
const BREAKPOINT: u8 = 0xcc;

/// A program that is watched, by a thread of its own.
pub struct Watched {
    program: Pid,
    thread: JoinHandle<Result<Vec<String>>>,
}

impl Watched {
    /// Starts a command; what it says is added to `log`.
    pub fn start(command: Command, log: &Path) -> Result<Self> {
        ensure!(
            cfg!(target_arch = "x86_64"),
            "functions are watched on x86-64 only"
        );
        let path = PathBuf::from(command.get_program()).canonicalize()?;
        let code = Code::read(&path)?;
        let log = log.to_owned();
        let (started, is_started) = std::sync::mpsc::channel();
        let thread = std::thread::spawn(move || {
            let program = seize(&command, &log, WITH_CHILDREN)?;
            started.send(program)?;
            let watcher = Watcher {
                program,
                path,
                code,
                base: 0,
                threads: BTreeMap::new(),
                memories: BTreeMap::new(),
                seen: BTreeSet::new(),
                reached: Vec::new(),
            };
            // Whoever waits for the program fails first.
            let told =
                |error: &anyhow::Error| eprintln!("the program is no longer watched: {error:#}");
            watcher.follow().inspect_err(told)
        });
        match is_started.recv() {
            Ok(program) => Ok(Self { program, thread }),
            Err(_) => join(thread).and_then(|_| anyhow::bail!("the program was not started")),
        }
    }

    /// Ends it; its functions that were reached, by their names in the file. That it ends badly is an error.
    pub fn stop(self) -> Result<Vec<String>> {
        let signal = |signal| match kill(self.program, signal) {
            Ok(()) | Err(Errno::ESRCH) => Ok(()),
            Err(error) => Err(error).context("cannot end the program"),
        };
        // The number of a program that has ended may be another's.
        if !self.thread.is_finished() {
            signal(Signal::SIGTERM)?;
            let ended = within(TIMEOUT, "the program ends", || {
                ensure!(self.thread.is_finished());
                Ok(())
            });
            if ended.is_err() {
                signal(Signal::SIGKILL)?;
            }
        }
        join(self.thread)
    }
}

fn join<T>(thread: JoinHandle<Result<T>>) -> Result<T> {
    match thread.join() {
        Ok(result) => result,
        Err(panic) => std::panic::resume_unwind(panic),
    }
}

/// A program's code as it is in its file.
struct Code {
    /// The address of the section with all functions.
    begin: u64,
    bytes: Vec<u8>,
    /// The names of the functions that begin at an address.
    functions: BTreeMap<u64, Vec<String>>,
}

impl Code {
    fn read(path: &Path) -> Result<Self> {
        let file = fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
        let file = object::File::parse(file.as_slice())?;
        let section = file.section_by_name(".text").context("no code")?;
        let mut functions = BTreeMap::<_, Vec<_>>::new();
        for symbol in file.symbols() {
            let is_function = symbol.kind() == SymbolKind::Text && symbol.size() > 0;
            if is_function && symbol.section_index() == Some(section.index()) {
                let names = functions.entry(symbol.address()).or_default();
                names.push(symbol.name()?.to_owned());
            }
        }
        ensure!(!functions.is_empty(), "{} has no names", path.display());
        Ok(Self {
            begin: section.address(),
            bytes: section.data()?.to_vec(),
            functions,
        })
    }

    fn byte(&self, address: u64) -> Option<u8> {
        let at = usize::try_from(address.checked_sub(self.begin)?).ok()?;
        self.bytes.get(at).copied()
    }

    /// With a breakpoint at the beginning of each function.
    fn with_breakpoints(&self) -> Result<Vec<u8>> {
        let mut bytes = self.bytes.clone();
        for address in self.functions.keys() {
            let at = usize::try_from(address - self.begin)?;
            *bytes.get_mut(at).context("a function outside the code")? = BREAKPOINT;
        }
        Ok(bytes)
    }
}

struct Watcher {
    program: Pid,
    path: PathBuf,
    code: Code,
    /// Where the program was put.
    base: u64,
    /// The process of each thread.
    threads: BTreeMap<Pid, Pid>,
    memories: BTreeMap<Pid, File>,
    seen: BTreeSet<u64>,
    reached: Vec<String>,
}

impl Watcher {
    fn follow(mut self) -> Result<Vec<String>> {
        // Only what this thread traces: other threads have children of their own.
        let all = WaitPidFlag::__WALL | WaitPidFlag::__WNOTHREAD;
        let mut ended = None;
        loop {
            let status = match waitpid(None, Some(all)) {
                Err(Errno::ECHILD) => break,
                Err(Errno::EINTR) => continue,
                status => status.context("cannot wait for the program")?,
            };
            match status {
                WaitStatus::Stopped(thread, Signal::SIGTRAP) if self.at_breakpoint(thread)? => {
                    resume(thread, None)?;
                }
                WaitStatus::Stopped(thread, signal) => resume(thread, Some(signal))?,
                WaitStatus::PtraceEvent(thread, _, PTRACE_EVENT_EXEC) => self.at_exec(thread)?,
                WaitStatus::PtraceEvent(thread, ..) => resume(thread, None)?,
                WaitStatus::Exited(thread, _) | WaitStatus::Signaled(thread, ..) => {
                    self.threads.remove(&thread);
                    self.memories.remove(&thread);
                    if let (true, WaitStatus::Exited(_, code)) = (thread == self.program, status) {
                        ended = Some(code);
                    }
                }
                _ => {}
            }
        }
        ensure!(ended == Some(0), "the program ended with {ended:?}");
        Ok(self.reached)
    }

    /// The program begins, or one of its children becomes another program, which is nothing to us.
    fn at_exec(&mut self, thread: Pid) -> Result<()> {
        self.memories.remove(&thread);
        if thread != self.program {
            return gone_or(ptrace::detach(thread, None), "let go of a child");
        }
        let maps = fs::read_to_string(format!("/proc/{thread}/maps"))?;
        let path = self
            .path
            .to_str()
            .context("the program's path is no text")?;
        let first = maps.lines().find(|line| line.ends_with(path));
        let address = first.and_then(|line| line.split('-').next());
        self.base = u64::from_str_radix(address.context("the program is not there")?, 16)?;
        let code = self.code.with_breakpoints()?;
        let begin = self.base + self.code.begin;
        self.memory(thread)?.write_all_at(&code, begin)?;
        resume(thread, None)
    }

    /// Whether the thread stands behind one, which is gone then.
    fn at_breakpoint(&mut self, thread: Pid) -> Result<bool> {
        let Some(after) = place(thread)? else {
            return Ok(true);
        };
        let Some(address) = after.checked_sub(self.base + 1) else {
            return Ok(false);
        };
        let Some(names) = self.code.functions.get(&address) else {
            return Ok(false);
        };
        if self.seen.insert(address) {
            self.reached.extend(names.iter().cloned());
        }
        let was = self.code.byte(address).context("a function without code")?;
        let at = self.base + address;
        let memory = self.memory(thread);
        if let Err(error) = memory.and_then(|memory| Ok(memory.write_all_at(&[was], at)?)) {
            // Nothing can be written to a process that has just been killed.
            ensure!(place(thread)?.is_none(), error);
            return Ok(true);
        }
        go_on_at(thread, at)?;
        Ok(true)
    }

    /// The memory of a thread's process: a child has the program's own, or a copy, until it is another program.
    fn memory(&mut self, thread: Pid) -> Result<&File> {
        let process = if let Some(process) = self.threads.get(&thread) {
            *process
        } else {
            let process = process_of(thread).context("no process")?;
            self.threads.insert(thread, process);
            process
        };
        Ok(match self.memories.entry(process) {
            Entry::Occupied(entry) => entry.into_mut(),
            Entry::Vacant(entry) => {
                let mut options = File::options();
                options.read(true).write(true);
                entry.insert(options.open(format!("/proc/{process}/mem"))?)
            }
        })
    }
}

/// The address of the next instruction; nothing if the thread has just been killed.
#[cfg(target_arch = "x86_64")]
fn place(thread: Pid) -> Result<Option<u64>> {
    match ptrace::getregs(thread) {
        Ok(registers) => Ok(Some(registers.rip)),
        Err(Errno::ESRCH) => Ok(None),
        Err(error) => Err(error).context("cannot tell where a thread is"),
    }
}

#[cfg(target_arch = "x86_64")]
fn go_on_at(thread: Pid, address: u64) -> Result<()> {
    let moved = ptrace::getregs(thread).and_then(|mut registers| {
        registers.rip = address;
        ptrace::setregs(thread, registers)
    });
    gone_or(moved, "move a thread")
}

#[cfg(not(target_arch = "x86_64"))]
fn place(_: Pid) -> Result<Option<u64>> {
    Ok(None)
}

#[cfg(not(target_arch = "x86_64"))]
fn go_on_at(_: Pid, _: u64) -> Result<()> {
    Ok(())
}

fn resume(thread: Pid, signal: Option<Signal>) -> Result<()> {
    gone_or(ptrace::cont(thread, signal), "let a thread go on")
}

/// That a thread was killed meanwhile is no error.
fn gone_or(done: nix::Result<()>, what: &str) -> Result<()> {
    match done {
        Ok(()) | Err(Errno::ESRCH) => Ok(()),
        Err(error) => Err(error).with_context(|| format!("cannot {what}")),
    }
}

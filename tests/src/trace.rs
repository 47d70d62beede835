//! Traces the writes of an agent and its compiler child, and kills one of them at a chosen write.
//!
//! Every thread stops at every system call; a call that would change a file system is a *point*. A point is identified
//! by operation, file and count, because the order of threads varies. Knows nothing of the files' content.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::thread::JoinHandle;

use anyhow::{Context, Result, bail};
use nix::errno::Errno;
use nix::sys::ptrace::{self, Options};
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;

pub mod call;
use call::{Act, Call};

/// Process of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Who {
    /// Program that was started.
    Agent,
    /// Child process of the program.
    Child,
}

/// Kind of write.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Kind {
    /// Process that writes.
    pub who: Who,
    /// Name of the system call.
    pub call: &'static str,
    /// File, relative to the home if it is there, with `*` for random parts.
    pub path: String,
}

impl Kind {
    /// Returns true if the call changes what a reader sees.
    pub fn is_decisive(&self) -> bool {
        matches!(self.call, "rename" | "unlink")
    }
}

/// Position in a write at which the process is killed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Cut {
    /// Before the call.
    Before,
    /// After half the bytes.
    Half,
}

/// Write and the position at which it is cut.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Point {
    /// Kind of the write.
    pub kind: Kind,
    /// Number among the writes of this kind, from 1.
    pub occurrence: u32,
    /// Position of the cut.
    pub cut: Cut,
}

impl fmt::Display for Point {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Kind { who, call, path } = &self.kind;
        let (cut, occurrence) = (self.cut, self.occurrence);
        write!(f, "{who:?} {cut:?} {call} {path} #{occurrence}")
    }
}

/// Record of a run.
#[derive(Debug, Default)]
pub struct Walk {
    /// All points, in the order of the run.
    pub points: Vec<Point>,
    /// True if a process was killed at the chosen point.
    pub struck: bool,
    /// Paths that a power failure would lose although something refers to them: files renamed before they were synced, and names in folders that were
    /// never synced.
    pub not_durable: BTreeSet<String>,
}

/// Program traced by a separate thread, with all its threads and children.
pub struct Trace {
    ended: Arc<AtomicBool>,
    /// Process ID of the agent: 0 before it starts, -1 after it has ended.
    agent: Arc<AtomicI32>,
    thread: JoinHandle<Result<Walk>>,
}

impl Trace {
    /// Starts a command and kills it at `target`; paths below `home` are recorded relative to it.
    pub fn start(command: Command, home: &Path, target: Option<Point>) -> Self {
        let (ended, agent) = (Arc::<AtomicBool>::default(), Arc::<AtomicI32>::default());
        let flags = (Arc::clone(&ended), Arc::clone(&agent));
        let home = home.to_owned();
        let thread = std::thread::spawn(move || {
            let walked = Tracer::start(&command, home, target, Arc::clone(&flags.1))
                .and_then(Tracer::follow);
            flags.1.store(-1, Ordering::Release);
            flags.0.store(true, Ordering::Release);
            walked
        });
        Self {
            ended,
            agent,
            thread,
        }
    }

    /// Returns true if the program has ended; children that have executed another program may still run.
    pub fn agent_has_ended(&self) -> bool {
        self.agent.load(Ordering::Acquire) < 0
    }

    /// Signals the program if it runs.
    pub fn signal(&self, signal: Signal) -> Result<()> {
        match self.agent.load(Ordering::Acquire) {
            process @ 1.. => match kill(Pid::from_raw(process), signal) {
                Ok(()) | Err(Errno::ESRCH) => Ok(()),
                Err(error) => Err(error).context("cannot signal the program"),
            },
            _ => Ok(()),
        }
    }

    /// Returns true if the program and all children have ended.
    pub fn has_ended(&self) -> bool {
        self.ended.load(Ordering::Acquire)
    }

    /// Waits until the program and all children have ended.
    pub fn join(self) -> Result<Walk> {
        match self.thread.join() {
            Ok(walk) => walk,
            Err(panic) => std::panic::resume_unwind(panic),
        }
    }
}

/// Options to trace all threads and children of a program from before their exec; the tracees end with the tracer.
pub const WITH_CHILDREN: Options = Options::PTRACE_O_TRACECLONE
    .union(Options::PTRACE_O_TRACEFORK)
    .union(Options::PTRACE_O_TRACEVFORK)
    .union(Options::PTRACE_O_TRACEEXEC)
    .union(Options::PTRACE_O_EXITKILL);

/// Starts a program stopped, seizes it and resumes it, so that no call is missed: tracing starts before the exec. Its output is appended to `log`.
pub fn seize(command: &Command, log: &Path, options: Options) -> Result<Pid> {
    let mut stopped = Command::new("sh");
    stopped
        .args(["-c", "kill -STOP $$; exec \"$0\" \"$@\""])
        .arg(command.get_program())
        .args(command.get_args())
        .envs(
            command
                .get_envs()
                .filter_map(|(name, value)| Some((name, value?))),
        )
        .stdin(Stdio::null());
    let log = fs::File::options().create(true).append(true).open(log)?;
    stopped.stdout(log.try_clone()?).stderr(log);
    let child = stopped.spawn().context("cannot start the program")?;
    let process = Pid::from_raw(i32::try_from(child.id())?);
    waitpid(process, Some(WaitPidFlag::WUNTRACED))?;
    ptrace::seize(process, options).context("cannot trace the program")?;
    kill(process, Signal::SIGCONT)?;
    Ok(process)
}

/// Returns the process of a thread, as long as it exists.
pub fn process_of(thread: Pid) -> Option<Pid> {
    let status = fs::read_to_string(format!("/proc/{thread}/status")).ok()?;
    let group = status.lines().find_map(|line| line.strip_prefix("Tgid:"))?;
    group.trim().parse().ok().map(Pid::from_raw)
}

struct Tracer {
    agent: Pid,
    home: PathBuf,
    target: Option<Point>,
    alive: Arc<AtomicI32>,
    ended: bool,
    /// Children that have not executed another program yet.
    copies: BTreeSet<Pid>,
    /// Process of each thread.
    processes: BTreeMap<Pid, Pid>,
    seen: BTreeMap<Kind, u32>,
    walk: Walk,
    /// Files whose last bytes are not durable.
    unsynced: BTreeSet<PathBuf>,
    /// Created and removed names that are not durable.
    renamed: BTreeSet<PathBuf>,
}

impl Tracer {
    /// Starts the program stopped and seizes it, so that no call is missed.
    fn start(
        command: &Command,
        home: PathBuf,
        target: Option<Point>,
        alive: Arc<AtomicI32>,
    ) -> Result<Self> {
        let options = Options::PTRACE_O_TRACESYSGOOD | WITH_CHILDREN;
        let agent = seize(command, &home.join("log"), options)?;
        alive.store(agent.as_raw(), Ordering::Release);
        Ok(Self {
            agent,
            home,
            target,
            alive,
            ended: false,
            copies: BTreeSet::new(),
            processes: BTreeMap::new(),
            seen: BTreeMap::new(),
            walk: Walk::default(),
            unsynced: BTreeSet::new(),
            renamed: BTreeSet::new(),
        })
    }

    fn follow(mut self) -> Result<Walk> {
        // Only this thread's tracees: other threads have their own children.
        let all = WaitPidFlag::__WALL | WaitPidFlag::__WNOTHREAD;
        loop {
            let status = match waitpid(None, Some(all)) {
                Err(Errno::ECHILD) => break,
                Err(Errno::EINTR) => continue,
                status => status.context("cannot wait for the traced program")?,
            };
            match status {
                WaitStatus::PtraceSyscall(thread) => {
                    self.at_call(thread)?;
                    resume(thread, None)?;
                }
                WaitStatus::PtraceEvent(thread, _, event) => {
                    self.at_event(thread, event);
                    resume(thread, None)?;
                }
                WaitStatus::Stopped(thread, signal) => resume(thread, Some(signal))?,
                WaitStatus::Exited(process, _) | WaitStatus::Signaled(process, _, _) => {
                    self.processes.remove(&process);
                    self.copies.remove(&process);
                    self.ended |= process == self.agent;
                }
                _ => {}
            }
            if self.ended && self.copies.is_empty() {
                self.alive.store(-1, Ordering::Release);
            }
        }
        for path in &self.renamed {
            let text = format!("{}: its name is not durable", self.shown(path));
            self.walk.not_durable.insert(text);
        }
        Ok(self.walk)
    }

    /// Tracks forks and execs: until a child executes another program, it shares its parent's files. Tracing prolongs that time.
    fn at_event(&mut self, thread: Pid, event: i32) {
        use nix::libc::{PTRACE_EVENT_EXEC, PTRACE_EVENT_FORK, PTRACE_EVENT_VFORK};
        match event {
            PTRACE_EVENT_FORK | PTRACE_EVENT_VFORK => {
                let child = ptrace::getevent(thread).ok();
                let child = child.and_then(|child| i32::try_from(child).ok());
                self.copies.extend(child.map(Pid::from_raw));
            }
            PTRACE_EVENT_EXEC => {
                self.copies.remove(&thread);
            }
            _ => {}
        }
    }

    fn at_call(&mut self, thread: Pid) -> Result<()> {
        const ENTRY: u8 = nix::libc::PTRACE_SYSCALL_INFO_ENTRY;
        match ptrace::syscall_info(thread) {
            Ok(info) if info.op == ENTRY => {}
            Ok(_) | Err(Errno::ESRCH) => return Ok(()),
            Err(error) => return Err(error).context("cannot look at a call"),
        }
        let call = match call::at_entry(thread) {
            Ok(call) => call,
            // A thread that was just killed has no registers and files.
            Err(_) if !is_stopped(thread) => return Ok(()),
            Err(error) => return Err(error),
        };
        let Some(call) = call else {
            return Ok(());
        };
        let process = self.process(thread);
        let who = if process == self.agent {
            Who::Agent
        } else {
            Who::Child
        };
        if call_path(&call) == Some(&self.home.join("log")) {
            return Ok(());
        }
        self.note_durability(&call);
        self.point(who, process, thread, &call)
    }

    fn point(&mut self, who: Who, process: Pid, thread: Pid, call: &Call) -> Result<()> {
        let path = match &call.act {
            Act::Rename(from, to) => format!("{} -> {}", self.shown(from), self.shown(to)),
            Act::Write { to, .. } => self.shown(to),
            Act::Create(path) | Act::Sync(path) | Act::Remove(path) | Act::Other(path) => {
                self.shown(path)
            }
        };
        let kind = Kind {
            who,
            call: call.name,
            path,
        };
        let occurrence = self.seen.entry(kind.clone()).or_default();
        *occurrence += 1;
        let halves = matches!(&call.act, Act::Write { bytes: Some((_, length)), to, .. }
            if *length > 1 && to != Path::new("pipe"));
        for cut in [Cut::Before, Cut::Half] {
            if cut == Cut::Half && !halves {
                continue;
            }
            let point = Point {
                kind: kind.clone(),
                occurrence: *occurrence,
                cut,
            };
            if self.target.as_ref() == Some(&point) {
                if cut == Cut::Half {
                    call::write_half(thread, &call.act)?;
                }
                kill(process, Signal::SIGKILL).context("cannot kill")?;
                self.walk.struck = true;
            }
            self.walk.points.push(point);
        }
        Ok(())
    }

    /// Records which files and names are durable: a file must be synced before a rename, and its folder afterwards.
    fn note_durability(&mut self, call: &Call) {
        match &call.act {
            Act::Write { to, .. } => drop(self.unsynced.insert(to.clone())),
            Act::Sync(path) => {
                self.unsynced.remove(path);
                self.renamed.retain(|name| name.parent() != Some(path));
            }
            Act::Rename(from, to) => {
                if self.unsynced.remove(from) {
                    let text = format!("{}: content is not durable", self.shown(to));
                    self.walk.not_durable.insert(text);
                }
                self.renamed.insert(to.clone());
            }
            Act::Remove(path) => {
                // A temporary file may reappear: the agent removes it at its start.
                if !self.unsynced.remove(path) {
                    self.renamed.insert(path.clone());
                }
            }
            Act::Create(_) | Act::Other(_) => {}
        }
    }

    fn process(&mut self, thread: Pid) -> Pid {
        if let Some(process) = self.processes.get(&thread) {
            return *process;
        }
        let process = process_of(thread).unwrap_or(thread);
        self.processes.insert(thread, process);
        process
    }

    /// Returns a path relative to the home, without random parts.
    fn shown(&self, path: &Path) -> String {
        let below = path.strip_prefix(&self.home).unwrap_or(path);
        let text = below.display().to_string();
        let text = text.strip_suffix(" (deleted)").unwrap_or(&text);
        let (folder, name) = text.rsplit_once('/').unwrap_or(("", text));
        let name = without_random(name);
        if folder.is_empty() {
            name
        } else {
            format!("{folder}/{name}")
        }
    }
}

/// Replaces the six random characters of a temporary file's name by `*`.
fn without_random(name: &str) -> String {
    let begin = match name {
        name if name.starts_with(".new-") => 5,
        name if name.starts_with('.') && name.strip_suffix(".tmp").is_some() => {
            name.rfind('-').map_or(0, |at| at + 1)
        }
        _ => return name.to_owned(),
    };
    match (name.get(..begin), name.get(begin + 6..)) {
        (Some(head), Some(tail)) => format!("{head}*{tail}"),
        _ => name.to_owned(),
    }
}

fn call_path(call: &Call) -> Option<&PathBuf> {
    match &call.act {
        Act::Write { to, .. } => Some(to),
        Act::Create(path) => Some(path),
        _ => None,
    }
}

fn is_stopped(thread: Pid) -> bool {
    let stat = fs::read_to_string(format!("/proc/{thread}/stat")).unwrap_or_default();
    let state = stat.rsplit_once(") ").map(|(_, rest)| rest);
    state.is_some_and(|rest| rest.starts_with('t'))
}

fn resume(thread: Pid, signal: Option<Signal>) -> Result<()> {
    match ptrace::syscall(thread, signal) {
        Ok(()) | Err(Errno::ESRCH) => Ok(()),
        Err(error) => bail!("cannot resume {thread}: {error}"),
    }
}

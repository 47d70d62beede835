//! Gives up everything that a compiler does not need, irrevocably.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result};
use nix::libc;
use nix::sys::prctl::set_pdeathsig;
use nix::sys::resource::{Resource, setrlimit};
use nix::sys::signal::Signal;
use seccompiler::{
    BackendError, BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition,
    SeccompFilter, SeccompRule, apply_filter,
};

/// Limit of address space, in bytes. The largest components seen (Python, 18 MB) compile within half of it.
const MEMORY: u64 = 1 << 30;
/// Limit of CPU time of all threads together, in seconds; the agent's own time limit is usually shorter.
const CPU: u64 = 240;
/// Limit of open files: three are open, and no other is opened.
const FILES: u64 = 16;
/// Limit of native code, in bytes.
const OUTPUT: u64 = 512 << 20;

/// OOM score adjustment: when memory is short, the kernel kills this process before all others, the agent and the workloads included.
const OUT_OF_MEMORY: &str = "1000";
/// Highest nice value.
const NICE: i32 = 19;

/// Limits memory, CPU time and files, gives up the ability to gain privileges, and blocks all system calls that a computation does not need.
pub(crate) fn enter() -> Result<()> {
    give_way();
    // Ends the child when the agent ends, because no process waits for the result then. (An agent that is killed before this call has sent
    // at most as much of the component as a pipe holds.)
    set_pdeathsig(Signal::SIGKILL)
        .context("cannot request the end of this process with the agent's")?;
    for (what, resource, soft, hard) in [
        ("memory", Resource::RLIMIT_AS, MEMORY, MEMORY),
        // At the soft limit the kernel sends SIGXCPU; at the hard limit it sends SIGKILL, which others could also send.
        ("computing", Resource::RLIMIT_CPU, CPU, CPU + 5),
        ("open files", Resource::RLIMIT_NOFILE, FILES, FILES),
        ("output", Resource::RLIMIT_FSIZE, OUTPUT, OUTPUT),
        ("core dump", Resource::RLIMIT_CORE, 0, 0),
    ] {
        setrlimit(resource, soft, hard).with_context(|| format!("cannot bound the {what}"))?;
    }
    filter_calls()
}

/// Gives this thread, and threads that it starts later, the lowest priority for CPU time and memory, so that no other process waits for a
/// compilation. Ignores errors.
#[allow(
    unsafe_code,
    reason = "neither the standard library nor nix sets a thread's scheduling"
)]
fn give_way() {
    let _ = std::fs::write("/proc/self/oom_score_adj", OUT_OF_MEMORY);
    let batch = libc::sched_param { sched_priority: 0 };
    // SAFETY: both calls apply to the calling thread (0), the second with a structure that outlives the call.
    unsafe {
        libc::setpriority(libc::PRIO_PROCESS, 0, NICE);
        libc::sched_setscheduler(0, libc::SCHED_BATCH, &raw const batch);
    }
}

/// Filters system calls of this thread and those it starts from now on; also sets `no_new_privs`.
fn filter_calls() -> Result<()> {
    let filters = without_clone3().and_then(|first| Ok([first, only_allowed()?]));
    let filters = filters.context("cannot build the system call filter")?;
    let applied = filters.iter().try_for_each(|filter| apply_filter(filter));
    applied.context(
        "cannot filter system calls; is the kernel built with seccomp, and may this service call it (SystemCallFilter=seccomp)?",
    )
}

/// Makes libraries start threads with `clone`, whose flags a filter can check.
fn without_clone3() -> Result<BpfProgram, BackendError> {
    let rules = BTreeMap::from([(libc::SYS_clone3, Vec::new())]);
    let absent = SeccompAction::Errno(libc::ENOSYS.unsigned_abs());
    let arch = std::env::consts::ARCH.try_into()?;
    let filter = SeccompFilter::new(rules, SeccompAction::Allow, absent, arch)?;
    filter.try_into()
}

fn only_allowed() -> Result<BpfProgram, BackendError> {
    let mut rules: BTreeMap<i64, Vec<SeccompRule>> =
        ALLOWED.iter().map(|call| (*call, Vec::new())).collect();
    let first_argument = |operator, value| {
        let condition = SeccompCondition::new(0, SeccompCmpArgLen::Dword, operator, value)?;
        Ok::<_, BackendError>(vec![SeccompRule::new(vec![condition])?])
    };
    // An abort signals its own process and no other.
    let own = u64::from(std::process::id());
    rules.insert(libc::SYS_tgkill, first_argument(SeccompCmpOp::Eq, own)?);
    // Allows threads but no processes, which would outlive the child when the agent kills it.
    let thread = u64::from(libc::CLONE_THREAD.unsigned_abs());
    rules.insert(
        libc::SYS_clone,
        first_argument(SeccompCmpOp::MaskedEq(thread), thread)?,
    );
    // Libraries ask for limits. Only those of this process are accessible: otherwise the agent's could be lowered.
    rules.insert(libc::SYS_prlimit64, first_argument(SeccompCmpOp::Eq, 0)?);
    // Allows naming threads and memory mappings.
    let named = [
        libc::PR_SET_NAME.unsigned_abs(),
        libc::PR_SET_VMA.unsigned_abs(),
    ];
    let mut naming = Vec::new();
    for option in named {
        naming.extend(first_argument(SeccompCmpOp::Eq, option.into())?);
    }
    rules.insert(libc::SYS_prctl, naming);
    let arch = std::env::consts::ARCH.try_into()?;
    // Refuses instead of killing: libraries try calls that they can do without (a file with the number of processors).
    let refuse = SeccompAction::Errno(libc::EPERM.unsigned_abs());
    let filter = SeccompFilter::new(rules, refuse, SeccompAction::Allow, arch)?;
    filter.try_into()
}

/// System calls for reading, computing on several threads and writing. No open, no socket, no exec, no ptrace.
const ALLOWED: &[i64] = &[
    libc::SYS_brk,
    libc::SYS_clock_gettime,
    libc::SYS_clock_nanosleep,
    libc::SYS_clone3,
    libc::SYS_close,
    libc::SYS_exit,
    libc::SYS_exit_group,
    libc::SYS_fstat,
    libc::SYS_futex,
    libc::SYS_getpid,
    libc::SYS_getrandom,
    libc::SYS_gettid,
    libc::SYS_lseek,
    libc::SYS_madvise,
    libc::SYS_membarrier,
    libc::SYS_mmap,
    libc::SYS_mprotect,
    libc::SYS_mremap,
    libc::SYS_munmap,
    libc::SYS_nanosleep,
    libc::SYS_read,
    libc::SYS_restart_syscall,
    libc::SYS_rseq,
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn,
    libc::SYS_sched_getaffinity,
    libc::SYS_sched_yield,
    libc::SYS_set_robust_list,
    libc::SYS_set_tid_address,
    libc::SYS_sigaltstack,
    libc::SYS_statx,
    libc::SYS_write,
    libc::SYS_writev,
];

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::{ErrorKind, pipe};
    use std::net::{TcpListener, UdpSocket};
    use std::os::unix::net::UnixStream;
    use std::process::Command;

    use super::*;

    #[allow(
        unsafe_code,
        reason = "the standard library has no bounds of other processes"
    )]
    fn bounds_of(process: u32) -> std::io::Result<()> {
        let process = libc::pid_t::try_from(process).unwrap();
        let (none, mut old) = (
            std::ptr::null(),
            libc::rlimit {
                rlim_cur: 0,
                rlim_max: 0,
            },
        );
        // SAFETY: reads a limit, and `old` has room for it.
        match unsafe { libc::prlimit(process, libc::RLIMIT_NOFILE, none, &raw mut old) } {
            0 => Ok(()),
            _ => Err(std::io::Error::last_os_error()),
        }
    }

    #[test]
    fn what_is_left_is_computing() {
        // The filter applies to the calling thread only; the limits would apply to all tests.
        let confined = std::thread::spawn(|| {
            let before = pipe();
            let parent = std::os::unix::process::parent_id();
            bounds_of(parent).unwrap();
            filter_calls().unwrap();
            let refused = [
                File::open("/etc/hostname").err(),
                File::create("/tmp/leafhost-compile-test").err(),
                std::fs::read_dir("/").err(),
                std::fs::remove_file("/tmp/leafhost-compile-test").err(),
                TcpListener::bind("127.0.0.1:0").err(),
                UdpSocket::bind("127.0.0.1:0").err(),
                UnixStream::connect("/run/systemd/notify").err(),
                Command::new("/bin/true").status().err(),
                pipe().err(),
                bounds_of(parent).err(),
                nix::sys::prctl::set_dumpable(false).err().map(Into::into),
                nix::sys::resource::getrusage(nix::sys::resource::UsageWho::RUSAGE_SELF)
                    .err()
                    .map(Into::into),
            ];
            assert!(nix::sys::resource::getrlimit(Resource::RLIMIT_AS).is_ok());
            let helper = std::thread::Builder::new()
                .name("named".into())
                .spawn(|| {
                    let sum: u64 = vec![7_u64; 1 << 20].iter().sum();
                    (sum, File::open("/etc/hostname").err().map(|e| e.kind()))
                })
                .unwrap();
            (before.is_ok(), refused, helper.join())
        });
        let (before, refused, helper) = confined.join().unwrap();
        assert!(before);
        for (at, error) in refused.iter().enumerate() {
            let kind = error.as_ref().map(std::io::Error::kind);
            assert_eq!(kind, Some(ErrorKind::PermissionDenied), "number {at}");
        }
        let expected = (7 << 20, Some(ErrorKind::PermissionDenied));
        assert_eq!(helper.unwrap(), expected, "a thread started within");
    }
}

//! Gives up what a compiler does not need. For good: nothing here can be undone.

use std::collections::BTreeMap;

use nix::libc;
use nix::sys::resource::{Resource, setrlimit};
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule, apply_filter,
};

/// Address space, in bytes. The largest components seen (Python, 18 MB) compile within half of it.
const MEMORY: u64 = 1 << 30;
/// Computing, in seconds, of all threads together; the agent's own time limit is usually shorter.
const CPU: u64 = 240;
/// Open files: three are open, none is opened.
const FILES: u64 = 16;
/// Native code, in bytes.
const OUTPUT: u64 = 512 << 20;

/// Why it could not be given up.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error("cannot bound the {what}")]
    Limit {
        what: &'static str,
        #[source]
        source: nix::Error,
    },
    #[error("cannot build the filter of system calls")]
    Filter(#[from] seccompiler::BackendError),
    #[error("cannot filter system calls; is the kernel built with seccomp?")]
    Apply(#[from] seccompiler::Error),
}

/// Bounds memory, computing and files, gives up the right to gain rights, and all system calls but those a computation needs.
pub(crate) fn enter() -> Result<(), Error> {
    for (what, resource, most) in [
        ("memory", Resource::RLIMIT_AS, MEMORY),
        ("computing", Resource::RLIMIT_CPU, CPU),
        ("open files", Resource::RLIMIT_NOFILE, FILES),
        ("output", Resource::RLIMIT_FSIZE, OUTPUT),
        ("core dump", Resource::RLIMIT_CORE, 0),
    ] {
        setrlimit(resource, most, most).map_err(|source| Error::Limit { what, source })?;
    }
    // Sets no_new_privs, too. Threads that start later inherit the filter; there are none yet.
    apply_filter(&filter()?)?;
    Ok(())
}

fn filter() -> Result<BpfProgram, Error> {
    let mut rules: BTreeMap<i64, Vec<SeccompRule>> =
        ALLOWED.iter().map(|call| (*call, Vec::new())).collect();
    // An abort signals its own process and no other.
    let own = SeccompCondition::new(
        0,
        SeccompCmpArgLen::Dword,
        SeccompCmpOp::Eq,
        u64::from(std::process::id()),
    )?;
    rules.insert(libc::SYS_tgkill, vec![SeccompRule::new(vec![own])?]);
    let arch = std::env::consts::ARCH.try_into()?;
    // A refusal, not a kill: libraries ask for what they can do without (a file with the number of processors).
    let refuse = SeccompAction::Errno(libc::EPERM.unsigned_abs());
    let filter = SeccompFilter::new(rules, refuse, SeccompAction::Allow, arch)?;
    Ok(filter.try_into()?)
}

/// What reading, computing on several threads and writing takes. No open, no socket, no exec, no ptrace.
const ALLOWED: &[i64] = &[
    libc::SYS_brk,
    libc::SYS_clock_gettime,
    libc::SYS_clock_nanosleep,
    libc::SYS_clone,
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
    libc::SYS_prctl,
    libc::SYS_prlimit64,
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

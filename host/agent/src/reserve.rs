//! The file descriptors that are kept back for the admin endpoint: those between the soft limit of open files and the hard
//! one. Nobody else gets them, however many wait for one, so that what is wrong can be asked for even then.

use std::sync::{Mutex, PoisonError};

use nix::sys::resource::{Resource, getrlimit, setrlimit};

/// So many.
const KEPT: u64 = 8;

/// Lets this process open as many files as it may at most, but for those that are kept back.
pub fn keep() -> nix::Result<()> {
    let (_, most) = getrlimit(Resource::RLIMIT_NOFILE)?;
    setrlimit(Resource::RLIMIT_NOFILE, most.saturating_sub(KEPT), most)
}

/// Opens something for which one of those that are kept back may be taken. It must not block: meanwhile anybody might take one.
pub(crate) fn lend<T>(open: impl FnOnce() -> T) -> T {
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let limits = getrlimit(Resource::RLIMIT_NOFILE);
    let raised = limits.and_then(|(now, most)| {
        setrlimit(
            Resource::RLIMIT_NOFILE,
            now.saturating_add(KEPT).min(most),
            most,
        )?;
        Ok((now, most))
    });
    let opened = open();
    let lowered = raised.and_then(|(now, most)| setrlimit(Resource::RLIMIT_NOFILE, now, most));
    if let Err(error) = lowered {
        tracing::debug!(%error, "the limit of open files cannot be changed");
    }
    opened
}

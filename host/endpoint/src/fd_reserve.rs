//! Reserve of file descriptors for the endpoint: those between the soft and the hard limit of open files. The rest of
//! the agent cannot use them, so that the status can be read even if no other descriptor is free.

use std::sync::{Mutex, PoisonError};

use nix::sys::resource::{Resource, getrlimit, setrlimit};

/// Number of reserved descriptors.
const RESERVED: u64 = 8;

/// Sets the soft limit of open files to the hard limit minus the reserve.
pub fn keep() -> nix::Result<()> {
    let (_, most) = getrlimit(Resource::RLIMIT_NOFILE)?;
    setrlimit(Resource::RLIMIT_NOFILE, most.saturating_sub(RESERVED), most)
}

/// Calls `open` with the reserved descriptors available. `open` must not block: while it runs, any task may take one of
/// them.
pub(crate) fn lend<T>(open: impl FnOnce() -> T) -> T {
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let limits = getrlimit(Resource::RLIMIT_NOFILE);
    let raised = limits.and_then(|(now, most)| {
        setrlimit(
            Resource::RLIMIT_NOFILE,
            now.saturating_add(RESERVED).min(most),
            most,
        )?;
        Ok((now, most))
    });
    let opened = open();
    let lowered = raised.and_then(|(now, most)| setrlimit(Resource::RLIMIT_NOFILE, now, most));
    if let Err(error) = lowered {
        tracing::debug!(%error, "cannot change the limit of open files");
    }
    opened
}

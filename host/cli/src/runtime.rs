//! Threads of a command.

use anyhow::{Context as _, Result};

/// Runs the asynchronous part of a command to its end.
pub fn block_on<T>(future: impl Future<Output = Result<T>>) -> Result<T> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .context("cannot start the threads of this command")?;
    let result = runtime.block_on(future);
    // A guest that still computes, or a request that is pending, is abandoned.
    runtime.shutdown_background();
    result
}

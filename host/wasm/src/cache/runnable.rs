//! Makes native code runnable, out of files where that can be. Knows nothing of entries, and trusts what it is given.

use std::fs::{File, OpenOptions};
use std::io::Write as _;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use nix::fcntl::OFlag;
use rustix::mm::Advice;
use wasmtime::Engine;
use wasmtime::component::Component;

/// Makes native code runnable out of a copy on disk: the kernel then holds what runs and not the rest, and may drop that, too,
/// when memory is short. Where that cannot be, as on a file system that lets nothing be run, all of it is held in memory.
pub(super) fn runnable(engine: &Engine, folder: &Path, code: &[u8]) -> wasmtime::Result<Component> {
    nameless(folder, code)
        .map_err(wasmtime::Error::from)
        .and_then(|file| map(engine, &file))
        .or_else(|error| {
            tracing::debug!(
                why = format!("{error:#}"),
                "native code is held in memory instead of on disk"
            );
            deserialize(engine, code)
        })
}

/// A copy that has no name and never gets one, so that nobody else can open, change or shorten it, and that goes with its last
/// reader; network file systems know no such file. It is synced: what is dropped from memory must come back.
fn nameless(folder: &Path, code: &[u8]) -> std::io::Result<File> {
    let flags = OFlag::O_TMPFILE | OFlag::O_EXCL;
    let mut file = OpenOptions::new()
        .read(true)
        .write(true)
        .custom_flags(flags.bits())
        .mode(0o600)
        .open(folder)?;
    file.write_all(code)?;
    file.sync_data()?;
    Ok(file)
}

/// Makes the native code in a file runnable.
#[allow(
    unsafe_code,
    reason = "the engine cannot tell forged native code from its own; the file is a copy that no one else can reach of \
              code that this agent's compiler child wrote"
)]
fn map(engine: &Engine, file: &File) -> wasmtime::Result<Component> {
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    // SAFETY: as for `deserialize`; the file was made by `nameless`, so nothing changes it while it is mapped.
    let component = unsafe { Component::deserialize_file(engine, path) }?;
    leave(&component);
    Ok(component)
}

/// Has what loading read of the file leave the memory: calls need little of it, and what they need comes back.
#[allow(
    unsafe_code,
    reason = "the library cannot tell whether the pages may be advised on; they are the component's, and come back as they were"
)]
fn leave(component: &Component) {
    let image = component.image_range();
    let length = image.end.addr().saturating_sub(image.start.addr());
    // SAFETY: `component` keeps the range mapped, and the advice changes no page's content.
    let advised = unsafe {
        let start = image.start.cast_mut().cast();
        rustix::mm::madvise(start, length, Advice::LinuxPageOut)
    };
    if let Err(error) = advised {
        tracing::debug!(%error, "what loading read of native code stays in memory");
    }
}

/// Makes native code runnable in memory.
#[allow(
    unsafe_code,
    reason = "the engine cannot tell forged native code from its own; every caller has code that this agent's compiler \
              child wrote, either just now or, by its keyed digest, earlier"
)]
fn deserialize(engine: &Engine, code: &[u8]) -> wasmtime::Result<Component> {
    // SAFETY: `code` is the output of `Engine::precompile_component` by the compiler child, unchanged since:
    // `keep` has it from the child's own pipe, `load` verified the keyed digest.
    unsafe { Component::deserialize(engine, code) }
}

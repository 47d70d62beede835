//! The plugin's sockets in the kubelet's folder: names them, makes them, and removes those that an earlier process left.
//! Files of others are never touched.

use std::os::unix::fs::FileTypeExt as _;
use std::path::{Path, PathBuf};

use leafhost_uds::{MAX_PATH, MORE_FILES, RemovedOnDrop, remove_stale};
use sha2::{Digest as _, Sha256};
use tokio::net::UnixListener;

use crate::ResourceName;

/// Why a socket could not be made.
#[derive(Debug, thiserror::Error)]
#[error("{}", told(path, why))]
pub struct Error {
    path: PathBuf,
    why: leafhost_uds::Error,
}

fn told(path: &Path, why: &leafhost_uds::Error) -> String {
    use leafhost_uds::Error as Why;
    let path = path.display();
    match why {
        Why::Foreign => {
            format!("{path} exists and is not a socket: remove it, and the resource is registered")
        }
        Why::Served => format!(
            "another process serves {path}: only one agent may run on a node; stop the other one"
        ),
        Why::TooLong => format!(
            "{path} has more than {MAX_PATH} bytes and can be no socket: choose a shorter folder or prefix"
        ),
        Why::Files(error) => format!("cannot make the socket {path} ({error}): {MORE_FILES}"),
        Why::Refused(error) => format!(
            "cannot make the socket {path} ({error}): the folder must be there and writable, run as root"
        ),
    }
}

/// Result of this module.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// The file name of a resource's socket. `is_taken` tells whether another resource has it.
pub(crate) fn name(
    folder: &Path,
    prefix: &str,
    resource: &ResourceName,
    is_taken: impl Fn(&str) -> bool,
) -> String {
    let (_, part) = resource
        .as_str()
        .split_once('/')
        .unwrap_or(("", resource.as_str()));
    let plain = format!("{prefix}-{part}.sock");
    if folder.join(&plain).as_os_str().len() <= MAX_PATH && !is_taken(&plain) {
        return plain;
    }
    let digest = Sha256::digest(resource.as_str());
    let digest: String = digest.iter().take(8).map(|b| format!("{b:02x}")).collect();
    format!("{prefix}-{digest}.sock")
}

/// Makes a socket and listens on it. A socket that no process serves is replaced.
pub(crate) async fn bind(path: PathBuf) -> Result<(UnixListener, RemovedOnDrop)> {
    match leafhost_uds::bind(&path).await {
        Ok((listener, file)) => Ok((listener, RemovedOnDrop(file))),
        Err(why) => Err(Error { path, why }),
    }
}

/// Removes the plugin's sockets that no process serves. What cannot be removed stays.
pub(crate) async fn sweep(folder: &Path, prefix: &str) {
    let Ok(entries) = std::fs::read_dir(folder) else {
        return;
    };
    let begin = format!("{prefix}-");
    for entry in entries.flatten() {
        let name = entry.file_name();
        let name = name.to_str();
        let is_ours = name.is_some_and(|name| has_our_name(name, &begin));
        let is_socket = entry.file_type().is_ok_and(|kind| kind.is_socket());
        if is_ours && is_socket {
            let socket = entry.path();
            let removed = remove_stale(&socket).await;
            tracing::debug!(socket = %socket.display(), ?removed, "looked whether a process serves a socket");
        }
    }
}

fn has_our_name(name: &str, begin: &str) -> bool {
    let end = name.strip_prefix(begin);
    end.is_some_and(|name| name.strip_suffix(".sock").is_some())
}

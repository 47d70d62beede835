//! The plugin's sockets in the kubelet's folder: names them, creates them, and removes those that an earlier process left. Files of other
//! programs are never touched.
//!
//! A socket has two names: a fixed one, by which other processes see that the resource is served, and one that is unique to the session,
//! which is sent to the kubelet. From 1.37 on a kubelet identifies the plugins of a resource by the paths of their sockets. If a plugin
//! registers a path just when the stream of an earlier one with that path ends, the kubelet never sees that end, and refuses the path until
//! it is restarted.

use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::os::unix::fs::FileTypeExt as _;
use std::path::Path;

use leafhost_uds::{Error, MAX_PATH, RemovedOnDrop, SocketFile, remove_stale};
use sha2::{Digest as _, Sha256};
use tokio::net::UnixListener;

use crate::ResourceName;

/// Length of the suffix of a session in a socket's name: `.` and eight hexadecimal digits.
const SESSION: usize = 9;

/// Returns the file name of a resource's socket, with room for the suffix of a session. `is_taken` returns true if another resource has the
/// name.
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
    if has_room(&folder.join(&plain)) && !is_taken(&plain) {
        return plain;
    }
    let digest = Sha256::digest(resource.as_str());
    let digest: String = digest.iter().take(8).map(|b| format!("{b:02x}")).collect();
    format!("{prefix}-{digest}.sock")
}

fn has_room(path: &Path) -> bool {
    path.as_os_str().len() + SESSION <= MAX_PATH
}

/// Files of a socket that this process created. They are removed when this is dropped, unless other files have their names by then.
#[derive(Debug)]
pub(crate) struct Socket {
    /// File name for this session, which is sent to the kubelet.
    pub session: String,
    _files: [RemovedOnDrop; 2],
}

/// Listens on a socket with two names.
///
/// # Errors
/// Returns the reason, with the remedy.
pub(crate) async fn bind(path: &Path) -> Result<(UnixListener, Socket), String> {
    // The hash of an empty input is as random as its keys.
    let random = RandomState::new().build_hasher().finish() & u64::from(u32::MAX);
    let session = path.with_extension(format!("{random:08x}.sock"));
    if session.as_os_str().len() > MAX_PATH {
        // The random part would make each text another one.
        let shown = path.with_extension("00000000.sock");
        return Err(Error::TooLong(shown).or(", or choose a shorter folder"));
    }
    let (listener, file) = leafhost_uds::bind(path)
        .await
        .map_err(|error| error.to_string())?;
    let linked = std::fs::hard_link(path, &session).and_then(|()| SocketFile::at(&session));
    let linked = linked.map_err(|error| Error::io(path, error).to_string())?;
    let name = session.file_name().unwrap_or_default().to_string_lossy();
    let socket = Socket {
        session: name.into_owned(),
        _files: [RemovedOnDrop(linked), file],
    };
    Ok((listener, socket))
}

/// Removes the plugin's sockets that no process serves. Sockets that cannot be removed stay.
pub(crate) async fn sweep(folder: &Path, prefix: &str) {
    let Ok(entries) = std::fs::read_dir(folder) else {
        return;
    };
    let begin = format!("{prefix}-");
    for entry in entries.flatten() {
        let name = entry.file_name();
        let name = name.to_str();
        let is_ours = name.is_some_and(|name| {
            let end = name.strip_prefix(&begin);
            end.is_some_and(|end| end.strip_suffix(".sock").is_some())
        });
        let is_socket = entry.file_type().is_ok_and(|kind| kind.is_socket());
        if is_ours && is_socket {
            let socket = entry.path();
            let removed = remove_stale(&socket).await;
            tracing::debug!(socket = %socket.display(), ?removed, "checked whether a process serves a socket");
        }
    }
}

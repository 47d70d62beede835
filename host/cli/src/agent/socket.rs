//! Socket in the state folder that serves the agent's status: open to its own user, and to a group if one is named.

use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use nix::unistd::Group;
use tokio::net::UnixListener;

use crate::agent_file::AgentFile;
use crate::failure::Usage;

/// Looks up a group by name.
pub fn group(name: &str) -> Result<Group> {
    let found = Group::from_name(name).context("cannot look up groups")?;
    found.ok_or_else(|| {
        Usage(format!(
            "--socket-group {name:?}: this group does not exist; create it with `groupadd`, or name another group"
        ))
        .into()
    })
}

/// Listens in the state folder. Since the agent holds the folder's lock, an existing socket was left by a killed agent. The
/// socket is removed when the guard is dropped.
pub fn bind(state_dir: &Path, group: Option<&Group>) -> Result<(UnixListener, Bound)> {
    let path = AgentFile::socket(state_dir);
    let listen = || {
        match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let listener = UnixListener::bind(&path)?;
        let bound = Bound(path.clone());
        let mode = |path: &Path, mode| fs::set_permissions(path, Permissions::from_mode(mode));
        mode(&path, 0o600)?;
        if let Some(group) = group {
            let gid = Some(group.gid.as_raw());
            for (path, its) in [(path.as_path(), 0o660), (state_dir, 0o710)] {
                chown(path, None, gid)?;
                mode(path, its)?;
            }
        }
        Ok((listener, bound))
    };
    listen().with_context(|| format!("cannot listen on {}", path.display()))
}

/// Guard that removes the socket when the agent ends.
#[derive(Debug)]
pub struct Bound(PathBuf);

impl Drop for Bound {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_file(&self.0) {
            tracing::debug!(%error, path = %self.0.display(), "cannot remove the agent's socket");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt as _;

    use super::*;

    #[tokio::test]
    async fn the_socket_is_private_unless_a_group_is_named_and_replaces_a_stale_one() {
        let dir = tempfile::tempdir().unwrap();
        let path = AgentFile::socket(dir.path());
        let mode = |path: &Path| fs::metadata(path).unwrap().mode() & 0o777;
        let (listener, bound) = bind(dir.path(), None).unwrap();
        assert_eq!(mode(&path), 0o600);
        drop(listener);
        assert!(path.exists(), "as after a kill");
        let own = Group::from_gid(nix::unistd::getgid()).unwrap().unwrap();
        let (_listener, second) = bind(dir.path(), Some(&own)).unwrap();
        assert_eq!((mode(&path), mode(dir.path())), (0o660, 0o710));
        assert_eq!(fs::metadata(&path).unwrap().gid(), own.gid.as_raw());
        drop(second);
        assert!(!path.exists());
        drop(bound);
    }

    #[test]
    fn a_missing_group_is_reported_with_the_flag() {
        let error = group("no-such-group").unwrap_err();
        assert!(error.is::<Usage>() && error.to_string().contains("--socket-group"));
    }
}

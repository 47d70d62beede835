//! Socket in the state folder that serves the agent's status: open to its own user, and to a group if one is named.

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::path::Path;

use anyhow::{Context as _, Error, Result};
use leafhost_uds::RemovedOnDrop;
use nix::unistd::Group;
use tokio::net::UnixListener;

use crate::failure::Usage;
use crate::folders::socket_in;

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

/// Listens in the state folder. The socket is removed when the guard is dropped.
pub async fn bind(
    state_dir: &Path,
    group: Option<&Group>,
) -> Result<(UnixListener, RemovedOnDrop)> {
    let socket = socket_in(state_dir);
    let bound = leafhost_uds::bind(&socket).await;
    let (listener, file) = bound
        .map_err(|error| Error::msg(error.or(", or choose another folder with --state-dir")))?;
    if let Some(group) = group {
        let gid = Some(group.gid.as_raw());
        for (path, mode) in [(socket.as_path(), 0o660), (state_dir, 0o710)] {
            chown(path, None, gid)
                .and_then(|()| fs::set_permissions(path, Permissions::from_mode(mode)))
                .with_context(|| format!("cannot listen on {}", socket.display()))?;
        }
    }
    Ok((listener, file))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt as _;

    use super::*;

    #[tokio::test]
    async fn the_socket_is_private_unless_a_group_is_named_and_replaces_a_stale_one() {
        let dir = tempfile::tempdir().unwrap();
        let path = socket_in(dir.path());
        let mode = |path: &Path| fs::metadata(path).unwrap().mode() & 0o777;
        let (listener, bound) = bind(dir.path(), None).await.unwrap();
        assert_eq!(mode(&path), 0o600);
        drop(listener);
        assert!(path.exists(), "as after a kill");
        let own = Group::from_gid(nix::unistd::getgid()).unwrap().unwrap();
        let (_listener, second) = bind(dir.path(), Some(&own)).await.unwrap();
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

//! Makes read-only mounts cover the file systems mounted below them, too.
//!
//! The kubelet's API marks a mount as read-only, and container runtimes apply that to one file system only: file systems mounted below stay writable.
//! The agent adds a read-only mount for each of them.

use std::collections::BTreeSet;

use leafhost_core::mounts::{Mounts, TABLE};
use leafhost_kubelet::{Allocation, Mount, Refusal};

/// Adds to the answer a mount for each file system that is currently mounted below its read-only mounts.
///
/// # Errors
/// Fails if the mount table cannot be read.
pub fn cover(mut allocation: Allocation) -> Result<Allocation, Refusal> {
    if allocation.mounts.iter().any(|mount| mount.read_only) {
        let table = std::fs::read(TABLE).map_err(|error| {
            Refusal::Unavailable(format!(
                "cannot determine what is mounted below a read-only mount: cannot read {TABLE} ({error}); mount /proc for the agent"
            ))
        })?;
        allocation.mounts = covered(allocation.mounts, &Mounts::parse(&table));
    }
    Ok(allocation)
}

/// Adds the mounts, except at container paths that the answer uses already.
fn covered(mounts: Vec<Mount>, table: &Mounts) -> Vec<Mount> {
    let mut taken: BTreeSet<String> = mounts
        .iter()
        .map(|mount| mount.container_path.clone())
        .collect();
    let mut all = Vec::new();
    for mount in mounts {
        let below = table
            .below(&mount.host_path)
            .filter(|_| mount.read_only)
            .map(|(mounted, rest)| Mount {
                container_path: format!("{}{rest}", mount.container_path),
                host_path: mounted.path.clone(),
                read_only: true,
            })
            .filter(|below| taken.insert(below.container_path.clone()))
            .collect::<Vec<_>>();
        all.push(mount);
        all.extend(below);
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_mounted_below_a_read_only_mount_is_one_itself() {
        let table = Mounts::parse(
            b"1 0 8:1 / / rw - ext4 x rw\n\
            2 1 8:2 / /srv/a/b rw - ext4 x rw\n\
            3 2 8:3 / /srv/a/b/c rw - ext4 x rw\n\
            4 2 8:4 / /srv/a/b/d rw - ext4 x rw\n\
            5 1 8:5 / /srv/ab rw - ext4 x rw\n\
            6 1 8:6 / /srv/w/x rw - ext4 x rw\n\
            7 2 8:7 / /srv/a/b/c rw - ext4 x rw\n",
        );
        let mount = |container: &str, host: &str, read_only| Mount {
            container_path: container.into(),
            host_path: host.into(),
            read_only,
        };
        let given = vec![
            mount("/data", "/srv/a", true),
            mount("/data/b/d", "/srv/mine", false),
            mount("/w", "/srv/w", false),
        ];
        let written = |mount: &Mount| {
            let access = if mount.read_only { "ro" } else { "rw" };
            format!("{} {} {access}", mount.container_path, mount.host_path)
        };
        let all: Vec<String> = covered(given, &table).iter().map(written).collect();
        assert_eq!(
            all,
            [
                "/data /srv/a ro",
                "/data/b /srv/a/b ro",
                "/data/b/c /srv/a/b/c ro",
                "/data/b/d /srv/mine rw",
                "/w /srv/w rw",
            ]
        );
    }
}

//! Paths of nodes and mounts: resolution of links, and forbidden targets in containers.

use std::io;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::sync::OnceLock;

use leafhost_core::mounts::{Mounts, TABLE};
use nix::sys::stat::{major, minor};

use crate::grants::{is_of_the_kernel, is_within};

/// Resolved path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Resolved {
    /// Path without links.
    pub path: String,
    /// True for a character or block device, which falls under `devices.nodes`; anything else falls under `devices.mounts`.
    pub is_node: bool,
}

/// Resolves the links of a path. Rejects a mountable path in a file system of the kernel or above one; reads `mounts`
/// on first use. Blocks.
pub fn resolve(path: &str, mounts: &OnceLock<Mounts>) -> io::Result<Resolved> {
    let path = std::fs::canonicalize(path)?;
    let metadata = std::fs::symlink_metadata(&path)?;
    let kind = metadata.file_type();
    let is_node = kind.is_char_device() || kind.is_block_device();
    let path = path
        .into_os_string()
        .into_string()
        .map_err(|_| io::Error::new(io::ErrorKind::InvalidData, "its name is not UTF-8"))?;
    // Paths of the kernel are rejected elsewhere, by name alone.
    if !is_node && !is_of_the_kernel(&path) {
        let mounts = if let Some(mounts) = mounts.get() {
            mounts
        } else {
            let read = Mounts::parse(&std::fs::read(TABLE)?);
            mounts.get_or_init(|| read)
        };
        refuse_the_kernels(&path, metadata.dev(), mounts)?;
    }
    Ok(Resolved { path, is_node })
}

/// Rejects a path in a file system of the kernel, identified by its device number, and a path with such a file system
/// mounted below it.
fn refuse_the_kernels(path: &str, device: u64, mounts: &Mounts) -> io::Result<()> {
    let at = mounts
        .of_device(major(device), minor(device))
        .map(|mounted| (mounted, path.to_owned()));
    let below = mounts
        .below(path)
        .map(|(mounted, _)| (mounted, mounted.path.clone()));
    let found = at
        .into_iter()
        .chain(below)
        .find(|(mounted, _)| mounted.is_of_the_kernel());
    found.map_or(Ok(()), |(mounted, place)| {
        let why = format!("{place} is in a {} of the kernel", mounted.kind);
        Err(io::Error::new(io::ErrorKind::PermissionDenied, why))
    })
}

/// Returns true for a node below `/dev`, and for anything else outside `/dev`, `/proc` and `/sys`.
pub(super) fn is_below_its_root(path: &str, is_node: bool) -> bool {
    if is_node {
        path.starts_with("/dev/")
    } else {
        !is_of_the_kernel(path)
    }
}

/// Returns the reason why a node must not be placed at `target`, if any.
pub(super) fn node_target_problem(target: &str, host: &str) -> Option<&'static str> {
    /// Names below `/dev` that every container has and relies on.
    const STANDARD: &[&str] = &[
        "console", "fd", "full", "kmsg", "mem", "mqueue", "null", "ptmx", "pts", "random", "shm",
        "stderr", "stdin", "stdout", "tty", "urandom", "zero",
    ];
    let Some(rest) = target.strip_prefix("/dev/") else {
        return Some("must lie below /dev in the container");
    };
    let first = rest.split('/').next().unwrap_or_default();
    (STANDARD.contains(&first) && target != host)
        .then_some("would replace what every container has under that name")
}

/// Returns the reason why nothing may be mounted at `target`, if any.
pub(super) fn mount_target_problem(target: &str) -> Option<&'static str> {
    /// Folders with programs, trust anchors, or file systems of the kernel.
    const BELOW: &[&str] = &[
        "/bin",
        "/boot",
        "/dev",
        "/etc",
        "/lib",
        "/lib32",
        "/lib64",
        "/libx32",
        "/proc",
        "/run/secrets",
        "/sbin",
        "/sys",
        "/usr/bin",
        "/usr/lib",
        "/usr/lib32",
        "/usr/lib64",
        "/usr/libexec",
        "/usr/libx32",
        "/usr/local/bin",
        "/usr/local/lib",
        "/usr/local/sbin",
        "/usr/sbin",
        "/var/run/secrets",
    ];
    /// Folders that contain one of `BELOW`, or that a program expects to be its own.
    const EXACT: &[&str] = &[
        "/home",
        "/media",
        "/mnt",
        "/opt",
        "/root",
        "/run",
        "/srv",
        "/tmp",
        "/usr",
        "/usr/local",
        "/var",
        "/var/lib",
        "/var/run",
    ];
    (EXACT.contains(&target) || BELOW.iter().any(|root| is_within(target, root)))
        .then_some("would cover a part of the container's own system")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_goes_below_dev_and_replaces_nothing() {
        for (target, host, good) in [
            ("/dev/video0", "/dev/video0", true),
            ("/dev/vfio/7", "/dev/vfio/7", true),
            ("/dev/null", "/dev/null", true),
            ("/dev/null", "/dev/sda", false),
            ("/dev/shm/x", "/dev/sda", false),
            ("/etc/passwd", "/dev/sda", false),
        ] {
            let problem = node_target_problem(target, host);
            assert_eq!(problem.is_none(), good, "{target} from {host}");
        }
    }

    #[test]
    fn a_mount_covers_no_part_of_the_system() {
        for (target, good) in [
            ("/run/udev", true),
            ("/data", true),
            ("/usr/share/x", true),
            ("/libx", true),
            ("/etc/ssl", false),
            ("/proc", false),
            ("/sys/class", false),
            ("/usr", false),
            ("/var/run/secrets/kubernetes.io", false),
            ("/lib64/ld.so", false),
            ("/dev/video0", false),
        ] {
            assert_eq!(mount_target_problem(target).is_none(), good, "{target}");
        }
    }

    #[test]
    fn links_are_followed_and_nodes_told() {
        let resolve = |path: &str| resolve(path, &OnceLock::new());
        assert!(resolve("/dev/null").unwrap().is_node);
        let folder = tempfile::tempdir().unwrap();
        let link = folder.path().join("link");
        std::os::unix::fs::symlink("/dev/null", &link).unwrap();
        let resolved = resolve(link.to_str().unwrap()).unwrap();
        assert_eq!(resolved.path, "/dev/null");
        assert!(resolve("/nowhere/at/all").is_err());
    }

    #[test]
    fn what_the_kernel_shows_is_refused_wherever_it_is_mounted() {
        let table =
            |more: &str| Mounts::parse(format!("1 0 8:1 / / rw - ext4 x rw\n{more}").as_bytes());
        let device = nix::sys::stat::makedev;
        for (mounted, path, at, why) in [
            ("", "/srv/a", device(8, 1), None),
            (
                "2 1 0:5 / /srv/b rw - proc x rw",
                "/srv/a",
                device(8, 1),
                None,
            ),
            (
                "2 1 0:5 /sys /srv/a rw - proc x rw",
                "/srv/a/kernel",
                device(0, 5),
                Some("/srv/a/kernel is in a proc of the kernel"),
            ),
            (
                "2 1 0:6 / /srv/a rw - devtmpfs x rw",
                "/srv/a",
                device(0, 6),
                Some("/srv/a is in a devtmpfs of the kernel"),
            ),
            (
                "2 1 0:7 / /srv/a/b rw - cgroup2 x rw",
                "/srv/a",
                device(8, 1),
                Some("/srv/a/b is in a cgroup2 of the kernel"),
            ),
            (
                "2 1 0:7 / /srv/a/b rw - tmpfs x rw",
                "/srv/a",
                device(8, 1),
                None,
            ),
        ] {
            let refused = refuse_the_kernels(path, at, &table(mounted));
            let told = refused.err().map(|error| error.to_string());
            assert_eq!(told.as_deref(), why, "{mounted}");
        }
        let own = Mounts::parse(&std::fs::read(TABLE).unwrap());
        for path in ["/proc/self/status", "/sys/kernel", "/dev/pts"] {
            let device = std::fs::symlink_metadata(path).unwrap().dev();
            let error = refuse_the_kernels(path, device, &own).unwrap_err();
            assert!(error.to_string().contains("of the kernel"), "{error}");
        }
    }
}

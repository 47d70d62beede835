//! The report for a plugin's operator: the kubelet, the folder, and each resource.

use std::collections::BTreeMap;
use std::fmt;
use std::fs::Metadata;
use std::os::unix::fs::MetadataExt as _;
use std::str::FromStr;
use std::time::UNIX_EPOCH;

use crate::ResourceName;

/// The whole report.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Report {
    /// The kubelet that runs now, if its socket is there.
    pub kubelet: Option<KubeletRun>,
    /// Problems of the folder as a whole, with the remedy.
    pub problems: Vec<String>,
    /// By resource.
    pub resources: BTreeMap<ResourceName, ResourceReport>,
}

/// One life of a kubelet, identified by the socket file it made. A change of that file's permissions, label or name makes no
/// other one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct KubeletRun {
    /// The inode of `kubelet.sock`.
    pub inode: u64,
    /// When that file was created, in nanoseconds since 1970: a file system may reuse the inode.
    pub created: i128,
}

impl KubeletRun {
    /// Of a socket file. Where the file system records no time of birth, the time of the last modification stands for it:
    /// only a program that sets it, such as `touch`, changes that of a socket.
    pub fn of(found: &Metadata) -> Self {
        let created = found.created().or_else(|_| found.modified()).ok();
        let since = created.and_then(|time| time.duration_since(UNIX_EPOCH).ok());
        let nanoseconds = since.and_then(|since| i128::try_from(since.as_nanos()).ok());
        Self {
            inode: found.ino(),
            created: nanoseconds.unwrap_or_default(),
        }
    }
}

/// For files; [`FromStr`] reads it.
impl fmt::Display for KubeletRun {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.inode, self.created)
    }
}

impl FromStr for KubeletRun {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let (inode, created) = text.split_once(' ').ok_or(())?;
        Ok(Self {
            inode: inode.parse().map_err(drop)?,
            created: created.parse().map_err(drop)?,
        })
    }
}

/// One resource.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ResourceReport {
    /// The file name of its socket.
    pub socket: String,
    /// The progress of its registration.
    pub state: State,
    /// How many times it was registered, with or without success.
    pub registrations: u64,
    /// What is wrong, with the remedy.
    pub problem: Option<String>,
}

/// The progress of a resource's registration.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum State {
    /// There is no kubelet, or it has not answered yet.
    Waiting,
    /// The kubelet took the registration and did not ask for the list yet.
    Registered,
    /// The kubelet follows the list.
    Listed,
    /// Something is wrong. The plugin tries again.
    Failed,
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::PermissionsExt as _;
    use std::os::unix::net::UnixListener;

    use super::*;

    #[test]
    fn a_socket_is_the_same_after_a_change_of_its_permissions_and_another_when_it_is_made_again() {
        // The second one most likely gives a new file the inode of the removed one.
        for above in ["/tmp", "/dev/shm"] {
            let folder = tempfile::tempdir_in(above).unwrap();
            let path = folder.path().join("kubelet.sock");
            let bind = || UnixListener::bind(&path).unwrap();
            let now = || KubeletRun::of(&fs::metadata(&path).unwrap());
            drop(bind());
            let first = now();
            fs::set_permissions(&path, Permissions::from_mode(0o700)).unwrap();
            assert_eq!(now(), first, "{above}");
            fs::rename(&path, folder.path().join("other")).unwrap();
            fs::rename(folder.path().join("other"), &path).unwrap();
            assert_eq!(now(), first, "{above}");
            fs::remove_file(&path).unwrap();
            drop(bind());
            assert_ne!(now(), first, "{above}");
            assert_eq!(first.to_string().parse(), Ok(first));
        }
    }
}

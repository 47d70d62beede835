//! Report for a plugin's operator: the kubelet, the folder, and each resource.

use std::collections::BTreeMap;
use std::fmt;
use std::fs::Metadata;
use std::os::unix::fs::MetadataExt as _;
use std::str::FromStr;
use std::time::UNIX_EPOCH;

use crate::ResourceName;

/// Report on all resources.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Report {
    /// Kubelet that runs now, if its socket exists.
    pub kubelet: Option<KubeletRun>,
    /// Problems of the folder as a whole, with the remedy.
    pub problems: Vec<String>,
    /// Reports by resource.
    pub resources: BTreeMap<ResourceName, ResourceReport>,
}

/// Run of a kubelet, identified by the socket file it created. A change of that file's permissions, label or name does not change the run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct KubeletRun {
    /// Inode of `kubelet.sock`.
    pub inode: u64,
    /// Creation time of that file, in nanoseconds since 1970: a file system may reuse the inode.
    pub created: i128,
}

impl KubeletRun {
    /// Returns the run of a socket file. If the file system records no creation time, the modification time is used: only a program that
    /// sets it, such as `touch`, changes that of a socket.
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

/// Formats the run as text for files; [`FromStr`] parses the text.
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

/// Report on one resource.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ResourceReport {
    /// File name of its socket.
    pub socket: String,
    /// Progress of its registration.
    pub state: State,
    /// Number of registrations, successful or not.
    pub registrations: u64,
    /// Problem, with the remedy.
    pub problem: Option<String>,
}

/// Progress of a resource's registration.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, strum::IntoStaticStr)]
#[strum(serialize_all = "lowercase")]
pub enum State {
    /// No kubelet runs, or it has not answered yet.
    Waiting,
    /// The kubelet accepted the registration and has not requested the list yet.
    Registered,
    /// The kubelet follows the list.
    Listed,
    /// The registration failed. The plugin tries again.
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
        // On the second one a new file most likely gets the inode of the removed one.
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

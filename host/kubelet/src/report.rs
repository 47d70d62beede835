//! How it goes with the kubelet: what a plugin's operator wants to see.

use std::collections::BTreeMap;
use std::fmt;
use std::fs::Metadata;
use std::os::unix::fs::MetadataExt as _;
use std::str::FromStr;

use crate::ResourceName;

/// All of it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Report {
    /// The kubelet that runs now, if its socket is there.
    pub kubelet: Option<Incarnation>,
    /// What concerns the folder as a whole, with the remedy.
    pub problems: Vec<String>,
    /// By resource.
    pub resources: BTreeMap<ResourceName, ResourceReport>,
}

/// One life of a kubelet, told from another by the socket file it made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Incarnation {
    /// The inode of `kubelet.sock`.
    pub inode: u64,
    /// When that inode was made or last changed, in nanoseconds since 1970.
    pub changed: i128,
}

impl Incarnation {
    /// Of a socket file.
    pub fn of(found: &Metadata) -> Self {
        Self {
            inode: found.ino(),
            changed: i128::from(found.ctime()) * 1_000_000_000 + i128::from(found.ctime_nsec()),
        }
    }
}

/// As it can be written down and read again.
impl fmt::Display for Incarnation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.inode, self.changed)
    }
}

impl FromStr for Incarnation {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let (inode, changed) = text.split_once(' ').ok_or(())?;
        Ok(Self {
            inode: inode.parse().map_err(drop)?,
            changed: changed.parse().map_err(drop)?,
        })
    }
}

/// One resource.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ResourceReport {
    /// The file name of its socket.
    pub socket: String,
    /// How far it is.
    pub state: State,
    /// How often it was registered, whether with success or not.
    pub registrations: u64,
    /// What is wrong, with the remedy.
    pub problem: Option<String>,
}

/// How far a resource is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum State {
    /// No kubelet is there, or it has not answered yet.
    Waiting,
    /// The kubelet has taken the registration and has not asked for the list.
    Registered,
    /// The kubelet follows the list.
    Listed,
    /// Something is wrong; it is tried again.
    Failed,
}

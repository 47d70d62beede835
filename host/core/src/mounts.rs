//! Mount table as reported by the kernel in `/proc/self/mountinfo`. Reads no file.

/// Path of the kernel's mount table.
pub const TABLE: &str = "/proc/self/mountinfo";

/// File system types through which the kernel exposes its state: writes affect the machine, and reads reveal its secrets.
/// `statfs` does not identify all of them: a `devtmpfs` reports that it is a `tmpfs`.
const OF_THE_KERNEL: [&str; 18] = [
    "binfmt_misc",
    "bpf",
    "cgroup",
    "cgroup2",
    "configfs",
    "debugfs",
    "devpts",
    "devtmpfs",
    "efivarfs",
    "fusectl",
    "mqueue",
    "nsfs",
    "proc",
    "pstore",
    "securityfs",
    "selinuxfs",
    "sysfs",
    "tracefs",
];

/// Entry of the mount table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mounted {
    /// Id of the mount.
    id: u64,
    /// Id of the parent mount.
    parent: u64,
    /// Major and minor number of the device of its files.
    device: (u64, u64),
    /// Mount point.
    pub path: String,
    /// File system type.
    pub kind: String,
}

impl Mounted {
    /// Returns true if the kernel exposes its state through the file system.
    pub fn is_of_the_kernel(&self) -> bool {
        OF_THE_KERNEL.contains(&self.kind.as_str())
    }
}

/// Mount table.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Mounts(Vec<Mounted>);

impl Mounts {
    /// Parses the mount table; skips malformed lines.
    pub fn parse(table: &[u8]) -> Self {
        let text = String::from_utf8_lossy(table);
        Self(text.lines().filter_map(mounted).collect())
    }

    /// Returns a mount whose device has these numbers, wherever it is mounted. Some file systems have a device number
    /// per file, which no mount has.
    pub fn of_device(&self, major: u64, minor: u64) -> Option<&Mounted> {
        self.0
            .iter()
            .find(|mounted| mounted.device == (major, minor))
    }

    /// Returns the visible mounts below a folder, each with its path relative to the folder, such as `/sub`.
    pub fn below<'a>(&'a self, folder: &'a str) -> impl Iterator<Item = (&'a Mounted, &'a str)> {
        let folder = folder.trim_end_matches('/');
        self.0.iter().filter_map(move |mounted| {
            let rest = mounted.path.strip_prefix(folder)?;
            let is_below = is_path_below(rest) && !self.is_hidden(mounted);
            is_below.then_some((mounted, rest))
        })
    }

    /// Returns true if another mount covers a folder above the mount.
    fn is_hidden(&self, mounted: &Mounted) -> bool {
        let mut at = mounted;
        for _ in &self.0 {
            let covers = |other: &Mounted| {
                let rest = at.path.strip_prefix(other.path.as_str());
                other.parent == at.parent && rest.is_some_and(is_path_below)
            };
            if self.0.iter().any(covers) {
                return true;
            }
            match self.0.iter().find(|other| other.id == at.parent) {
                Some(parent) => at = parent,
                None => return false,
            }
        }
        false
    }
}

/// Returns true if `rest`, a path without the prefix of a folder, lies below that folder.
fn is_path_below(rest: &str) -> bool {
    rest.len() > 1 && rest.starts_with('/')
}

/// Parses a line such as `36 35 98:0 /root /path options… - ext4 /dev/sda1 options`.
fn mounted(line: &str) -> Option<Mounted> {
    let (place, what) = line.split_once(" - ")?;
    let mut place = place.split(' ');
    let (id, parent) = (place.next()?, place.next()?);
    let (major, minor) = place.next()?.split_once(':')?;
    Some(Mounted {
        id: id.parse().ok()?,
        parent: parent.parse().ok()?,
        device: (major.parse().ok()?, minor.parse().ok()?),
        path: plain(place.nth(1)?),
        kind: what.split(' ').next()?.to_owned(),
    })
}

/// Decodes a path: the kernel writes spaces, tabs, line breaks and backslashes as a backslash and three octal digits.
fn plain(written: &str) -> String {
    let mut parts = written.split('\\');
    let mut path = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let (digits, rest) = part.split_at_checked(3).unwrap_or((part, ""));
        match u8::from_str_radix(digits, 8) {
            Ok(byte) => path.push(byte.into()),
            Err(_) => path.push_str(digits),
        }
        path.push_str(rest);
    }
    path
}

#[cfg(test)]
mod tests {
    use super::*;

    const SEEN: &[u8] = b"\
22 28 0:21 / /proc rw,nosuid,nodev,noexec,relatime shared:12 - proc proc rw
25 28 0:6 / /dev rw,nosuid,relatime shared:2 - devtmpfs udev rw,size=1k
28 1 254:1 / / rw,relatime shared:1 - ext4 /dev/vda1 rw
31 28 0:26 / /srv/a\\040b rw - tmpfs none rw
32 31 0:6 / /srv/a\\040b/dev rw shared:2 master:3 - devtmpfs udev rw
33 28 0:27 / /srvx rw - fuse.sshfs x rw
40 28 0:30 / /home/a rw - tmpfs none rw
41 40 0:31 / /home/a/b rw - tmpfs none rw
42 28 0:32 / /home rw - tmpfs none rw
43 42 0:33 / /home/c rw - tmpfs none rw
44 43 0:34 / /home/c rw - tmpfs over rw
45 43 0:35 / /home/c/d rw - tmpfs none rw
\xff
36 28 x / /srv/none rw - tmpfs none rw
";

    #[test]
    fn what_is_mounted_is_known_by_place_and_by_device() {
        let mounts = Mounts::parse(SEEN);
        let below = |folder| {
            let below = mounts.below(folder);
            let below = below.map(|(mounted, rest)| format!("{rest} {}", mounted.kind));
            below.collect::<Vec<_>>()
        };
        assert_eq!(below("/srv"), ["/a b tmpfs", "/a b/dev devtmpfs"]);
        assert_eq!(below("/srv/a b"), ["/dev devtmpfs"]);
        assert_eq!(below("/srv/a b/dev"), Vec::<String>::new());
        // The other mounts are covered by those on /home and, once more, on /home/c.
        assert_eq!(below("/home"), ["/c tmpfs", "/c tmpfs"]);
        assert_eq!(below("/").len(), 8);
        for (device, kind, of_the_kernel) in [
            ((0, 21), Some("proc"), true),
            ((0, 6), Some("devtmpfs"), true),
            ((0, 26), Some("tmpfs"), false),
            ((0, 27), Some("fuse.sshfs"), false),
            ((254, 1), Some("ext4"), false),
            ((8, 1), None, false),
        ] {
            let mounted = mounts.of_device(device.0, device.1);
            assert_eq!(mounted.map(|mounted| mounted.kind.as_str()), kind);
            let is_of_the_kernel = mounted.is_some_and(Mounted::is_of_the_kernel);
            assert_eq!(is_of_the_kernel, of_the_kernel, "{kind:?}");
        }
    }

    #[test]
    fn paths_are_read_as_they_are() {
        for (written, path) in [
            ("/a\\040b\\134c\\012", "/a b\\c\n"),
            ("/a\\", "/a"),
            ("/a\\9", "/a9"),
            ("/ä\\040ö", "/ä ö"),
        ] {
            assert_eq!(plain(written), path);
        }
    }
}

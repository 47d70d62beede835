//! Owners of device nodes.

use std::fs;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};

/// User and group that own a device node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Owner {
    /// Number of the user.
    pub user: u32,
    /// Number of the group.
    pub group: u32,
}

/// Returns the owner of a device node; `None` if the path is anything else, or a link. Blocks.
pub fn owner(devnode: &str) -> Option<Owner> {
    let metadata = fs::symlink_metadata(devnode).ok()?;
    let kind = metadata.file_type();
    let is_node = kind.is_char_device() || kind.is_block_device();
    is_node.then(|| Owner {
        user: metadata.uid(),
        group: metadata.gid(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_device_nodes_have_an_owner() {
        let null = fs::metadata("/dev/null").unwrap();
        let expected = Owner {
            user: null.uid(),
            group: null.gid(),
        };
        assert_eq!(owner("/dev/null"), Some(expected));
        // A file, a folder, a link.
        for path in ["/etc/passwd", "/dev", "/dev/stdin", "/dev/none", ""] {
            assert_eq!(owner(path), None, "{path}");
        }
    }
}

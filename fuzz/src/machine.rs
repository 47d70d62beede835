//! Simulated machine: resolves paths without a file system.

use std::io;

use leafhost_grants::Resolved;

/// Links, with the paths of their targets, and true for device nodes.
const LINKS: [(&str, &str, bool); 10] = [
    ("/dev/vfio/link", "/dev/sda", true),
    ("/dev/vfio/out", "/etc/shadow", false),
    ("/dev/vfio/line", "/dev/vfio/a\nb", true),
    ("/dev/vfio/folder", "/dev/vfio/folder", false),
    ("/srv/root", "/", false),
    ("/srv/proc", "/proc/1/root", false),
    ("/srv/dev", "/dev", false),
    ("/srv/node", "/dev/sda", true),
    ("/srv/socket", "/srv/socket", false),
    ("/r", "/", false),
];

/// Resolves a path. `/srv/long…` resolves to a long path and `/gone…` to nothing; links resolve to their targets, other paths to themselves.
///
/// # Errors
/// Returns an error if nothing is there.
pub fn resolve(path: &str) -> io::Result<Resolved> {
    if path.starts_with("/gone") {
        return Err(io::ErrorKind::NotFound.into());
    }
    if path.starts_with("/srv/long") {
        return Ok(Resolved {
            path: format!("/srv/{}", "x".repeat(4_000)),
            is_node: false,
        });
    }
    let link = LINKS.iter().find(|(link, ..)| *link == path);
    let (path, is_node) = match link {
        Some((_, path, is_node)) => (*path, *is_node),
        None if path.starts_with("/dev/") => (path, true),
        None => (path, false),
    };
    Ok(Resolved {
        path: path.to_owned(),
        is_node,
    })
}

//! Simulated machine: resolves paths without a file system.

use std::io;

use leafhost_grants::{Kind, Resolved};

/// Links, with the paths and kinds of their targets.
const LINKS: [(&str, &str, Kind); 10] = [
    ("/dev/vfio/link", "/dev/sda", Kind::Node),
    ("/dev/vfio/out", "/etc/shadow", Kind::File),
    ("/dev/vfio/line", "/dev/vfio/a\nb", Kind::Node),
    ("/dev/vfio/folder", "/dev/vfio/folder", Kind::Folder),
    ("/srv/root", "/", Kind::Folder),
    ("/srv/proc", "/proc/1/root", Kind::Folder),
    ("/srv/dev", "/dev", Kind::Folder),
    ("/srv/node", "/dev/sda", Kind::Node),
    ("/srv/socket", "/srv/socket", Kind::Channel),
    ("/r", "/", Kind::Folder),
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
            kind: Kind::Folder,
        });
    }
    let link = LINKS.iter().find(|(link, ..)| *link == path);
    let (path, kind) = match link {
        Some((_, path, kind)) => (*path, *kind),
        None if path.starts_with("/dev/") => (path, Kind::Node),
        None => (path, Kind::Folder),
    };
    Ok(Resolved {
        path: path.to_owned(),
        kind,
    })
}

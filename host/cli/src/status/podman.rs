//! Command lines that pass a device to a container.

use leafhost_agent::status::Status;

use crate::folders::SYSTEM_CDI;

/// Folders that podman before 5.5 also reads; later versions read only `/etc/cdi` by default.
const RUNTIME_CDI: [&str; 2] = ["/run/cdi", "/var/run/cdi"];

/// Podman versions that find specs in a folder by default.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Finder {
    EveryPodman,
    OlderPodman,
    Nobody,
}

fn finder(cdi_dir: &str) -> Finder {
    let dir = cdi_dir.trim_end_matches('/');
    if dir == SYSTEM_CDI {
        Finder::EveryPodman
    } else if RUNTIME_CDI.contains(&dir) {
        Finder::OlderPodman
    } else {
        Finder::Nobody
    }
}

/// Returns the option before `run` that makes podman find the specs; empty if none is needed.
fn options(cdi_dir: &str) -> String {
    match finder(cdi_dir) {
        Finder::EveryPodman | Finder::OlderPodman => String::new(),
        Finder::Nobody => flag(cdi_dir),
    }
}

fn flag(cdi_dir: &str) -> String {
    format!("--cdi-spec-dir {} ", quoted(cdi_dir))
}

/// Returns a line with a placeholder for the device, for all devices of this node.
pub fn hint(status: &Status) -> Option<String> {
    let dir = status.cdi_dir.as_deref()?;
    let line = format!(
        "podman {}run --device akri.sh/<configuration>=<hash> IMAGE",
        options(dir)
    );
    Some(match finder(dir) {
        Finder::OlderPodman => format!("{line}   (podman 5.5 or newer: podman {}run …)", flag(dir)),
        Finder::EveryPodman | Finder::Nobody => line,
    })
}

/// Returns the line for one device, or for `all` of a kind.
pub fn run_line(cdi_dir: &str, device: &str) -> String {
    format!(
        "podman {}run --rm --device {device} IMAGE",
        options(cdi_dir)
    )
}

/// Returns a note for other versions of podman, if the line does not suit them.
pub fn other_podman(cdi_dir: &str) -> Option<String> {
    match finder(cdi_dir) {
        Finder::EveryPodman => None,
        Finder::OlderPodman => Some(format!(
            "podman 5.5 or newer: podman {}run …",
            flag(cdi_dir)
        )),
        Finder::Nobody => Some(format!(
            "podman before 5.5 has no --cdi-spec-dir: as root, start the agent with --cdi-dir {SYSTEM_CDI}, or copy the specs there from {cdi_dir}"
        )),
    }
}

/// Quotes a path for a shell.
fn quoted(path: &str) -> String {
    let safe =
        |c: char| c.is_ascii_alphanumeric() || matches!(c, '/' | '.' | '_' | '-' | '+' | ':');
    if path.chars().all(safe) {
        path.to_owned()
    } else {
        format!("'{}'", path.replace('\'', r"'\''"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_another_folder_needs_the_flag() {
        for (dir, line) in [
            ("/etc/cdi", "podman run --rm --device akri.sh/a=1 IMAGE"),
            ("/etc/cdi/", "podman run --rm --device akri.sh/a=1 IMAGE"),
            ("/run/cdi", "podman run --rm --device akri.sh/a=1 IMAGE"),
            (
                "/run/my cdi",
                "podman --cdi-spec-dir '/run/my cdi' run --rm --device akri.sh/a=1 IMAGE",
            ),
            (
                "/home/a/cdi",
                "podman --cdi-spec-dir /home/a/cdi run --rm --device akri.sh/a=1 IMAGE",
            ),
        ] {
            assert_eq!(run_line(dir, "akri.sh/a=1"), line);
        }
        assert_eq!(other_podman("/etc/cdi"), None);
        assert!(other_podman("/x").unwrap().contains("/etc/cdi"));
        let newer = other_podman("/run/cdi").unwrap();
        assert!(newer.contains("--cdi-spec-dir /run/cdi"), "{newer}");
    }
}

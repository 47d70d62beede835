//! The command lines that hand a device to a container.

use leafhost_agent::status::Status;

use crate::folders::SYSTEM_CDI;

/// What to put before `run` so that podman finds the specs: nothing for its default folder.
fn options(cdi_dir: &str) -> String {
    if cdi_dir.trim_end_matches('/') == SYSTEM_CDI {
        String::new()
    } else {
        format!("--cdi-spec-dir {} ", quoted(cdi_dir))
    }
}

/// A line with a placeholder for the device, for all devices of this node.
pub fn hint(status: &Status) -> Option<String> {
    let options = options(status.cdi_dir.as_deref()?);
    Some(format!(
        "podman {options}run --device akri.sh/<configuration>=<hash> IMAGE"
    ))
}

/// The line for one device or `all` of a kind.
pub fn run_line(cdi_dir: &str, device: &str) -> String {
    format!(
        "podman {}run --rm --device {device} IMAGE",
        options(cdi_dir)
    )
}

/// What podman before 5.5 needs, which has no `--cdi-spec-dir`; nothing for its default folder.
pub fn older_podman(cdi_dir: &str) -> Option<String> {
    (!options(cdi_dir).is_empty()).then(|| {
        format!("podman before 5.5 reads {SYSTEM_CDI} only: as root, start the agent with --cdi-dir {SYSTEM_CDI}, or copy the specs there from {cdi_dir}")
    })
}

/// The path as a shell takes it.
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
        assert_eq!(older_podman("/etc/cdi"), None);
        assert!(older_podman("/x").unwrap().contains("/etc/cdi"));
    }
}

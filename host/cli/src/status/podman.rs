//! Command lines that pass a device to a container.

use leafhost_agent::status::Status;

use crate::folders::SYSTEM_CDI;
use crate::terminal::wrap;

/// Returns the option before `run` that names the folder of the specs to podman, which is empty if podman needs none, and a
/// note for versions of podman that need another option.
fn spec_option(cdi_dir: &str) -> (String, Option<String>) {
    let flag = format!("--cdi-spec-dir {} ", quoted(cdi_dir));
    match cdi_dir.trim_end_matches('/') {
        SYSTEM_CDI => (String::new(), None),
        // Podman before 5.5 reads these folders by default, too.
        "/run/cdi" | "/var/run/cdi" => {
            let note = format!("podman 5.5 or newer: podman {flag}run …");
            (String::new(), Some(note))
        }
        _ => {
            let note = format!(
                "podman before 5.5 has no --cdi-spec-dir: as root, start the agent with --cdi-dir {SYSTEM_CDI}, or copy the specs there from {cdi_dir}"
            );
            (flag, Some(note))
        }
    }
}

/// Returns the command for any device of this node, with a placeholder for the device.
pub fn hint(status: &Status) -> Option<String> {
    let (option, note) = spec_option(status.cdi_dir.as_deref()?);
    let line = format!("podman {option}run --device akri.sh/<configuration>=<hash> IMAGE");
    Some(match note.filter(|_| option.is_empty()) {
        Some(note) => format!("{line}   ({note})"),
        None => line,
    })
}

/// Returns the command for one device, or for `all` of a kind. If `width` is given, it is wrapped so that a shell reads one command.
pub fn run_lines(cdi_dir: &str, device: &str, width: Option<usize>) -> Vec<String> {
    /// Mark at the end of a line whose command continues on the next line.
    const CONTINUED: &str = " \\";
    let (option, _) = spec_option(cdi_dir);
    let command = format!("podman {option}run --rm --device {device} IMAGE");
    // A quoted path may have spaces.
    let Some(width) = width.filter(|_| !command.contains('\'')) else {
        return vec![command];
    };
    let mut lines = wrap(&command, width.saturating_sub(CONTINUED.len()));
    let last = lines.len().saturating_sub(1);
    for line in lines.iter_mut().take(last) {
        line.push_str(CONTINUED);
    }
    lines
}

/// Returns a note for other versions of podman, if the command does not suit them.
pub fn other_podman(cdi_dir: &str) -> Option<String> {
    spec_option(cdi_dir).1
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
            assert_eq!(run_lines(dir, "akri.sh/a=1", None), [line]);
            let wrapped = run_lines(dir, "akri.sh/a=1", Some(30)).join("\n");
            assert_eq!(wrapped.replace("\\\n", ""), line);
        }
        assert_eq!(
            run_lines("/etc/cdi", "akri.sh/a=1", Some(34)),
            ["podman run --rm --device \\", "akri.sh/a=1 IMAGE"]
        );
        assert_eq!(other_podman("/etc/cdi"), None);
        assert!(other_podman("/x").unwrap().contains("/etc/cdi"));
        let newer = other_podman("/run/cdi").unwrap();
        assert!(newer.contains("--cdi-spec-dir /run/cdi"), "{newer}");
    }
}

//! Paths of device nodes in the container: `containerPath` and links.

use std::collections::BTreeSet;

use leafhost_sdk::udev;

/// Placeholder for the number of a node.
const NUMBER: &str = "%n";
/// Maximum number of bytes in `containerPath`.
const MAX_PATH: usize = 255;
/// Maximum number of links per node.
const MAX_LINKS: usize = 16;
/// Names below `/dev` that every container has; the host refuses other devices there.
const STANDARD: [&str; 17] = [
    "console", "fd", "full", "kmsg", "mem", "mqueue", "null", "ptmx", "pts", "random", "shm",
    "stderr", "stdin", "stdout", "tty", "urandom", "zero",
];

/// Returns the reason why the text cannot be `containerPath`, with the remedy.
pub fn problem(path: &str) -> Option<String> {
    let example =
        "write a path below /dev, such as /dev/zigbee, or /dev/zigbee%n for several nodes";
    let wrong = |what: &str| Some(format!("is {path:?}, which {what}; {example}"));
    if path.len() > MAX_PATH {
        return Some(format!(
            "has {} bytes, at most {MAX_PATH}; {example}",
            path.len()
        ));
    }
    let plain = path.replace(NUMBER, "0");
    let Some(rest) = plain.strip_prefix("/dev/") else {
        return wrong("is not below /dev");
    };
    if rest.split('/').any(|part| matches!(part, "" | "." | "..")) {
        return wrong("has an empty part, '.' or '..'");
    }
    if plain.contains('%') {
        return wrong("has a % that is not %n");
    }
    if plain.contains(|c: char| c.is_control() || c.is_whitespace()) {
        return wrong("has a control character or white space");
    }
    let first = rest.split('/').next().unwrap_or_default();
    if STANDARD.contains(&first) {
        return wrong("would replace what every container has under that name");
    }
    None
}

/// Returns the path for the node with this number; `None` if the path is another node's.
pub fn numbered(path: &str, number: usize) -> Option<String> {
    if path.contains(NUMBER) {
        Some(path.replace(NUMBER, &number.to_string()))
    } else {
        (number == 0).then(|| path.to_owned())
    }
}

/// Returns the names of a device's node in the folders `by-id` and `by-path`, sorted, and the number of names beyond the
/// maximum.
pub fn links(device: &udev::Device) -> (Vec<String>, usize) {
    let all = device.property("DEVLINKS").unwrap_or_default();
    let mut links: Vec<String> = all
        .split_ascii_whitespace()
        .filter(|link| is_link(link))
        .collect::<BTreeSet<_>>()
        .into_iter()
        .map(str::to_owned)
        .collect();
    let dropped = links.len().saturating_sub(MAX_LINKS);
    links.truncate(MAX_LINKS);
    (links, dropped)
}

fn is_link(link: &str) -> bool {
    let mut folders = link.rsplit('/').skip(1);
    matches!(folders.next(), Some("by-id" | "by-path")) && problem(link).is_none()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_in_the_container_is_below_dev_and_replaces_nothing() {
        let long = format!("/dev/{}", "x".repeat(MAX_PATH));
        for (path, words) in [
            ("/dev/zigbee", None),
            ("/dev/serial/by-name/zigbee", None),
            ("/dev/zigbee%n", None),
            ("/dev/%n/%n", None),
            ("/dev/ttyS0", None),
            ("zigbee", Some("not below /dev")),
            ("dev/zigbee", Some("not below /dev")),
            ("/etc/zigbee", Some("not below /dev")),
            ("/dev", Some("not below /dev")),
            ("/dev/", Some("empty part")),
            ("/dev//zigbee", Some("empty part")),
            ("/dev/a/../../etc/passwd", Some("'..'")),
            ("/dev/./a", Some("'.'")),
            ("/dev/zigbee%k", Some("a % that is not %n")),
            ("/dev/a\nb", Some("control character")),
            ("/dev/a b", Some("white space")),
            ("/dev/null", Some("every container has")),
            ("/dev/shm/a", Some("every container has")),
            (long.as_str(), Some("260 bytes, at most 255")),
        ] {
            let problem = problem(path);
            match (words, &problem) {
                (None, None) => {}
                (Some(words), Some(problem)) => {
                    assert!(problem.contains(words), "{path}: {problem}");
                    assert!(problem.contains("such as /dev/zigbee"), "{path}: {problem}");
                }
                _ => panic!("{path}: {problem:?}"),
            }
        }
    }
}

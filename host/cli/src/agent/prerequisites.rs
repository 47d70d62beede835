//! Reports prerequisites that this machine lacks, with the consequence and the remedy. Everything else works without them.

use std::path::Path;

use leafhost_core::problem::Problem;
use leafhost_net::Network;
use leafhost_udev::{Group, Monitor};

use super::settings::Settings;
use crate::folders::SYSTEM_CDI;

/// Returns a problem for each prerequisite that this machine lacks.
pub fn missing(
    settings: &Settings,
    events: &Result<Monitor, String>,
    network: &Result<Network, String>,
) -> Vec<Problem> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let has_podman = std::env::split_paths(&path).any(|dir| dir.join("podman").is_file());
    let kubelet = settings.kubelet_dir.as_ref();
    let has_kubelet = kubelet.is_some_and(|dir| dir.join("device-plugins").is_dir());
    problems(
        events.as_ref().map(|monitor| monitor.group),
        network.as_ref().err(),
        settings.cdi_dir.as_deref(),
        settings.is_root,
        // If the kubelet gives devices to pods, podman is not needed.
        has_podman || has_kubelet,
    )
}

/// Returns the problems. `events` is the group from which device events come; `has_runtime` is true if a runtime can use
/// the specs in `cdi_dir`.
fn problems(
    events: Result<Group, &String>,
    no_network: Option<&String>,
    cdi_dir: Option<&Path>,
    is_root: bool,
    has_runtime: bool,
) -> Vec<Problem> {
    let mut problems = Vec::new();
    match events.map_err(Clone::clone) {
        Err(error) => problems.push(Problem::NoDeviceEvents { error }),
        Ok(Group::Kernel) => problems.push(Problem::NoUdevd),
        Ok(Group::Udev) => {}
    }
    if let Some(error) = no_network.cloned() {
        problems.push(Problem::NoNetworkInterfaces { error });
    }
    if let Some(dir) = cdi_dir {
        if !is_root && dir != Path::new(SYSTEM_CDI) {
            problems.push(Problem::NotRoot {
                cdi_dir: dir.to_owned(),
            });
        }
        if !has_runtime {
            problems.push(Problem::NoPodman);
        }
    }
    problems
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_that_lacks_nothing_has_no_problem() {
        let cdi_dir = Some(Path::new("/etc/cdi"));
        let problems = problems(Ok(Group::Udev), None, cdi_dir, true, true);
        assert_eq!(problems, Vec::new());
    }

    #[test]
    fn everything_missing_is_reported() {
        let (events, network) = ("not permitted".to_owned(), "no netlink".to_owned());
        let cdi_dir = Some(Path::new("/home/a/cdi"));
        let problems = problems(Err(&events), Some(&network), cdi_dir, false, false);
        let problems: Vec<_> = problems.iter().map(ToString::to_string).collect();
        let problems = problems.join("\n");
        for words in [
            "not permitted",
            "no netlink",
            "not root",
            "/home/a/cdi",
            "no podman",
        ] {
            assert!(problems.contains(words), "{problems}");
        }
    }

    #[test]
    fn without_cdi_neither_a_runtime_nor_root_is_needed() {
        let problems = problems(Ok(Group::Udev), None, None, false, false);
        assert_eq!(problems, Vec::new());
    }
}

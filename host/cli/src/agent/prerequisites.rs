//! Reports prerequisites that this machine lacks, with the consequence and the remedy. Everything else works without them.

use std::path::{Path, PathBuf};

use leafhost_core::problem::Problem;
use leafhost_net::Network;
use leafhost_udev::{Group, Monitor};

use super::settings::Settings;
use crate::folders::SYSTEM_CDI;

#[derive(Debug, Clone, Default)]
pub struct Machine {
    pub is_root: bool,
    /// Folder to which CDI specs are written.
    pub cdi_dir: Option<PathBuf>,
    /// Group from which device events come, or the error.
    pub events: Option<Result<Group, String>>,
    /// Error if the network cannot be observed.
    pub no_network: Option<String>,
    pub podman: Option<PathBuf>,
    /// True if this machine has a kubelet to which devices are offered.
    pub has_kubelet: bool,
}

impl Machine {
    pub fn look(
        settings: &Settings,
        events: &Result<Monitor, String>,
        network: &Result<Network, String>,
    ) -> Self {
        let path = std::env::var_os("PATH").unwrap_or_default();
        Self {
            is_root: settings.is_root,
            cdi_dir: settings.cdi_dir.clone(),
            events: Some(events.as_ref().map(Monitor::group).map_err(Clone::clone)),
            no_network: network.as_ref().err().cloned(),
            podman: std::env::split_paths(&path)
                .map(|dir| dir.join("podman"))
                .find(|file| file.is_file()),
            has_kubelet: settings
                .kubelet_dir
                .as_ref()
                .is_some_and(|dir| dir.join("device-plugins").is_dir()),
        }
    }

    /// Returns a problem for each missing prerequisite.
    pub fn problems(&self) -> Vec<Problem> {
        let mut problems = Vec::new();
        match &self.events {
            Some(Err(error)) => problems.push(Problem::NoDeviceEvents {
                error: error.clone(),
            }),
            Some(Ok(Group::Kernel)) => problems.push(Problem::NoUdevd),
            Some(Ok(_)) | None => {}
        }
        if let Some(error) = self.no_network.clone() {
            problems.push(Problem::NoNetworkInterfaces { error });
        }
        if let Some(dir) = &self.cdi_dir {
            if !self.is_root && dir != Path::new(SYSTEM_CDI) {
                problems.push(Problem::NotRoot {
                    cdi_dir: dir.clone(),
                });
            }
            // If the kubelet gives devices to pods, podman is not needed.
            if self.podman.is_none() && !self.has_kubelet {
                problems.push(Problem::NoPodman);
            }
        }
        problems
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_that_lacks_nothing_has_no_problem() {
        let machine = Machine {
            is_root: true,
            cdi_dir: Some("/etc/cdi".into()),
            events: Some(Ok(Group::Udev)),
            no_network: None,
            podman: Some("/usr/bin/podman".into()),
            has_kubelet: false,
        };
        assert_eq!(machine.problems(), Vec::new());
    }

    #[test]
    fn everything_missing_is_reported() {
        let machine = Machine {
            is_root: false,
            cdi_dir: Some("/home/a/cdi".into()),
            events: Some(Err("not permitted".into())),
            no_network: Some("no netlink".into()),
            podman: None,
            has_kubelet: false,
        };
        let problems = machine.problems();
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
    fn a_node_of_a_cluster_needs_no_podman() {
        let machine = Machine {
            is_root: true,
            cdi_dir: Some("/etc/cdi".into()),
            has_kubelet: true,
            ..Machine::default()
        };
        assert_eq!(machine.problems(), Vec::new());
    }

    #[test]
    fn without_cdi_neither_podman_nor_root_is_needed() {
        assert_eq!(Machine::default().problems(), Vec::new());
    }
}

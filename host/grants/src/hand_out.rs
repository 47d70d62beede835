//! Checks the items that a device hands to a workload against the grants of the handler that reports it.

use leafhost_core::device::{self, Device};

use crate::bounds::{Bounds, Rejection};

mod paths;

pub use paths::{Resolved, resolve};

impl Bounds<'_> {
    /// Checks what the device adds to a container against the grants. Replaces paths by the targets of their links, so that
    /// exactly the checked paths are handed out.
    ///
    /// # Errors
    /// Returns a message for the operator that names the item that is not granted or cannot be handed out.
    pub(crate) fn hand_out(&self, device: &mut Device) -> Result<(), Rejection> {
        let grants = &self.grants.devices;
        if let Some(name) = device
            .properties
            .keys()
            .find(|name| !grants.allows_env(name))
        {
            return Err(Rejection {
                reason: format!(
                    "property {name} is not granted; `devices.env` in the grants lists what may be set (never PATH, LD_*, PYTHON*, *_PROXY and the like)"
                ),
                ungranted: Some(name.clone()),
            });
        }
        for node in &mut device.nodes {
            let granted = |path: &str| {
                grants.allows_node(path) || (grants.udev_nodes && self.udev_nodes.contains(path))
            };
            // `udev` stands for the nodes of the devices that the handler has seen in this call.
            let ungranted = (!granted(&node.host_path) && !grants.udev_nodes)
                .then(|| node.container_path.clone());
            node.host_path = self
                .granted_path(&node.host_path, "nodes", granted)
                .map_err(|reason| Rejection { reason, ungranted })?;
            if let Some(problem) = paths::node_target_problem(&node.container_path, &node.host_path)
            {
                return Err(format!("device node {:?} {problem}", node.container_path).into());
            }
        }
        for mount in &mut device.mounts {
            let read_only = mount.read_only;
            let granted = |path: &str| grants.allows_mount(path, read_only);
            let ungranted = (!granted(&mount.host_path)).then(|| mount.container_path.clone());
            mount.host_path = self
                .granted_path(&mount.host_path, "mounts", granted)
                .map_err(|reason| Rejection { reason, ungranted })?;
            if let Some(problem) = paths::mount_target_problem(&mount.container_path) {
                return Err(format!("mount {:?} {problem}", mount.container_path).into());
            }
        }
        // Targets of links may be longer than the links.
        if device.text() > device::MAX_TEXT {
            return Err(format!("has more than {} bytes of text", device::MAX_TEXT).into());
        }
        Ok(())
    }

    fn granted_path(
        &self,
        path: &str,
        list: &str,
        granted: impl Fn(&str) -> bool,
    ) -> Result<String, String> {
        if !granted(path) {
            let never = if list == "mounts" {
                " (never /, /dev, /proc, /sys, and the folders of the agent and the kubelet)"
            } else {
                ""
            };
            return Err(format!(
                "{path} is not granted; `devices.{list}` in the grants lists what may be handed out{never}"
            ));
        }
        let resolved =
            (self.resolve)(path).map_err(|error| format!("cannot hand out {path}: {error}"))?;
        if let Some(problem) = device::path_problem(&resolved.path) {
            return Err(format!(
                "{path} leads to {:?}, which {problem}",
                resolved.path
            ));
        }
        if !granted(&resolved.path) {
            return Err(format!(
                "{path} leads to {}, which is not granted",
                resolved.path
            ));
        }
        let fits = resolved.is_node == (list == "nodes");
        if !fits || !paths::is_below_its_root(&resolved.path, resolved.is_node) {
            let is = if resolved.is_node { "is" } else { "is not" };
            return Err(format!(
                "{path} {is} a device node, and cannot be handed out under `devices.{list}`"
            ));
        }
        Ok(resolved.path)
    }
}

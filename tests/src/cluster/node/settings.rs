//! Configuration of a node's containerd, kubelet and network plugins.

use std::path::Path;

use crate::cluster::image;

/// Script that prepares a node's namespaces: `$1` is the node's name, `$2` its folder.
pub const NAMESPACES: &str = r#"
set -eu
busybox hostname "$1"
mount --bind "$2/lib" /var/lib
mount --bind "$2/log" /var/log
mount --bind "$2/cdi" /etc/cdi
mount -t tmpfs -o mode=755 tmpfs /run
mount --make-rshared /
busybox ip link set lo up
echo ready
exec sleep infinity
"#;

/// Script that removes what does not outlive a restart of a machine.
pub const EMPTY_RUN: &str = r#"
set -eu
while read -r _ path _; do
  case "$path" in /var/lib/kubelet/*) umount --lazy "$path" ;; esac
done </proc/self/mounts
umount --recursive --lazy /run
mount -t tmpfs -o mode=755 tmpfs /run
mount --make-rshared /run
"#;

/// Script that restarts `$@` whenever it ends, as the kubelet does with kube-proxy, which ends when its Node is deleted.
pub const KEPT_RUNNING: &str = r#"
while true; do
  "$@" || true
  sleep 1
done
"#;

/// Script that makes udev handle each device as newly added, without a change to the machine's device nodes.
pub const UDEV: &str = r#"
set -eu
mkdir -p /run/udev/rules.d
echo 'SUBSYSTEM=="pci|virtio", IMPORT{builtin}="path_id"' >/run/udev/rules.d/90-paths.rules
unshare --mount sh -c '
  mount -t tmpfs tmpfs /dev
  for device in /sys/bus/pci/devices/* /sys/bus/virtio/devices/* /sys/class/block/*; do
    udevadm test --action=add "$device" >/dev/null 2>&1
  done'
"#;

/// Returns containerd's configuration in TOML, which imports another file.
pub fn containerd(cni: &Path, imported: &Path) -> String {
    format!(
        r#"version = 3
imports = ["{imported}"]
root = "/var/lib/containerd"
state = "/run/containerd"

[grpc]
address = "/run/containerd/containerd.sock"

[plugins."io.containerd.cri.v1.images".pinned_images]
sandbox = "{image}"

[plugins."io.containerd.cri.v1.runtime"]
restrict_oom_score_adj = true
disable_apparmor = true

[plugins."io.containerd.cri.v1.runtime".cni]
bin_dirs = ["/usr/lib/cni"]
conf_dir = "{cni}"

[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"

[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc.options]
SystemdCgroup = false
"#,
        image = image::NAME,
        imported = imported.display(),
        cni = cni.display(),
    )
}

/// Returns the network configuration of pods: a bridge in the node.
pub fn network(pods: &str) -> String {
    serde_json::json!({
        "cniVersion": "1.0.0",
        "name": "pods",
        "plugins": [{
            "type": "bridge",
            "bridge": "pods",
            "isGateway": true,
            "ipam": {
                "type": "host-local",
                "ranges": [[{"subnet": pods}]],
                "routes": [{"dst": "0.0.0.0/0"}],
            },
        }],
    })
    .to_string()
}

/// Returns the configuration of the kubelet.
pub fn kubelet(address: &str, group: &str, gates: &[String]) -> String {
    let gates: serde_json::Map<String, serde_json::Value> = gates
        .iter()
        .filter_map(|gate| gate.split_once('='))
        .map(|(name, on)| (name.to_owned(), (on == "true").into()))
        .collect();
    serde_json::json!({
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "authentication": {"anonymous": {"enabled": true}, "webhook": {"enabled": false}},
        "authorization": {"mode": "AlwaysAllow"},
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": group,
        "containerRuntimeEndpoint": "unix:///run/containerd/containerd.sock",
        "enforceNodeAllocatable": ["pods"],
        "evictionHard": {"memory.available": "50Mi", "nodefs.available": "1%", "imagefs.available": "1%"},
        "failCgroupV1": false,
        "failSwapOn": false,
        "featureGates": gates,
        "healthzBindAddress": address,
        "imageGCHighThresholdPercent": 100,
        "localStorageCapacityIsolation": false,
        "makeIPTablesUtilChains": false,
        // Devices of a plugin are allocatable at most a second later.
        "nodeStatusUpdateFrequency": "1s",
        "oomScoreAdj": 0,
        "volumePluginDir": "/var/lib/kubelet/volume-plugins",
    })
    .to_string()
}

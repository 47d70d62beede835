//! Recognizes interfaces of containers or virtual machines of this node by their names.

/// Prefixes of the names of such interfaces: container runtimes, network plugins, virtual machine monitors.
const PREFIXES: [&str; 26] = [
    "antrea",
    "azv",
    "cali",
    "cilium",
    "cni",
    "docker",
    "eni",
    "flannel",
    "genev",
    "gke",
    "incus",
    "kube",
    "lxc",
    "lxd",
    "nerdctl",
    "nodelocaldns",
    "ovn",
    "ovs",
    "podman",
    "tunl",
    "veth",
    "virbr",
    "vmnet",
    "vnet",
    "vxlan",
    "weave",
];

/// Returns true if an interface of that name belongs to containers. `br0` and `br-lan` do not; `br-` and twelve hexadecimal digits is
/// Docker's name for the bridge of a network. `eth0` does not either: inside a pod it is one end of a veth pair, but there it is the
/// network.
pub(super) fn is_containers(name: &str) -> bool {
    let of_docker = name
        .strip_prefix("br-")
        .is_some_and(|id| id.len() == 12 && id.bytes().all(|b| b.is_ascii_hexdigit()));
    of_docker || PREFIXES.iter().any(|prefix| name.starts_with(prefix))
}

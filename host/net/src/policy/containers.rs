//! Which interfaces belong to containers or virtual machines of this node, by their names.

/// How the names of such interfaces begin: container runtimes, network plugins, machine monitors.
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

/// Whether an interface of that name is a container's. `br0` and `br-lan` are not; `br-` and twelve hexadecimal digits
/// is how Docker names the bridge of a network. `eth0` is not either, though inside a pod it is a pair's end: there it is
/// the network.
pub(super) fn is_containers(name: &str) -> bool {
    let of_docker = name
        .strip_prefix("br-")
        .is_some_and(|id| id.len() == 12 && id.bytes().all(|b| b.is_ascii_hexdigit()));
    of_docker || PREFIXES.iter().any(|prefix| name.starts_with(prefix))
}

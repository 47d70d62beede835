//! Suggests a grants file: the grants that a component's imports show to be needed, with the rest as comments.

use crate::component::Inspection;

const UDEV: &str = "\n# Subsystems whose devices the handler may see, such as \"video4linux\" or \"usb*\"; \"*\" means all.\nudev:\n  subsystems: [\"*\"]\n";

/// Section for the network; only the handler's author knows the entries.
const NETWORK: &str = r#"
# Addresses that the handler may reach: CIDR:PORTS, or lan:PORTS for the networks of its interfaces (by default the usual ones).
network:
  interfaces: []
  # udp: ["239.255.255.250/32:3702", "lan:3702"]
  # multicast: ["239.255.255.250:3702"]
  # tcp: ["lan:4840-4850"]
  # names: ["*.example.com"]
  # http: ["lan:80", "api.example.com:443"]
  # tls: verify
"#;

/// Section of comments for the grants of devices, which the imports of a component do not show.
const COMMENTS: &str = r#"
# What its devices may add to a container; `leafhost handler run` names missing grants.
# devices:
#   nodes: [udev, "/dev/vfio/*"]
#   mounts: ["/run/udev:ro"]
#   env: ["EXAMPLE_*"]

# Limits above the defaults.
# limits: {memoryMiB: 128, cpuSeconds: 4, wallSeconds: 60, devices: 8192}
"#;

/// Returns the text of a grants file that gives what `inspection` shows to be needed, and no more.
pub fn suggest(inspection: &Inspection) -> String {
    let mut text = format!(
        "# Grants for the handler with sha256 {}.\n# Everything else is denied.\n",
        inspection.digest.short()
    );
    let needs = |name: &str| inspection.grants.iter().any(|grant| grant == name);
    if needs("udev") {
        text.push_str(UDEV);
    }
    if needs("network") {
        text.push_str(NETWORK);
    } else {
        // Libraries of many languages import network interfaces even if the handler does not use them.
        for line in NETWORK.lines() {
            let bare = line.trim_start_matches("# ").replacen("  # ", "  ", 1);
            let mark = if bare.is_empty() { "" } else { "# " };
            text.extend([mark, bare.as_str(), "\n"]);
        }
    }
    text.push_str(COMMENTS);
    text
}

//! A grants file to start from: what a component's imports show, with the rest as comments.

use std::fmt::Write as _;

use crate::component::Inspection;

/// The text of a grants file that opens what `inspection` shows to be needed, no wider than must be, with a line of comment on each.
/// What a handler hands out cannot be seen from outside: those lines are comments.
pub fn suggest(inspection: &Inspection) -> String {
    let mut text = format!(
        "# Grants for the handler with sha256 {}.\n# What is not here is denied.\n",
        inspection.digest.short()
    );
    for grant in &inspection.grants {
        // Each grant is an interface that this version links, see `component`.
        if grant == "udev" {
            text.push_str(
                "\n# Which devices it may see: subsystems such as \"video4linux\" or \"usb*\"; \"*\" is all.\nudev:\n  subsystems: [\"*\"]\n",
            );
        } else if grant != "network" {
            let _ = writeln!(text, "\n# It needs the grant {grant}.");
        }
    }
    network(inspection, &mut text);
    let nodes = if inspection.grants.iter().any(|grant| grant == "udev") {
        "udev, \"/dev/vfio/*\""
    } else {
        "\"/dev/vfio/*\""
    };
    let _ = write!(
        text,
        "\n# What its devices may bring into a container; `leafhost handler run` names what it lacks.\n\
         # devices:\n#   nodes: [{nodes}]\n#   mounts: [\"/run/udev:ro\"]\n#   env: [\"EXAMPLE_*\"]\n\
         \n# Limits above the usual ones.\n\
         # limits: {{memoryMiB: 128, cpuSeconds: 4, wallSeconds: 60, devices: 8192}}\n"
    );
    text
}

/// What may be asked for by what is imported; the entries themselves, only its author knows.
const TALKS: &[(&str, &[&str])] = &[
    (
        "wasi:sockets/udp",
        &[
            "udp: [\"239.255.255.250/32:3702\", \"lan:3702\"]",
            "multicast: [\"239.255.255.250:3702\"]",
        ],
    ),
    ("wasi:sockets/tcp", &["tcp: [\"lan:4840-4850\"]"]),
    (
        "wasi:sockets/ip-name-lookup",
        &["names: [\"*.example.com\"]"],
    ),
    (
        "wasi:http/outgoing-handler",
        &["http: [\"lan:80\", \"api.example.com:443\"]", "tls: verify"],
    ),
];

fn network(inspection: &Inspection, text: &mut String) {
    let needed = inspection.grants.iter().any(|grant| grant == "network");
    let imports = |interface: &str| {
        let mut imports = inspection.imports.iter();
        imports.any(|import| import.split('@').next() == Some(interface))
    };
    let talks: Vec<&str> = TALKS
        .iter()
        .filter(|(interface, _)| imports(interface))
        .flat_map(|(_, entries)| *entries)
        .copied()
        .collect();
    let indent = if needed {
        text.push_str(
            "\n# What it may reach: CIDR:PORTS, or lan:PORTS for the networks of its interfaces (none named: the usual ones).\n\
             network:\n  interfaces: []\n",
        );
        "  # "
    } else if talks.is_empty() {
        return;
    } else {
        text.push_str(
            "\n# It imports what networks are talked to with; many languages' libraries do so always. Where it does talk:\n\
             # network:\n",
        );
        "#   "
    };
    for entry in talks {
        let _ = writeln!(text, "{indent}{entry}");
    }
}

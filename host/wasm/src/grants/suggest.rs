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
        } else {
            let _ = writeln!(text, "\n# It needs the grant {grant}.");
        }
    }
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

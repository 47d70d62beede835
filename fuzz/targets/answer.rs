//! Fuzzes a guest's answer: whatever is accepted may be given to a workload.
//!
//! The input is a grants file, a line `---`, and an answer as `leafhost_fuzz::answer` reads it.
#![no_main]

use std::collections::BTreeSet;
use std::time::Duration;

use leafhost_core::attribute::AttributeValue;
use leafhost_core::device::{Device, Health, MAX_TEXT, id_problem};
use leafhost_core::left_out::MAX_SHOWN;
use leafhost_core::session::{Devices, Discovery, Property};
use leafhost_core::text::is_unprintable;
use leafhost_fuzz::{answer, machine, within};
use leafhost_grants::{Bounds, Grants, Secrets};
use leafhost_wasm::fuzzing;
use libfuzzer_sys::fuzz_target;

/// Grants for inputs that have no valid ones of their own.
const GRANTS: &str = r#"
udev: {subsystems: ["*"]}
devices: {nodes: [udev, "/dev/vfio/*"], mounts: ["/run/udev:ro", "/srv/*:rw", "/data*:ro"], env: ["UDEV_*", "LD*X"]}
"#;

/// Secret values that must not appear in the result, nor the second line of the last one alone.
const SECRETS: [&str; 3] = [
    "hunter2",
    "p\"w\\d#1",
    "first \"line\"\nand \"second\" line\n",
];

fuzz_target!(|data: &[u8]| {
    let Ok(text) = std::str::from_utf8(data) else {
        return;
    };
    let (grants, lines) = text.split_once("\n---\n").unwrap_or((GRANTS, text));
    let Ok(grants) = Grants::parse(grants).or_else(|_| Grants::parse(GRANTS)) else {
        return;
    };
    let answer = answer::read(lines);
    let udev_nodes = BTreeSet::from(["/dev/video0".to_owned(), "/srv/node".to_owned()]);
    let properties = SECRETS.map(|secret| Property {
        name: "password".to_owned(),
        value: Some(secret.as_bytes().into()),
        secret: true,
    });
    let bounds = Bounds {
        grants: &grants,
        shared: true,
        secrets: &Secrets::new(&properties),
        udev_nodes: &udev_nodes,
        resolve: &machine::resolve,
    };
    let wakes = answer.wake.len();
    let cursor = answer.cursor.as_ref().map_or(0, Vec::len);
    let Ok(discovery) = within(Duration::from_secs(4), || {
        fuzzing::discovery(answer, &bounds)
    }) else {
        return;
    };
    assert!(wakes <= 64 && cursor <= 1 << 20);
    let most = usize::try_from(grants.limits.devices).expect("a count");
    let Discovery {
        devices,
        departed,
        left_out,
    } = discovery;
    let devices = match devices {
        Devices::Unchanged => Vec::new(),
        Devices::Complete(devices) | Devices::Partial(devices) => devices,
    };
    assert!(
        devices.len() + left_out.ids.len() <= most
            && left_out.shown.len() <= MAX_SHOWN
            && departed.len() <= most
    );
    let ids: BTreeSet<_> = devices.iter().map(|device| &device.id).collect();
    assert_eq!(ids.len(), devices.len(), "ids are distinct");
    assert!(departed.iter().all(|id| id_problem(id).is_none()));
    assert_eq!(
        departed.iter().collect::<BTreeSet<_>>().len(),
        departed.len()
    );
    for device in &devices {
        check(device, &grants, &udev_nodes);
        assert!(texts(device).all(|text| !has_secret(text)), "{device:?}");
    }
    for left in &left_out.shown {
        assert!(!left.reason.is_empty());
        assert!(
            left.id.len() <= 8 * 256 + 3 && left.reason.len() <= 8 * 1024 + 3,
            "{left:?}"
        );
        assert!(
            !format!("{}{}", left.id, left.reason).contains(is_unprintable),
            "{left:?}"
        );
        let shown = [left.id.as_str(), &left.reason];
        assert!(shown.iter().all(|text| !has_secret(text)), "{left:?}");
        // Secrets as the host quotes them. A guest that quotes a secret itself cannot be stopped.
        for secret in ["p\\\"w\\\\d#1", "and \\\"second\\\" line"] {
            assert!(
                lines.contains(secret) || !left.reason.contains(secret),
                "{left:?}"
            );
        }
        assert!(!left.reason.contains("and \"second\" line"), "{left:?}");
    }
});

fn has_secret(text: &str) -> bool {
    SECRETS.iter().any(|secret| text.contains(secret.trim()))
}

fn texts(device: &Device) -> impl Iterator<Item = &String> {
    let pairs = device
        .properties
        .iter()
        .chain(&device.capacity)
        .flat_map(|(name, value)| [name, value]);
    let mounts = device.mounts.iter().map(|mount| &mount.container_path);
    let nodes = device
        .nodes
        .iter()
        .flat_map(|node| [&node.container_path, &node.permissions]);
    let reason = match &device.health {
        Health::Unhealthy(reason) => Some(reason),
        Health::Healthy | Health::Unknown => None,
    };
    let values = device
        .attributes
        .iter()
        .flat_map(|(name, value)| match value {
            AttributeValue::String(text) | AttributeValue::Version(text) => {
                [Some(name), Some(text)]
            }
            AttributeValue::Int(_) | AttributeValue::Bool(_) => [Some(name), None],
        });
    let single = [Some(&device.id), device.physical_id.as_ref(), reason];
    single
        .into_iter()
        .chain(values)
        .flatten()
        .chain(pairs)
        .chain(mounts)
        .chain(nodes)
}

fn check(device: &Device, grants: &Grants, udev_nodes: &BTreeSet<String>) {
    assert_eq!(device.problem(), None);
    assert!(device.text() <= MAX_TEXT);
    for name in device.properties.keys() {
        assert!(grants.devices.allows_env(name), "{name}");
        let never = name == "PATH" || name.starts_with("LD_") || name.starts_with("KUBERNETES_");
        assert!(!never, "{name}");
    }
    for node in &device.nodes {
        let host = node.host_path.as_str();
        let of_udev = grants.devices.udev_nodes && udev_nodes.contains(host);
        assert!(
            host.starts_with("/dev/") && (of_udev || grants.devices.allows_node(host)),
            "{host}"
        );
        let there = machine::resolve(host).expect("a path that is there");
        assert!(there.path == host && there.is_node, "{host}");
        assert!(
            node.container_path.starts_with("/dev/"),
            "{}",
            node.container_path
        );
        let standard = [
            "/dev/null",
            "/dev/shm",
            "/dev/tty",
            "/dev/pts/0",
            "/dev/random",
        ];
        assert!(!standard.contains(&node.container_path.as_str()) || node.container_path == host);
    }
    for mount in &device.mounts {
        let host = mount.host_path.as_str();
        assert!(grants.devices.allows_mount(host, mount.read_only), "{host}");
        let there = machine::resolve(host).expect("a path that is there");
        assert!(there.path == host && !there.is_node, "{host}");
        assert!(
            host != "/" && !within_any(host, &["/dev", "/proc", "/sys"]),
            "{host}"
        );
        let target = mount.container_path.as_str();
        let system = [
            "/dev",
            "/proc",
            "/sys",
            "/etc",
            "/bin",
            "/lib",
            "/usr/lib",
            "/usr/bin",
            "/run/secrets",
        ];
        assert!(
            target != "/" && target != "/usr" && !within_any(target, &system),
            "{target}"
        );
    }
}

fn within_any(path: &str, roots: &[&str]) -> bool {
    roots
        .iter()
        .any(|root| path == *root || path.starts_with(&format!("{root}/")))
}

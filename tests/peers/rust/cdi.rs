//! Specs that we write, read by the reference library: in the lowest version it accepts, with the intended meaning.

use container_device_interface::cache::{self, Cache};
use container_device_interface::spec::{new_spec, parse_spec};
use container_device_interface::spec_dirs::with_spec_dirs;
use container_device_interface::version::minimum_required_version;
use leafhost_cdi::{
    ContainerEdits, Device, DeviceNode, Mount, Readers, Spec, SpecDir, minimum_version,
};

const VERSIONS: [&str; 4] = ["0.3.0", "0.4.0", "0.5.0", "0.6.0"];

fn mk_spec(class: &str, device: &str, edits: ContainerEdits) -> Spec {
    Spec {
        kind: format!("akri.sh/{class}"),
        devices: vec![Device {
            name: device.to_owned(),
            container_edits: edits,
        }],
        container_edits: ContainerEdits::default(),
    }
}

fn mk_env() -> ContainerEdits {
    ContainerEdits {
        env: vec!["A=1".to_owned()],
        ..ContainerEdits::default()
    }
}

fn mk_node(container: &str, host: &str) -> ContainerEdits {
    ContainerEdits {
        device_nodes: vec![DeviceNode::new(container, host, "rw")],
        ..ContainerEdits::default()
    }
}

fn mk_mount(mount_type: Option<&str>) -> ContainerEdits {
    ContainerEdits {
        mounts: vec![Mount {
            mount_type: mount_type.map(str::to_owned),
            ..Mount::bind("/in", "/etc", true)
        }],
        ..ContainerEdits::default()
    }
}

/// Returns specs with the lowest version that each needs: one per rule, and at least one per version.
fn table() -> Vec<(&'static str, Spec)> {
    let mut whole = mk_spec("cams", "a", mk_env());
    whole.container_edits = mk_node("/dev/inside", "/dev/null");
    vec![
        ("0.3.0", mk_spec("cams", "a", mk_env())),
        (
            "0.3.0",
            mk_spec("cams", "a", mk_node("/dev/null", "/dev/null")),
        ),
        ("0.3.0", mk_spec("cams", "a", mk_mount(None))),
        ("0.4.0", mk_spec("cams", "a", mk_mount(Some("bind")))),
        ("0.5.0", mk_spec("cams", "8120fe", mk_env())),
        (
            "0.5.0",
            mk_spec("cams", "a", mk_node("/dev/inside", "/dev/null")),
        ),
        ("0.5.0", whole),
        ("0.6.0", mk_spec("cams.front", "a", mk_env())),
        (
            "0.6.0",
            mk_spec("cams.front", "8120fe", mk_node("/dev/inside", "/dev/null")),
        ),
    ]
}

#[test]
fn each_spec_has_the_lowest_version_the_library_accepts() {
    for (version, spec) in table() {
        assert_eq!(minimum_version(&spec), version, "{spec:?}");
        let folder = tempfile::tempdir().unwrap();
        let directory =
            SpecDir::new(folder.path(), "akri.sh", "leafhost", Readers::Everybody).unwrap();
        directory.write(&spec).unwrap();
        let (_, class) = spec.vendor_and_class().unwrap();
        let path = directory.path(class);
        let raw = parse_spec(&path).unwrap();
        assert_eq!(minimum_required_version(&raw).unwrap().to_string(), version);
        new_spec(&raw, &path, 0).unwrap();

        let text = std::fs::read_to_string(&path).unwrap();
        for older in VERSIONS.iter().take_while(|older| **older != version) {
            let lowered = text.replace(
                &format!("\"cdiVersion\": \"{version}\""),
                &format!("\"cdiVersion\": \"{older}\""),
            );
            assert_ne!(lowered, text);
            std::fs::write(&path, lowered).unwrap();
            let raw = parse_spec(&path).unwrap();
            assert!(
                new_spec(&raw, &path, 0).is_err(),
                "{older} is enough for {text}"
            );
        }
    }
}

#[test]
fn a_container_gets_the_edits_of_its_device_and_of_the_kind_and_no_others() {
    let folder = tempfile::tempdir().unwrap();
    let directory = SpecDir::new(folder.path(), "akri.sh", "leafhost", Readers::Everybody).unwrap();
    let mut edits = mk_mount(None);
    edits.env = vec!["A=1".into(), "A_8120FE=1".into()];
    edits.device_nodes = vec![DeviceNode::new("/dev/inside", "/dev/null", "rw")];
    let mut spec = mk_spec("cams", "8120fe", edits);
    spec.devices.push(Device {
        name: "other".into(),
        container_edits: ContainerEdits {
            env: vec!["OTHER=1".into()],
            ..ContainerEdits::default()
        },
    });
    spec.container_edits.env.push("KIND=1".into());
    directory.write(&spec).unwrap();

    let path = folder.path().to_str().unwrap();
    let cache = cache::new_cache(vec![with_spec_dirs(&[path])]);
    let mut cache: std::sync::MutexGuard<'_, Cache> = cache.lock().unwrap();
    assert_eq!(
        cache.list_devices(),
        ["akri.sh/cams=8120fe", "akri.sh/cams=other"]
    );
    let mut container = oci_spec::runtime::Spec::default();
    cache
        .inject_devices(Some(&mut container), vec!["akri.sh/cams=8120fe".into()])
        .unwrap();

    let env = container.process().as_ref().unwrap().env().clone().unwrap();
    for variable in ["A=1", "A_8120FE=1", "KIND=1"] {
        assert!(env.iter().any(|have| have == variable), "{variable}");
    }
    assert!(!env.iter().any(|have| have.starts_with("OTHER")));
    let linux = container.linux().as_ref().unwrap();
    let node = &linux.devices().as_ref().unwrap()[0];
    assert_eq!(node.path().to_str(), Some("/dev/inside"));
    assert_eq!((node.major(), node.minor()), (1, 3));
    let rule = linux
        .resources()
        .as_ref()
        .unwrap()
        .devices()
        .as_ref()
        .unwrap()
        .iter()
        .find(|rule| rule.major() == Some(1) && rule.minor() == Some(3))
        .unwrap();
    assert!(rule.allow());
    assert_eq!(rule.access().as_deref(), Some("rw"));
    let mount = container
        .mounts()
        .as_ref()
        .unwrap()
        .iter()
        .find(|mount| mount.destination().to_str() == Some("/in"))
        .unwrap();
    assert_eq!(mount.source().as_ref().unwrap().to_str(), Some("/etc"));
    assert_eq!(
        mount.options().as_ref().unwrap(),
        &["bind", "rprivate", "ro"]
    );
}

use std::fmt::Write as _;

use leafhost_sdk::testing::{Call, FakeHost, UdevDevice, description_problems, remarks, validate};
use leafhost_sdk::{AttributeValue, Device, Devices, Discovery, Error, Wake, udev};

use super::Udev;

mod container;
mod groups;
mod identity;

const PCI: &str = "/devices/pci0000:00/0000:00:14.0";
const USB: &str = "/devices/pci0000:00/0000:00:14.0/usb1/1-1";
const VIDEO: &str = "/devices/pci0000:00/0000:00:14.0/usb1/1-1/1-1:1.0/video4linux/video0";

/// Creates a webcam with two video nodes and a microphone, and two loop devices.
fn mk_host() -> FakeHost {
    let video = |number: u8, capabilities: &str| {
        UdevDevice::new(&format!("{USB}/1-1:1.0/video4linux/video{number}"))
            .subsystem("video4linux")
            .devnode(&format!("/dev/video{number}"))
            .property("ID_MODEL", "C270")
            .property("ID_V4L_CAPABILITIES", capabilities)
            .property("ID_V4L_PRODUCT", "C270: C270")
    };
    let interface = |number: u8, driver: &str| {
        UdevDevice::new(&format!("{USB}/1-1:1.{number}"))
            .subsystem("usb")
            .driver(driver)
            .property("DEVTYPE", "usb_interface")
    };
    let disk = |number: u8| {
        UdevDevice::new(&format!("/devices/virtual/block/loop{number}"))
            .subsystem("block")
            .devnode(&format!("/dev/loop{number}"))
    };
    FakeHost::new()
        .udev(
            UdevDevice::new(PCI)
                .subsystem("pci")
                .driver("xhci_hcd")
                .attribute("numa_node", "1"),
        )
        .udev(
            UdevDevice::new(USB)
                .subsystem("usb")
                .devnode("/dev/bus/usb/001/002")
                .property("DEVTYPE", "usb_device")
                .property("ID_SERIAL_SHORT", "SN1")
                .property("PRODUCT", "46d/825/12")
                .attribute("speed", "480"),
        )
        .udev(interface(0, "uvcvideo"))
        .udev(interface(1, "snd-usb-audio"))
        .udev(video(0, ":capture:"))
        .udev(video(1, ":"))
        .udev(disk(1))
        .udev(disk(10))
}

fn mk_gpu_host() -> FakeHost {
    FakeHost::new()
        .udev(
            UdevDevice::new("/devices/pci0000:00/0000:00:01.0/0000:01:00.0")
                .subsystem("pci")
                .driver("vfio-pci")
                .property("PCI_ID", "10DE:1FB0")
                .attribute("iommu_group", "7"),
        )
        .udev(UdevDevice::new("/devices/pci0000:00/0000:02:00.0").subsystem("pci"))
}

fn details(rules: &[&str], more: &str) -> String {
    let mut text = "udevRules:\n".to_owned();
    for rule in rules {
        writeln!(text, "- '{rule}'").unwrap();
    }
    text + more
}

fn discover(host: &FakeHost, rules: &[&str], more: &str) -> Discovery {
    Call::<Udev>::new(&details(rules, more)).run(host).unwrap()
}

fn ids(discovery: &Discovery) -> Vec<&str> {
    discovery
        .devices()
        .iter()
        .map(|device| device.id.as_str())
        .collect()
}

fn nodes(device: &Device) -> Vec<(&str, &str)> {
    device
        .device_nodes
        .iter()
        .map(|node| (node.host_path.as_str(), node.permissions.as_str()))
        .collect()
}

#[test]
fn a_camera_is_a_device_named_by_its_path() {
    let rule = r#"SUBSYSTEM=="video4linux", ENV{ID_V4L_CAPABILITIES}=="*:capture:*""#;
    let found = discover(&mk_host(), &[rule], "");
    assert!(matches!(found.devices, Devices::Complete(_)));
    assert_eq!(ids(&found), [VIDEO]);
    let camera = &found.devices()[0];
    assert_eq!(
        camera.properties,
        [
            ("UDEV_DEVPATH".to_owned(), VIDEO.to_owned()),
            ("UDEV_DEVNODE".to_owned(), "/dev/video0".to_owned())
        ]
    );
    assert_eq!(nodes(camera), [("/dev/video0", "rwm")]);
    assert_eq!(camera.physical_id.as_deref(), Some("usb:046d:0825:SN1@1-1"));
    let attributes: Vec<_> = camera
        .attributes
        .iter()
        .map(|attribute| (attribute.name.as_str(), attribute.value.clone()))
        .collect();
    let text = |text: &str| AttributeValue::Text(text.to_owned());
    assert_eq!(
        attributes,
        [
            ("subsystem", text("video4linux")),
            ("hardwareDriver", text("uvcvideo")),
            ("vendorID", text("046d")),
            ("modelID", text("0825")),
            ("model", text("C270")),
            ("serial", text("SN1")),
            ("devname", text("video0")),
            ("v4lCapabilities", text(":capture:")),
            ("v4lProduct", text("C270: C270")),
            ("port", text("1-1")),
            ("pciBusID", text("0000:00:14.0")),
            ("resource.kubernetes.io/pcieRoot", text("pci0000:00")),
            ("interface", AttributeValue::Integer(0)),
            ("usbSpeed", AttributeValue::Integer(480)),
            ("numaNode", AttributeValue::Integer(1)),
        ]
    );
}

#[test]
fn a_node_that_captures_differs_by_attribute_from_one_with_metadata() {
    let found = discover(&mk_host(), &[r#"SUBSYSTEM=="video4linux""#], "");
    let capabilities = |device: &Device| {
        let mut attributes = device.attributes.iter();
        let found = attributes.find(|attribute| attribute.name == "v4lCapabilities");
        found.map(|attribute| attribute.value.clone())
    };
    let capabilities: Vec<_> = found.devices().iter().map(capabilities).collect();
    let text = |text: &str| Some(AttributeValue::Text(text.to_owned()));
    assert_eq!(capabilities, [text(":capture:"), text(":")]);
}

#[test]
fn attributes_come_only_from_the_devices_own_hardware() {
    let hub = "/devices/pci0000:00/0000:00:14.0/usb1";
    let sata = "/devices/pci0000:00/0000:00:17.0";
    let controller = |path: &str| {
        UdevDevice::new(path)
            .subsystem("pci")
            .property("PCI_ID", "8086:A36D")
            .property("ID_VENDOR_FROM_DATABASE", "Intel Corporation")
            .property("ID_MODEL_FROM_DATABASE", "Controller")
            .property("ID_SERIAL_SHORT", "0000")
    };
    let usb = |path: &str| {
        UdevDevice::new(path)
            .subsystem("usb")
            .property("DEVTYPE", "usb_device")
    };
    let host = FakeHost::new()
        .udev(controller(PCI))
        .udev(controller(sata))
        .udev(
            usb(hub)
                .property("ID_SERIAL_SHORT", "0000:00:14.0")
                .property("ID_VENDOR", "Linux"),
        )
        .udev(usb(&format!("{hub}/1-2")).property("PRODUCT", "c45/6366/100"))
        .udev(UdevDevice::new(&format!("{hub}/1-2/1-2:1.0")).subsystem("usb"))
        .udev(UdevDevice::new(&format!("{hub}/1-2/1-2:1.0/video2")).subsystem("video4linux"))
        .udev(UdevDevice::new(&format!("{sata}/ata1/0:0:0:0")).subsystem("scsi"))
        .udev(UdevDevice::new(&format!("{sata}/ata1/0:0:0:0/sda")).subsystem("block"))
        .udev(UdevDevice::new(&format!("{PCI}/renderD128")).subsystem("drm"));
    let table: [(&str, &[&str], Option<&str>); 3] = [
        (
            "video2",
            &[
                "subsystem",
                "vendorID",
                "modelID",
                "devname",
                "port",
                "pciBusID",
                "resource.kubernetes.io/pcieRoot",
                "interface",
            ],
            Some("usb:0c45:6366:@1-2"),
        ),
        (
            "sda",
            &[
                "subsystem",
                "devname",
                "pciBusID",
                "resource.kubernetes.io/pcieRoot",
            ],
            None,
        ),
        // A direct child of a PCI device is part of that hardware.
        (
            "renderD128",
            &[
                "subsystem",
                "vendorID",
                "modelID",
                "vendor",
                "model",
                "serial",
                "devname",
                "pciBusID",
                "resource.kubernetes.io/pcieRoot",
            ],
            Some("pci:0000:00:14.0"),
        ),
    ];
    for (kernel, names, physical_id) in table {
        let found = discover(&host, &[&format!("KERNEL==\"{kernel}\"")], "");
        let device = &found.devices()[0];
        let known: Vec<&str> = device.attributes.iter().map(|a| a.name.as_str()).collect();
        assert_eq!(known, names, "{kernel}");
        assert_eq!(device.physical_id.as_deref(), physical_id, "{kernel}");
    }
}

#[test]
fn rules_that_look_like_regular_expressions_cause_a_remark() {
    let table = [
        (r#"DRIVERS=="uvc.*""#, Some("may match more than in udev")),
        (
            r#"KERNELS=="00:1f\.3""#,
            Some("may match more than in udev"),
        ),
        (r#"KERNEL!="(sd|hd).*""#, Some("excludes less")),
        (
            r#"KERNELS=="1-1.*""#,
            Some(
                r#""1-1.*" is read as a glob, because it looks like ports of a bus; for the regular expression that it was in Akri write "(1-1.*)""#,
            ),
        ),
        (r#"ATTRS{devpath}=="1.*""#, Some("is read as a glob")),
        (r#"KERNELS=="(1-1.*)""#, Some("may match more than in udev")),
        // Akri passed these to udev.
        (r#"KERNEL=="sd.*""#, None),
        (r#"KERNELS=="1-1[.]*""#, None),
        (r#"ATTR{x}!="a+""#, None),
        // These have the same meaning in both.
        (r#"DRIVERS=="uvc*|usb""#, None),
        (r#"KERNELS=="[0-9]-1\*\\""#, None),
    ];
    for (rule, words) in table {
        let remarks = remarks::<Udev>(&details(&[r#"KERNEL=="a""#, rule], ""));
        match (words, remarks.as_slice()) {
            (None, []) => {}
            (Some(words), [one]) => {
                assert_eq!(one.path, "udevRules[1]");
                assert!(one.message.contains(words), "{rule}: {one:?}");
            }
            _ => panic!("{rule}: {remarks:?}"),
        }
    }
    assert_eq!(remarks::<Udev>("udevRules: ['KERNEL=']"), []);
}

#[test]
fn a_device_matched_twice_is_one() {
    let rules = [r#"KERNEL=="video*""#, r#"SUBSYSTEM=="video4linux""#];
    assert_eq!(discover(&mk_host(), &rules, "").devices().len(), 2);
}

#[test]
fn a_match_without_a_node_stands_for_the_nearest_ancestor_with_one() {
    let host = mk_host();
    let found = discover(&host, &[r#"DRIVER=="uvcvideo|snd-usb-audio""#], "");
    assert_eq!(ids(&found), [USB]);
    assert_eq!(
        nodes(&found.devices()[0]),
        [("/dev/bus/usb/001/002", "rwm")]
    );
    let skipped = host.skipped();
    assert_eq!(skipped.len(), 1);
    assert_eq!(skipped[0].subject, format!("{USB}/1-1:1.1"));
    assert_eq!(skipped[0].rule, r#"DRIVER=="uvcvideo|snd-usb-audio""#);
    assert!(skipped[0].reason.contains(USB), "{}", skipped[0].reason);
}

#[test]
fn a_matching_ancestor_absorbs_matches_below_it() {
    let host = mk_host();
    let found = discover(&host, &[r#"SUBSYSTEM=="usb""#], "");
    assert_eq!(ids(&found), [USB]);
    assert_eq!(host.skipped().len(), 2);
}

#[test]
fn a_device_without_any_node_has_only_its_path_as_property() {
    let found = discover(&mk_host(), &[r#"KERNEL=="0000:00:14.0""#], "");
    assert_eq!(ids(&found), [PCI]);
    let device = &found.devices()[0];
    assert_eq!(device.get_property("UDEV_DEVNODE"), None);
    assert_eq!(nodes(device), []);
    assert_eq!(device.physical_id.as_deref(), Some("pci:0000:00:14.0"));
}

#[test]
fn a_group_is_named_by_its_uppermost_device() {
    let rules = [r#"KERNEL=="video*|loop*""#, r#"ENV{DEVTYPE}=="usb_device""#];
    let found = discover(&mk_host(), &rules, "groupRecursive: true\npermissions: rw");
    // loop10 is a sibling of loop1, not below it.
    assert_eq!(
        ids(&found),
        [
            USB,
            "/devices/virtual/block/loop1",
            "/devices/virtual/block/loop10"
        ]
    );
    let camera = &found.devices()[0];
    assert_eq!(
        nodes(camera),
        [
            ("/dev/bus/usb/001/002", "rw"),
            ("/dev/video0", "rw"),
            ("/dev/video1", "rw")
        ]
    );
    for (name, value) in [
        ("UDEV_DEVPATH", USB),
        ("UDEV_DEVNODE_0", "/dev/bus/usb/001/002"),
        ("UDEV_DEVNODE_1", "/dev/video0"),
        ("UDEV_DEVNODE_2", "/dev/video1"),
    ] {
        assert_eq!(camera.get_property(name), Some(value));
    }
    assert_eq!(camera.properties.len(), 4);
}

#[test]
fn the_address_of_a_usb_device_is_in_the_variable_of_its_resource() {
    for (more, variable) in [
        ("", "USB_RESOURCE_AKRI_SH_UDEV-CAM"),
        ("groupRecursive: true", "USB_RESOURCE_AKRI_SH_UDEV-CAM_0"),
    ] {
        let found = Call::<Udev>::new(&details(&[r#"ENV{DEVTYPE}=="usb_device""#], more))
            .property("devicePluginResourceName", " akri.sh/udev-cam\n")
            .property("vfioPassthrough", "true")
            .run(&mk_host())
            .unwrap();
        let camera = &found.devices()[0];
        assert_eq!(camera.get_property(variable), Some("1:2"));
        assert_eq!(camera.device_nodes.len(), 1);
        let has_pci = camera
            .properties
            .iter()
            .any(|(name, _)| name.starts_with("PCI"));
        assert!(!has_pci, "a USB device is reached through USB");
    }
}

#[test]
fn a_pci_device_is_passed_through_with_its_iommu_group() {
    let vfio = vec![("/dev/vfio/7", "rwm"), ("/dev/vfio/vfio", "rwm")];
    let table = [("True ", vfio, 1), ("false", vec![], 0), ("", vec![], 0)];
    for (passthrough, expected, skipped) in table {
        let host = mk_gpu_host();
        let found = Call::<Udev>::new(&details(&[r#"SUBSYSTEM=="pci""#], "permissions: r"))
            .property("devicePluginResourceName", "example.com/gpu")
            .property("vfioPassthrough", passthrough)
            .run(&host)
            .unwrap();
        let [gpu, other] = found.devices() else {
            panic!("{found:?}");
        };
        let variable = "PCI_RESOURCE_EXAMPLE_COM_GPU";
        assert_eq!(gpu.get_property(variable), Some("0000:01:00.0"));
        assert_eq!(other.get_property(variable), Some("0000:02:00.0"));
        assert_eq!(nodes(gpu), expected);
        assert_eq!(nodes(other), []);
        assert_eq!(host.skipped().len(), skipped, "{:?}", host.skipped());
        assert_eq!(gpu.get_attribute("vendorID"), Some(&"10de".into()));
    }
}

#[test]
fn passthrough_without_a_resource_is_explained() {
    let host = mk_gpu_host();
    let found = Call::<Udev>::new(&details(&[r#"DRIVER=="vfio-pci""#], ""))
        .property("vfioPassthrough", "true")
        .run(&host)
        .unwrap();
    assert_eq!(nodes(&found.devices()[0]), []);
    assert!(
        host.skipped()[0]
            .reason
            .contains("devicePluginResourceName")
    );
}

#[test]
fn every_rule_wakes_and_so_does_a_slow_timer() {
    let rules = [r#"KERNEL=="video*""#, r#"KERNEL=="tty*""#];
    assert_eq!(
        discover(&mk_host(), &rules, "").wakes(),
        [
            Wake::Udev(vec![udev::kernel("video*")]),
            Wake::Udev(vec![udev::kernel("tty*")]),
            Wake::After(300_000),
        ]
    );
}

#[test]
fn without_rules_the_answer_has_no_wake() {
    let found = Call::<Udev>::new("udevRules: []").run(&mk_host()).unwrap();
    assert_eq!(found, Discovery::complete([]).until_changed());
}

#[test]
fn without_sysfs_the_call_fails_instead_of_reporting_no_devices() {
    let host = mk_host().without_udev("no /sys");
    let answer = Call::<Udev>::new(&details(&[r#"KERNEL=="a""#], "")).run(&host);
    assert_eq!(answer, Err(Error::unavailable("no /sys")));
}

#[test]
fn problems_of_details_name_the_field() {
    let many = details(&[r#"KERNEL=="a""#; 64], "");
    let list = |rule: &str, count: usize| {
        let rules = vec![format!("'{rule}'"); count];
        format!("[{}]", rules.join(", "))
    };
    let one = r#"KERNEL=="a""#;
    let together = details(
        &[one; 30],
        &format!(
            "group: hardware\nnodes: {}\nwith: {}",
            list(one, 30),
            list(one, 4)
        ),
    );
    let terms = details(
        &[one; 0],
        &format!(
            "group: hardware\nnodes: {}",
            list(&r#"KERNEL=="a","#.repeat(30), 9)
        ),
    )
    .replacen("udevRules:", "udevRules: []", 1);
    let wide = details(&[r#"KERNEL=="a","#.repeat(30).as_str(); 9], "");
    let table = [
        ("", "udevRules", "is missing"),
        (
            "udevRule: ['KERNEL==\"a\"']",
            "udevRules",
            "is missing; udevRule is unknown, did you mean udevRules?",
        ),
        (
            "{udevRules: [], permission: r}",
            "permission",
            "unknown field permission; did you mean permissions?",
        ),
        (
            "{udevRules: [], identity: port}",
            "identity",
            "unknown field identity; did you mean leafhost.dev/identity?",
        ),
        ("udevRules: KERNEL", "udevRules", "must be a list"),
        (
            "udevRules: [KERNEL: a]",
            "udevRules[0]",
            "is a map, must be text; a text with ': ' must be in quotes",
        ),
        ("udevRules: [1]", "udevRules[0]", ""),
        (
            "udevRules: ['KERNEL==\"a\"', 'KERNEL=\"b\"']",
            "udevRules[1]",
            "character 7: = assigns",
        ),
        ("udevRules: ['']", "udevRules[0]", "empty"),
        (
            "{udevRules: [], groupRecursive: perhaps}",
            "groupRecursive",
            "is \"perhaps\", must be true or false",
        ),
        ("{udevRules: [], permissions: xyz}", "permissions", "rwm"),
        ("{udevRules: [], permissions: ''}", "permissions", "rwm"),
        (
            "{udevRules: [], containerPath: /etc/passwd}",
            "containerPath",
            "not below /dev; write a path below /dev, such as /dev/zigbee",
        ),
        (
            "{udevRules: [], leafhost.dev/identity: bus}",
            "leafhost.dev/identity",
            "path",
        ),
        ("{udevRules: [], group: all}", "group", "hardware"),
        (
            "{udevRules: [], group: hardware, groupRecursive: true}",
            "group",
            "groupRecursive: true; remove one of them",
        ),
        (
            "{udevRules: [], nodes: ['KERNEL==\"a\"']}",
            "nodes",
            "add group: hardware",
        ),
        (
            "{udevRules: [], with: ['KERNEL==\"a\"']}",
            "with",
            "add group: hardware",
        ),
        (
            "{udevRules: [], group: hardware, nodes: [''], with: []}",
            "nodes[0]",
            "empty",
        ),
        (
            "{udevRules: [], group: hardware, with: ['KERNEL==\"a\"', 'X']}",
            "with[1]",
            "unknown field X",
        ),
        (together.as_str(), "with", "64 rules in all, at most 63"),
        (terms.as_str(), "udevRules", "270 terms in all, at most 256"),
        (many.as_str(), "udevRules", "more than 63 rules"),
        (wide.as_str(), "udevRules", "270 terms in all, at most 256"),
    ];
    for (text, path, words) in table {
        let problems = validate::<Udev>(text);
        assert_eq!(problems.len(), 1, "{text}: {problems:?}");
        assert_eq!(problems[0].path, path, "{text}: {problems:?}");
        assert!(problems[0].message.contains(words), "{text}: {problems:?}");
    }
    let two = validate::<Udev>("{udevRules: ['', 'KERNEL==\"a\"', 'X']}");
    assert_eq!(two.len(), 2, "every wrong rule is named");
}

#[test]
fn the_description_is_valid() {
    assert_eq!(description_problems::<Udev>(), Vec::<String>::new());
}

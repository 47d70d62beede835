//! Devices of one piece of hardware as one device.

use super::*;

const CAMERA: &str = "/devices/pci0000:00/0000:00:14.0/usb2/2-2";
const SECOND: &str = "/devices/pci0000:00/0000:00:14.0/usb2/2-3";
const GPU: &str = "/devices/pci0000:00/0000:00:01.0/0000:01:00.0";
const KFD: &str = "/devices/virtual/kfd/kfd";

fn usb(path: &str, node: &str, serial: &str) -> UdevDevice {
    UdevDevice::new(path)
        .subsystem("usb")
        .driver("usb")
        .devnode(node)
        .property("DEVTYPE", "usb_device")
        .property("PRODUCT", "8086/b3a/50d5")
        .attribute("serial", serial)
}

fn child(path: &str, subsystem: &str) -> UdevDevice {
    let name = path.rsplit('/').next().unwrap();
    let folder = match subsystem {
        "drm" => "dri/",
        "input" => "input/",
        _ => "",
    };
    UdevDevice::new(path)
        .subsystem(subsystem)
        .devnode(&format!("/dev/{folder}{name}"))
}

/// Creates two depth cameras, each with video nodes and a motion sensor.
fn mk_cameras() -> FakeHost {
    let mut host = FakeHost::new();
    for (path, node, serial, videos) in [
        (CAMERA, "/dev/bus/usb/002/002", "111", [9, 10, 2]),
        (SECOND, "/dev/bus/usb/002/003", "222", [11, 12, 13]),
    ] {
        let name = path.rsplit('/').next().unwrap();
        host = host.udev(usb(path, node, serial));
        let interface = |number: u8| format!("{path}/{name}:1.{number}");
        for number in [0, 3, 5] {
            host = host.udev(
                UdevDevice::new(&interface(number))
                    .subsystem("usb")
                    .driver("uvcvideo")
                    .property("DEVTYPE", "usb_interface"),
            );
        }
        for (video, number) in videos.into_iter().zip([0, 0, 3]) {
            let path = format!("{}/video4linux/video{video}", interface(number));
            host = host.udev(child(&path, "video4linux"));
        }
        let path = format!(
            "{}/0003:8086:0B3A.0001/hidraw/hidraw{}",
            interface(5),
            videos[0]
        );
        host = host.udev(child(&path, "hidraw"));
    }
    host
}

fn mk_gpus() -> FakeHost {
    let integrated = "/devices/pci0000:00/0000:00:02.0";
    FakeHost::new()
        .udev(UdevDevice::new(GPU).subsystem("pci").driver("amdgpu"))
        .udev(child(&format!("{GPU}/drm/card1"), "drm"))
        .udev(child(&format!("{GPU}/drm/renderD129"), "drm"))
        .udev(
            UdevDevice::new(integrated)
                .subsystem("pci")
                .driver("amdgpu"),
        )
        .udev(child(&format!("{integrated}/drm/renderD128"), "drm"))
        .udev(child(KFD, "kfd"))
}

fn paths(device: &Device) -> Vec<&str> {
    let nodes = device.device_nodes.iter();
    nodes.map(|node| node.host_path.as_str()).collect()
}

#[test]
fn all_matched_nodes_of_one_piece_of_hardware_are_one_device() {
    let host = mk_cameras();
    let rule = [r#"SUBSYSTEM=="video4linux", ATTRS{serial}=="*""#];
    let found = discover(&host, &rule, "group: hardware\npermissions: rw");
    assert_eq!(ids(&found), [CAMERA, SECOND]);
    let camera = &found.devices()[0];
    assert_eq!(
        nodes(camera),
        [
            ("/dev/video2", "rw"),
            ("/dev/video9", "rw"),
            ("/dev/video10", "rw")
        ]
    );
    for (name, value) in [
        ("UDEV_DEVPATH", CAMERA),
        ("UDEV_DEVNODE_0", "/dev/video2"),
        ("UDEV_DEVNODE_1", "/dev/video9"),
        ("UDEV_DEVNODE_2", "/dev/video10"),
    ] {
        assert_eq!(camera.get_property(name), Some(value));
    }
    assert_eq!(camera.get_property("UDEV_DEVNODE"), None);
    assert_eq!(camera.physical_id.as_deref(), Some("usb:8086:0b3a:@2-2"));
    assert_eq!(camera.get_attribute("modelID"), Some(&"0b3a".into()));
    assert_eq!(camera.get_attribute("devname"), Some(&"2-2".into()));
    assert_eq!(camera.get_attribute("interface"), None);
}

#[test]
fn ids_by_port_and_serial_number_are_those_of_the_hardware() {
    let rule = [r#"SUBSYSTEM=="video4linux|hidraw""#];
    for (identity, expected) in [
        ("port", "port:pci-0000:00:14.0/usb-2"),
        ("serial", "serial:8086:0b3a:111"),
    ] {
        let more = format!("group: hardware\nleafhost.dev/identity: {identity}");
        let found = discover(&mk_cameras(), &rule, &more);
        assert_eq!(ids(&found)[0], expected);
    }
}

#[test]
fn rules_for_nodes_select_the_nodes_and_do_not_find_hardware() {
    let rule = [r#"ATTR{serial}=="111""#];
    let more = "group: hardware\nnodes: ['SUBSYSTEM==\"video4linux\"', 'SUBSYSTEM==\"hidraw\"']\n\
                containerPath: /dev/camera%n";
    let found = discover(&mk_cameras(), &rule, more);
    assert_eq!(ids(&found), [CAMERA]);
    let camera = &found.devices()[0];
    let expected = ["/dev/hidraw9", "/dev/video2", "/dev/video9", "/dev/video10"];
    assert_eq!(paths(camera), expected);
    assert_eq!(camera.get_property("UDEV_DEVNODE_3"), Some("/dev/camera3"));
    // Without them the device has the nodes of the devices that match.
    let found = discover(&mk_cameras(), &rule, "group: hardware");
    assert_eq!(paths(&found.devices()[0]), ["/dev/bus/usb/002/002"]);
}

#[test]
fn hardware_without_any_such_node_is_explained() {
    let host = mk_cameras();
    let rule = [r#"ATTR{serial}=="111""#];
    let found = discover(
        &host,
        &rule,
        "group: hardware\nnodes: ['SUBSYSTEM==\"tty\"']",
    );
    assert_eq!(ids(&found), Vec::<&str>::new());
    let skipped = host.skipped();
    let one = skipped.iter().find(|one| one.rule == "nodes").unwrap();
    assert_eq!(one.subject, CAMERA);
    assert!(one.reason.contains("nothing to hand out"), "{one:?}");
}

#[test]
fn a_matched_device_without_a_node_does_not_add_the_node_of_the_whole_usb_device() {
    let keyboard = format!("{CAMERA}/2-2:1.0/0003:046D:C31C.0001/input/input7");
    let host = FakeHost::new()
        .udev(usb(CAMERA, "/dev/bus/usb/002/002", "1"))
        .udev(UdevDevice::new(&keyboard).subsystem("input"))
        .udev(child(&format!("{keyboard}/event3"), "input"));
    let found = discover(&host, &[r#"SUBSYSTEM=="input""#], "group: hardware");
    assert_eq!(ids(&found), [CAMERA]);
    assert_eq!(paths(&found.devices()[0]), ["/dev/input/event3"]);
    // Unless no matched device has a node.
    let found = discover(&host, &[r#"KERNEL=="input7""#], "group: hardware");
    assert_eq!(ids(&found), [CAMERA]);
    assert_eq!(paths(&found.devices()[0]), ["/dev/bus/usb/002/002"]);
}

#[test]
fn companions_belong_to_every_group() {
    let more = "group: hardware\nwith: ['KERNEL==\"kfd\"']\ncontainerPath: /dev/gpu%n";
    let found = discover(
        &mk_gpus(),
        &[r#"SUBSYSTEM=="drm", DRIVERS=="amdgpu""#],
        more,
    );
    assert_eq!(ids(&found), [GPU, "/devices/pci0000:00/0000:00:02.0"]);
    assert_eq!(
        paths(&found.devices()[1]),
        ["/dev/dri/renderD128", "/dev/kfd"]
    );
    let gpu = &found.devices()[0];
    assert_eq!(
        paths(gpu),
        ["/dev/dri/card1", "/dev/dri/renderD129", "/dev/kfd"]
    );
    // A companion keeps its path.
    assert_eq!(gpu.get_property("UDEV_DEVNODE_1"), Some("/dev/gpu1"));
    assert_eq!(gpu.get_property("UDEV_DEVNODE_2"), Some("/dev/kfd"));
    assert_eq!(gpu.physical_id.as_deref(), Some("pci:0000:01:00.0"));
    // A companion alone is no device.
    let found = discover(&mk_gpus(), &[r#"KERNEL=="card9""#], more);
    assert_eq!(ids(&found), Vec::<&str>::new());
}

#[test]
fn without_known_hardware_each_device_is_a_group() {
    let found = discover(&mk_host(), &[r#"KERNEL=="loop*""#], "group: hardware");
    assert_eq!(
        ids(&found),
        [
            "/devices/virtual/block/loop1",
            "/devices/virtual/block/loop10"
        ]
    );
}

#[test]
fn rules_for_nodes_and_companions_wake_and_cause_remarks_too() {
    let more = "group: hardware\nnodes: ['KERNEL==\"b\"']\nwith: ['DRIVERS==\"c.*\"']";
    let found = discover(&mk_host(), &[r#"KERNEL=="a""#], more);
    assert_eq!(
        found.wakes(),
        [
            Wake::Udev(vec![udev::kernel("a")]),
            Wake::Udev(vec![udev::kernel("b")]),
            Wake::Udev(vec![udev::Term {
                field: udev::Field::Drivers,
                key: None,
                negated: false,
                value: "c.*".to_owned(),
            }]),
            Wake::After(300_000),
        ]
    );
    let remarks = remarks::<Udev>(&details(&[r#"KERNEL=="a""#], more));
    assert_eq!(remarks.len(), 1);
    assert_eq!(remarks[0].path, "with[0]");
}

#[test]
fn the_group_that_owns_a_node_is_a_property() {
    let host = FakeHost::new()
        .udev(child("/devices/virtual/a/a0", "a").owner(0, 20))
        .udev(child("/devices/virtual/a/a1", "a"));
    let found = discover(&host, &[r#"SUBSYSTEM=="a""#], "");
    let [first, second] = found.devices() else {
        panic!("{found:?}");
    };
    assert_eq!(first.get_property("UDEV_GID"), Some("20"));
    assert_eq!(second.get_property("UDEV_GID"), None);
    let host = mk_gpus().udev(child(KFD, "kfd").owner(0, 109));
    let more = "group: hardware\nwith: ['KERNEL==\"kfd\"']";
    let found = discover(&host, &[r#"KERNEL=="renderD129""#], more);
    let gpu = &found.devices()[0];
    assert_eq!(gpu.get_property("UDEV_GID_0"), None);
    assert_eq!(gpu.get_property("UDEV_GID_1"), Some("109"));
}

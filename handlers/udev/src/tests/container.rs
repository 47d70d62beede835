//! Paths of nodes in the container.

use super::*;

const ZIGBEE: &str = "/devices/pci0000:00/0000:00:14.0/usb1/1-2/1-2:1.0/ttyUSB0/tty/ttyUSB0";
const LINK: &str = "/dev/serial/by-id/usb-ITead_Sonoff_Zigbee_3.0_USB_Dongle_Plus_3e2d-if00-port0";

fn mk_stick(links: &str) -> FakeHost {
    FakeHost::new().udev(
        UdevDevice::new(ZIGBEE)
            .subsystem("tty")
            .devnode("/dev/ttyUSB0")
            .property("DEVLINKS", links),
    )
}

fn places(device: &Device) -> Vec<(&str, &str)> {
    let nodes = device.device_nodes.iter();
    nodes
        .map(|node| (node.host_path.as_str(), node.container_path.as_str()))
        .collect()
}

#[test]
fn a_node_has_the_path_that_the_details_give_it() {
    let more = "containerPath: /dev/zigbee\npermissions: rw";
    let found = discover(&mk_stick(LINK), &[r#"SUBSYSTEM=="tty""#], more);
    let stick = &found.devices()[0];
    assert_eq!(places(stick), [("/dev/ttyUSB0", "/dev/zigbee")]);
    assert_eq!(stick.device_nodes[0].permissions, "rw");
    assert_eq!(stick.get_property("UDEV_DEVNODE"), Some("/dev/zigbee"));
    assert_eq!(stick.id, ZIGBEE);
}

#[test]
fn the_address_for_kubevirt_is_that_of_the_node_on_the_host() {
    let details = details(&[r#"KERNEL=="1-1""#], "containerPath: /dev/stick");
    let found = Call::<Udev>::new(&details)
        .property("devicePluginResourceName", "a/b")
        .run(&mk_host())
        .unwrap();
    let device = &found.devices()[0];
    assert_eq!(device.get_property("USB_RESOURCE_A_B"), Some("1:2"));
}

#[test]
fn several_nodes_of_a_device_are_numbered() {
    let rules = [r#"KERNEL=="video*""#, r#"ENV{DEVTYPE}=="usb_device""#];
    let host = mk_host();
    let more = "groupRecursive: true\ncontainerPath: /dev/camera%n";
    let found = discover(&host, &rules, more);
    assert_eq!(
        places(&found.devices()[0]),
        [
            ("/dev/bus/usb/001/002", "/dev/camera0"),
            ("/dev/video0", "/dev/camera1"),
            ("/dev/video1", "/dev/camera2")
        ]
    );
    assert_eq!(host.skipped(), []);
}

#[test]
fn without_a_number_only_the_first_node_gets_the_path() {
    let rules = [r#"KERNEL=="video*""#, r#"ENV{DEVTYPE}=="usb_device""#];
    let host = mk_host();
    let more = "groupRecursive: true\ncontainerPath: /dev/camera";
    let found = discover(&host, &rules, more);
    let camera = &found.devices()[0];
    assert_eq!(
        places(camera),
        [
            ("/dev/bus/usb/001/002", "/dev/camera"),
            ("/dev/video0", "/dev/video0"),
            ("/dev/video1", "/dev/video1")
        ]
    );
    assert_eq!(camera.get_property("UDEV_DEVNODE_0"), Some("/dev/camera"));
    assert_eq!(camera.get_property("UDEV_DEVNODE_1"), Some("/dev/video0"));
    let skipped = host.skipped();
    assert_eq!(skipped.len(), 2);
    assert_eq!(skipped[0].subject, USB);
    assert_eq!(skipped[0].rule, "containerPath");
    assert!(skipped[0].reason.contains("write %n"), "{skipped:?}");
}

#[test]
fn two_nodes_of_a_device_do_not_get_one_path() {
    let host = mk_host();
    let rules = [r#"KERNEL=="video*""#, r#"ENV{DEVTYPE}=="usb_device""#];
    let more = "groupRecursive: true\ncontainerPath: /dev/video1";
    let found = discover(&host, &rules, more);
    assert_eq!(
        places(&found.devices()[0]),
        [
            ("/dev/bus/usb/001/002", "/dev/video1"),
            ("/dev/video0", "/dev/video0"),
        ]
    );
    let skipped = host.skipped();
    assert!(
        skipped
            .iter()
            .any(|one| one.reason.contains("two nodes have the path /dev/video1")),
        "{skipped:?}"
    );
}

#[test]
fn links_are_nodes_with_the_names_that_udev_gives() {
    let path = "/dev/serial/by-path/pci-0000:00:14.0-usb-0:2:1.0-port0";
    let links = format!(
        "{path} {LINK} /dev/my-zigbee /dev/disk/by-label/a /dev/by-id/../../etc/b /etc/by-id/c"
    );
    let rule = [r#"SUBSYSTEM=="tty""#];
    let found = discover(&mk_stick(&links), &rule, "links: true\npermissions: rw");
    let stick = &found.devices()[0];
    assert_eq!(
        places(stick),
        [
            ("/dev/ttyUSB0", "/dev/ttyUSB0"),
            ("/dev/ttyUSB0", LINK),
            ("/dev/ttyUSB0", path)
        ]
    );
    assert!(
        stick
            .device_nodes
            .iter()
            .all(|node| node.permissions == "rw")
    );
    assert_eq!(stick.get_property("UDEV_DEVNODE"), Some("/dev/ttyUSB0"));
    let found = discover(&mk_stick(&links), &rule, "");
    assert_eq!(found.devices()[0].device_nodes.len(), 1);
}

#[test]
fn links_are_bounded_and_the_rest_is_explained() {
    let links: Vec<String> = (10..30).map(|n| format!("/dev/disk/by-id/{n}")).collect();
    let host = mk_stick(&links.join(" "));
    let found = discover(&host, &[r#"SUBSYSTEM=="tty""#], "links: true");
    let nodes = places(&found.devices()[0]);
    assert_eq!(nodes.len(), 17);
    assert_eq!(nodes[1].1, "/dev/disk/by-id/10");
    let skipped = host.skipped();
    assert_eq!(skipped.len(), 1);
    assert_eq!(skipped[0].rule, "links");
    assert!(
        skipped[0].reason.contains("4 names more than the 16"),
        "{skipped:?}"
    );
}

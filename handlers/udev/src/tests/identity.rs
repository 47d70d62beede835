//! Ids by port and by serial number.

use super::*;

const HUB2: &str = "/devices/pci0000:00/0000:00:14.0/usb1";
const HUB3: &str = "/devices/pci0000:00/0000:00:14.0/usb2";

fn hub(path: &str, version: u8) -> UdevDevice {
    UdevDevice::new(path)
        .subsystem("usb")
        .property("DEVTYPE", "usb_device")
        .property("PRODUCT", &format!("1d6b/{version}/515"))
}

/// Adds a USB device and its first interface.
fn stick(host: FakeHost, path: &str, product: &str, serial: Option<&str>) -> FakeHost {
    let usb = UdevDevice::new(path)
        .subsystem("usb")
        .devnode("/dev/bus/usb/001/002")
        .property("DEVTYPE", "usb_device")
        .property("PRODUCT", product);
    let usb = match serial {
        Some(serial) => usb.attribute("serial", serial),
        None => usb,
    };
    host.udev(usb).udev(
        UdevDevice::new(&interface(path, 0))
            .subsystem("usb")
            .property("DEVTYPE", "usb_interface"),
    )
}

fn interface(path: &str, number: u8) -> String {
    let device = path.rsplit('/').next().unwrap();
    format!("{path}/{device}:1.{number}")
}

fn node(path: &str, subsystem: &str) -> UdevDevice {
    let name = path.rsplit('/').next().unwrap();
    UdevDevice::new(path)
        .subsystem(subsystem)
        .devnode(&format!("/dev/{name}"))
}

fn found(host: &FakeHost, rules: &[&str], identity: &str) -> Vec<String> {
    let more = format!("leafhost.dev/identity: {identity}");
    let found = discover(host, rules, &more);
    ids(&found).into_iter().map(str::to_owned).collect()
}

/// Returns the explanations of ids.
fn explained(host: &FakeHost) -> Vec<String> {
    let skipped = host.skipped().into_iter();
    let of_ids = skipped.filter(|one| one.rule.starts_with("leafhost.dev/identity: "));
    of_ids.map(|one| one.reason).collect()
}

/// Creates a serial converter with two ports, each with these numbers.
fn mk_serial(hub_path: &str, port: &str, numbers: [u8; 2], serial: Option<&str>) -> FakeHost {
    let path = format!("{hub_path}/{port}");
    let mut host = FakeHost::new().udev(hub(hub_path, 2));
    host = stick(host, &path, "403/6010/700", serial);
    for (number, at) in numbers.into_iter().zip(0..) {
        let parent = format!("{}/ttyUSB{number}", interface(&path, 0));
        host = host
            .udev(
                UdevDevice::new(&parent)
                    .subsystem("usb-serial")
                    .attribute("port_number", &format!("{at}")),
            )
            .udev(node(&format!("{parent}/tty/ttyUSB{number}"), "tty"));
    }
    host
}

#[test]
fn by_default_the_id_is_the_path() {
    let host = mk_serial(HUB2, "1-2", [0, 1], Some("A"));
    let rule = [r#"SUBSYSTEM=="tty", KERNEL=="ttyUSB0""#];
    let path = format!("{HUB2}/1-2/1-2:1.0/ttyUSB0/tty/ttyUSB0");
    assert_eq!(found(&host, &rule, "path"), [path.as_str()]);
    assert_eq!(ids(&discover(&host, &rule, "")), [path.as_str()]);
}

#[test]
fn an_id_by_port_has_no_number_of_the_kernel() {
    let rule = [r#"SUBSYSTEM=="tty""#];
    let expected = [
        "port:pci-0000:00:14.0/usbv2-2/1.0/tty/ttyUSB/0",
        "port:pci-0000:00:14.0/usbv2-2/1.0/tty/ttyUSB/1",
    ];
    let mut host = mk_serial(HUB2, "1-2", [0, 1], Some("A"));
    assert_eq!(found(&host, &rule, "port"), expected);
    // Another number of the bus, and the ports in another order.
    let hub = HUB2.replace("usb1", "usb5");
    host = mk_serial(&hub, "5-2", [3, 0], None);
    let mut ids = found(&host, &rule, "port");
    ids.sort();
    assert_eq!(ids, expected);
    let last = Call::<Udev>::new(&details(&rule, "leafhost.dev/identity: port"))
        .run(&host)
        .unwrap();
    let second = &last.devices()[0];
    assert_eq!(second.id, expected[1]);
    assert_eq!(second.get_property("UDEV_DEVNODE"), Some("/dev/ttyUSB0"));
}

#[test]
fn video_nodes_are_numbered_by_their_driver_and_others_by_the_order_of_their_names() {
    let path = format!("{HUB2}/1-1");
    let interface = interface(&path, 0);
    let mut host = stick(FakeHost::new().udev(hub(HUB2, 2)), &path, "1/2/3", None);
    for (number, index) in [(10, "0"), (2, "1")] {
        let path = format!("{interface}/video4linux/video{number}");
        host = host.udev(node(&path, "video4linux").attribute("index", index));
    }
    for (input, event) in [(9, 9), (12, 10)] {
        let hid = format!("{interface}/0003:046D:C52B.00{input:02}");
        host = host
            .udev(UdevDevice::new(&hid).subsystem("hid"))
            .udev(node(
                &format!("{hid}/input/input{input}/event{event}"),
                "input",
            ))
            .udev(node(&format!("{hid}/hidraw/hidraw{event}"), "hidraw"));
    }
    let rules = [r#"KERNEL=="video*|event*|hidraw*""#];
    let more = "leafhost.dev/identity: port";
    let answer = discover(&host, &rules, more);
    let mut known: Vec<(&str, &str)> = answer
        .devices()
        .iter()
        .map(|device| {
            let id = device.id.strip_prefix("port:pci-0000:00:14.0/usbv2-1/1.0/");
            (device.get_property("UDEV_DEVNODE").unwrap(), id.unwrap())
        })
        .collect();
    known.sort_unstable();
    assert_eq!(
        known,
        [
            ("/dev/event10", "hid/input/input/event/1"),
            ("/dev/event9", "hid/input/input/event/0"),
            ("/dev/hidraw10", "hid/hidraw/1"),
            ("/dev/hidraw9", "hid/hidraw/0"),
            ("/dev/video10", "video4linux/video/0"),
            ("/dev/video2", "video4linux/video/1"),
        ]
    );
    assert_eq!(host.skipped(), []);
}

#[test]
fn a_receiver_keeps_the_order_of_its_devices_when_the_kernel_counts_on() {
    let path = format!("{HUB2}/1-1");
    for counters in ["0008 0009", "0009 000A", "000F 0010"] {
        let mut host = stick(FakeHost::new().udev(hub(HUB2, 2)), &path, "1/2/3", None);
        for (counter, number) in counters.split(' ').zip(0..) {
            let hid = format!("{}/0003:046D:4054.{counter}", interface(&path, 0));
            let name = format!("hidraw{number}");
            host = host.udev(node(&format!("{hid}/hidraw/{name}"), "hidraw"));
        }
        let more = "leafhost.dev/identity: port";
        let answer = discover(&host, &[r#"SUBSYSTEM=="hidraw""#], more);
        for device in answer.devices() {
            let node = device.get_property("UDEV_DEVNODE").unwrap();
            let number = node.strip_prefix("/dev/hidraw").unwrap();
            let expected = format!("port:pci-0000:00:14.0/usbv2-1/1.0/hid/hidraw/{number}");
            assert_eq!(device.id, expected, "{counters}");
        }
        assert_eq!(answer.devices().len(), 2);
    }
}

#[test]
fn a_usb_device_keeps_its_id_with_another_product_id() {
    let rule = [r#"ENV{DEVTYPE}=="usb_device", KERNEL=="*-*""#];
    let ids = |path: &str, product| {
        let host = FakeHost::new().udev(hub(HUB2, 2)).udev(hub(HUB3, 3));
        found(&stick(host, path, product, None), &rule, "port")
    };
    let path = format!("{HUB3}/2-1/2-1.4");
    let before = ids(&path, "1a6e/89a/100");
    assert_eq!(before, ["port:pci-0000:00:14.0/usbv3-1.4"]);
    assert_eq!(ids(&path, "18d1/9302/100"), before);
    // The same number of the port for USB 2 may be another socket.
    let other = ids(&format!("{HUB2}/1-1/1-1.4"), "18d1/9302/100");
    assert_eq!(other, ["port:pci-0000:00:14.0/usbv2-1.4"]);
}

#[test]
fn ports_of_other_buses() {
    let platform = "/devices/platform/soc/fe980000.usb/xhci-hcd.3.auto/usb3/3-1";
    let sata = "/devices/pci0000:00/0000:00:17.0/ata2/host1/target1:0:0/1:0:0:0/block";
    let reader =
        "/devices/pci0000:00/0000:00:14.0/usb1/1-3/1-3:1.0/host6/target6:0:0/6:0:0:1/block";
    for (path, subsystem, expected) in [
        (
            format!("{platform}/3-1:1.0/tty/ttyACM4"),
            "tty",
            "port:platform/soc/fe980000.usb/xhci-hcd.auto/usb-1/1.0/tty/ttyACM/0",
        ),
        (
            format!("{sata}/sdb"),
            "block",
            "port:pci-0000:00:17.0/ata2/host/target:0:0/0:0:0/block/sd/0",
        ),
        (
            format!("{sata}/sdb/sdb3"),
            "block",
            "port:pci-0000:00:17.0/ata2/host/target:0:0/0:0:0/block/sd/sd3/0",
        ),
        (
            format!("{reader}/sdg"),
            "block",
            "port:pci-0000:00:14.0/usb-3/1.0/host/target:0:0/0:0:1/block/sd/0",
        ),
        (
            "/devices/pci0000:00/0000:00:1d.0/0000:03:00.0/nvme/nvme1/nvme1n1".to_owned(),
            "block",
            "port:pci-0000:03:00.0/nvme/nvme/nvmen1/0",
        ),
        (
            "/devices/pci0000:00/0000:00:01.0/0000:01:00.0/drm/renderD129".to_owned(),
            "drm",
            "port:pci-0000:01:00.0/drm/renderD/0",
        ),
        (
            "/devices/pci0000:00/0000:00:1f.3/sound/card2/pcmC2D0p".to_owned(),
            "sound",
            "port:pci-0000:00:1f.3/sound/card/pcmCD0p/0",
        ),
        (
            "/devices/pci0000:00/0000:00:15.0/i2c_designware.1/i2c-5/i2c-dev/i2c-5".to_owned(),
            "i2c-dev",
            "port:pci-0000:00:15.0/i2c_designware./i2c-dev/i2c-/0",
        ),
        (
            "/devices/pci0000:00/0000:00:05.0/video4linux/v4l-subdev3".to_owned(),
            "video4linux",
            "port:pci-0000:00:05.0/video4linux/v4l-subdev/0",
        ),
        (
            "/devices/platform/soc/fe201000.serial/tty/ttyAMA0".to_owned(),
            "tty",
            "port:platform/soc/fe201000.serial/tty/ttyAMA0",
        ),
        (
            "/devices/platform/soc/fe801000.csi/video4linux/video3".to_owned(),
            "video4linux",
            "port:platform/soc/fe801000.csi/video4linux/video/0",
        ),
        (
            format!("{USB}/1-1:1.0/net/usb0"),
            "net",
            "port:pci-0000:00:14.0/usb-1/1.0/net/usb/0",
        ),
        (
            "/devices/pci0000:00/0000:00:1f.6/net/usb0".to_owned(),
            "net",
            "port:pci-0000:00:1f.6/net/usb/0",
        ),
        (
            "/devices/virtual/block/loop3".to_owned(),
            "block",
            "/devices/virtual/block/loop3",
        ),
    ] {
        let device = node(&path, subsystem);
        let device = if subsystem == "video4linux" {
            device.attribute("index", "0\n")
        } else {
            device
        };
        let host = FakeHost::new().udev(device);
        assert_eq!(
            found(&host, &[r#"KERNEL=="*""#], "port"),
            [expected],
            "{path}"
        );
    }
}

#[test]
fn an_id_by_serial_number_is_the_same_at_another_port() {
    let rule = [r#"SUBSYSTEM=="tty""#];
    let expected = [
        "serial:0403:6010:FT-1/1.0/tty/ttyUSB/0",
        "serial:0403:6010:FT-1/1.0/tty/ttyUSB/1",
    ];
    for (hub, port, numbers) in [(HUB2, "1-2", [0, 1]), (HUB2, "1-4", [5, 6])] {
        let host = mk_serial(hub, port, numbers, Some("FT-1"));
        assert_eq!(found(&host, &rule, "serial"), expected, "{port}");
        assert_eq!(host.skipped(), []);
    }
    // The whole USB device.
    let host = mk_serial(HUB2, "1-2", [0, 1], Some("FT-1"));
    let usb = found(&host, &[r#"KERNEL=="1-2""#], "serial");
    assert_eq!(usb, ["serial:0403:6010:FT-1"]);
}

#[test]
fn a_disk_keeps_its_id_at_another_controller() {
    for controller in ["0000:00:17.0/ata2/host1", "0000:02:00.0/ata7/host6"] {
        let disk = node(
            &format!("/devices/pci0000:00/{controller}/block/sdb"),
            "block",
        )
        .property("ID_SERIAL_SHORT", "S3Z9")
        .property("ID_MODEL", "SSD_860");
        let host = FakeHost::new()
            .udev(UdevDevice::new("/devices/pci0000:00/0000:00:17.0").subsystem("pci"))
            .udev(UdevDevice::new("/devices/pci0000:00/0000:02:00.0").subsystem("pci"))
            .udev(disk);
        assert_eq!(
            found(&host, &[r#"KERNEL=="sdb""#], "serial"),
            ["serial::SSD_860:S3Z9/block/sd/0"]
        );
    }
}

#[test]
fn without_a_serial_number_the_id_is_that_of_the_port() {
    let host = mk_serial(HUB2, "1-2", [0, 1], None);
    assert_eq!(
        found(&host, &[r#"SUBSYSTEM=="tty", KERNEL=="ttyUSB0""#], "serial"),
        ["port:pci-0000:00:14.0/usbv2-2/1.0/tty/ttyUSB/0"]
    );
    let explained = explained(&host);
    assert_eq!(explained.len(), 1, "{explained:?}");
    assert!(explained[0].contains("no serial number"), "{explained:?}");
}

#[test]
fn devices_with_equal_serial_numbers_have_the_ids_of_their_ports() {
    let mut host = FakeHost::new().udev(hub(HUB2, 2));
    for port in ["1-1", "1-2", "1-3"] {
        let path = format!("{HUB2}/{port}");
        let serial = if port == "1-3" { "B" } else { "0001" };
        host = stick(host, &path, "10c4/ea60/100", Some(serial));
    }
    assert_eq!(
        found(
            &host,
            &[r#"ENV{DEVTYPE}=="usb_device", KERNEL=="1-*""#],
            "serial"
        ),
        [
            "port:pci-0000:00:14.0/usbv2-1",
            "port:pci-0000:00:14.0/usbv2-2",
            "serial:10c4:ea60:B"
        ]
    );
    let explained = explained(&host);
    assert_eq!(explained.len(), 2, "{explained:?}");
    assert!(explained[0].contains("1-2 has the same"), "{explained:?}");
}

#[test]
fn ids_that_would_be_equal_are_the_paths() {
    // Two controllers that only the counter of the kernel distinguishes.
    let path =
        |number: u8| format!("/devices/platform/x/xhci-hcd.{number}.auto/usb{number}/{number}-1");
    let mut host = FakeHost::new();
    for number in [1, 2] {
        host = stick(host, &path(number), "1/2/3", None);
    }
    let rule = [r#"ENV{DEVTYPE}=="usb_device""#];
    assert_eq!(found(&host, &rule, "port"), [path(1), path(2)]);
    let skipped = host.skipped();
    assert_eq!(skipped.len(), 2);
    assert!(
        skipped[0]
            .reason
            .contains("another device has the id port:platform/x/xhci-hcd.auto/usb-1"),
        "{skipped:?}"
    );
}

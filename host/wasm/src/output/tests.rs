use leafhost_grants::{Grants, Resolved, Secrets};

use super::*;
use crate::bindings::leafhost::udev::types as udev_types;

const GRANTS: &str = r#"
udev: {subsystems: ["*"]}
devices: {nodes: [udev, "/dev/vfio/*"], mounts: ["/run/udev:ro", "/srv/*:rw", "/a*:ro"], env: ["UDEV_*"]}
"#;

/// Makes a device invalid.
type Break = fn(&mut types::Device);

fn raw(id: &str) -> types::Device {
    types::Device {
        id: id.to_owned(),
        shared: None,
        physical_id: None,
        properties: Vec::new(),
        mounts: Vec::new(),
        device_nodes: Vec::new(),
        attributes: Vec::new(),
        capacity: Vec::new(),
        health: types::Health::Healthy,
    }
}

fn node(path: &str) -> types::DeviceNode {
    types::DeviceNode {
        container_path: path.to_owned(),
        host_path: path.to_owned(),
        permissions: "rw".to_owned(),
    }
}

fn mount(container: &str, host: &str, read_only: bool) -> types::Mount {
    types::Mount {
        container_path: container.to_owned(),
        host_path: host.to_owned(),
        read_only,
    }
}

/// Resolves paths of a machine that has only a few.
fn machine(path: &str) -> std::io::Result<Resolved> {
    const FAR: &str = concat!("/srv/", "0123456789012345678901234567890123456789");
    let (path, is_node) = match path {
        "/dev/video0" | "/dev/vfio/7" => (path, true),
        "/dev/vfio/link" => ("/dev/sda", true),
        "/dev/vfio/line" => ("/dev/vfio/a\nb", true),
        "/srv/root" => ("/", false),
        "/srv/far" => (FAR, false),
        "/dev/vfio/out" => ("/etc/shadow", false),
        "/dev/vfio/folder" => ("/dev/vfio/folder", false),
        "/run/udev" | "/srv/data" => (path, false),
        _ => return Err(std::io::ErrorKind::NotFound.into()),
    };
    Ok(Resolved {
        path: path.to_owned(),
        is_node,
    })
}

fn discovery(list: Vec<types::Device>, secrets: &Secrets) -> Discovery {
    let grants = Grants::parse(GRANTS).unwrap();
    let udev_nodes = BTreeSet::from(["/dev/video0".to_owned()]);
    let bounds = Bounds {
        grants: &grants,
        shared: true,
        secrets,
        udev_nodes: &udev_nodes,
        resolve: &machine,
    };
    super::discovery(types::Devices::Complete(list), Vec::new(), &bounds).unwrap()
}

fn check(device: types::Device) -> Result<Device, String> {
    let discovery = discovery(vec![device], &Secrets::default());
    let Devices::Complete(mut devices) = discovery.devices else {
        return Err("not complete".to_owned());
    };
    devices
        .pop()
        .ok_or_else(|| discovery.left_out.shown[0].reason.clone())
}

#[test]
fn what_is_granted_is_handed_out() {
    let mut device = raw("d");
    device.properties = vec![("UDEV_DEVNODE".into(), "/dev/video0".into())];
    device.device_nodes = vec![node("/dev/video0"), node("/dev/vfio/7")];
    device.mounts = vec![
        mount("/run/udev", "/run/udev", true),
        mount("/data", "/srv/data", false),
    ];
    let device = check(device).unwrap();
    assert!(device.shared);
    assert_eq!(device.nodes.len(), 2);
    assert_eq!(device.mounts.len(), 2);
}

#[test]
fn a_node_that_the_handler_has_not_seen_in_this_call_has_lost_no_grant() {
    let table: [(Break, Option<&str>); 2] = [
        (|d| d.device_nodes = vec![node("/dev/sda")], None),
        (
            |d| d.mounts = vec![mount("/x", "/etc/ssl", true)],
            Some("/x"),
        ),
    ];
    for (breaks, item) in table {
        let mut device = raw("d");
        breaks(&mut device);
        let found = discovery(vec![device], &Secrets::default());
        let ungranted = found.left_out.ungranted.get("d").map(String::as_str);
        assert_eq!(ungranted, item, "{:?}", found.left_out);
    }
}

#[test]
fn what_is_not_granted_leaves_the_device_out_and_says_why() {
    let table: [(Break, &str); 22] = [
        (
            |d| d.properties = vec![("OTHER".into(), String::new())],
            "OTHER is not granted",
        ),
        (
            |d| d.properties = vec![("LD_PRELOAD".into(), String::new())],
            "LD_PRELOAD is not granted",
        ),
        (
            |d| d.properties = vec![("UDEV_A".into(), "1".into()), ("UDEV_A".into(), "2".into())],
            "specified twice",
        ),
        (
            |d| d.device_nodes = vec![node("/dev/sda")],
            "/dev/sda is not granted",
        ),
        (
            |d| d.device_nodes = vec![node("/dev/vfio/link")],
            "leads to /dev/sda, which is not granted",
        ),
        (
            |d| d.device_nodes = vec![node("/dev/vfio/out")],
            "leads to /etc/shadow",
        ),
        (
            |d| d.device_nodes = vec![node("/dev/vfio/folder")],
            "is not a device node",
        ),
        (
            |d| d.device_nodes = vec![node("/dev/vfio/none")],
            "cannot hand out",
        ),
        (|d| d.device_nodes = vec![node("/dev/vfio/../sda")], "'..'"),
        (
            |d| {
                d.device_nodes = vec![types::DeviceNode {
                    container_path: "/etc/x".into(),
                    ..node("/dev/video0")
                }];
            },
            "below /dev",
        ),
        (
            |d| {
                d.device_nodes = vec![types::DeviceNode {
                    container_path: "/dev/null".into(),
                    ..node("/dev/video0")
                }];
            },
            "would replace",
        ),
        (
            |d| {
                d.device_nodes = vec![types::DeviceNode {
                    permissions: "x".into(),
                    ..node("/dev/video0")
                }];
            },
            "rwm",
        ),
        (
            |d| d.mounts = vec![mount("/run/udev", "/run/udev", false)],
            "not granted",
        ),
        (
            |d| d.mounts = vec![mount("/x", "/etc/ssl", true)],
            "/etc/ssl is not granted",
        ),
        (
            |d| d.mounts = vec![mount("/x", "/srv/root", true)],
            "leads to \"/\"",
        ),
        (
            |d| d.device_nodes = vec![node("/dev/vfio/line")],
            "control character",
        ),
        (
            |d| d.mounts = vec![mount("/x", "/srv/far", true); 4000],
            "bytes of text",
        ),
        (
            |d| d.mounts = vec![mount("/etc/x", "/run/udev", true)],
            "would cover",
        ),
        (
            |d| {
                d.attributes = ["a", "a"]
                    .map(|name| types::Attribute {
                        name: name.into(),
                        value: types::AttributeValue::Boolean(true),
                    })
                    .into();
            },
            "specified twice",
        ),
        (
            |d| {
                d.attributes = vec![types::Attribute {
                    name: "a".into(),
                    value: types::AttributeValue::Integer(1),
                }];
                d.capacity = vec![("a".into(), "1".into())];
            },
            "specified twice",
        ),
        (
            |d| d.properties = vec![("UDEV_A".into(), "x".repeat(65 << 10))],
            "bytes of text",
        ),
        (|d| d.id = "a\nb".into(), "control character"),
    ];
    for (break_it, words) in table {
        let mut device = raw("d");
        break_it(&mut device);
        let reason = check(device).unwrap_err();
        assert!(reason.contains(words), "{reason:?} does not say {words:?}");
    }
}

#[test]
fn siblings_stay_and_the_first_of_two_counts() {
    let mut second = raw("a");
    second.shared = Some(false);
    let list = vec![raw("a"), second, raw(""), raw("b")];
    let discovery = discovery(list, &Secrets::default());
    let Devices::Complete(devices) = &discovery.devices else {
        panic!("{discovery:?}");
    };
    let ids: Vec<_> = devices.iter().map(|d| (d.id.as_str(), d.shared)).collect();
    assert_eq!(ids, [("a", true), ("b", true)]);
    assert_eq!(discovery.left_out.shown.len(), 2);
}

#[test]
fn of_many_that_are_left_out_a_hundred_are_shown_and_all_are_known() {
    let unfit = |number: usize| {
        let mut device = raw(&format!("{}{number}", "\u{1}".repeat(1000)));
        device.properties = vec![("NOT_GRANTED".into(), String::new())];
        device
    };
    let discovery = discovery((0..4096).map(unfit).collect(), &Secrets::default());
    let left_out = discovery.left_out;
    assert_eq!((left_out.shown.len(), left_out.more), (100, 3996));
    assert!(left_out.ids.contains(&unfit(4095).id));
    assert!(!left_out.ids.contains(&unfit(4096).id));
}

#[test]
fn a_secret_is_not_shown_in_quotes_either() {
    let secret = "p\"w\\d";
    let property = leafhost_core::session::Property {
        name: "password".into(),
        value: Some(format!("{secret}\nand \"another\" line").as_bytes().into()),
        secret: true,
    };
    let whole = leafhost_core::session::Property {
        name: "pin".into(),
        value: Some(secret.as_bytes().into()),
        secret: true,
    };
    let secrets = Secrets::new(&[property, whole]);
    let places: [Break; 4] = [
        |d| d.properties = vec![("p\"w\\d".into(), String::new())],
        |d| d.properties = vec![("and \"another\" line".into(), String::new())],
        |d| {
            d.device_nodes = vec![types::DeviceNode {
                permissions: "p\"w\\d".into(),
                ..node("/dev/video0")
            }];
        },
        |d| d.mounts = vec![mount("and \"another\" line", "/run/udev", true)],
    ];
    for hide in places {
        let mut device = raw("d");
        hide(&mut device);
        let left_out = discovery(vec![device], &secrets).left_out.shown;
        let reason = &left_out[0].reason;
        for shown in ["p\"w", "p\\\"w", "another"] {
            assert!(!reason.contains(shown), "{reason}");
        }
    }
}

#[test]
fn a_device_with_a_secret_is_left_out_and_the_secret_is_not_shown() {
    let property = leafhost_core::session::Property {
        name: "password".into(),
        value: Some(b"hunter2".as_slice().into()),
        secret: true,
    };
    let secrets = Secrets::new(&[property]);
    let number = leafhost_core::session::Property {
        name: "pin".into(),
        value: Some(b"4711".as_slice().into()),
        secret: true,
    };
    let mut device = raw("d");
    device.attributes = vec![types::Attribute {
        name: "a".into(),
        value: types::AttributeValue::Integer(4711),
    }];
    let left_out = discovery(vec![device], &Secrets::new(&[number]))
        .left_out
        .shown;
    assert!(left_out[0].reason.contains("secret property pin"));
    let places: [Break; 6] = [
        |d| d.id = "rtsp://a:hunter2@cam".into(),
        |d| d.physical_id = Some("hunter2".into()),
        |d| d.properties = vec![("UDEV_A".into(), "xhunter2".into())],
        |d| d.capacity = vec![("hunter2".into(), "1".into())],
        |d| d.health = types::Health::Unhealthy("login hunter2 failed".into()),
        |d| {
            d.attributes = vec![types::Attribute {
                name: "a".into(),
                value: types::AttributeValue::Text("hunter2".into()),
            }];
        },
    ];
    for hide in places {
        let mut device = raw("d");
        hide(&mut device);
        let left_out = discovery(vec![device], &secrets).left_out.shown;
        assert!(
            left_out[0].reason.contains("secret property password"),
            "{left_out:?}"
        );
        assert!(!format!("{left_out:?}").contains("hunter2"), "{left_out:?}");
    }
}

fn answer(devices: Vec<types::Device>) -> types::Discovery {
    types::Discovery {
        devices: types::Devices::Complete(devices),
        departed: Vec::new(),
        wake: Vec::new(),
        cursor: None,
    }
}

#[test]
fn an_answer_over_a_limit_is_refused_whole() {
    let many = |count: usize| vec![raw("d"); count];
    let texts = |bytes: usize| {
        let mut device = raw("d");
        device.properties = vec![("A".into(), "x".repeat(bytes))];
        vec![device; 128]
    };
    let cursor = |bytes: usize| types::Discovery {
        cursor: Some(vec![0; bytes]),
        ..answer(Vec::new())
    };
    let wakes = |count: usize| types::Discovery {
        wake: vec![types::Wake::Network; count],
        ..answer(Vec::new())
    };
    let wake = |wake: types::Wake| types::Discovery {
        wake: vec![wake],
        ..answer(Vec::new())
    };
    let group = |bytes: usize| {
        wake(types::Wake::Multicast(types::MulticastFilter {
            group: "x".repeat(bytes),
            port: 1,
            contains: Vec::new(),
        }))
    };
    let term = |bytes: usize| {
        wake(types::Wake::Udev(vec![udev_types::Term {
            field: udev_types::Field::Attr,
            key: Some("x".repeat(bytes)),
            negated: false,
            value: String::new(),
        }]))
    };
    let departed = |count: usize| types::Discovery {
        departed: vec!["d".into(); count],
        ..answer(Vec::new())
    };
    let bounds = Bounds {
        grants: &Grants::default(),
        shared: false,
        secrets: &Secrets::default(),
        udev_nodes: &BTreeSet::new(),
        resolve: &machine,
    };
    for (answer, good) in [
        (answer(many(4096)), true),
        (answer(many(4097)), false),
        (departed(4096), true),
        (departed(4097), false),
        (answer(texts(60 << 10)), true),
        (answer(texts(64 << 10)), false),
        (cursor(MAX_CURSOR), true),
        (cursor(MAX_CURSOR + 1), false),
        (wakes(64), true),
        (wakes(65), false),
        (group(8 << 20), true),
        (group((8 << 20) + 1), false),
        (term((8 << 20) + 1), false),
    ] {
        let weighed = weigh(&answer, &Limits::default())
            .and_then(|()| super::discovery(answer.devices, answer.departed, &bounds));
        assert_eq!(weighed.is_ok(), good);
        if let Err(fault) = weighed {
            assert_eq!(fault.reason, FaultReason::AnswerTooLarge);
        }
    }
}

#[test]
fn an_error_over_a_limit_is_refused() {
    let problem = |bytes: usize| types::Problem {
        path: "x".repeat(bytes),
        message: "x".repeat(bytes),
    };
    let invalid = |count| types::DiscoveryError::InvalidDetails(vec![problem(1 << 20); count]);
    let unavailable = |bytes| types::DiscoveryError::Unavailable("x".repeat(bytes));
    for (error, good) in [
        (invalid(4), true),
        (invalid(5), false),
        (unavailable(8 << 20), true),
        (unavailable((8 << 20) + 1), false),
    ] {
        let weighed = weigh_error(&error, &Limits::default());
        assert_eq!(weighed.is_ok(), good, "{weighed:?}");
    }
}

#[test]
fn departed_ids_are_distinct_and_well_formed() {
    let bounds = Bounds {
        grants: &Grants::default(),
        shared: false,
        secrets: &Secrets::default(),
        udev_nodes: &BTreeSet::new(),
        resolve: &machine,
    };
    let departed = ["a", "", "a", "b\n", "c"].map(str::to_owned).to_vec();
    let discovery = super::discovery(types::Devices::Unchanged, departed, &bounds).unwrap();
    assert_eq!(discovery.devices, Devices::Unchanged);
    assert_eq!(discovery.departed, ["a", "c"]);
}

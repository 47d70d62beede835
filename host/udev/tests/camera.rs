//! A USB camera with two video nodes, as umockdev shows it to the libraries that this process is linked with.
//!
//! umockdev is a preloaded library, so the test runs itself again under it.

use std::process::Command;

use leafhost_udev::{Device, Field, Rule, Subsystems, Term, find, read};

const INSIDE: &str = "LEAFHOST_TEST_INSIDE_UMOCKDEV";
const USB: &str = "/devices/pci0000:00/0000:00:14.0/usb1/1-1";
const VIDEO0: &str = "/devices/pci0000:00/0000:00:14.0/usb1/1-1/1-1:1.0/video4linux/video0";

type Outcome = Result<(), Box<dyn std::error::Error>>;

/// Runs `test` of this file with the camera plugged in; returns false if this already is that run.
fn goes_inside(test: &str) -> Result<bool, Box<dyn std::error::Error>> {
    if std::env::var_os(INSIDE).is_some() {
        return Ok(false);
    }
    let description = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/camera.umockdev");
    let run = Command::new("umockdev-run")
        .args(["--device", description, "--"])
        .arg(std::env::current_exe()?)
        .args(["--exact", test, "--nocapture"])
        .env(INSIDE, "1")
        .output();
    let output = match run {
        Ok(output) => output,
        Err(error) if std::env::var("CI").is_ok_and(|ci| ci == "true") => {
            return Err(format!("umockdev-run: {error}").into());
        }
        Err(error) => {
            eprintln!("skipped: umockdev-run: {error}; install it with: apt install umockdev");
            return Ok(true);
        }
    };
    let told = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success() && told.contains("1 passed"),
        "{told}{}",
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(true)
}

fn mk_rule(terms: &[(Field, &str, bool, &str)]) -> Result<Rule, Box<dyn std::error::Error>> {
    Ok(Rule::new(
        terms
            .iter()
            .map(|(field, key, equal, value)| Term {
                field: *field,
                key: field.has_key().then(|| (*key).to_owned()),
                negated: !equal,
                value: (*value).to_owned(),
            })
            .collect(),
    )?)
}

fn matched(devices: &[Device]) -> Vec<(&str, &[u32])> {
    devices
        .iter()
        .filter(|device| !device.rules.is_empty())
        .map(|device| (device.kernel.as_str(), device.rules.as_slice()))
        .collect()
}

#[test]
fn only_the_capture_node_is_found() -> Outcome {
    if goes_inside("only_the_capture_node_is_found")? {
        return Ok(());
    }
    let camera = mk_rule(&[
        (Field::Subsystem, "", true, "video4linux"),
        (Field::Env, "ID_V4L_CAPABILITIES", true, "*:capture:*"),
        (Field::Attrs, "idVendor", true, "046d"),
        (Field::Drivers, "", true, "usb"),
    ])?;
    let found = find(&[camera], &Subsystems::new(["*"]))?;
    assert_eq!(matched(&found.devices), [("video0", [0].as_slice())]);
    let kernels: Vec<&str> = found
        .devices
        .iter()
        .map(|device| device.kernel.as_str())
        .collect();
    assert_eq!(
        kernels,
        ["0000:00:14.0", "usb1", "1-1", "1-1:1.0", "video0"]
    );
    let video0 = found.devices.last().ok_or("nothing")?;
    assert_eq!(video0.devpath, VIDEO0);
    assert_eq!(video0.devnode.as_deref(), Some("/dev/video0"));
    assert_eq!(video0.tags, ["uaccess"]);
    let serial = ("ID_SERIAL_SHORT".to_owned(), "SN1".to_owned());
    assert!(video0.properties.contains(&serial), "{video0:?}");
    let note = found.notes.first().ok_or("video1 is nearly a camera")?;
    assert!(note.subject.ends_with("/video1"), "{note:?}");
    assert_eq!(
        note.reason,
        r#"ENV{ID_V4L_CAPABILITIES}=="*:capture:*" does not hold: ID_V4L_CAPABILITIES is ":""#
    );
    Ok(())
}

#[test]
fn rules_use_the_same_facts_as_udev() -> Outcome {
    if goes_inside("rules_use_the_same_facts_as_udev")? {
        return Ok(());
    }
    let rules = [
        mk_rule(&[(Field::Kernel, "", true, "video0|video1")])?,
        mk_rule(&[
            (Field::Kernels, "", true, "1-1:*"),
            (Field::Kernel, "", false, "1-1*"),
        ])?,
        mk_rule(&[(Field::Attr, "manufacturer", true, "Logitech")])?,
        mk_rule(&[(Field::Attr, "device/bInterfaceClass", true, "0e")])?,
        mk_rule(&[(Field::Tags, "", true, "uaccess")])?,
        mk_rule(&[
            (Field::Driver, "", true, "usb"),
            (Field::Env, "DEVTYPE", true, "usb_device"),
        ])?,
    ];
    let found = find(&rules, &Subsystems::new(["*"]))?;
    assert_eq!(
        matched(&found.devices),
        [
            ("1-1", [2, 5].as_slice()),
            ("video0", [0, 1, 3, 4].as_slice()),
            ("video1", [0, 1].as_slice())
        ]
    );
    Ok(())
}

#[test]
fn attributes_in_rules_have_the_same_values_as_in_udev() -> Outcome {
    if goes_inside("attributes_in_rules_have_the_same_values_as_in_udev")? {
        return Ok(());
    }
    let all = &["*"][..];
    let table: [(&[&str], &str, &str, &[&str]); 11] = [
        // Three links have a value, under their own names.
        (all, "driver", "uvcvideo", &["1-1:1.0"]),
        (all, "subsystem", "video4linux", &["video0", "video1"]),
        (all, "iommu_group", "*", &[]),
        (all, "device", "*", &[]),
        (all, "device/driver", "*", &[]),
        // A name may lead to other devices that may be seen.
        (all, "device/bInterfaceClass", "0e", &["video0"]),
        (all, "../../bInterfaceClass", "0e", &["video0", "video1"]),
        (all, "../video1/index", "1", &["video0", "video1"]),
        (&["video4linux"], "../../bInterfaceClass", "0e", &[]),
        // A text ends before its first NUL, and attributes that act on the hardware are not read.
        (all, "descriptors", "\u{12}?", &["1-1"]),
        (all, "config", "*", &[]),
    ];
    for (globs, name, value, expected) in table {
        let rule = mk_rule(&[(Field::Attr, name, true, value)])?;
        let found = find(&[rule], &Subsystems::new(globs))?;
        let kernels: Vec<&str> = matched(&found.devices)
            .iter()
            .map(|(name, _)| *name)
            .collect();
        assert_eq!(kernels, expected, "{name} for {globs:?}");
    }
    Ok(())
}

#[test]
fn attributes_are_read_within_the_chain_and_the_allowed_subsystems() -> Outcome {
    if goes_inside("attributes_are_read_within_the_chain_and_the_allowed_subsystems")? {
        return Ok(());
    }
    let pci = "/devices/pci0000:00/0000:00:14.0";
    let table: [(&[&str], &str, &str, Option<&str>); 17] = [
        (&["*"], VIDEO0, "name", Some("UVC Camera (046d:0825)")),
        (
            &["video4linux"],
            VIDEO0,
            "name",
            Some("UVC Camera (046d:0825)"),
        ),
        (&["usb"], VIDEO0, "name", None),
        (&["*"], VIDEO0, "device/bInterfaceClass", Some("0e")),
        (&["video4linux"], VIDEO0, "device/bInterfaceClass", None),
        (&["*"], VIDEO0, "absent", None),
        (&["*"], VIDEO0, "../video1/index", None),
        (&["*"], VIDEO0, "device/../../idVendor", None),
        (&["*"], VIDEO0, "/etc/hostname", None),
        (&["*"], VIDEO0, "", None),
        (&["*"], USB, "manufacturer", Some("Logitech  ")),
        (&["*"], USB, "1-1:1.0", None),
        (&["*"], USB, "descriptors", None),
        (&["*"], pci, "config", None),
        (&["*"], pci, "iommu_group", Some("7")),
        (&["*"], pci, "driver", Some("xhci_hcd")),
        (&["*"], "/class/video4linux/video0", "name", None),
    ];
    for (globs, devpath, name, expected) in table {
        let values = read(
            &[(devpath.to_owned(), name.to_owned())],
            &Subsystems::new(globs),
        )?;
        assert_eq!(
            values,
            [expected.map(str::to_owned)],
            "{devpath} {name} for {globs:?}"
        );
    }
    Ok(())
}

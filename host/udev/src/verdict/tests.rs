use super::*;
use crate::device_info::tests::Written;
use crate::rule::{InvalidRule, Term};

/// Builds a rule such as `FIELD{key}==value`; supports only the grammar that the tables need.
fn mk_rule(terms: &[(Field, &str, bool, &str)]) -> Result<Rule, InvalidRule> {
    Rule::new(
        terms
            .iter()
            .map(|(field, key, equal, value)| Term {
                field: *field,
                key: field.has_key().then(|| (*key).to_owned()),
                negated: !equal,
                value: (*value).to_owned(),
            })
            .collect(),
    )
}

type Terms<'a> = &'a [(Field, &'a str, bool, &'a str)];

fn mk_camera() -> [Written; 4] {
    [
        Written {
            devpath: "/devices/pci0000:00/0000:00:14.0/usb1/1-1/1-1:1.0/video4linux/video0",
            subsystem: Some("video4linux"),
            properties: vec![
                ("ID_V4L_CAPABILITIES", ":capture:"),
                ("ID_MODEL", "C270"),
                ("ID_VENDOR_ID", "046d"),
            ],
            attributes: vec![("name", "TestCam: UVC Camera"), ("model", "CAM 1   ")],
            tags: vec!["seat".into(), "uaccess".into()],
            ..Written::default()
        },
        Written {
            devpath: "/devices/pci0000:00/0000:00:14.0/usb1/1-1/1-1:1.0",
            subsystem: Some("usb"),
            driver: Some("uvcvideo"),
            ..Written::default()
        },
        Written {
            devpath: "/devices/pci0000:00/0000:00:14.0/usb1/1-1",
            subsystem: Some("usb"),
            driver: Some("usb"),
            attributes: vec![("idVendor", "046d"), ("idProduct", "0825")],
            tags: vec!["systemd".into()],
            ..Written::default()
        },
        Written {
            devpath: "/devices/pci0000:00/0000:00:14.0",
            subsystem: Some("pci"),
            driver: Some("xhci_hcd"),
            ..Written::default()
        },
    ]
}

fn judge_camera(terms: &[(Field, &str, bool, &str)]) -> Result<Verdict, InvalidRule> {
    let [own, ancestors @ ..] = mk_camera();
    let ancestors: Vec<&dyn DeviceInfo> = ancestors
        .iter()
        .map(|written| written as &dyn DeviceInfo)
        .collect();
    Ok(judge(&mk_rule(terms)?, &own, &ancestors))
}

#[test]
fn rules_hold_as_in_udev() -> Result<(), InvalidRule> {
    use Field::{
        Attr, Attrs, Devpath, Driver, Drivers, Env, Kernel, Kernels, Subsystem, Subsystems, Tag,
        Tags,
    };
    let path = "/devices/pci0000:00/0000:00:14.0/usb1/1-1/1-1:1.0/video4linux/video0";
    let table: [(Terms<'_>, bool); 58] = [
        // Two terms on one field must both hold.
        (
            &[
                (Env, "ID_MODEL", true, "C270"),
                (Env, "ID_VENDOR_ID", true, "046d"),
            ],
            true,
        ),
        (
            &[
                (Env, "ID_MODEL", true, "C270"),
                (Env, "ID_VENDOR_ID", true, "1234"),
            ],
            false,
        ),
        (
            &[(Kernel, "", true, "video*"), (Kernel, "", true, "*0")],
            true,
        ),
        (
            &[(Kernel, "", true, "video*"), (Kernel, "", true, "*1")],
            false,
        ),
        // A path names one device.
        (&[(Devpath, "", true, path)], true),
        (&[(Devpath, "", true, "/devices/virtual/mem/null")], false),
        (&[(Devpath, "", true, "*/video4linux/*")], true),
        (&[(Devpath, "", false, "*/usb1/*")], false),
        // Alternatives.
        (&[(Kernel, "", true, "audio0|video0")], true),
        (&[(Kernel, "", false, "audio0|video0")], false),
        (&[(Kernel, "", true, "video[0-9]*")], true),
        // Negations are globs.
        (&[(Kernel, "", false, "v*")], false),
        (&[(Kernel, "", false, "n*")], true),
        (&[(Kernel, "", false, "v.*")], true),
        (&[(Env, "ID_V4L_CAPABILITIES", false, "*:capture:*")], false),
        // Plural fields look at ancestors, singular ones do not.
        (&[(Kernels, "", true, "1-*")], true),
        (&[(Kernels, "", true, "video?")], true),
        (&[(Kernels, "", true, "2-*")], false),
        (&[(Kernels, "", false, "2-*")], true),
        (&[(Driver, "", true, "uvcvideo")], false),
        (&[(Drivers, "", true, "uvcvideo")], true),
        (&[(Subsystem, "", true, "usb")], false),
        (&[(Subsystems, "", true, "usb")], true),
        (&[(Attr, "idVendor", true, "046d")], false),
        (&[(Attrs, "idVendor", true, "046d")], true),
        (&[(Attrs, "idVendor", false, "046d")], false),
        (&[(Tag, "", true, "uaccess")], true),
        (&[(Tag, "", true, "systemd")], false),
        (&[(Tags, "", true, "systemd")], true),
        (&[(Tag, "", false, "seat")], false),
        // All plural terms hold at one and the same device, be it the device itself or one above it …
        (
            &[
                (Drivers, "", true, "xhci_hcd"),
                (Attrs, "idVendor", true, "046d"),
            ],
            false,
        ),
        (
            &[
                (Subsystems, "", true, "usb"),
                (Drivers, "", true, "usb"),
                (Attrs, "idVendor", true, "046d"),
                (Tags, "", true, "systemd"),
            ],
            true,
        ),
        (
            &[
                (Kernels, "", true, "video0"),
                (Tags, "", true, "seat"),
                (Subsystem, "", true, "video4linux"),
            ],
            true,
        ),
        (
            &[(Kernels, "", true, "video0"), (Drivers, "", true, "usb")],
            false,
        ),
        // … the negated ones too, so that alone they nearly always hold.
        (&[(Kernels, "", false, "1-*")], true),
        (&[(Subsystems, "", false, "video4linux")], true),
        (
            &[
                (Kernels, "", false, "1-*"),
                (Attrs, "idVendor", true, "046d"),
            ],
            false,
        ),
        (
            &[
                (Drivers, "", true, "usb|uvcvideo"),
                (Kernels, "", false, "1-1"),
            ],
            true,
        ),
        (
            &[
                (Attrs, "idVendor", true, "046d"),
                (Attrs, "idProduct", false, "0825"),
            ],
            false,
        ),
        // A term on an attribute that is absent does not hold, negated or not.
        (&[(Attr, "none", true, "*")], false),
        (&[(Attr, "none", true, "")], false),
        (&[(Attr, "none", false, "x")], false),
        (&[(Attrs, "none", false, "x")], false),
        (&[(Attr, "name", true, "*")], true),
        (&[(Attr, "name", false, "x")], true),
        (
            &[(Attr, "idVendor", false, "1234"), (Kernel, "", true, "v*")],
            false,
        ),
        // Without tags, none matches.
        (&[(Tag, "", true, "")], false),
        (&[(Tag, "", false, "")], true),
        (&[(Tags, "", true, "s*")], true),
        (
            &[(Tags, "", true, "*"), (Kernels, "", true, "1-1:1.0")],
            false,
        ),
        // Other absent fields are empty texts.
        (&[(Driver, "", true, "")], true),
        (&[(Driver, "", false, "vfio-pci")], true),
        (&[(Env, "NONE", true, "?*")], false),
        (&[(Env, "NONE", false, "1")], true),
        (&[(Env, "NONE", true, "*")], true),
        // White space at the end of an attribute counts only if the pattern has some.
        (&[(Attr, "model", true, "CAM 1")], true),
        (&[(Attr, "model", true, "CAM 1 ")], false),
        (&[(Attr, "model", true, "CAM 1   ")], true),
    ];
    for (terms, expected) in table {
        let verdict = judge_camera(terms)?;
        let holds = matches!(&verdict, Verdict::Holds { as_regex } if as_regex.is_empty());
        assert_eq!(holds, expected, "{}: {verdict:?}", mk_rule(terms)?);
    }
    Ok(())
}

#[test]
fn a_regular_expression_matches_where_akri_read_it_and_leaves_a_note() -> Result<(), InvalidRule> {
    use Field::{
        Attr, Attrs, Devpath, Driver, Drivers, Env, Kernel, Kernels, Subsystems, Tag, Tags,
    };
    let table = [
        (Kernels, "", r"0000:00:[0-9]+\.0", true, Some(vec![1])),
        (Drivers, "", "uvc.*", true, Some(vec![1])),
        (Subsystems, "", "(usb|pci)", true, Some(vec![1])),
        (Tags, "", "s.*d", true, Some(vec![1])),
        (Attrs, "idVendor", "0.*d", true, Some(vec![1])),
        (Kernels, "", "1-1:1.[0]", true, Some(vec![])),
        // The natural globs for ports are globs only.
        (Kernels, "", "1-1:1.*", true, Some(vec![])),
        (Kernels, "", "1-1.*", true, None),
        (Kernels, "", "(1-1.*)", true, Some(vec![1])),
        // Expressions match the whole text, and never an empty one.
        (Kernels, "", "ideo.*", true, None),
        (Driver, "", ".*", true, None),
        (Attrs, "none", ".*", true, None),
        // Akri passed these to udev.
        (Kernel, "", "v.*", true, None),
        (Devpath, "", "/dev.*", true, None),
        (Env, "ID_MODEL", "C.*", true, None),
        (Attr, "name", "Test.*", true, None),
        (Tag, "", "s.*", true, None),
        // A negated value is a glob.
        (Kernels, "", "v.*", false, Some(vec![])),
    ];
    for (field, key, value, equal, expected) in table {
        let verdict = judge_camera(&[
            (Field::Subsystem, "", true, "video4linux"),
            (field, key, equal, value),
        ])?;
        let as_regex = match verdict {
            Verdict::Holds { as_regex } => Some(as_regex),
            _ => None,
        };
        assert_eq!(as_regex, expected, "{field} {value}");
    }
    Ok(())
}

#[test]
fn empty_patterns_and_globs_are_not_regular_expressions() -> Result<(), InvalidRule> {
    let disk = Written {
        devpath: "/devices/pci0000:00/0000:00:05.0/virtio2/block/vda",
        subsystem: Some("block"),
        attributes: vec![("size", "8"), ("serial", "")],
        ..Written::default()
    };
    for field in [Field::Kernel, Field::Kernels] {
        for glob in ["vd[!a]", "vda?", "vdaS*", "(vd[b-z])?", "vda[0-9]*"] {
            let rule = mk_rule(&[(field, "", true, glob)])?;
            assert_eq!(judge(&rule, &disk, &[]), Verdict::Differs, "{rule}");
        }
    }
    for (field, key, glob) in [
        (Field::Attr, "idVendor", "0*"),
        (Field::Attrs, "idVendor", "0*"),
        (Field::Attrs, "serial", "(.*)"),
        (Field::Attrs, "serial", ".*"),
        (Field::Tag, "", "u*"),
        (Field::Tags, "", "u.*"),
        (Field::Driver, "", "x*"),
        (Field::Drivers, "", "x*|(y)?"),
        (Field::Env, "ID_MODEL", "x*"),
    ] {
        let rule = mk_rule(&[(field, key, true, glob)])?;
        assert_eq!(judge(&rule, &disk, &[]), Verdict::Differs, "{rule}");
    }
    Ok(())
}

#[test]
fn a_near_miss_names_the_first_term_that_fails() -> Result<(), InvalidRule> {
    use Field::{Attrs, Driver, Env, Kernel, Subsystem};
    let miss = |held, failed, actual: Option<&str>| {
        Verdict::Misses(Miss {
            held,
            failed,
            actual: actual.map(str::to_owned),
            at: None,
        })
    };
    let subsystem = (Subsystem, "", true, "video4linux");
    let table = [
        (
            vec![subsystem, (Env, "ID_MODEL", true, "C920")],
            miss(1, 1, Some("C270")),
        ),
        (
            vec![
                (Env, "ID_X", true, "y"),
                subsystem,
                (Env, "ID_MODEL", true, "C270"),
            ],
            miss(2, 0, None),
        ),
        (
            vec![(Env, "ID_MODEL", false, "C270"), subsystem],
            miss(1, 0, Some("C270")),
        ),
        // Cheap fields decide; no file is opened for the rest.
        (
            vec![
                subsystem,
                (Kernel, "", true, "tty*"),
                (Env, "ID_MODEL", true, "C270"),
            ],
            miss(1, 1, Some("video0")),
        ),
        (
            vec![
                (Kernel, "", true, "tty*"),
                (Attrs, "idVendor", true, "046d"),
            ],
            Verdict::Differs,
        ),
        // Neither a negated term nor one that matches everything makes a near miss.
        (
            vec![
                (Driver, "", false, "x"),
                (Kernel, "", true, "*"),
                (Env, "ID_MODEL", true, "no"),
            ],
            Verdict::Differs,
        ),
    ];
    for (terms, expected) in table {
        assert_eq!(judge_camera(&terms)?, expected, "{}", mk_rule(&terms)?);
    }
    Ok(())
}

#[test]
fn a_near_miss_of_terms_on_ancestors_names_the_ancestor() -> Result<(), InvalidRule> {
    use Field::{Attrs, Drivers, Subsystem, Subsystems};
    let subsystem = (Subsystem, "", true, "video4linux");
    let table = [
        (
            vec![
                subsystem,
                (Drivers, "", true, "usb"),
                (Attrs, "idVendor", true, "1234"),
            ],
            Miss {
                held: 2,
                failed: 2,
                actual: Some("046d".to_owned()),
                at: Some("1-1".to_owned()),
            },
        ),
        (
            vec![
                subsystem,
                (Subsystems, "", true, "usb"),
                (Drivers, "", true, "ftdi_sio"),
            ],
            Miss {
                held: 2,
                failed: 2,
                actual: Some("uvcvideo".to_owned()),
                at: Some("1-1:1.0".to_owned()),
            },
        ),
        (
            vec![subsystem, (Attrs, "serial", false, "x")],
            Miss {
                held: 1,
                failed: 1,
                actual: None,
                at: None,
            },
        ),
    ];
    for (terms, expected) in table {
        let verdict = judge_camera(&terms)?;
        assert_eq!(verdict, Verdict::Misses(expected), "{}", mk_rule(&terms)?);
    }
    Ok(())
}

use std::time::Duration;

use super::*;
use crate::{
    AttributeValue, Description, Device, Discovery, Error, Event, Request, Result, Wake,
    udev as rules,
};

struct Cameras;
crate::register!(Cameras);

#[derive(serde::Deserialize)]
struct Details {
    vendor: String,
    #[serde(default)]
    limit: Option<u8>,
}

impl Handler for Cameras {
    type Details = Details;

    fn describe() -> Description {
        Description::new("cameras", "USB cameras of one vendor").example("vendor: 046d")
    }

    fn validate(details: &Details) -> Vec<Problem> {
        match details.limit {
            Some(0) => vec![Problem::new("limit", "must be at least 1")],
            _ => Vec::new(),
        }
    }

    fn discover(request: &Request<Details>, host: &Host) -> Result<Discovery> {
        let rule = vec![
            rules::subsystem("video4linux"),
            rules::attrs("idVendor", &request.details.vendor),
        ];
        let found = host.udev().find(std::slice::from_ref(&rule))?;
        let mut devices = Vec::new();
        for camera in found.iter().filter(|device| device.matched()) {
            if !host.has_time() {
                return Ok(Discovery::partial(devices));
            }
            let Some(node) = &camera.devnode else {
                host.skipped(&camera.devpath, "devnode", "there is none");
                continue;
            };
            devices.push(
                Device::new(&camera.devpath)
                    .node(node)
                    .attribute("node", request.node.as_str()),
            );
        }
        host.info(format!("{} cameras", devices.len()));
        Ok(Discovery::complete(devices).wake_on_udev(rule))
    }
}

fn mk_host() -> FakeHost {
    FakeHost::new()
        .udev(
            UdevDevice::new("/devices/usb1")
                .subsystem("usb")
                .attribute("idVendor", "046d"),
        )
        .udev(
            UdevDevice::new("/devices/usb1/a/video0")
                .subsystem("video4linux")
                .devnode("/dev/video0"),
        )
        .udev(UdevDevice::new("/devices/usb1/a/video1").subsystem("video4linux"))
        .udev(
            UdevDevice::new("/devices/usb2")
                .subsystem("usb")
                .attribute("idVendor", "1234"),
        )
        .udev(
            UdevDevice::new("/devices/usb2/video2")
                .subsystem("video4linux")
                .devnode("/dev/video2"),
        )
}

#[test]
fn a_native_call_takes_the_same_steps_as_a_component() {
    let host = mk_host();
    let found = Call::<Cameras>::new("vendor: 046d")
        .node("n")
        .run(&host)
        .unwrap();
    assert_eq!(
        found.devices(),
        [Device::new("/devices/usb1/a/video0")
            .node("/dev/video0")
            .attribute("node", "n")]
    );
    assert!(matches!(found.wakes(), [Wake::Udev(rule)] if rule.len() == 2));
    assert_eq!(host.log(), [(Level::Info, "1 cameras".to_owned())]);
    let by_host = "/devices/usb2/video2".to_owned();
    let by_handler = Skipped {
        subject: "/devices/usb1/a/video1".into(),
        rule: "devnode".into(),
        reason: "there is none".into(),
    };
    let skipped = host.skipped();
    assert_eq!(skipped[0].subject, by_host);
    assert_eq!(skipped[1..], [by_handler]);
}

#[test]
fn details_the_handler_refuses_never_reach_discover() {
    for (details, path) in [
        ("{}", "vendor"),
        ("{vendor: a, limit: 0}", "limit"),
        ("[", ""),
    ] {
        let host = mk_host();
        let error = Call::<Cameras>::new(details).run(&host).unwrap_err();
        let Error::InvalidDetails(problems) = error else {
            panic!("{error}");
        };
        assert_eq!(problems, validate::<Cameras>(details));
        assert_eq!(problems[0].path, path);
        assert!(host.log().is_empty());
    }
    assert_eq!(validate::<Cameras>("vendor: a"), []);
}

#[test]
fn a_call_that_runs_out_of_time_answers_partially() {
    let host = mk_host().tick(Duration::from_secs(24));
    let found = Call::<Cameras>::new("vendor: 046d").run(&host).unwrap();
    assert_eq!(found, Discovery::partial([]));
    let host = mk_host().tick(Duration::from_secs(5));
    let found = Call::<Cameras>::new("vendor: 046d").run(&host).unwrap();
    assert_eq!(found.devices().len(), 1);
}

#[test]
fn without_udev_the_call_is_unavailable() {
    let error = Call::<Cameras>::new("vendor: 046d").run(&mk_host().without_udev("no sysfs"));
    assert_eq!(
        error,
        Err(Error::unavailable("udev not available: no sysfs"))
    );
}

#[test]
fn ancestors_are_returned_and_marked_as_not_matched() {
    let host = mk_host();
    let rules = [
        vec![rules::kernel("video0")],
        vec![
            rules::attrs("idVendor", "046d"),
            rules::subsystem("usb").not(),
        ],
    ];
    let found = host.host().udev().find(&rules).unwrap();
    let table: Vec<_> = found
        .iter()
        .map(|device| {
            (
                device.devpath.as_str(),
                device.parent.as_deref(),
                device.rules.as_slice(),
            )
        })
        .collect();
    assert_eq!(
        table,
        [
            ("/devices/usb1", None, [].as_slice()),
            ("/devices/usb1/a/video0", Some("/devices/usb1"), &[0, 1]),
            ("/devices/usb1/a/video1", Some("/devices/usb1"), &[1]),
        ]
    );
}

#[test]
fn absent_facts_match_as_in_udev() {
    let device = UdevDevice::new("/devices/a").attribute("size", "8  ");
    let host = FakeHost::new().udev(device.tag("t").property("P", "1"));
    let find = |term| !host.host().udev().find(&[vec![term]]).unwrap().is_empty();
    assert!(find(rules::driver("").clone()));
    assert!(find(rules::driver("x").not()));
    assert!(!find(rules::driver("?*")));
    assert!(find(rules::tag("t")));
    assert!(!find(rules::tag("")));
    assert!(find(rules::env("P", "1|2")));
    assert!(find(rules::env("Q", "")));
    assert!(find(rules::attr("size", "8")));
    assert!(find(rules::attr("size", "9").not()));
    assert!(!find(rules::attr("none", "*")));
    assert!(!find(rules::attr("none", "9").not()));
}

#[test]
fn attributes_are_returned_in_the_requested_order() {
    let host = mk_host();
    let pair = |path: &str, name: &str| (path.to_owned(), name.to_owned());
    let asked = [
        pair("/devices/usb2", "idVendor"),
        pair("/devices/usb1", "none"),
        pair("/devices/none", "idVendor"),
        pair("/devices/usb1", "idVendor"),
    ];
    assert_eq!(
        host.host().udev().read(&asked),
        Ok(vec![Some("1234".into()), None, None, Some("046d".into())])
    );
}

#[test]
fn a_node_has_the_owner_of_its_device() {
    let node = |name: &str| UdevDevice::new(&format!("/devices/{name}")).devnode(name);
    let host = FakeHost::new()
        .udev(node("/dev/a").owner(1, 2))
        .udev(node("/dev/b"));
    let asked = ["/dev/b", "/dev/a", "/dev/c"].map(str::to_owned);
    let owner = rules::Owner { user: 1, group: 2 };
    assert_eq!(
        host.host().udev().owners(&asked),
        Ok(vec![None, Some(owner), None])
    );
}

#[test]
fn a_rule_with_a_key_where_none_belongs_is_refused() {
    let term = rules::Term {
        key: Some("a".into()),
        ..rules::kernel("b")
    };
    let answer = FakeHost::new().host().udev().find(&[vec![term]]);
    assert!(matches!(answer, Err(rules::Error::InvalidRule(_))));
}

#[test]
fn an_invalid_description_is_reported() {
    struct Bad;
    crate::register!(Bad);
    impl Handler for Bad {
        type Details = Details;
        fn describe() -> Description {
            Description::new("-bad", "two\nlines").example("vendor: [a]")
        }
        fn discover(_: &Request<Details>, _: &Host) -> Result<Discovery> {
            Ok(Discovery::unchanged())
        }
    }
    assert_eq!(description_problems::<Cameras>(), Vec::<String>::new());
    let problems = description_problems::<Bad>();
    assert_eq!(problems.len(), 3, "{problems:?}");
    assert!(problems[2].starts_with("example: vendor: "), "{problems:?}");
}

#[test]
fn a_call_passes_properties_events_and_cursor() {
    struct Echo;
    impl Handler for Echo {
        type Details = crate::serde::de::IgnoredAny;
        fn describe() -> Description {
            Description::new("echo", "Says what it was asked")
        }
        fn discover(request: &Request<Self::Details>, host: &Host) -> Result<Discovery> {
            assert_eq!(request.events, [Event::Timer]);
            assert_eq!(request.property("b"), Some([0xff].as_slice()));
            let text = request.property_text("a")?.unwrap_or_default();
            assert_eq!(request.property_text("c"), Ok(None));
            assert!(request.property_text("b").is_err());
            assert_ne!(host.random(), host.random());
            let cursor = request.cursor.clone().unwrap_or_default();
            Ok(Discovery::complete([
                Device::new(text).attribute("a", AttributeValue::version("1.0.0"))
            ])
            .departed("old")
            .cursor(cursor))
        }
    }
    let call = Call::<Echo>::new("anything")
        .secret("b", [0xff])
        .property("a", "x")
        .events([Event::Timer])
        .cursor([1, 2]);
    let answer = call.run(&FakeHost::new()).unwrap();
    assert_eq!(answer.cursor, Some(vec![1, 2]));
    assert_eq!(answer.departed, ["old"]);
    assert_eq!(answer.devices()[0].id, "x");
}

#[test]
fn a_device_that_a_rule_nearly_fits_is_explained_as_by_the_host() {
    let host = FakeHost::new()
        .udev(UdevDevice::new("/devices/usb1/1-1").attribute("idVendor", "046d"))
        .udev(
            UdevDevice::new("/devices/usb1/1-1/video0")
                .subsystem("video4linux")
                .tag("seat")
                .tag("uaccess"),
        );
    let find = |rule: &[rules::Term]| {
        let before = host.skipped().len();
        host.host().udev().find(&[rule.to_vec()]).unwrap();
        host.skipped().split_off(before)
    };
    let video = || rules::subsystem("video4linux");
    for (rule, reason) in [
        (
            vec![video(), rules::env("ID_MODEL", "C920")],
            r#"ENV{ID_MODEL}=="C920" does not hold: ID_MODEL is absent or empty"#,
        ),
        (
            vec![video(), rules::kernel("video9"), rules::tag("x")],
            r#"KERNEL=="video9" does not hold: kernel is "video0""#,
        ),
        (
            vec![video(), rules::tag("seat").not()],
            r#"TAG!="seat" does not hold: tag is "seat uaccess""#,
        ),
        (
            vec![video(), rules::attr("name", "x").not()],
            r#"ATTR{name}!="x" does not hold: name is absent or empty, and where it is absent no term holds"#,
        ),
        (
            vec![video(), rules::attrs("idVendor", "1234")],
            r#"ATTRS{idVendor}=="1234" does not hold: idVendor is absent or empty, and where it is absent no term holds, and no device above comes nearer to all terms on ancestors"#,
        ),
        (
            vec![
                video(),
                rules::attrs("idVendor", "046d"),
                rules::attrs("idProduct", "1"),
            ],
            r#"ATTRS{idProduct}=="1" does not hold: of 1-1, which comes nearest to all terms on ancestors, idProduct is absent or empty, and where it is absent no term holds"#,
        ),
    ] {
        let text: Vec<String> = rule.iter().map(ToString::to_string).collect();
        let skipped = find(&rule);
        assert_eq!(skipped.len(), 1, "{text:?}: {skipped:?}");
        assert_eq!(skipped[0].subject, "/devices/usb1/1-1/video0");
        assert_eq!(skipped[0].rule, text.join(", "));
        assert_eq!(skipped[0].reason, reason);
    }
    assert_eq!(find(&[rules::env("ID_MODEL", "*").not()]), []);
    assert_eq!(find(&[rules::kernel("nothing")]), []);
}

#[test]
fn explanations_are_bounded_as_by_the_host() {
    let fake = FakeHost::new();
    let host = fake.host();
    for _ in 0..1_100 {
        host.skipped("ä".repeat(600), "rule", "reason");
    }
    let skipped = fake.skipped();
    assert_eq!(skipped.len(), 1_000);
    assert_eq!(skipped[0].subject, format!("{}…", "ä".repeat(256)));
}

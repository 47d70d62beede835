use leafhost_core::configuration::FieldProblem;
use leafhost_core::left_out::LeftOut;
use leafhost_core::session::Explanation;
use serde_json::json;

use super::*;
use crate::args::{self, Command};
use crate::terminal::Size;

mod instance;
mod kubelet;

use leafhost_agent::status::{ConfigurationView, HandlerView, ProblemView, SessionView};

const NOW: &str = "2026-01-01T12:00:00Z";

fn now() -> Timestamp {
    NOW.parse().unwrap()
}

fn problem(message: &str) -> ProblemView {
    ProblemView {
        message: message.to_owned(),
        ..ProblemView::default()
    }
}

fn mk_instance(configuration: &str, hash: &str, spec: &serde_json::Value) -> serde_json::Value {
    let mut full = json!({
        "configurationName": configuration,
        "cdiName": format!("akri.sh/{configuration}={hash}"),
        "capacity": 2,
        "nodes": ["edge-1"],
    });
    full.as_object_mut()
        .unwrap()
        .extend(spec.as_object().unwrap().clone());
    json!({
        "apiVersion": "akri.sh/v0",
        "kind": "Instance",
        "metadata": {
            "name": format!("{configuration}-{hash}"),
            "namespace": "default",
            "creationTimestamp": "2026-01-01T11:55:00Z",
        },
        "spec": full,
    })
}

fn mk_status() -> Status {
    let mut healthy = mk_instance(
        "cams",
        "8120fe",
        &json!({
            "shared": true,
            "deviceUsage": {"cams-8120fe-0": "edge-1", "cams-8120fe-1": ""},
            "leafhost": {"id": "cam-0"},
        }),
    );
    healthy["status"] = json!({"nodes": {"edge-1": {"health": "Healthy"}}});
    let mut hot = mk_instance("cams", "a19705", &json!({"leafhost": {"id": "cam-1"}}));
    hot["status"] = json!({"nodes": {"edge-1": {"health": "Unhealthy", "reason": "hot"}}});
    let mut missing = mk_instance("t", "d46b65", &json!({"capacity": 1}));
    missing["status"] = json!({"nodes": {"edge-1": {
        "health": "Healthy", "missingSince": "2026-01-01T11:59:30Z"}}});
    let instances = [healthy, hot, missing].map(|value| serde_json::from_value(value).unwrap());
    Status {
        node: "edge-1".into(),
        version: "0.1.0".into(),
        mode: "standalone".into(),
        notes: Vec::new(),
        cdi_dir: Some("/home/a/cdi".into()),
        handlers: vec![
            HandlerView {
                name: "cam".into(),
                source: "cam.wasm".into(),
                status: "Active".into(),
                since: Some("2026-01-01T09:00:00Z".into()),
                version: "1.2.0".into(),
                digest: "0123456789abcdef".into(),
                devices: 2,
                ..HandlerView::default()
            },
            HandlerView {
                source: "new.wasm".into(),
                status: "Refused".into(),
                missing_grants: vec!["udev".into()],
                ..HandlerView::default()
            },
        ],
        configurations: vec![
            ConfigurationView {
                name: "cams".into(),
                namespace: "default".into(),
                handler: "cam".into(),
                devices: 2,
                unhealthy: 1,
                cdi_kind: Some("akri.sh/cams".into()),
                sessions: vec![mk_session()],
                ..ConfigurationView::default()
            },
            ConfigurationView {
                name: "t".into(),
                namespace: "lab".into(),
                handler: "cam".into(),
                problems: vec![problem("its name is not a CDI class")],
                invalid_details: vec![FieldProblem::new("items[0]", "must be a number")],
                ..ConfigurationView::default()
            },
        ],
        instances: instances.into(),
        kubelet: None,
        problems: vec![problem("no udev: device events do not wake handlers")],
    }
}

fn mk_session() -> SessionView {
    SessionView {
        source: "cam.wasm".into(),
        last_call: Some("2026-01-01T11:59:48Z".into()),
        events: vec!["timer".into()],
        wall_ms: 38.2,
        cpu_ms: 3.1,
        memory_bytes: 1_179_648,
        result: "ok".into(),
        next_ms: Some(10_000),
        devices: 2,
        left_out: vec![LeftOut {
            id: "cam-2".into(),
            reason: "node /dev/x is not granted".into(),
        }],
        skipped: vec![Explanation {
            subject: "10.0.0.7".into(),
            rule: "types".into(),
            reason: "is a printer".into(),
        }],
        skipped_dropped: 3,
        ..SessionView::default()
    }
}

fn request(view: Option<View>, name: Option<&str>, output: Output) -> Request {
    let Ok(Command::Status(args)) = args::parse(["leafhost", "status"]) else {
        panic!("status");
    };
    Request {
        args: StatusArgs {
            view,
            name: name.map(str::to_owned),
            output,
            ..args
        },
        paint: Paint::PLAIN,
    }
}

fn shown(view: Option<View>, name: Option<&str>) -> String {
    page(&mk_status(), view, name)
}

fn page(status: &Status, view: Option<View>, name: Option<&str>) -> String {
    request(view, name, Output::Table)
        .render(status, now())
        .unwrap()
}

#[test]
fn the_overview_has_one_line_for_each_item() {
    assert_eq!(
        shown(None, None),
        "\
edge-1  leafhost 0.1.0 standalone, 2 handlers, 2 Configurations, 3 Instances
podman --cdi-spec-dir /home/a/cdi run --device akri.sh/<configuration>=<hash> IMAGE
! no udev: device events do not wake handlers

HANDLER  SOURCE    STATUS   SINCE  VERSION  DIGEST        DEVICES  NOTE
cam      cam.wasm  Active   3h     1.2.0    0123456789ab  2        -
-        new.wasm  Refused  -      -        -             0        needs the grant udev

CONFIGURATION  HANDLER  DEVICES  UNHEALTHY  LAST-CALL  TOOK   RESULT  NOTE
cams           cam      2        1          12s        38 ms  ok      left out: cam-2: node /dev/x is not granted
lab/t          cam      -        -          -          -      -       its name is not a CDI class (and 1 more)

INSTANCE     CDI-DEVICE           HEALTH          SHARED  SLOTS  AGE  ID
cams-8120fe  akri.sh/cams=8120fe  Healthy         true    1/2    5m   cam-0
cams-a19705  akri.sh/cams=a19705  Unhealthy: hot  false   -      5m   cam-1
t-d46b65     akri.sh/t=d46b65     Missing 30s     false   -      5m   -
"
    );
}

#[test]
fn what_has_no_effect_is_noted_after_what_is_left_out() {
    let mut status = mk_status();
    let warning = "a.yaml:7: spec.capcity: unknown field capcity; did you mean capacity?";
    status.configurations[0].warnings = vec![problem(warning)];
    let note = "left out: cam-2: node /dev/x is not granted; without effect: unknown field capcity; \
                did you mean capacity? (a.yaml:7: spec.capcity)";
    assert!(page(&status, None, None).contains(note));
    let page = page(&status, Some(View::Configuration), Some("cams"));
    assert!(
        page.contains(&format!("Warnings:        {warning}")),
        "{page}"
    );
}

#[test]
fn a_note_begins_with_the_message_and_not_with_a_path() {
    for (message, note) in [
        (
            "/etc/leaf host/a.yaml:7: spec.capacity: is 0",
            "is 0 (/etc/leaf host/a.yaml:7: spec.capacity)",
        ),
        ("/etc/a.yaml: is empty", "is empty (/etc/a.yaml)"),
        (
            "no devices from cam.wasm: timeout: it is slow",
            "no devices from cam.wasm: timeout: it is slow",
        ),
        ("it refuses a/b: too long", "it refuses a/b: too long"),
    ] {
        let mut status = mk_status();
        status.configurations[1].problems = vec![problem(message)];
        status.configurations[1].invalid_details.clear();
        let text = page(&status, Some(View::Configuration), None);
        assert!(text.ends_with(&format!("  {note}\n")), "{text}");
    }
}

#[test]
fn a_handler_that_is_loading_is_no_fault() {
    let mut status = mk_status();
    status.handlers[1].status = "Loading".into();
    status.handlers[1].missing_grants.clear();
    let lab = &mut status.configurations[1];
    lab.invalid_details.clear();
    lab.problems = vec![ProblemView {
        reason: "HandlerLoading".into(),
        ..problem("handler \"cam\" is not loaded yet")
    }];
    assert!(!tables::has_trouble(lab));
    let size = Some(mk_size(40));
    let lines = overview::lines(&status, now(), Paint::COLOURED, size);
    let text = lines.join("\n");
    assert!(!text.contains("\x1b[31mhandler"), "{text}");
    assert!(text.contains("is not loaded yet"), "{text}");
    assert!(text.contains("Loading\x1b[0m: new.wasm"), "{text}");
    let text = page(&status, Some(View::Configuration), Some("lab/t"));
    assert!(text.contains("\n  Waits:           handler"), "{text}");
    assert!(text.ends_with("\nNot called yet.\n"), "{text}");
}

#[test]
fn devices_are_not_counted_before_the_first_call() {
    let row = |change: fn(&mut ConfigurationView)| {
        let mut status = mk_status();
        status.configurations.truncate(1);
        change(&mut status.configurations[0]);
        let text = page(&status, Some(View::Configuration), None);
        let row = text.lines().nth(1).unwrap();
        let cells: Vec<&str> = row.split_whitespace().take(4).collect();
        cells.join(" ")
    };
    assert_eq!(row(|_| {}), "cams cam 2 1");
    let unknown = |view: &mut ConfigurationView| {
        view.sessions[0].last_call = None;
        view.devices = 0;
        view.unhealthy = 0;
    };
    assert_eq!(row(unknown), "cams cam - -");
    // Instances of an earlier start.
    assert_eq!(row(|view| view.sessions.clear()), "cams cam 2 1");
    let none = |view: &mut ConfigurationView| {
        view.devices = 0;
        view.unhealthy = 0;
    };
    assert_eq!(row(none), "cams cam 0 0");
}

#[test]
fn a_file_that_is_not_read_is_a_line_after_the_problems() {
    let mut status = mk_status();
    status.notes = vec![problem("/d/a.json: is not read")];
    let page = page(&status, None, None);
    assert!(
        page.contains("\n- note: /d/a.json: is not read\n"),
        "{page}"
    );
}

#[test]
fn a_long_note_does_not_fill_the_screen() {
    let mut status = mk_status();
    let at = |status: &mut Status, session: SessionView| {
        status.configurations[0].sessions = vec![session];
    };
    at(
        &mut status,
        SessionView {
            error: Some(format!("long {} end", "x".repeat(1000))),
            ..mk_session()
        },
    );
    status.handlers[0].last_error = Some("y".repeat(1000));
    let text = page(&status, None, None);
    let longest = text.lines().map(str::len).max().unwrap();
    assert!(longest < 400 && text.contains(" end\n"), "{text}");
    let mut several = mk_session();
    several.left_out_dropped = 6;
    several.denied = vec!["udev".into(), "network".into()];
    at(&mut status, several);
    let text = page(&status, None, None);
    let note =
        "7 left out, the first: cam-2: node /dev/x is not granted; 2 denied, the first: udev";
    assert!(text.contains(note), "{text}");
}

fn mk_size(height: usize) -> Size {
    Size { width: 80, height }
}

#[test]
fn a_long_problem_is_wrapped_on_a_terminal() {
    let mut status = mk_status();
    status.problems = vec![problem("word ".repeat(30).trim_end())];
    let lines = overview::lines(&status, now(), Paint::PLAIN, Some(mk_size(40)));
    assert!(lines[1].starts_with("! word") && lines[2].starts_with("  word"));
    assert!(lines[1..3].iter().all(|line| line.chars().count() <= 80));
}

#[test]
fn the_live_table_shows_what_is_wrong_first_and_leaves_out_what_does_not_fit() {
    let mut status = mk_status();
    let healthy = status.instances[0].clone();
    let troubled = status.instances[1].clone();
    let all = std::iter::repeat_n(healthy, 50).chain([troubled]);
    status.instances = all.collect();
    let lines = overview::lines(&status, now(), Paint::PLAIN, Some(mk_size(17)));
    assert_eq!(
        lines.join("\n"),
        "\
edge-1  leafhost 0.1.0 standalone, 2 handlers, 2 Configurations, 51 Instances
! no udev: device events do not wake handlers

CONFIGURATION  HANDLER  DEVICES  UNHEALTHY  RESULT  NOTE
cams           cam      2        1          ok      left out: cam-2: node /dev/x is not granted
lab/t          cam      -        -          -       its name is not a CDI class (and 1 more)

INSTANCE     CDI-DEVICE           HEALTH          SHARED  SLOTS  AGE  ID
cams-a19705  akri.sh/cams=a19705  Unhealthy: hot  false   -      5m   cam-1
cams-8120fe  akri.sh/cams=8120fe  Healthy         true    1/2    5m   cam-0
cams-8120fe  akri.sh/cams=8120fe  Healthy         true    1/2    5m   cam-0
and 48 more: leafhost status instances

HANDLER  SOURCE    STATUS   SINCE  VERSION  DEVICES  NOTE
-        new.wasm  Refused  -      -        0        needs the grant udev
Active: cam"
    );
    let wide = Some(Size {
        width: 200,
        height: 80,
    });
    let lines = overview::lines(&status, now(), Paint::PLAIN, wide);
    assert!(!lines.iter().any(|line| line.contains("more:")));
    assert!(lines.iter().any(|line| line.contains("12s        38 ms")));
}

#[test]
fn a_path_is_shown_by_its_base_name_where_the_whole_does_not_fit() {
    let mut status = mk_status();
    let id = format!("/devices/{}/tty/ttyS0", "x".repeat(60));
    let spec = json!({"leafhost": {"id": id}});
    let instance = serde_json::from_value(mk_instance("t", "d46b65", &spec)).unwrap();
    status.instances = [instance].into();
    let shown = |width| {
        let size = Some(Size { width, height: 24 });
        let lines = overview::lines(&status, now(), Paint::PLAIN, size);
        lines.join("\n")
    };
    assert!(shown(80).contains("  …/ttyS0\n"), "{}", shown(80));
    assert!(shown(200).contains(&id), "{}", shown(200));
}

#[test]
fn an_id_keeps_its_end_where_the_whole_does_not_fit() {
    let mut status = mk_status();
    let id = "http://10.77.0.2:80/onvif/device_service?from=the-recorder#VideoSource=2";
    let spec = json!({"leafhost": {"id": id}});
    let instance = serde_json::from_value(mk_instance("t", "d46b65", &spec)).unwrap();
    status.instances = [instance].into();
    let lines = overview::lines(&status, now(), Paint::PLAIN, Some(mk_size(24)));
    let row = lines.iter().find(|line| line.starts_with("t-d46b65"));
    let row = row.unwrap();
    assert!(row.contains("  http://"), "{row}");
    assert!(row.ends_with("Source=2"), "{row}");
    assert!(row.chars().count() <= 80, "{row}");
}

#[test]
fn instances_are_filtered_by_configuration_and_health() {
    let names = |name: Option<&str>, unhealthy| {
        let mut request = request(Some(View::Instances), name, Output::Json);
        request.args.unhealthy = unhealthy;
        let text = request.render(&mk_status(), now())?;
        let list: Vec<serde_json::Value> = serde_json::from_str(&text)?;
        let name = |instance: &serde_json::Value| instance["metadata"]["name"].to_string();
        anyhow::Ok(list.iter().map(name).collect::<Vec<_>>().join(" "))
    };
    let all = r#""cams-8120fe" "cams-a19705" "t-d46b65""#;
    assert_eq!(names(None, false).unwrap(), all);
    assert_eq!(names(None, true).unwrap(), r#""cams-a19705" "t-d46b65""#);
    assert_eq!(names(Some("cams"), true).unwrap(), r#""cams-a19705""#);
    assert!(names(Some("nope"), false).is_err());
}

#[test]
fn what_was_skipped_for_the_same_reason_is_one_line() {
    let explanation = |number: usize| Explanation {
        subject: format!("/devices/virtual/tty/tty{number}"),
        rule: "a".into(),
        reason: format!("devpath is \"/devices/virtual/tty/tty{number}\""),
    };
    let mut explanations: Vec<Explanation> = (0..66).map(explanation).collect();
    explanations.push(Explanation {
        subject: "/devices/usb".into(),
        rule: "a".into(),
        reason: "subsystem is \"usb\"".into(),
    });
    let lines = |all| {
        let table = configuration::skipped(&explanations, all);
        table.lines(Paint::PLAIN)
    };
    assert_eq!(lines(true).len(), 68);
    let few = lines(false);
    assert_eq!(few.len(), 3, "{few:?}");
    assert!(few[1].starts_with("/devices/virtual/tty/tty0 and 65 more (--all)"));
}

#[test]
fn slots_show_their_holder_and_the_claimed_resource() {
    assert_eq!(
        shown(Some(View::Slots), None),
        "\
INSTANCE     SLOT           HELD-BY  THROUGH              DEVICE         POD
cams-8120fe  cams-8120fe-0  edge-1   akri.sh/cams-8120fe  cams-8120fe-0  -
cams-8120fe  cams-8120fe-1  free     -                    -              -
cams-a19705  cams-a19705-0  free     -                    -              -
cams-a19705  cams-a19705-1  free     -                    -              -
t-d46b65     t-d46b65-0     free     -                    -              -
"
    );
}

#[test]
fn a_configuration_is_shown_with_calls_devices_and_the_podman_line() {
    assert_eq!(
        shown(Some(View::Configuration), Some("cams")),
        "  \
  Configuration:   default/cams
  Handler:         cam
  Devices:         2, 1 of them unhealthy or missing
  CDI kind:        akri.sh/cams

Session of cam.wasm
  Last call:       12s ago, ok, took 38 ms (computing 3.1 ms, memory 1.1 MiB)
  Called for:      timer
  Next call:       at most 10 s after the last
  Devices:         2

  LEFT-OUT  WHY
  cam-2     node /dev/x is not granted

Instances
  INSTANCE     CDI-DEVICE           HEALTH          SHARED  SLOTS  AGE  ID
  cams-8120fe  akri.sh/cams=8120fe  Healthy         true    1/2    5m   cam-0
  cams-a19705  akri.sh/cams=a19705  Unhealthy: hot  false   -      5m   cam-1

Use one device, or all
  podman --cdi-spec-dir /home/a/cdi run --rm --device akri.sh/cams=8120fe IMAGE
  podman --cdi-spec-dir /home/a/cdi run --rm --device akri.sh/cams=all IMAGE
  (podman before 5.5 has no --cdi-spec-dir: as root, start the agent with --cdi-dir /etc/cdi, or copy the specs there from /home/a/cdi)

Seen by cam.wasm, but not matched or not complete
  SKIPPED   RULE   WHY
  10.0.0.7  types  is a printer
  and 3 more
"
    );
}

#[test]
fn no_unhealthy_device_is_suggested() {
    let mut status = mk_status();
    let [healthy, unhealthy] = [0, 1].map(|number| status.instances[number].status.clone());
    let shown = |status: &Status| page(status, Some(View::Configuration), Some("cams"));
    let suggests = |page: &str, device: &str| page.contains(&format!("--device {device} IMAGE"));
    status.instances[0].status = unhealthy;
    let text = shown(&status);
    assert!(!suggests(&text, "akri.sh/cams=8120fe"), "{text}");
    assert!(!suggests(&text, "akri.sh/cams=a19705"), "{text}");
    assert!(suggests(&text, "akri.sh/cams=all"), "{text}");
    status.instances[1].status = healthy;
    let text = shown(&status);
    assert!(suggests(&text, "akri.sh/cams=a19705"), "{text}");
    assert!(!suggests(&text, "akri.sh/cams=8120fe"), "{text}");
}

#[test]
fn a_failing_configuration_shows_the_cause() {
    assert_eq!(
        shown(Some(View::Configuration), Some("lab/t")),
        "  \
  Configuration:   lab/t
  Handler:         cam
  Devices:         0
  CDI kind:        none is written
  Problems:        its name is not a CDI class
  Refused details: items[0]: must be a number

Not called until the problems above are fixed.
"
    );
}

#[test]
fn an_unknown_configuration_error_lists_the_known_ones() {
    let error = configuration::find(&mk_status(), "nope").unwrap_err();
    assert_eq!(
        error.to_string(),
        "no Configuration nope: the agent has cams, lab/t"
    );
    assert!(configuration::find(&mk_status(), "lab/cams").is_err());
    let mut twice = mk_status();
    twice.configurations[1].name = "cams".into();
    let error = configuration::find(&twice, "cams").unwrap_err();
    assert!(error.to_string().contains("default/cams, lab/cams"));
}

#[test]
fn json_and_yaml_are_the_whole_document() {
    let status = mk_status();
    let text = request(None, None, Output::Json)
        .render(&status, now())
        .unwrap();
    assert_eq!(serde_json::from_str::<Status>(&text).unwrap(), status);
    let text = request(None, None, Output::Yaml)
        .render(&status, now())
        .unwrap();
    assert_eq!(serde_saphyr::from_str::<Status>(&text).unwrap(), status);
    let text = request(Some(View::Instances), None, Output::Json)
        .render(&status, now())
        .unwrap();
    let list: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!(list[0]["spec"]["cdiName"], "akri.sh/cams=8120fe");
}

#[test]
fn a_call_without_changes_is_no_new_version_of_the_overview() {
    let status = mk_status();
    let mut later = status.clone();
    later.configurations[0].sessions[0].last_call = Some(NOW.into());
    later.configurations[0].sessions[0].wall_ms = 40.0;
    let key = |view, name, status: &Status| {
        let request = request(view, name, Output::Table);
        request.frame(status, now()).unwrap().key
    };
    assert_eq!(key(None, None, &status), key(None, None, &later));
    let one = Some(View::Configuration);
    assert_ne!(
        key(one, Some("cams"), &status),
        key(one, Some("cams"), &later)
    );
    let mut more = status.clone();
    more.instances.pop();
    assert_ne!(key(None, None, &status), key(None, None, &more));
}

#[test]
fn each_live_json_document_is_one_line() {
    let mut live = request(None, None, Output::Json);
    live.args.watch = true;
    let text = live.render(&mk_status(), now()).unwrap();
    assert_eq!(text.matches('\n').count(), 1);
}

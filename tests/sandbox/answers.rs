//! Invalid and excessive answers, and failures of `describe` and `validate`.

use std::time::Duration;

use anyhow::{Result, ensure};
use leafhost_tests::wait::within;
use serde_json::Value;

use crate::fixture::{Fixture, Guest, Outcome, session};

const GRANTS: &str = "\
udev: {subsystems: [\"*\"]}
network: {interfaces: [lo]}
devices:
  nodes: [/dev/fd, /dev/null]
  mounts: [\"/etc:ro\"]
  env: [\"HOSTILE_*\"]
";

fn ok<'a>(details: &'a str, words: &'a str) -> (&'a str, Outcome<'a>) {
    let reason = "\"ok\"";
    (details, Outcome { reason, words })
}

#[test]
fn a_device_that_breaks_a_rule_is_left_out_and_reported() -> Result<()> {
    let mut fixture = Fixture::with(Guest::default(), GRANTS)?;
    fixture.misbehave(&[
        ok("id a\\0b", "id has a control character"),
        ok("id a\\nb", "id has a control character"),
        ok("id \\e", "id is empty"),
        ok("long-id", "bytes of text"),
        ok("twice", "the first one counts"),
        ok("physical-id \\e", "physical-id must be"),
        ok("name A=B", "must be letters, digits, _ and -"),
        ok("name A\\nB", "must be letters, digits, _ and -"),
        ok("name LD_PRELOAD", "LD_PRELOAD is not granted"),
        ok("name PATH", "PATH is not granted"),
        ok("value a\\0b", "HOSTILE_VALUE has a control character"),
        ok("same-name", "is specified twice"),
        ok("mount / /data", "has an empty part"),
        ok("mount /etc/../root /data", "'..'"),
        ok("mount /root /data", "/root is not granted"),
        ok("mount /etc /proc", "would cover a part"),
        ok("mount /proc /data", "/proc is not granted"),
        ok("node /dev/sda /dev/sda", "/dev/sda is not granted"),
        ok("node /dev/fd /dev/video9", "leads to"),
        ok("node /dev/null /etc/passwd", "must lie below /dev"),
        ok("node /dev/null /dev/mem", "would replace what every"),
        ok("attribute a-b", "C identifier"),
        ok("attribute-text", "longer than 64 bytes"),
        ok("attributes", "more than 32 attributes"),
        ok("capacity lots", "not a Kubernetes quantity"),
    ])
}

#[test]
fn an_answer_over_a_limit_is_refused_and_the_last_devices_stay() -> Result<()> {
    let mut fixture = Fixture::with(Guest::default(), GRANTS)?;
    let too_large = |words| Outcome {
        reason: "answer_too_large",
        words,
    };
    let held = Outcome {
        reason: "host_resources",
        words: "32 MiB",
    };
    fixture.misbehave(&[
        ("many", too_large("5000 devices")),
        ("large", too_large("bytes of text")),
        ("departs-too-many", too_large("5000 departed")),
        ("cursor", too_large("the cursor has 10000000 bytes")),
        ("million-wakes", held),
        (
            "filters",
            Outcome {
                reason: "\"ok\"",
                words: "multicast",
            },
        ),
        (
            "unavailable",
            Outcome {
                reason: "unavailable",
                words: "not not",
            },
        ),
        (
            "invalid",
            Outcome {
                reason: "invalid-details",
                words: "no such thing",
            },
        ),
        (
            "partial",
            Outcome {
                reason: "\"partial\"",
                words: "timer",
            },
        ),
        ok("wake-at-once", "\"nextMs\":1000"),
    ])
}

#[test]
fn unstable_answers_are_rate_limited_and_reported() -> Result<()> {
    let fixture = Fixture::with(Guest::default(), GRANTS)?;
    for (name, details) in [
        ("ids", "new-ids 20"),
        ("flap", "comes-and-goes"),
        ("values", "new-values"),
        ("departing", "departs"),
        ("silent", "unchanged"),
        ("climbing", "id ../../../../../../tmp/leafhost-climbs"),
    ] {
        fixture.configure(name, "hostile", details)?;
    }
    for (name, words) in [
        ("ids", "handler output is unstable"),
        ("values", "handler output is unstable"),
        ("flap", "handler output is unstable"),
    ] {
        // A single device may change 68 times at once.
        within(Duration::from_mins(4), name, || {
            let status = fixture.home.status()?;
            ensure!(
                session(&status, name).to_string().contains(words),
                "{status:#}"
            );
            Ok(())
        })?;
    }
    let all = |status: &Value, name: &str| -> Vec<Value> {
        let all = status.get("instances").and_then(Value::as_array);
        let of = |one: &&Value| {
            one.pointer("/spec/configurationName")
                .and_then(Value::as_str)
                == Some(name)
        };
        all.into_iter().flatten().filter(of).cloned().collect()
    };
    let writes = |fixture: &Fixture| -> Result<f64> {
        let mut sum = 0.0;
        for kind in ["create", "update", "delete"] {
            sum += fixture.metric(&format!(
                "leafhost_store_writes_total{{kind=\"{kind}\",result=\"ok\"}}"
            ))?;
        }
        Ok(sum)
    };
    let calls =
        |fixture: &Fixture| fixture.metric("leafhost_handler_calls_total{handler=\"hostile\"}");
    let (written, called) = (writes(&fixture)?, calls(&fixture)?);
    ensure!(written > 60.0, "{written} writes are counted");
    fixture.home.until("forty calls more", |_| {
        calls(&fixture).is_ok_and(|now| now >= called + 40.0)
    })?;
    let after = fixture.home.status()?;
    let more = writes(&fixture)? - written;
    // Without the limit there would be more than fifty for each call.
    ensure!(more <= 40.0, "{more} writes for forty calls");
    ensure!(all(&after, "ids").len() <= 40, "the devices pile up");
    // A device that departed from one Configuration stays in another.
    ensure!(all(&after, "departing").len() == 1, "{after:#}");
    ensure!(all(&after, "silent").is_empty(), "{after:#}");
    ensure!(
        session(&after, "silent").to_string().contains("\"ok\""),
        "{after:#}"
    );
    ensure!(all(&after, "climbing").len() == 2, "{after:#}");
    ensure!(!std::path::Path::new("/tmp/leafhost-climbs").exists());
    fixture.check_neighbour()
}

#[test]
fn a_version_whose_describe_fails_does_not_replace_the_last_good_one() -> Result<()> {
    let fixture = Fixture::with(Guest::default(), GRANTS)?;
    fixture.configure("hostile", "hostile", "good")?;
    let before = fixture.instances_of("hostile", 1)?;
    for (describe, words) in [
        ("panic", "had enough"),
        ("loop", "1 s"),
        ("stdout", "1 s"),
        ("sleep", "`describe` took longer than 5 s"),
        ("exit", "status 1"),
    ] {
        let guest = Guest {
            describe,
            ..Guest::default()
        };
        // The limits of the grants do not apply to loading.
        let grants = format!("{GRANTS}limits: {{wallSeconds: 600, cpuSeconds: 60}}\n");
        for source in [describe, "hostile"] {
            fixture.add(source, guest.wasm()?, &grants)?;
            let what = format!("{describe} in {source}");
            fixture.home.until(&what, |status| {
                let handler = handler(status, &format!("{source}.wasm")).to_string();
                handler.contains("`describe` failed") && handler.contains(words)
            })?;
        }
        ensure!(fixture.instances_of("hostile", 1)? == before, "{describe}");
    }
    fixture.check_neighbour()
}

#[test]
fn a_failing_validate_is_reported_and_rarely_retried() -> Result<()> {
    let fixture = Fixture::with(Guest::default(), GRANTS)?;
    let actions = [
        ("panic", "trap", "had enough"),
        ("loop", "cpu_budget", "2 s"),
        ("stderr", "cpu_budget", "2 s"),
        ("memory", "memory", "64 MiB"),
    ];
    for (action, reason, words) in actions {
        let guest = Guest {
            name: action,
            validate: action,
            ..Guest::default()
        };
        fixture.add(action, guest.wasm()?, GRANTS)?;
        fixture.configure(action, action, "good")?;
        fixture.until_session_shows(action, Outcome { reason, words })?;
    }
    let status = fixture.home.status()?;
    for (action, ..) in actions {
        let handler = handler(&status, &format!("{action}.wasm")).to_string();
        ensure!(
            handler.contains("`validate` failed for its own example"),
            "{handler}"
        );
    }
    // After two seconds of CPU time the next attempt comes minutes later.
    let faults =
        fixture.metric("leafhost_handler_faults_total{handler=\"loop\",reason=\"cpu_budget\"}")?;
    ensure!(faults <= 2.0, "{faults} faults");
    fixture.check_neighbour()
}

#[test]
fn a_handler_with_the_name_of_another_is_reported_and_gets_no_device() -> Result<()> {
    let fixture = Fixture::with(Guest::default(), GRANTS)?;
    let thief = Guest {
        name: "neighbour",
        ..Guest::default()
    };
    fixture.add("another", thief.wasm()?, GRANTS)?;
    let named = Outcome {
        reason: "problems",
        words: "comes from another.wasm, too, which was accepted after neighbour.wasm",
    };
    fixture.until_session_shows("neighbour-0", named)?;
    fixture.check_neighbour()
}

/// Returns the status of a handler source.
fn handler<'a>(status: &'a Value, source: &str) -> &'a Value {
    let all = status.get("handlers").and_then(Value::as_array);
    let of = |one: &&Value| one.get("source").and_then(Value::as_str) == Some(source);
    all.into_iter().flatten().find(of).unwrap_or(&Value::Null)
}

//! Answers no handler should give, and what handlers say of themselves and of details.

use std::time::Duration;

use anyhow::{Result, ensure};
use leafhost_tests::wait::within;
use serde_json::Value;

use crate::yard::{Guest, Named, Yard, session};

const GRANTS: &str = "\
udev: {subsystems: [\"*\"]}
network: {interfaces: [lo]}
devices:
  nodes: [/dev/fd, /dev/null]
  mounts: [\"/etc:ro\"]
  env: [\"*\"]
";

fn ok<'a>(details: &'a str, words: &'a str) -> (&'a str, Named<'a>) {
    let reason = "\"ok\"";
    (details, Named { reason, words })
}

#[test]
fn a_device_that_breaks_a_rule_is_left_out_and_named() -> Result<()> {
    let mut yard = Yard::with(Guest::default(), GRANTS)?;
    yard.suffer(&[
        ok("id a\\0b", "id has a control character"),
        ok("id a\\nb", "id has a control character"),
        ok("id \\e", "id is empty"),
        ok("long-id", "bytes of text"),
        ok("twice", "the first one counts"),
        ok("physical-id \\e", "physical-id must be"),
        ok("name A=B", "is not [A-Za-z_]"),
        ok("name A\\nB", "is not [A-Za-z_]"),
        ok("name LD_PRELOAD", "LD_PRELOAD is not granted"),
        ok("name PATH", "PATH is not granted"),
        ok("value a\\0b", "HOSTILE_VALUE has a control character"),
        ok("same-name", "is there twice"),
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
fn an_answer_over_a_limit_is_refused_and_the_last_one_stays() -> Result<()> {
    let mut yard = Yard::with(Guest::default(), GRANTS)?;
    let too_large = |words| Named {
        reason: "answer_too_large",
        words,
    };
    let held = Named {
        reason: "host_resources",
        words: "32 MiB",
    };
    yard.suffer(&[
        ("many", too_large("5000 devices")),
        ("large", too_large("bytes of text")),
        ("departs-too-many", too_large("5000 departed")),
        ("cursor", too_large("the cursor has 10000000 bytes")),
        ("million-wakes", held),
        (
            "filters",
            Named {
                reason: "\"ok\"",
                words: "multicast",
            },
        ),
        (
            "unavailable",
            Named {
                reason: "unavailable",
                words: "not not",
            },
        ),
        (
            "invalid",
            Named {
                reason: "invalid-details",
                words: "no such thing",
            },
        ),
        (
            "partial",
            Named {
                reason: "\"ok\"",
                words: "timer",
            },
        ),
        ok("wake-at-once", "\"nextMs\":1000"),
    ])
}

#[test]
fn a_handler_that_never_answers_the_same_twice_is_passed_on_slowly_and_named() -> Result<()> {
    let yard = Yard::with(Guest::default(), GRANTS)?;
    for (name, details) in [
        ("ids", "new-ids 20"),
        ("flap", "comes-and-goes"),
        ("values", "new-values"),
        ("departing", "departs"),
        ("silent", "unchanged"),
        ("climbing", "id ../../../../../../tmp/leafhost-climbs"),
    ] {
        yard.configure(name, "hostile", details)?;
    }
    for (name, words) in [
        ("ids", "come, go or change again and again"),
        ("values", "come, go or change again and again"),
        ("flap", "come, go or change again and again"),
    ] {
        // One device alone may change 68 times at once.
        within(Duration::from_mins(4), name, || {
            let status = yard.home.status()?;
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
    let writes = |yard: &Yard| -> Result<f64> {
        let mut sum = 0.0;
        for kind in ["create", "update", "delete"] {
            sum += yard.metric(&format!(
                "leafhost_store_writes_total{{kind=\"{kind}\",result=\"ok\"}}"
            ))?;
        }
        Ok(sum)
    };
    let calls = |yard: &Yard| yard.metric("leafhost_handler_calls_total{handler=\"hostile\"}");
    let (written, called) = (writes(&yard)?, calls(&yard)?);
    ensure!(written > 60.0, "{written} writes are counted");
    yard.home.until("forty calls more", |_| {
        calls(&yard).is_ok_and(|now| now >= called + 40.0)
    })?;
    let after = yard.home.status()?;
    let more = writes(&yard)? - written;
    // Passed on without a bound it would be more than fifty for each call.
    ensure!(more <= 40.0, "{more} writes for forty calls");
    ensure!(all(&after, "ids").len() <= 40, "the devices pile up");
    // What departs from one Configuration is there in another.
    ensure!(all(&after, "departing").len() == 1, "{after:#}");
    ensure!(all(&after, "silent").is_empty(), "{after:#}");
    ensure!(
        session(&after, "silent").to_string().contains("\"ok\""),
        "{after:#}"
    );
    ensure!(all(&after, "climbing").len() == 2, "{after:#}");
    ensure!(!std::path::Path::new("/tmp/leafhost-climbs").exists());
    yard.neighbour_is_well()
}

#[test]
fn what_fails_to_say_who_it_is_leaves_the_version_before_in_place() -> Result<()> {
    let yard = Yard::with(Guest::default(), GRANTS)?;
    yard.configure("hostile", "hostile", "good")?;
    let before = yard.published("hostile", 1)?;
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
        // What it may take later does not count when it is loaded.
        let grants = format!("{GRANTS}limits: {{wallSeconds: 600, cpuSeconds: 60}}\n");
        for source in [describe, "hostile"] {
            yard.add(source, guest.wasm()?, &grants)?;
            let what = format!("{describe} in {source}");
            yard.home.until(&what, |status| {
                let handler = handler(status, &format!("{source}.wasm")).to_string();
                handler.contains("cannot say who it is") && handler.contains(words)
            })?;
        }
        ensure!(yard.published("hostile", 1)? == before, "{describe}");
    }
    yard.neighbour_is_well()
}

#[test]
fn what_fails_to_look_at_details_is_named_and_called_seldom() -> Result<()> {
    let yard = Yard::with(Guest::default(), GRANTS)?;
    let deeds = [
        ("panic", "trap", "had enough"),
        ("loop", "cpu_budget", "2 s"),
        ("stderr", "cpu_budget", "2 s"),
        ("memory", "memory", "64 MiB"),
    ];
    for (deed, reason, words) in deeds {
        let guest = Guest {
            name: deed,
            validate: deed,
            ..Guest::default()
        };
        yard.add(deed, guest.wasm()?, GRANTS)?;
        yard.configure(deed, deed, "good")?;
        yard.until_named(deed, Named { reason, words })?;
    }
    let status = yard.home.status()?;
    for (deed, ..) in deeds {
        let handler = handler(&status, &format!("{deed}.wasm")).to_string();
        ensure!(
            handler.contains("fails to check its own example"),
            "{handler}"
        );
    }
    // What computed two seconds is looked at again after minutes.
    let faults =
        yard.metric("leafhost_handler_faults_total{handler=\"loop\",reason=\"cpu_budget\"}")?;
    ensure!(faults <= 2.0, "{faults} faults");
    yard.neighbour_is_well()
}

#[test]
fn a_handler_that_takes_the_name_of_another_is_named_and_takes_no_device() -> Result<()> {
    let yard = Yard::with(Guest::default(), GRANTS)?;
    let thief = Guest {
        name: "neighbour",
        ..Guest::default()
    };
    yard.add("another", thief.wasm()?, GRANTS)?;
    let named = Named {
        reason: "problems",
        words: "comes from another.wasm, too, which was accepted after neighbour.wasm",
    };
    yard.until_named("neighbour-0", named)?;
    yard.neighbour_is_well()
}

/// What the status says of a source.
fn handler<'a>(status: &'a Value, source: &str) -> &'a Value {
    let all = status.get("handlers").and_then(Value::as_array);
    let of = |one: &&Value| one.get("source").and_then(Value::as_str) == Some(source);
    all.into_iter().flatten().find(of).unwrap_or(&Value::Null)
}

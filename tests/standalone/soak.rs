//! The agent is killed repeatedly while its Configurations change; its Instances stay complete and unchanged.

use std::collections::BTreeMap;

use anyhow::{Context, Result, ensure};
use leafhost_tests::random::{self, Random};
use leafhost_tests::wait::eventually;
use nix::sys::signal::Signal;
use serde_json::Value;

use crate::instances::{DEBUG_ECHO, home_with_echo};

fn uids(instances: &[Value], configuration: &str) -> BTreeMap<String, String> {
    let text = |instance: &Value, pointer| {
        instance
            .pointer(pointer)
            .and_then(Value::as_str)
            .map(str::to_owned)
    };
    let of_it = instances.iter().filter(|instance| {
        text(instance, "/spec/configurationName").as_deref() == Some(configuration)
    });
    of_it
        .filter_map(|instance| {
            Some((
                text(instance, "/metadata/name")?,
                text(instance, "/metadata/uid")?,
            ))
        })
        .collect()
}

/// Writes one of two versions of a second Configuration, or removes it, and kills the agent some milliseconds later, `rounds` times. The first
/// Configuration's Instances must never change, and its CDI spec must stay.
fn kill(rounds: u64, seed: u64) -> Result<()> {
    let mut random = Random::new(seed);
    let mut home = home_with_echo()?;
    home.start(&[])?;
    let kept = uids(&home.instances(2)?, "echo");
    // Waits once: the spec is written after the Instances and outlives the agent.
    let spec = home.cdi().join("akri.sh-echo_leafhost.json");
    eventually("the CDI spec", || Ok(std::fs::metadata(&spec).map(drop)?))?;
    let names: Vec<String> = (0..20).map(|n| format!("thing{n}")).collect();
    let other = |descriptions: &[String]| {
        DEBUG_ECHO
            .replace(
                "name: echo",
                "name: other\n  annotations: {leafhost.dev/grace: \"0\"}",
            )
            .replace(r#"["foo0", "foo1"]"#, &format!("{descriptions:?}"))
    };
    for round in 0..rounds {
        let count = match random.below(3) {
            0 => 0,
            1 => 5,
            _ => names.len(),
        };
        if count == 0 {
            drop(home.remove("configurations/other.yaml"));
        } else {
            home.write(
                "configurations/other.yaml",
                other(names.get(..count).unwrap_or_default()),
            )?;
        }
        // The agent waits 200 ms (2 s for a removal) before it reads a change and writes: the kill falls before,
        // during or after the writes.
        random.moment(500);
        home.stop(Signal::SIGKILL)?;
        home.start(&[])?;
        let instances = home.until("the Instances are what the Configurations say", |status| {
            let all = status
                .get("instances")
                .and_then(Value::as_array)
                .cloned()
                .unwrap_or_default();
            uids(&all, "other").len() == count
        })?;
        let all = instances
            .get("instances")
            .and_then(Value::as_array)
            .context("no instances")?;
        ensure!(
            uids(all, "echo") == kept,
            "round {round}: an Instance was lost or re-created"
        );
        ensure!(
            all.len() == count + 2,
            "round {round}: {} Instances, {count} + 2 expected",
            all.len()
        );
        let published = std::fs::read_to_string(&spec)
            .with_context(|| format!("round {round}: the CDI spec was lost"))?;
        ensure!(
            serde_json::from_str::<Value>(&published).is_ok(),
            "round {round}: half a CDI spec"
        );
        let state = home.path().join("state/instances/default");
        let broken = std::fs::read_dir(&state)?
            .filter_map(Result::ok)
            .filter(|entry| {
                entry
                    .path()
                    .extension()
                    .is_some_and(|extension| extension == "broken")
            });
        ensure!(
            broken.count() == 0,
            "round {round}: a half-written Instance"
        );
    }
    Ok(())
}

#[test]
fn killed_agents_leave_complete_and_unchanged_instances() -> Result<()> {
    kill(4, 1)
}

/// Runs `SOAK_ROUNDS` rounds with the random sequence of `SOAK_SEED`.
#[test]
#[ignore = "takes minutes: make soak"]
fn soak_killed_agents() -> Result<()> {
    kill(random::rounds(100), random::seed()?)
}

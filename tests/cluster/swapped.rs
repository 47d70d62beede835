//! A handler that is replaced in its `ConfigMap` repeatedly: Instances and pods stay as they are, and nothing writes an Instance.

use std::collections::BTreeMap;
use std::fs;

use anyhow::{Context, Result, ensure};
use leafhost_tests::cluster;
use leafhost_tests::program::{self, handler, leafhost};
use leafhost_tests::wait::eventually;
use serde_json::Value;
use sha2::{Digest, Sha256};

use crate::pair::{Pair, used};

const HANDLERS: &str = "/apis/leafhost.dev/v1alpha1/discoveryhandlers";

/// Returns the component with a custom section that changes its digest.
fn version(round: u8) -> Result<Vec<u8>> {
    let mut bytes = fs::read(handler("debug-echo")?)?;
    // Custom section of 6 bytes: a name of 4 bytes after its length, and one byte.
    bytes.extend([0, 6, 4]);
    bytes.extend(b"test");
    bytes.push(round);
    Ok(bytes)
}

/// Returns the `ConfigMap` of a component, as a user creates it.
fn packed(bytes: &[u8]) -> Result<String> {
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("debug-echo.wasm");
    fs::write(&file, bytes)?;
    fs::copy(
        handler("debug-echo")?.with_extension("grants.yaml"),
        file.with_extension("grants.yaml"),
    )?;
    let arguments = ["handler".as_ref(), "configmap".as_ref(), file.as_os_str()];
    program::run(leafhost()?, arguments)?.good()
}

fn digest_of(bytes: &[u8]) -> String {
    let digest = Sha256::digest(bytes);
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Applies the object and waits until the report of each node is true for `is_so`.
fn apply(pair: &Pair, object: &str, what: &str, is_so: impl Fn(&Value) -> bool) -> Result<()> {
    let namespace = ["--namespace", pair.space.name()];
    let apply = ["apply", "--server-side", "--filename", "-"];
    let arguments = [&apply[..], &namespace].concat();
    pair.cluster.kubectl_with(&arguments, object)?;
    eventually(what, || {
        let all = pair.cluster.get(HANDLERS)?;
        let all = all["items"].as_array().context("no items")?;
        let ours: Vec<&Value> = all
            .iter()
            .filter(|one| one["spec"]["handler"] == "debugEcho")
            .collect();
        ensure!(
            ours.len() == 2 && ours.iter().all(|one| is_so(one)),
            "{ours:#?}"
        );
        Ok(())
    })
    .with_context(|| pair.space.state())
}

#[test]
fn a_handler_swapped_twenty_times_in_its_config_map_writes_no_instance_and_disturbs_no_pod()
-> Result<()> {
    let Some(cluster) = cluster::shared()? else {
        return Ok(());
    };
    let pair = Pair::start(cluster, "swapped", &[])?;
    let devices = ["one", "two"];
    pair.configure(2, &devices, "{MODE: fast}")?;
    let found = pair.until("both nodes see both devices", &devices, |_| true)?;
    let mut containers = BTreeMap::new();
    for (node, pod) in ["on-a", "on-b"].into_iter().enumerate() {
        pair.space.run(&pair.pod(pod, node, &found["one"])?)?;
        containers.insert(pod, pair.space.container(pod)?);
    }
    let is_held = |one: &Value| one["spec"]["leafhost"]["id"] != "one" || used(one).len() == 2;
    pair.until_holders(2)?;
    let before = pair.until("both pods have a slot", &devices, is_held)?;
    let mut digest = String::new();
    for round in 1..=20 {
        let bytes = version(round)?;
        digest = digest_of(&bytes);
        let is_new = |one: &Value| {
            let status = &one["status"];
            status["phase"] == "Active" && status["sources"][0]["digest"] == *digest
        };
        let what = format!("version {round} serves on both nodes");
        apply(&pair, &packed(&bytes)?, &what, is_new)?;
    }
    let object = packed(&version(20)?)?;
    let line = object.lines().find(|line| line.contains(".wasm"));
    let (_, bytes) = line
        .and_then(|line| line.split_once(": "))
        .context("no bytes")?;
    let broken = object.replace(bytes, "AAAA");
    let is_told = |one: &Value| {
        let status = &one["status"];
        let source = &status["sources"][0];
        status["phase"] == "Active" && source["digest"] == *digest && source["problem"].is_string()
    };
    apply(
        &pair,
        &broken,
        "the old version serves beside a broken one",
        is_told,
    )?;
    let bytes = version(21)?;
    let digest = digest_of(&bytes);
    apply(&pair, &packed(&bytes)?, "the next version serves", |one| {
        let source = &one["status"]["sources"][0];
        source["digest"] == *digest && source["problem"].is_null()
    })?;

    // A pod takes a slot by the last version. Any earlier write would have reached the API server before.
    pair.space.run(&pair.pod("last", 0, &found["two"])?)?;
    let name = |one: &Value| {
        one["metadata"]["name"]
            .as_str()
            .unwrap_or_default()
            .to_owned()
    };
    pair.until_holders(3)?;
    // One node created each and the other joined it; each pod has taken a slot and is recorded.
    let expected = BTreeMap::from([(name(&found["one"]), 5..=6), (name(&found["two"]), 4..=4)]);
    eventually("only the slots of pods are written", || {
        let written = pair.writes()?;
        let is_right = written.len() == expected.len()
            && written.iter().all(|(name, count)| {
                let expected = expected.get(name);
                expected.is_some_and(|expected| expected.contains(count))
            });
        ensure!(is_right, "written: {written:?}, expected: {expected:?}");
        Ok(())
    })?;
    let after = pair.instances()?;
    assert_eq!(after["one"], before["one"]);
    assert_eq!(
        after["two"]["metadata"]["uid"],
        before["two"]["metadata"]["uid"]
    );
    for (pod, container) in &containers {
        assert_eq!(pair.space.container(pod)?, *container, "{pod}");
    }
    Ok(())
}

//! Manifests of other drivers' examples, from a folder, run with our class.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use leafhost_tests::cluster;
use leafhost_tests::wait::within;
use serde_json::{Value, json};

use crate::agents::Agents;
use crate::claim_cases::{manifests, start, text, until_printed};
use crate::claims::PATIENCE;

/// Environment variable with the folder.
const EXAMPLES: &str = "DRA_EXAMPLES";

/// Replaces the names of another driver.
fn translated(text: &str) -> String {
    let names = [
        ("gpu.example.com", "gpu.akri.sh"),
        ("driver: gpu.akri.sh", "driver: leafhost.dev"),
        (
            "device.attributes[\"gpu.akri.sh\"]",
            "device.attributes[\"leafhost.dev\"]",
        ),
        (
            "device.capacity[\"gpu.akri.sh\"]",
            "device.capacity[\"leafhost.dev\"]",
        ),
        (
            "device.attributes['gpu.akri.sh']",
            "device.attributes['leafhost.dev']",
        ),
        (
            "device.capacity['gpu.akri.sh']",
            "device.capacity['leafhost.dev']",
        ),
        ("example.com/gpu", "akri.sh/gpu"),
        ("gpu.nvidia.com", "gpu.akri.sh"),
        ("\"bash\"", "\"sh\""),
        ("nvidia-smi -L", "env"),
    ];
    names.iter().fold(text.to_owned(), |text, (theirs, ours)| {
        text.replace(theirs, ours)
    })
}

#[test]
#[ignore = "takes manifests of another driver's examples: DRA_EXAMPLES=DIR"]
fn manifests_of_other_drivers_run_with_our_class() -> Result<()> {
    let folder = std::env::var(EXAMPLES).context("DRA_EXAMPLES names no folder")?;
    let Some(cluster) = cluster::shared()? else {
        return Ok(());
    };
    let (agents, _controller) = start(cluster, "claim-examples")?;
    let mut files: Vec<_> = fs::read_dir(Path::new(&folder))?.collect::<Result<_, _>>()?;
    files.sort_by_key(fs::DirEntry::path);
    let mut failed = Vec::new();
    for file in files {
        let done = if file.path().is_dir() {
            tainted(&agents, &file.path())
        } else {
            example(&agents, &file.path())
        };
        println!("{}: {done:?}", file.path().display());
        if done.is_err() {
            failed.push(file.path());
        }
    }
    ensure!(failed.is_empty(), "{failed:?}");
    Ok(())
}

/// Runs the manifests of a file; returns the number of GPUs of each pod.
fn example(agents: &Agents, file: &Path) -> Result<Vec<(String, usize)>> {
    let objects = manifests(&translated(&fs::read_to_string(file)?))?;
    let namespace = objects.iter().find(|one| one["kind"] == "Namespace");
    let namespace = namespace
        .map(|one| text(&one["metadata"]["name"]))
        .context("no namespace")?;
    let all: Vec<String> = objects.iter().map(Value::to_string).collect();
    let done = || {
        agents.cluster.apply(&all.join("\n---\n"))?;
        let mut counts = Vec::new();
        for pod in objects.iter().filter(|one| one["kind"] == "Pod") {
            let name = text(&pod["metadata"]["name"]);
            let seen = until_printed(agents, &namespace, &name)?;
            counts.push((name, seen.check()?));
        }
        Ok(counts)
    };
    let done = done();
    agents
        .cluster
        .kubectl(&["delete", "namespace", &namespace, "--wait"])?;
    done
}

/// Applies the manifests of a folder in the order of their names. One of them is a rule that taints devices: checks which pods it evicts and which it
/// does not. Returns the number of GPUs of each of the latter.
fn tainted(agents: &Agents, folder: &Path) -> Result<Vec<(String, usize)>> {
    let mut files: Vec<_> = fs::read_dir(folder)?.collect::<Result<_, _>>()?;
    files.sort_by_key(fs::DirEntry::path);
    let (mut objects, mut namespace, mut rule) = (Vec::new(), String::new(), None);
    let mut before = Vec::new();
    let mut done = || {
        for file in &files {
            for mut object in manifests(&translated(&fs::read_to_string(file.path())?))? {
                let name = text(&object["metadata"]["name"]);
                match object["kind"].as_str() {
                    Some("DeviceTaintRule") => {
                        object["apiVersion"] = json!("resource.k8s.io/v1");
                        rule = Some(object.clone());
                    }
                    Some("Namespace") => namespace.clone_from(&name),
                    Some("Pod") => {
                        object["apiVersion"] = json!("v1");
                        if rule.is_none() {
                            before.push(name);
                        }
                    }
                    _ => {}
                }
                agents.cluster.apply(&object.to_string())?;
                objects.push(object);
            }
            if rule.is_none() {
                for pod in &before {
                    until_printed(agents, &namespace, pod)?;
                }
            }
        }
        let taint = &rule.as_ref().context("there is no rule")?["spec"]["taint"];
        let tolerates = |pod: &Value| {
            let template = &pod["spec"]["resourceClaims"][0]["resourceClaimTemplateName"];
            let is_it = |one: &&Value| {
                one["kind"] == "ResourceClaimTemplate" && one["metadata"]["name"] == *template
            };
            let template = objects.iter().find(is_it);
            let tolerations = template.and_then(|one| {
                one["spec"]["spec"]["devices"]["requests"][0]["exactly"]["tolerations"].as_array()
            });
            tolerations.is_some_and(|all| all.iter().any(|one| one["key"] == taint["key"]))
        };
        let mut counts = Vec::new();
        for pod in objects.iter().filter(|one| one["kind"] == "Pod") {
            let name = text(&pod["metadata"]["name"]);
            let path = format!("/api/v1/namespaces/{namespace}/pods/{name}");
            let is_before = before.contains(&name);
            if tolerates(pod) || (is_before && taint["effect"] == "NoSchedule") {
                let count = until_printed(agents, &namespace, &name)?.check()?;
                counts.push((name, count));
            } else if is_before {
                within(PATIENCE, &format!("{name} is evicted"), || {
                    match agents.cluster.get(&path) {
                        Err(error) if format!("{error:#}").contains("NotFound") => Ok(()),
                        other => bail!("it is there: {:#}", other?["status"]),
                    }
                })?;
            } else {
                within(PATIENCE, &format!("{name} finds no device"), || {
                    let status = agents.cluster.get(&path)?["status"].clone();
                    ensure!(
                        status["conditions"][0]["reason"] == "Unschedulable",
                        "{status:#}"
                    );
                    Ok(())
                })?;
            }
        }
        Ok(counts)
    };
    let done = done();
    if let Some(rule) = &rule {
        let name = text(&rule["metadata"]["name"]);
        agents
            .cluster
            .kubectl(&["delete", "devicetaintrule", &name])?;
    }
    agents
        .cluster
        .kubectl(&["delete", "namespace", &namespace, "--wait"])?;
    done
}

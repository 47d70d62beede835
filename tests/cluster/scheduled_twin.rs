//! Second scheduler with an extender of its own, under the account of the first one: neither knows the choices of the other, and both want the same
//! devices.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use leafhost_tests::accounts::kubeconfig;
use leafhost_tests::program::{leafhost, source_tree};
use leafhost_tests::wait::eventually;
use serde_json::{Value, json};

use crate::scheduled_field::{Field, asks, soon};

/// Number of devices that both want at once.
const WANTED: usize = 10;

/// Second scheduler, which ends when this is dropped.
struct Twin {
    children: Vec<Child>,
    folder: tempfile::TempDir,
    name: String,
}

impl Twin {
    /// Starts the second scheduler with the configuration of the first one, except for its name.
    fn start(field: &Field) -> Result<Self> {
        let (cluster, space) = (field.agents.cluster, field.space().name());
        let account = format!("{space}-leafhost-scheduler");
        let mut twin = Self {
            children: Vec::new(),
            folder: tempfile::tempdir()?,
            name: format!("{space}-twin"),
        };
        let own = twin.folder.path().join("kubeconfig");
        let create = ["create", "token", &account, "--namespace", space];
        fs::write(&own, kubeconfig(cluster, &create)?)?;
        let mut extender = Command::new(leafhost()?);
        extender
            .args(["scheduler", "--listen", "127.0.0.1:0"])
            .args(["--log-format", "text", "--log-level", "debug"])
            .env("KUBECONFIG", &own);
        twin.spawn("extender", &mut extender)?;
        let address = eventually("the extender says where it listens", || {
            let log = twin.log("extender");
            let (_, address) = log.split_once("address=").context("it says nothing")?;
            let address = address.split_whitespace().next().context("no address")?;
            Ok(address.to_owned())
        })?;
        let path = format!("/api/v1/namespaces/{space}/configmaps/{account}");
        let object = cluster.get(&path)?;
        let text = object["data"]["config.yaml"].as_str();
        let mut config: Value = serde_saphyr::from_str(text.context("no configuration")?)?;
        config["profiles"] = json!([{"schedulerName": twin.name}]);
        config["extenders"][0]["urlPrefix"] = json!(format!("http://{address}"));
        config["leaderElection"] = json!({"leaderElect": false});
        config["clientConnection"] = json!({"kubeconfig": own});
        let path = twin.folder.path().join("scheduler.yaml");
        fs::write(&path, config.to_string())?;
        let mut scheduler = Command::new(cluster.programs().join("kube-scheduler"));
        scheduler
            .arg(format!("--config={}", path.display()))
            .args(["--secure-port=0", "--v=2"]);
        twin.spawn("scheduler", &mut scheduler)?;
        Ok(twin)
    }

    fn spawn(&mut self, name: &str, command: &mut Command) -> Result<()> {
        let log = File::create(self.folder.path().join(name).with_extension("log"))?;
        let child = command
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()
            .with_context(|| format!("cannot start the second {name}"))?;
        self.children.push(child);
        Ok(())
    }

    fn log(&self, name: &str) -> String {
        let path = self.folder.path().join(name).with_extension("log");
        fs::read_to_string(path).unwrap_or_default()
    }

    /// Returns the ends of both logs.
    fn logs(&self) -> String {
        let tail = |name: &str| {
            let text = self.log(name);
            let lines: Vec<&str> = text.lines().collect();
            lines[lines.len().saturating_sub(40)..].join("\n")
        };
        let (extender, scheduler) = (tail("extender"), tail("scheduler"));
        format!("second extender:\n{extender}\nsecond scheduler:\n{scheduler}")
    }
}

impl Drop for Twin {
    fn drop(&mut self) {
        for child in &mut self.children {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Makes the policies admit pods of the second scheduler.
fn admit(field: &Field, other: &str) -> Result<()> {
    let (cluster, space) = (field.agents.cluster, field.space().name());
    let chart = source_tree().join("deploy/chart");
    let values =
        format!("scheduler.enabled=true,scheduler.name={space},scheduler.otherNames={{{other}}}");
    let only = "templates/policies-scheduler.yaml";
    let policies = cluster.helm(&[
        "template",
        space,
        &chart.to_string_lossy(),
        "--namespace",
        space,
        "--set",
        &values,
        "--kube-version",
        "1.37.0",
        "--show-only",
        only,
    ])?;
    cluster.apply(&policies).map(drop)
}

/// Checks F11 and F15: with as many devices as pods of two schedulers, each pod gets one, and none is allocated twice; then a pod of each waits for
/// an end.
pub fn compete(field: &Field) -> Result<()> {
    let twin = Twin::start(field)?;
    admit(field, &twin.name)?;
    let space = field.space();
    let names = [space.name(), &twin.name];
    let indices: Vec<usize> = (0..WANTED).collect();
    let pod = |name: &str, number: usize| {
        let says = json!({"main": field.one(&indices)});
        let pod = field.pod(name, [&[], &[asks("main")]], &says);
        pod.with("schedulerName", json!(names[number % 2]))
    };
    // Its own pod shows that it schedules.
    eventually("the policy admits pods of the second scheduler", || {
        space.create(&pod("probe", 1))
    })?;
    let check = |name: &str| {
        field
            .running(name)
            .with_context(|| twin.logs())
            .and_then(|()| field.has(space, name))
            .map(|mut has| has.remove("main").unwrap_or_default())
    };
    check("probe")?;
    field.clear()?;
    let begun = Instant::now();
    let all: Vec<String> = (0..WANTED).map(|number| format!("twin-{number}")).collect();
    for (number, name) in all.iter().enumerate() {
        space.create(&pod(name, number))?;
    }
    let mut given: Vec<usize> = Vec::new();
    for name in &all {
        given.extend(check(name)?);
    }
    soon("F11: ten pods of two schedulers run", begun)?;
    ensure!(
        given.len() == WANTED
            && given.iter().copied().collect::<BTreeSet<_>>() == indices.iter().copied().collect(),
        "they have {given:?}"
    );
    for (number, name) in ["late-0", "late-1"].into_iter().enumerate() {
        space.create(&pod(name, number))?;
        space.wait_unschedulable(name)?;
    }
    // One pod of each scheduler ends.
    for name in &all[..2] {
        space.delete(name)?;
    }
    let begun = Instant::now();
    let mut late = Vec::new();
    for name in ["late-0", "late-1"] {
        late.extend(check(name)?);
    }
    soon("F11, F21: two pods that have waited run", begun)?;
    late.sort_unstable();
    let mut freed = given[..2].to_vec();
    freed.sort_unstable();
    ensure!(late == freed, "{late:?} are used, {freed:?} were freed");
    field.clear()
}

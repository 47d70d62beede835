//! An older release of the chart, upgraded and uninstalled as `docs/operate.md` says: Helm does not change CRDs.

use std::fs;

use anyhow::{Context, Result, ensure};
use leafhost_tests::cluster::{Cluster, Container, Pod};
use leafhost_tests::program::{self, leafhost, source_tree};
use leafhost_tests::requirement;
use leafhost_tests::wait::eventually;
use serde_json::{Value, json};

use crate::agents::configure;
use crate::away::Own;
use crate::installed::{NAMESPACE, Release};

/// Field that the older CRD of Configurations does not have.
const FIELD: &str = "/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties";
const NEWER: &str = "instanceServiceSpec";

/// Returns a copy of the chart with older CRDs.
fn older() -> Result<tempfile::TempDir> {
    let folder = tempfile::tempdir()?;
    let chart = source_tree().join("deploy/chart");
    let (from, to) = (chart.join("."), folder.path());
    program::run("cp", ["-R".as_ref(), from.as_os_str(), to.as_os_str()])?.good()?;
    let file = folder.path().join("crds/crds.yaml");
    let text = fs::read_to_string(&file)?;
    let mut older = Vec::new();
    for mut definition in serde_saphyr::from_multiple::<Value>(&text)? {
        if definition["metadata"]["name"] == "configurations.akri.sh" {
            let fields = definition.pointer_mut(FIELD).and_then(Value::as_object_mut);
            let removed = fields.context("no fields")?.remove(NEWER);
            ensure!(removed.is_some(), "{NEWER} is not defined");
        }
        older.push(definition.to_string());
    }
    fs::write(file, older.join("\n---\n"))?;
    Ok(folder)
}

/// Returns the commands below a heading of the runbook.
fn runbook(heading: &str) -> Result<String> {
    let text = fs::read_to_string(source_tree().join("docs/operate.md"))?;
    let (_, text) = text.split_once("\n## Runbook\n").context("no runbook")?;
    let heading = format!("\n### {heading}\n");
    let (_, text) = text.split_once(&heading).context(heading)?;
    let (_, text) = text.split_once("```sh\n").context("no commands")?;
    let (commands, _) = text.split_once("```").context("they do not end")?;
    Ok(commands.to_owned())
}

/// Returns true if a Configuration can have the newer field.
fn has_newer(cluster: &Cluster) -> Result<bool> {
    let path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/configurations.akri.sh";
    let definition = cluster.get(path)?;
    let fields = definition.pointer(FIELD).context("no fields")?;
    Ok(fields.get(NEWER).is_some())
}

/// Checks the size of Helm's Secrets: Helm keeps each release in one, and etcd accepts objects of 1.5 MB.
fn small_secrets(cluster: &Cluster) -> Result<()> {
    let secrets = "fieldSelector=type%3Dhelm.sh/release.v1";
    let list = cluster.get(&format!("/api/v1/namespaces/leafhost/secrets?{secrets}"))?;
    let secrets = list["items"].as_array().context("no items")?;
    ensure!(secrets.len() == 2, "{} releases", secrets.len());
    for secret in secrets {
        let size = secret["data"]["release"].as_str().context("empty")?.len();
        println!("the Secret of a release: {size} bytes");
        ensure!(size < 500_000, "{size} bytes");
    }
    Ok(())
}

#[test]
fn an_upgrade_with_newer_definitions_and_an_uninstall_keep_instances_and_pods_run_on() -> Result<()>
{
    if requirement::lacks(Cluster::missing())? {
        return Ok(());
    }
    let own = Own::start(1)?;
    let cluster = own.0;
    let chart = older()?;
    let release = Release::of_chart(cluster, chart.path())?;
    let check = || -> Result<()> {
        release.add_handler("debug-echo")?;
        let space = cluster.namespace("upgraded")?;
        let details = "{shared: true, descriptions: [only]}";
        configure(cluster, space.name(), "echo", "debugEcho", details)?;
        let node = release.nodes.first().context("no node")?;
        node.wait_allocatable("akri.sh/echo", 1)?;
        let main = Container::new("main").device("akri.sh/echo", 1);
        space.run(&Pod::new("user", &[main]).on(node))?;
        let container = space.container("user")?;
        let instances = format!("/apis/akri.sh/v0/namespaces/{}/instances", space.name());
        let instance = || -> Result<(Value, Value)> {
            let list = cluster.get(&instances)?;
            let [one] = list["items"].as_array().context("no items")?.as_slice() else {
                anyhow::bail!("not one Instance: {list:#}");
            };
            let spec = one["spec"].clone();
            Ok((one["metadata"]["uid"].clone(), spec))
        };
        let before = instance()?;

        let definitions = program::run(leafhost()?, ["crds"])?.good()?;
        let apply = ["apply", "--server-side", "--filename", "-"];
        let refused = cluster.kubectl_with(&apply, &definitions);
        let refused = format!("{:#}", refused.err().context("the flag is not needed")?);
        ensure!(refused.contains("conflict with \"helm\""), "{refused}");
        ensure!(!has_newer(cluster)?, "the chart is no older one");
        let upgrade = runbook("Upgrade the definitions")?;
        let (definitions, upgrade) = upgrade.split_once('\n').context("one command")?;
        cluster.shell(definitions)?;
        ensure!(has_newer(cluster)?, "the definitions are as before");
        // The API server keeps an object with the field complete.
        let configuration = format!(
            "/apis/akri.sh/v0/namespaces/{}/configurations/echo",
            space.name()
        );
        let patch = json!({"spec": {NEWER: {"ports": [{"port": 80}]}}}).to_string();
        let merge = ["patch", "akric", "echo", "--namespace", space.name()];
        eventually("the newer field is stored", || {
            cluster.kubectl(&[&merge[..], &["--type", "merge", "--patch", &patch]].concat())?;
            let stored = cluster.get(&configuration)?;
            ensure!(stored["spec"][NEWER].is_object(), "{stored:#}");
            Ok(())
        })?;
        cluster.shell(upgrade).with_context(|| release.state())?;
        assert_eq!(instance()?, before);
        small_secrets(cluster)?;
        let back = runbook("Go back to an earlier version")?.replace("REVISION", "1");
        cluster.shell(&back).with_context(|| release.state())?;
        assert_eq!(instance()?, before);

        let list = cluster.get(&instances)?;
        let name = list["items"][0]["metadata"]["name"].as_str();
        let name = name.context("no name")?;
        let conflict = runbook("A slot conflict")?.replace("NAMESPACE", space.name());
        let conflict = conflict.replace("NAME", name).replace("POD", "user");
        let (look, delete) = conflict.split_at(conflict.find("kubectl delete").context("no end")?);
        let seen = cluster.shell(look)?;
        let holder = format!("{name} {name}-0 {} {}/user\n", node.name(), space.name());
        ensure!(seen.starts_with(&holder), "{seen}");
        ensure!(seen.contains(&format!("\"{name}-0\":\"")), "{seen}");
        assert_eq!(space.container("user")?, container);
        cluster.shell(delete)?;
        let mut unused = before.clone();
        for holder in unused.1["deviceUsage"]
            .as_object_mut()
            .context("no slots")?
            .values_mut()
        {
            *holder = "".into();
        }
        eventually("the slot of the deleted pod is free", || {
            let now = instance()?;
            ensure!(now == unused, "{now:#?}");
            Ok(())
        })?;
        let main = Container::new("main").device("akri.sh/echo", 1);
        space.run(&Pod::new("next", &[main]).on(node))?;
        let container = space.container("next")?;
        let before = instance()?;

        let shown = || -> Result<(usize, Value)> {
            let reports = cluster.get("/apis/leafhost.dev/v1alpha1/discoveryhandlers")?;
            let reports = reports["items"].as_array().context("no items")?.len();
            Ok((reports, cluster.get(&configuration)?["status"].clone()))
        };
        eventually("the agent and the controller show what they do", || {
            let (reports, status) = shown()?;
            ensure!(
                reports > 0 && status["ready"] == "1/1",
                "{reports} {status:#}"
            );
            Ok(())
        })?;
        release.uninstall()?;
        let nothing = (0, Value::Null);
        ensure!(shown()? == nothing, "{:?}", shown()?);
        let left = cluster.kubectl(&[
            "get",
            "serviceaccounts,jobs,clusterroles,clusterrolebindings",
            "--all-namespaces",
            "--output",
            "name",
        ])?;
        let left: Vec<&str> = left.lines().filter(|it| it.contains("leafhost")).collect();
        ensure!(left.is_empty(), "{left:?}");
        // The pods that ended after the uninstall have written no report or status, either.
        let pods = format!("/api/v1/namespaces/{NAMESPACE}/pods");
        eventually("all pods of the release are gone", || {
            let pods = cluster.get(&pods)?;
            ensure!(
                pods["items"].as_array().is_some_and(Vec::is_empty),
                "{pods:#}"
            );
            Ok(())
        })?;
        ensure!(shown()? == nothing, "{:?}", shown()?);
        assert_eq!(instance()?, before);
        assert_eq!(space.container("next")?, container);
        Ok(())
    };
    check().with_context(|| release.state())
}

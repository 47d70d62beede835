//! Takeover of a cluster that Akri ran while a broker runs, and the way back. The objects are as Akri 0.13 writes them; the programs are stand-ins.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use leafhost_tests::cluster::{Cluster, Container, Namespace, Pod};
use leafhost_tests::program::{self, Ended, leafhost};
use leafhost_tests::requirement;
use leafhost_tests::wait::eventually;
use leafhost_tests::write_proxy::{Cut, WriteProxy};
use nix::sys::signal::Signal;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::away::Own;
use crate::brokers::Controller;
use crate::device::Site;

const CONFIGURATION: &str = "cams";
/// Maximum number of runs: more than twice the number of writes.
const RUNS: usize = 60;

/// Fields of an Instance that Akri 0.13 reads.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct AkriInstance {
    configuration_name: String,
    cdi_name: String,
    capacity: usize,
    #[serde(default)]
    nodes: Vec<String>,
    #[serde(default)]
    device_usage: std::collections::HashMap<String, String>,
}

struct Field<'c> {
    cluster: &'static Cluster,
    space: &'c Namespace<'static>,
    node: String,
    instance: String,
}

impl Field<'_> {
    fn path(&self, kind: &str, name: &str) -> String {
        format!(
            "/apis/akri.sh/v0/namespaces/{}/{kind}/{name}",
            self.space.name()
        )
    }

    fn instance(&self) -> Result<Value> {
        self.cluster.get(&self.path("instances", &self.instance))
    }

    fn configuration(&self) -> Result<Value> {
        self.cluster
            .get(&self.path("configurations", CONFIGURATION))
    }

    /// Applies fields as an agent of Akri does: on the server, without force.
    fn apply_as(&self, manager: &str, kind: &str, name: &str, fields: &Value) -> Result<()> {
        let mut object = json!({"apiVersion": "akri.sh/v0", "kind": kind, "metadata": {"name": name, "namespace": self.space.name()}});
        merge(&mut object, fields);
        let manager = format!("--field-manager={manager}");
        let apply = ["apply", "--server-side", &manager, "--filename", "-"];
        self.cluster
            .kubectl_with(&apply, &object.to_string())
            .map(drop)
    }

    /// Rewrites the objects as Akri's agents would have written them, with one agent on a node that is gone.
    fn write_as_akri(&self) -> Result<()> {
        let api = self.cluster.api();
        let before = self.instance()?;
        let mut object = before.clone();
        object["metadata"] = json!({
            "name": self.instance, "namespace": self.space.name(), "uid": before["metadata"]["uid"],
            "resourceVersion": before["metadata"]["resourceVersion"],
            "ownerReferences": [{"apiVersion": "akri.sh/v0", "kind": "Configuration", "name": CONFIGURATION, "controller": true,
                "uid": self.configuration()?["metadata"]["uid"]}],
        });
        object["spec"]["deviceUsage"] = used(&before)?;
        let spec = object["spec"].as_object_mut().context("no spec")?;
        spec.remove("leafhost");
        object
            .as_object_mut()
            .context("no object")?
            .remove("status");
        api.replace(&self.path("instances", &self.instance), &object)?;
        let spec = json!({"spec": object["spec"]});
        let mut whole = spec.clone();
        let usage = whole["spec"]
            .as_object_mut()
            .and_then(|spec| spec.remove("deviceUsage"));
        self.apply_as(&self.node, "Instance", &self.instance, &whole)?;
        let usage = json!({"spec": {"deviceUsage": usage}});
        let manager = format!("dp-{}", self.node);
        self.apply_as(&manager, "Instance", &self.instance, &usage)?;
        for (kind, name) in [
            ("Instance", self.instance.as_str()),
            ("Configuration", CONFIGURATION),
        ] {
            for node in [&*self.node, "gone"] {
                let fields = json!({"metadata": {"finalizers": [node]}});
                self.apply_as(&format!("{node}-fin"), kind, name, &fields)?;
            }
        }
        // Keep only Akri as a manager of the Instance's fields.
        let now = self.instance()?;
        let entries = now["metadata"]["managedFields"].as_array();
        let of_akri: Vec<&Value> = entries
            .into_iter()
            .flatten()
            .filter(|entry| entry["operation"] == "Apply")
            .collect();
        ensure!(of_akri.len() == 4, "{now:#}");
        let only = json!({"metadata": {"managedFields": of_akri}});
        api.merge(&self.path("instances", &self.instance), &only)
            .map(drop)
    }

    /// Installs programs in place of Akri's, with the names and labels of its chart, and its webhook, which does not answer.
    fn install_akri(&self) -> Result<()> {
        let labels = |name: &str| {
            json!({"app.kubernetes.io/name": name, "app.kubernetes.io/part-of": "akri", "app.kubernetes.io/version": "0.13.26",
                "app.kubernetes.io/instance": "akri", "helm.sh/chart": "akri-0.13.26"})
        };
        let workload = |kind: &str, name: &str, object: &str| {
            let pod = Pod::new(name, &[Container::new(name)]);
            let pod = pod.with("restartPolicy", "Always".into());
            let pod = pod.with("nodeSelector", json!({"kubernetes.io/os": "linux"}));
            let selected = json!({"app.kubernetes.io/name": name});
            let annotations = json!({"meta.helm.sh/release-name": "akri"});
            json!({
                "apiVersion": "apps/v1", "kind": kind,
                "metadata": {"name": object, "namespace": self.space.name(), "labels": labels(name), "annotations": annotations},
                "spec": {"selector": {"matchLabels": selected}, "template": {"metadata": {"labels": labels(name)}, "spec": pod.spec()}},
            })
        };
        let hook = json!({
            "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingWebhookConfiguration",
            "metadata": {"name": "akri-webhook-configuration", "labels": labels("akri-webhook-configuration")},
            "webhooks": [{
                "name": "akri-webhook-configuration.default.svc", "sideEffects": "None", "admissionReviewVersions": ["v1"],
                "clientConfig": {"service": {"name": "akri-webhook-configuration", "namespace": self.space.name(), "path": "/validate"}},
                "rules": [{"operations": ["CREATE", "UPDATE"], "apiGroups": ["akri.sh"], "apiVersions": ["v0"],
                    "resources": ["configurations"]}],
            }],
        });
        let objects = [
            workload("DaemonSet", "akri-agent", "akri-agent-daemonset"),
            workload(
                "DaemonSet",
                "akri-debug-echo-discovery",
                "akri-debug-echo-discovery-daemonset",
            ),
            workload(
                "Deployment",
                "akri-controller",
                "akri-controller-deployment",
            ),
            hook,
        ];
        for object in &objects {
            self.cluster.apply(&object.to_string())?;
        }
        eventually("the pods of Akri run", || {
            let pods = self.pods_of_akri()?;
            ensure!(pods.len() == 3, "{pods:?}");
            pods.iter().try_for_each(|pod| {
                ensure!(
                    self.space.pod(pod)?["status"]["phase"] == "Running",
                    "{pod}"
                );
                Ok(())
            })
        })
        .with_context(|| self.space.state())
    }

    fn pods_of_akri(&self) -> Result<BTreeSet<String>> {
        let selector = "labelSelector=app.kubernetes.io/part-of%3Dakri";
        let path = format!("{}?{selector}", self.space.collection("pods"));
        let list = self.cluster.get(&path)?;
        let items = list["items"].as_array().context("no items")?;
        let names = items
            .iter()
            .filter_map(|pod| pod["metadata"]["name"].as_str());
        Ok(names.map(str::to_owned).collect())
    }

    /// Returns the node selector of Akri's agents, the replicas of its controller, and its webhooks.
    fn workloads(&self) -> Result<Value> {
        let apps = format!("/apis/apps/v1/namespaces/{}", self.space.name());
        let agents = self
            .cluster
            .get(&format!("{apps}/daemonsets/akri-agent-daemonset"))?;
        let controller = self
            .cluster
            .get(&format!("{apps}/deployments/akri-controller-deployment"))?;
        let hooks = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations";
        let hook = self
            .cluster
            .get(&format!("{hooks}/akri-webhook-configuration"))?;
        Ok(json!([
            agents["spec"]["template"]["spec"]["nodeSelector"],
            controller["spec"]["replicas"],
            hook["webhooks"]
        ]))
    }

    /// Repeats the verb, killed before or after its first write, until it has no write left; returns the number of runs.
    fn migrate_killed(&self, proxy: &WriteProxy, kubeconfig: &Path, verb: &str) -> Result<usize> {
        for run in 0..RUNS {
            let child = Command::new(leafhost()?)
                .args(["migrate", verb, "--yes"])
                .env("KUBECONFIG", kubeconfig)
                .stdin(Stdio::null())
                .stdout(Stdio::piped())
                .stderr(Stdio::piped())
                .spawn()?;
            let cut = if run % 2 == 0 {
                Cut::Before
            } else {
                Cut::After
            };
            proxy.aim(child.id(), 0, cut)?;
            let output = child.wait_with_output()?;
            proxy.rest();
            // A signal ended the process.
            if output.status.code().is_none() {
                continue;
            }
            let text = [output.stdout, output.stderr].concat();
            let text = String::from_utf8_lossy(&text).into_owned();
            ensure!(output.status.success(), "{text}\n{}", self.space.state());
            println!("run {run}:\n{text}");
            return Ok(run / 2);
        }
        anyhow::bail!("{verb} still writes after {RUNS} runs")
    }

    /// Checks that Akri is not started while a pod of Leafhost runs, whatever the name of its chart.
    fn is_refused_while_leafhost_runs(&self) -> Result<()> {
        let labels = json!({"app.kubernetes.io/name": "edge-agent", "app.kubernetes.io/component": "agent", "helm.sh/chart": "leafhost-0.1.0"});
        let name = "edge-agent-x";
        let pod = Pod::new(name, &[Container::new("agent")]);
        let object = json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": self.space.name(), "labels": labels},
            "spec": pod.spec(),
        });
        let pods = self.space.collection("pods");
        self.cluster.api().create(&pods, &object)?;
        let tried = self.migrate(&["to-akri", "--yes"])?;
        let waits = "in the way: These pods of Leafhost have not ended yet";
        let words = format!("{waits}: {}/{name}", self.space.name());
        ensure!(
            tried.code == Some(1) && tried.out.contains(&words),
            "{tried:?}"
        );
        self.space.delete(name)
    }

    fn migrate(&self, arguments: &[&str]) -> Result<Ended> {
        let mut command = Command::new(leafhost()?);
        command
            .arg("migrate")
            .args(arguments)
            .env("KUBECONFIG", self.cluster.kubeconfig());
        program::finish(command)
    }
}

fn merge(into: &mut Value, from: &Value) {
    match (into, from) {
        (Value::Object(into), Value::Object(from)) => {
            for (key, value) in from {
                merge(into.entry(key).or_insert(Value::Null), value);
            }
        }
        (into, from) => *into = from.clone(),
    }
}

/// Returns only the slots in use: Akri's agents write no others.
fn used(instance: &Value) -> Result<Value> {
    let usage = instance["spec"]["deviceUsage"].as_object();
    let usage = usage.context("no deviceUsage")?.iter();
    Ok(usage
        .filter(|(_, holder)| **holder != "")
        .map(|(slot, holder)| (slot.clone(), holder.clone()))
        .collect::<serde_json::Map<_, _>>()
        .into())
}

fn managers(object: &Value) -> BTreeSet<&str> {
    let entries = object["metadata"]["managedFields"].as_array();
    let entries = entries.into_iter().flatten();
    entries
        .filter_map(|entry| entry["manager"].as_str())
        .collect()
}

/// Returns the CRDs with the fields of Akri's.
fn akris_definitions() -> Result<String> {
    let ours = include_str!("../../deploy/chart/crds/crds.yaml");
    let mut akris = Vec::new();
    for mut definition in serde_saphyr::from_multiple::<Value>(ours)? {
        if definition["spec"]["group"] != "akri.sh" {
            continue;
        }
        let version = &mut definition["spec"]["versions"][0];
        let fields = version.as_object_mut().context("no version")?;
        fields.remove("subresources");
        fields.remove("additionalPrinterColumns");
        let schema = version["schema"]["openAPIV3Schema"]["properties"].as_object_mut();
        let schema = schema.context("no schema")?;
        schema.remove("status");
        if let Some(fields) = schema["spec"]["properties"].as_object_mut() {
            fields.remove("leafhost");
        }
        akris.push(definition.to_string());
    }
    Ok(akris.join("\n---\n"))
}

/// Creates a broker as Akri's controller does.
fn broker(field: &Field<'_>) -> Result<Value> {
    let name = format!("{}-{}-pod", field.node, field.instance);
    let main = Container::new("main").device(&format!("akri.sh/{}", field.instance), 1);
    let affinity = json!({"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [
        {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [field.node]}]}]}}});
    let pod = Pod::new(&name, &[main]).with("affinity", affinity);
    let instance = field.instance()?;
    let object = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": name, "namespace": field.space.name(),
            "labels": {"app": name, "controller": "akri.sh", "akri.sh/configuration": CONFIGURATION, "akri.sh/instance": field.instance,
                "akri.sh/target-node": field.node},
            "ownerReferences": [{"apiVersion": "akri.sh/v0", "kind": "Instance", "name": field.instance, "uid": instance["metadata"]["uid"],
                "controller": true, "blockOwnerDeletion": true}]},
        "spec": pod.spec(),
    });
    let pods = field.space.collection("pods");
    field.cluster.api().create(&pods, &object)?;
    field.space.wait_running(&name)
}

#[test]
fn a_cluster_of_akri_is_taken_over_and_given_back_and_its_broker_runs_throughout() -> Result<()> {
    if requirement::lacks(Cluster::missing())? {
        return Ok(());
    }
    let own = Own::start(1)?;
    let cluster: &'static Cluster = own.0;
    let taken = cluster.take_node()?;
    cluster.define()?;
    let space = cluster.namespace("default-akri")?;
    let mut site = Site::on(cluster, taken)?;
    site.home.add_handler("debug-echo")?;
    site.home.join(cluster.kubeconfig());
    space.show_log(&site.home.log_file());
    let configuration = json!({
        "apiVersion": "akri.sh/v0", "kind": "Configuration", "metadata": {"name": CONFIGURATION, "namespace": space.name()},
        "spec": {"discoveryHandler": {"name": "debugEcho", "discoveryDetails": "{shared: true, descriptions: [one]}"}, "capacity": 2,
            "brokerSpec": {"brokerPodSpec": Pod::new("x", &[Container::new("main").device("{{PLACEHOLDER}}", 1)]).spec()}},
    });
    let configurations = format!(
        "/apis/akri.sh/v0/namespaces/{}/configurations",
        space.name()
    );
    eventually("the Configuration is created", || {
        cluster.api().create(&configurations, &configuration)
    })?;

    // Leafhost's agent takes the place of Akri's until the pod has its slot.
    site.home.start(&[])?;
    let list = format!("/apis/akri.sh/v0/namespaces/{}/instances", space.name());
    let instance = eventually("there is an Instance", || {
        let list = cluster.get(&list)?;
        let name = list["items"][0]["metadata"]["name"].as_str();
        name.map(str::to_owned).context("there is none")
    })?;
    let field = Field {
        cluster,
        space: &space,
        node: site.node.name().to_owned(),
        instance,
    };
    site.node
        .wait_allocatable(&format!("akri.sh/{}", field.instance), 2)?;
    let pod = broker(&field)?;
    let pod_name = pod["metadata"]["name"].as_str().context("no name")?;
    let container = space.container(pod_name)?;
    site.home.stop(Signal::SIGTERM)?;
    fs::remove_dir_all(site.home.path().join("state"))?;
    cluster.apply(&akris_definitions()?)?;
    eventually("the objects are as Akri has them", || field.write_as_akri())?;
    field.install_akri()?;
    let (before, workloads) = (field.instance()?, field.workloads()?);
    ensure!(
        before["spec"]["leafhost"].is_null() && before["status"].is_null(),
        "{before:#}"
    );
    let slots = used(&before)?;
    ensure!(
        slots.as_object().map(serde_json::Map::len) == Some(1),
        "{before:#}"
    );
    let uid = &before["metadata"]["uid"];
    let is_kept = || -> Result<Value> {
        let now = field.instance()?;
        ensure!(now["metadata"]["uid"] == *uid, "{now:#}");
        ensure!(used(&now)? == slots, "{now:#}");
        ensure!(space.container(pod_name)? == container, "{}", space.state());
        ensure!(space.pod(pod_name)?["metadata"]["uid"] == pod["metadata"]["uid"]);
        Ok(now)
    };

    // `migrate` writes nothing before the user confirms.
    let shown = field.migrate(&["from-akri", "--dry-run"])?.good()?;
    println!("{shown}");
    ensure!(shown.contains("akri-agent-daemonset"), "{shown}");
    let asked = field.migrate(&["from-akri"])?;
    ensure!(
        asked.code == Some(2) && asked.err.contains("--yes"),
        "{asked:?}"
    );
    ensure!(field.workloads()? == workloads && field.pods_of_akri()?.len() == 3);

    let proxy = WriteProxy::start(cluster.api())?;
    site.home.write("kubeconfig", proxy.kubeconfig())?;
    let kubeconfig = site.home.path().join("kubeconfig");
    let writes = field.migrate_killed(&proxy, &kubeconfig, "from-akri")?;
    println!("killed around each of {writes} writes");
    let taken = is_kept()?;
    for object in [&taken, &field.configuration()?] {
        ensure!(object["metadata"]["finalizers"].is_null(), "{object:#}");
        let managers = managers(object);
        ensure!(
            !managers
                .iter()
                .any(|name| name.ends_with("-fin") || name.contains(&*field.node)),
            "{object:#}"
        );
    }
    // `migrate` does not wait for the handler's pod.
    eventually("the pods of Akri are gone", || {
        let pods = field.pods_of_akri()?;
        ensure!(pods.is_empty(), "{pods:?}");
        Ok(())
    })?;
    let again = field.migrate(&["from-akri"])?.good()?;
    ensure!(again.contains("Nothing to do"), "{again}");

    // Leafhost continues with the existing objects.
    site.home.start(&[])?;
    let controller = Controller::start(cluster, &space)?;
    let goes_on = || format!("{}\n{}", space.state(), controller.log());
    eventually("agent and controller have taken over", || {
        let now = is_kept()?;
        ensure!(now["spec"]["leafhost"]["id"] == "one", "{now:#}");
        let configuration = field.configuration()?;
        ensure!(
            configuration["status"]["ready"] == "1/1",
            "{configuration:#}"
        );
        Ok(())
    })
    .with_context(goes_on)?;
    site.until_held_by(&space, &[pod_name])
        .with_context(goes_on)?;
    // Akri's webhook would refuse this.
    let label = [
        "label",
        "akric",
        CONFIGURATION,
        "x=y",
        "--namespace",
        space.name(),
    ];
    cluster.kubectl(&label)?;
    ensure!(
        controller.writes()?.is_empty(),
        "{:?}",
        controller.writes()?
    );
    is_kept()?;

    // From here on, back to Akri.
    drop(controller);
    site.home.stop(Signal::SIGTERM)?;
    field.is_refused_while_leafhost_runs()?;
    let writes = field.migrate_killed(&proxy, &kubeconfig, "to-akri")?;
    println!("killed around each of {writes} writes");
    let given = is_kept()?;
    ensure!(field.workloads()? == workloads, "{:#}", field.workloads()?);
    ensure!(field.configuration()?["status"].is_null());
    let dp = format!("dp-{}", field.node);
    ensure!(
        managers(&given) == BTreeSet::from([&*field.node, &*dp]),
        "{given:#}"
    );
    let read: AkriInstance = serde_json::from_value(given["spec"].clone())?;
    ensure!(read.configuration_name == CONFIGURATION && read.cdi_name.starts_with("akri.sh/cams="));
    ensure!(
        read.nodes == [&*field.node] && read.device_usage.len() <= read.capacity,
        "{read:?}"
    );
    let again = field.migrate(&["to-akri", "--dry-run"])?.good()?;
    ensure!(again.contains("Nothing to do"), "{again}");
    eventually("Akri's pods run again", || {
        let pods = field.pods_of_akri()?;
        ensure!(pods.len() == 3, "{pods:?}");
        Ok(())
    })?;
    // Akri's agent claims the other slot, frees both, and leaves the Instance: without force and without a conflict.
    let all = json!({format!("{}-0", field.instance): &*field.node, format!("{}-1", field.instance): &*field.node});
    for usage in [all, json!({})] {
        let fields = json!({"spec": {"deviceUsage": usage}});
        field.apply_as(&dp, "Instance", &field.instance, &fields)?;
        ensure!(
            used(&field.instance()?)?.as_object() == usage.as_object(),
            "{:#}",
            field.instance()?
        );
    }
    let mut left = given["spec"].clone();
    left["nodes"] = json!([]);
    left.as_object_mut()
        .context("no spec")?
        .remove("deviceUsage");
    field.apply_as(
        &field.node,
        "Instance",
        &field.instance,
        &json!({"spec": left}),
    )?;
    ensure!(
        field.instance()?["spec"]["nodes"] == json!([]),
        "{:#}",
        field.instance()?
    );
    ensure!(space.container(pod_name)? == container, "{}", space.state());

    let delete = [
        "delete",
        "akric",
        CONFIGURATION,
        "--namespace",
        space.name(),
        "--timeout",
        "30s",
    ];
    cluster.kubectl(&delete)?;
    Ok(())
}

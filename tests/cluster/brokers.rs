//! Brokers: the pods, jobs and services that the controller creates for devices of two nodes, with the rights that the chart gives it.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use leafhost_tests::accounts::kubeconfig;
use leafhost_tests::cluster::{self, Cluster, Container, Namespace, Pod};
use leafhost_tests::program::{self, leafhost, source_tree};
use leafhost_tests::wait::eventually;
use serde_json::{Value, json};

use crate::pair::Pair;

/// Controller with the service account of the chart; it ends when this is dropped.
pub struct Controller {
    child: Child,
    folder: tempfile::TempDir,
    cluster: &'static Cluster,
    space: String,
    /// Position in the audit log at the controller's start.
    start: u64,
}

impl Controller {
    pub fn start(cluster: &'static Cluster, space: &Namespace<'_>) -> Result<Self> {
        Self::start_with(cluster, space, &[])
    }

    /// Starts a controller with additional arguments.
    pub fn start_with(
        cluster: &'static Cluster,
        space: &Namespace<'_>,
        arguments: &[&str],
    ) -> Result<Self> {
        Self::grant(cluster, space, &[])?;
        let space = space.name();
        let account = format!("{space}-leafhost-controller");
        let folder = tempfile::tempdir()?;
        let config = folder.path().join("kubeconfig");
        fs::write(
            &config,
            kubeconfig(
                cluster,
                &["create", "token", &account, "--namespace", space],
            )?,
        )?;
        let log = File::create(folder.path().join("log"))?;
        let start = cluster.audit().now()?;
        let child = Command::new(leafhost()?)
            .args(["controller", "--lease-namespace", space])
            .args(["--name-grace", "1s"])
            .args(["--metrics-listen", "127.0.0.1:0"])
            .args(["--log-format", "text", "--log-level", "debug"])
            .args(arguments)
            .env("KUBECONFIG", config)
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()
            .context("cannot start the controller")?;
        Ok(Self {
            child,
            folder,
            cluster,
            space: space.to_owned(),
            start,
        })
    }

    /// Gives the service account the rights that the chart has with these values.
    pub fn grant(cluster: &'static Cluster, space: &Namespace<'_>, values: &[&str]) -> Result<()> {
        let space = space.name();
        let chart = source_tree().join("deploy/chart");
        let chart = chart.to_string_lossy();
        let mut template = vec!["template", space, &*chart, "--namespace", space];
        template.extend(["--show-only", "templates/controller.yaml"]);
        template.extend(values.iter().flat_map(|value| ["--set", value]));
        let rendered = cluster.helm(&template)?;
        for object in serde_saphyr::from_multiple::<Value>(&rendered)? {
            if object["kind"] != "Deployment" {
                cluster.apply(&object.to_string())?;
            }
        }
        Ok(())
    }

    pub fn log(&self) -> String {
        fs::read_to_string(self.folder.path().join("log")).unwrap_or_default()
    }

    /// Returns the metrics of the controller.
    pub fn metrics(&self) -> Result<String> {
        let log = self.log();
        let (_, address) = log.split_once("metrics=").context("no address")?;
        let address = address.split_whitespace().next().unwrap_or_default();
        program::run("curl", ["-sSf", &format!("http://{address}/metrics")])?.good()
    }

    /// Counts the controller's writes of pods, jobs and services in its namespace by kind, such as `create pods`; refused requests are counted
    /// separately.
    pub fn writes(&self) -> Result<BTreeMap<String, usize>> {
        let user = format!(
            "system:serviceaccount:{0}:{0}-leafhost-controller",
            self.space
        );
        let mut writes = BTreeMap::new();
        for (request, count) in self.cluster.audit().since(self.start)? {
            let is_own = request.user == user && request.namespace == self.space;
            if is_own
                && request.is_write()
                && ["pods", "jobs", "services"].contains(&&*request.resource)
            {
                let refused = if request.code < 300 { "" } else { " refused" };
                let what = format!("{} {}{refused}", request.verb, request.resource);
                *writes.entry(what).or_default() += count;
            }
        }
        Ok(writes)
    }
}

impl Drop for Controller {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let delete = [
            "delete",
            "clusterrole,clusterrolebinding",
            "--ignore-not-found",
        ];
        let name = format!("{}-leafhost-controller", self.space);
        let _ = self.cluster.kubectl(&[&delete[..], &[&*name]].concat());
    }
}

/// Applies a Configuration of the shared devices.
fn configure(pair: &Pair, name: &str, devices: &[&str], fields: &Value) -> Result<()> {
    let details = format!("{{shared: true, descriptions: [{}]}}", devices.join(", "));
    let mut object = json!({
        "apiVersion": "akri.sh/v0", "kind": "Configuration",
        "metadata": {"name": name, "namespace": pair.space.name(), "annotations": {"leafhost.dev/grace": "0s"}},
        "spec": {"discoveryHandler": {"name": "debugEcho", "discoveryDetails": details}, "capacity": 2},
    });
    let spec = object["spec"].as_object_mut().context("no spec")?;
    spec.extend(fields.as_object().context("no fields")?.clone());
    pair.cluster.apply(&object.to_string()).map(drop)
}

/// Returns a `PodSpec` that requests the device and runs a script.
fn pod_spec(script: &str) -> Value {
    let main = Container::new("main")
        .script(script)
        .device("{{PLACEHOLDER}}", 1);
    Pod::new("template", &[main]).spec().clone()
}

const WAITS: &str = "trap exit TERM; env; sleep 2147483647 & wait";

fn services(port: u16, pod: &Value) -> Value {
    let service =
        json!({"type": "ClusterIP", "ports": [{"name": "http", "port": port, "targetPort": 8080}]});
    json!({"brokerSpec": {"brokerPodSpec": pod}, "brokerProperties": {"MODE": "fast"},
        "instanceServiceSpec": service, "configurationServiceSpec": service})
}

fn list(pair: &Pair, collection: &str, label: &str) -> Result<Vec<Value>> {
    let path = format!("{collection}?labelSelector={label}");
    let list = pair.cluster.get(&path)?;
    Ok(list["items"].as_array().context("no items")?.clone())
}

fn uid(object: &Value) -> &str {
    object["metadata"]["uid"].as_str().unwrap_or_default()
}

#[test]
fn pods_and_services_of_a_shared_device_come_are_replaced_and_go() -> Result<()> {
    let Some(cluster) = cluster::shared()? else {
        return Ok(());
    };
    let pair = Pair::start(cluster, "brokers", &[])?;
    let controller = Controller::start(cluster, &pair.space)?;
    let (space, shown) = (&pair.space, || {
        format!("{}\n{}", pair.space.state(), controller.log())
    });
    let began = Instant::now();
    configure(&pair, "cams", &["one"], &services(80, &pod_spec(WAITS)))?;
    let instance = eventually("both nodes see the device", || {
        let found = pair.instances()?.remove("one").context("no Instance")?;
        ensure!(
            found["spec"]["nodes"].as_array().map(Vec::len) == Some(2),
            "{found:#}"
        );
        Ok(found["metadata"]["name"]
            .as_str()
            .unwrap_or_default()
            .to_owned())
    })
    .with_context(shown)?;
    let nodes = [0, 1].map(|index| pair.sites[index].node.name());
    let names = nodes.map(|node| format!("{node}-{instance}-pod"));
    for (name, node) in names.iter().zip(nodes) {
        let pod = space.wait_running(name).with_context(shown)?;
        ensure!(pod["spec"]["nodeName"] == node, "{pod:#}");
        let labels = json!({"app": name, "controller": "akri.sh", "akri.sh/configuration": "cams",
            "akri.sh/instance": instance, "akri.sh/target-node": node});
        ensure!(pod["metadata"]["labels"] == labels, "{pod:#}");
        let owner = &pod["metadata"]["ownerReferences"][0];
        ensure!(
            owner["kind"] == "Instance" && owner["name"] == *instance,
            "{pod:#}"
        );
        for variable in ["DEBUG_ECHO_DESCRIPTION=one", "MODE=fast"] {
            space.wait_logs(name, "main", variable)?;
        }
    }
    println!("both brokers run after {:?}", began.elapsed());
    eventually("the metrics count both pods", || {
        let metrics = controller.metrics()?;
        let count =
            |node| format!("akri_broker_pod_count{{configuration=\"cams\",node=\"{node}\"}} 1\n");
        let lines = nodes.map(count).into_iter();
        for line in lines.chain(["leafhost_controller_leads 1\n".to_owned()]) {
            ensure!(metrics.contains(&line), "no {line}in\n{metrics}");
        }
        Ok(())
    })
    .with_context(shown)?;

    let own = [
        (
            format!("{instance}-svc"),
            "akri.sh/instance",
            instance.as_str(),
        ),
        ("cams-svc".to_owned(), "akri.sh/configuration", "cams"),
    ];
    let service = |name: &str| cluster.get(&format!("{}/{name}", space.collection("services")));
    let mut addresses = Vec::new();
    for (name, label, value) in &own {
        let slices = format!(
            "/apis/discovery.k8s.io/v1/namespaces/{}/endpointslices",
            space.name()
        );
        eventually("the service has both pods", || {
            let found = list(
                &pair,
                &slices,
                &format!("kubernetes.io/service-name%3D{name}"),
            )?;
            let endpoints = found
                .iter()
                .filter_map(|slice| slice["endpoints"].as_array());
            ensure!(endpoints.flatten().count() == 2, "{found:#?}");
            Ok(())
        })
        .with_context(shown)?;
        let found = service(name)?;
        let labels = json!({"app": name, "controller": "akri.sh", *label: value});
        ensure!(found["metadata"]["labels"] == labels, "{found:#}");
        ensure!(
            found["spec"]["selector"] == json!({"controller": "akri.sh", *label: value}),
            "{found:#}"
        );
        addresses.push((uid(&found).to_owned(), found["spec"]["clusterIP"].clone()));
    }
    let writes = |of: &[(&str, usize)]| {
        let expected = of.iter().map(|(what, count)| ((*what).to_owned(), *count));
        let expected: BTreeMap<_, _> = expected.collect();
        eventually("the log has these writes and no others", || {
            let found = controller.writes()?;
            ensure!(found == expected, "{found:#?}");
            Ok(())
        })
        .with_context(shown)
    };
    writes(&[("create pods", 2), ("create services", 2)])?;

    // A pod that a user deletes comes back; nothing else is written.
    let [first, second] = [space.pod(&names[0])?, space.pod(&names[1])?];
    space.delete(&names[0])?;
    space.wait_gone(&names[0], uid(&first))?;
    let first = space.wait_running(&names[0]).with_context(shown)?;
    ensure!(uid(&space.pod(&names[1])?) == uid(&second), "{}", shown());
    writes(&[("create pods", 3), ("create services", 2)])?;

    // Another port changes the services in place, and no pod.
    configure(&pair, "cams", &["one"], &services(81, &pod_spec(WAITS)))?;
    for ((name, _, _), (uid_before, address)) in own.iter().zip(&addresses) {
        eventually("the service has another port", || {
            let found = service(name)?;
            ensure!(found["spec"]["ports"][0]["port"] == 81, "{found:#}");
            ensure!(
                uid(&found) == uid_before && found["spec"]["clusterIP"] == *address,
                "{found:#}"
            );
            Ok(())
        })
        .with_context(shown)?;
    }
    writes(&[
        ("create pods", 3),
        ("create services", 2),
        ("update services", 2),
    ])?;

    // Another template replaces the pods.
    let edited = format!("echo edited; {WAITS}");
    configure(&pair, "cams", &["one"], &services(81, &pod_spec(&edited)))?;
    for (name, before) in names.iter().zip([&first, &second]) {
        space.wait_gone(name, uid(before)).with_context(shown)?;
        space.wait_running(name).with_context(shown)?;
        space.wait_logs(name, "main", "edited")?;
    }
    writes(&[
        ("create pods", 5),
        ("create services", 2),
        ("delete pods", 2),
        ("update services", 2),
    ])?;

    // The field that the API server refuses is reported, and the write is not repeated.
    let mut wrong = pod_spec(WAITS);
    wrong["containers"][0]["imagee"] = json!("x");
    configure(
        &pair,
        "wrong",
        &["two"],
        &json!({"brokerSpec": {"brokerPodSpec": wrong}}),
    )?;
    eventually("the unknown field is named", || {
        let log = controller.log();
        ensure!(
            log.contains("unknown field") && log.contains("imagee"),
            "{log}"
        );
        Ok(())
    })?;
    let describe = ["describe", "akric", "wrong", "--namespace", space.name()];
    eventually("an Event of the Configuration names it", || {
        let shown = cluster.kubectl(&describe)?;
        let mut events = shown
            .lines()
            .filter(|line| line.contains("BrokerNotWritten"));
        ensure!(events.any(|line| line.contains("imagee")), "{shown}");
        Ok(())
    })?;

    for name in ["cams", "wrong"] {
        let delete = ["delete", "configuration", name, "--namespace", space.name()];
        cluster.kubectl(&delete)?;
    }
    eventually("all is gone with its Configuration", || {
        ensure!(pair.instances()?.is_empty(), "there are Instances");
        for kind in ["pods", "services"] {
            let left = list(&pair, &space.collection(kind), "controller%3Dakri.sh")?;
            ensure!(left.is_empty(), "{left:#?}");
        }
        Ok(())
    })
    .with_context(shown)?;
    let mut written = controller.writes()?;
    let refused = written.remove("create pods refused");
    ensure!(
        refused.is_some_and(|count| (1..=30).contains(&count)),
        "{refused:?}"
    );
    ensure!(
        written["create pods"] == 5 && written["create services"] == 2,
        "{written:#?}"
    );
    Ok(())
}

#[test]
fn a_job_runs_once_and_again_only_for_another_template() -> Result<()> {
    let Some(cluster) = cluster::shared()? else {
        return Ok(());
    };
    let pair = Pair::start(cluster, "jobs", &[])?;
    let controller = Controller::start(cluster, &pair.space)?;
    let shown = || format!("{}\n{}", pair.space.state(), controller.log());
    let collection = format!("/apis/batch/v1/namespaces/{}/jobs", pair.space.name());
    let job = |script: &str, capacity: u32| {
        json!({"capacity": capacity, "brokerSpec": {"brokerJobSpec": {"backoffLimit": 0, "ttlSecondsAfterFinished": 1,
            "template": {"spec": pod_spec(script)}}}})
    };
    let complete = |generation: u32| {
        eventually("the job is complete", || {
            let jobs = list(&pair, &collection, "controller%3Dakri.sh")?;
            let [job] = &*jobs else {
                anyhow::bail!("{jobs:#?}");
            };
            ensure!(job["status"]["succeeded"] == 1, "{job:#}");
            let name = job["metadata"]["name"].as_str().unwrap_or_default();
            ensure!(name.ends_with(&format!("-{generation}-job")), "{name}");
            Ok(uid(job).to_owned())
        })
        .with_context(shown)
    };
    configure(&pair, "cams", &["one"], &job("env", 2))?;
    let first = complete(1)?;
    let pods = list(
        &pair,
        &pair.space.collection("pods"),
        "akri.sh%2Fconfiguration%3Dcams",
    )?;
    ensure!(pods.len() == 1, "{pods:#?}");
    let name = pods[0]["metadata"]["name"].as_str().context("no name")?;
    pair.space
        .wait_logs(name, "main", "DEBUG_ECHO_DESCRIPTION=one")?;

    configure(&pair, "cams", &["one"], &job("env", 3))?;
    eventually("the Instance has the other capacity", || {
        let instance = pair.instances()?.remove("one").context("no Instance")?;
        ensure!(instance["spec"]["capacity"] == 3, "{instance:#}");
        Ok(())
    })?;
    ensure!(complete(1)? == first, "{}", shown());

    configure(&pair, "cams", &["one"], &job("env; true", 3))?;
    ensure!(complete(3)? != first, "{}", shown());
    let written = controller.writes()?;
    let expected = [("create jobs", 2), ("delete jobs", 1)];
    let expected: BTreeMap<_, _> = expected
        .map(|(what, count)| (what.to_owned(), count))
        .into();
    ensure!(written == expected, "{written:#?}\n{}", shown());
    Ok(())
}

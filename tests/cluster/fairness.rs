//! Abuses by one tenant, whose namespace sorts first: during each of them another tenant gets its devices, brokers, status and the webhook's answer.
//! Prints the times of that, next to the times without abuse.

use std::fmt;
use std::io::Write as _;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use leafhost_tests::cluster::{Cluster, Container, Pod};
use leafhost_tests::requirement;
use leafhost_tests::wait::{eventually, within};
use serde_json::{Value, json};

use crate::away::Own;
use crate::installed::Release;

/// Namespace of the abusive tenant.
const ABUSER: &str = "aaa";
/// Namespace of the other tenant.
const OTHER: &str = "zzz";
/// Number of the abuser's devices.
const DEVICES: usize = 400;
/// Number of requests to the webhook that are never finished.
const HALF_OPEN: usize = 60;
/// Number of Secrets that the abuser uses and that do not exist.
const SECRETS: usize = 1_000;
/// Number of the abuser's Configurations that find nothing.
const CONFIGURATIONS: usize = 700;

#[test]
#[ignore = "takes a quarter of an hour: make soak"]
fn soak_beside_each_abuse_of_one_namespace_another_gets_devices_brokers_status_and_answers()
-> Result<()> {
    if requirement::lacks(Cluster::missing())? {
        return Ok(());
    }
    let own = Own::start(2)?;
    let cluster = own.0;
    let release = Release::whole_on(cluster, 2)?;
    let tenants = Tenants { cluster };
    tenants.run(&release).with_context(|| release.state())
}

/// Times from `kubectl apply` until each of these conditions.
struct Times {
    /// Time until the webhook has admitted one Configuration and refused another.
    webhook: Duration,
    /// Time until both nodes run a broker.
    brokers: Duration,
    /// Time until the status reports both nodes as ready.
    status: Duration,
}

impl fmt::Display for Times {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (all, webhook, brokers) = (self.status, self.webhook, self.brokers);
        let status = all.saturating_sub(brokers);
        let brokers = brokers.saturating_sub(webhook);
        write!(
            f,
            "{all:.1?} | {webhook:.1?} | {brokers:.1?} | {status:.1?}"
        )
    }
}

struct Tenants {
    cluster: &'static Cluster,
}

/// Function that starts an abuse, which lasts until the result is dropped.
type Abuse = fn(&Tenants, &Release) -> Result<Box<dyn std::any::Any>>;

const ABUSES: [(&str, Abuse); 9] = [
    (
        "requests to the webhook that are never finished",
        Tenants::half_open,
    ),
    ("details of 200,000 brackets", Tenants::brackets),
    ("Secrets that do not exist", Tenants::secrets),
    ("objects that cannot be written", Tenants::unwritable),
    ("Instances that cannot be read", Tenants::unreadable),
    ("Jobs with other owners", Tenants::foreign_owners),
    ("names of the other tenant's Instances", Tenants::names),
    (
        "many devices with brokers, edited all the time",
        Tenants::brokers,
    ),
    (
        "many Configurations and new agents",
        Tenants::configurations,
    ),
];

#[expect(clippy::unnecessary_wraps, reason = "each abuse has the same type")]
impl Tenants {
    fn run(&self, release: &Release) -> Result<()> {
        release.add_handler("debug-echo")?;
        for namespace in [ABUSER, OTHER] {
            self.cluster.kubectl(&["create", "namespace", namespace])?;
        }
        eventually("the handler waits on both nodes", || {
            let nodes = release.nodes_where("debugEcho", "Waiting")?;
            ensure!(nodes.len() == 2, "it waits on {nodes:?}");
            Ok(())
        })?;
        eventually("the webhook has the handler", || self.refused())?;
        // The first round fills the caches with images and services.
        self.serve("first")?;
        let alone = self.serve("alone")?;
        println!(
            "| abuse | time | webhook | brokers | status | ratio |\n|---|---|---|---|---|---|\n| none | {alone} | |"
        );
        for (index, (what, begin)) in ABUSES.iter().enumerate() {
            let lasting = begin(self, release).with_context(|| what.to_string())?;
            let took = self
                .serve(&format!("beside-{index}"))
                .with_context(|| what.to_string())?;
            drop(lasting);
            let ratio = took.status.as_secs_f64() / alone.status.as_secs_f64();
            println!("| {what} | {took} | × {ratio:.1} |");
            self.clean().with_context(|| what.to_string())?;
        }
        Ok(())
    }

    /// Creates a Configuration of the other tenant, waits for its webhook, brokers and status, and removes it. Returns the times until then.
    fn serve(&self, name: &str) -> Result<Times> {
        let start = Instant::now();
        self.cluster
            .apply(&echo(OTHER, name, "only", Some(&broker())).to_string())?;
        self.refused()?;
        let webhook = start.elapsed();
        within(Duration::from_mins(2), "both nodes have a broker", || {
            let pods = self.list(&format!("/api/v1/namespaces/{OTHER}/pods"))?;
            let own = pods.iter().filter(|pod| {
                pod["metadata"]["labels"]["akri.sh/configuration"] == name
                    && pod["status"]["phase"] == "Running"
            });
            ensure!(own.count() == 2, "{pods:#?}");
            Ok(())
        })?;
        let brokers = start.elapsed();
        let path = format!("/apis/akri.sh/v0/namespaces/{OTHER}/configurations/{name}");
        within(Duration::from_mins(2), "the Configuration is ready", || {
            let now = self.cluster.get(&path)?;
            ensure!(now["status"]["ready"] == "2/2", "{:#}", now["status"]);
            Ok(())
        })?;
        let times = Times {
            webhook,
            brokers,
            status: start.elapsed(),
        };
        self.cluster
            .kubectl(&["delete", "akric", name, "--namespace", OTHER])?;
        within(Duration::from_mins(2), "its brokers are gone", || {
            let pods = self.list(&format!("/api/v1/namespaces/{OTHER}/pods"))?;
            ensure!(pods.is_empty(), "{} pods", pods.len());
            Ok(())
        })?;
        Ok(times)
    }

    /// Checks that wrong details of the other tenant are refused.
    fn refused(&self) -> Result<()> {
        let mut object = echo(OTHER, "wrong", "", None);
        object["spec"]["discoveryHandler"]["discoveryDetails"] = "{device: one}".into();
        match self.cluster.apply(&object.to_string()) {
            Ok(_) => {
                // The webhook does not review a stored object again.
                self.cluster
                    .kubectl(&["delete", "akric", "wrong", "--namespace", OTHER])?;
                bail!("wrong details are stored")
            }
            Err(error) => {
                let text = format!("{error:#}");
                ensure!(text.contains("descriptions"), "{text}");
                Ok(())
            }
        }
    }

    fn list(&self, collection: &str) -> Result<Vec<Value>> {
        let list = self.cluster.get(collection)?;
        Ok(list["items"].as_array().context("no items")?.clone())
    }

    /// Removes the abuser's objects.
    fn clean(&self) -> Result<()> {
        let hooks = ["delete", "validatingwebhookconfiguration", "fails-closed"];
        self.cluster
            .kubectl(&[&hooks[..], &["--ignore-not-found"]].concat())?;
        for kind in ["akric", "akrii", "jobs", "pods"] {
            let delete = ["delete", kind, "--all", "--namespace", ABUSER];
            self.cluster
                .kubectl(&[&delete[..], &["--wait=false"]].concat())?;
        }
        within(Duration::from_mins(3), "nothing of it is left", || {
            for kind in ["configurations", "instances"] {
                let left = self.list(&format!("/apis/akri.sh/v0/namespaces/{ABUSER}/{kind}"))?;
                ensure!(left.is_empty(), "{} {kind}", left.len());
            }
            Ok(())
        })
    }

    fn half_open(&self, _: &Release) -> Result<Box<dyn std::any::Any>> {
        let selector = "labelSelector=app.kubernetes.io/name%3Dleafhost-webhook";
        let pods = self.list(&format!("/api/v1/namespaces/leafhost/pods?{selector}"))?;
        let address = pods.first().and_then(|pod| pod["status"]["podIP"].as_str());
        let address = format!("{}:9443", address.context("no webhook runs")?);
        let mut clients = Vec::new();
        for _ in 0..HALF_OPEN {
            let child = Command::new("openssl")
                .args(["s_client", "-quiet", "-connect", &address])
                .stdin(Stdio::piped())
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .spawn()?;
            let mut client = Process(child);
            let stdin = client.0.stdin.as_mut().context("no stdin")?;
            stdin.write_all(
                b"POST /validate HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nContent-Length: 1000000\r\n\r\n{",
            )?;
            stdin.flush()?;
            clients.push(client);
        }
        Ok(Box::new(clients))
    }

    fn brackets(&self, _: &Release) -> Result<Box<dyn std::any::Any>> {
        let cluster = self.cluster;
        let mut object = echo(ABUSER, "brackets", "any", None);
        object["spec"]["discoveryHandler"]["discoveryDetails"] = "[".repeat(200_000).into();
        Ok(Box::new(Repeated::start(move |_| {
            let _ = cluster.apply(&object.to_string());
        })))
    }

    fn secrets(&self, _: &Release) -> Result<Box<dyn std::any::Any>> {
        for part in 0..10 {
            let mut object = echo(ABUSER, &format!("secrets-{part}"), "any", None);
            let properties = (0..SECRETS / 10).map(|number| {
                let reference =
                    json!({"name": format!("s-{part}-{number}"), "key": "k", "optional": true});
                json!({"name": format!("P{number}"), "valueFrom": {"secretKeyRef": reference}})
            });
            object["spec"]["discoveryHandler"]["discoveryProperties"] = properties.collect();
            self.cluster.apply(&object.to_string())?;
        }
        Ok(Box::new(()))
    }

    fn unwritable(&self, _: &Release) -> Result<Box<dyn std::any::Any>> {
        for number in 0..20 {
            let object = echo(
                ABUSER,
                &format!("unwritable-{number}"),
                "any",
                Some(&broker()),
            );
            self.cluster.apply(&object.to_string())?;
        }
        let rule = |group: &str, version: &str, resources: &[&str]| {
            json!({"apiGroups": [group], "apiVersions": [version], "resources": resources,
                "operations": ["CREATE", "UPDATE"]})
        };
        let hook = json!({
            "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingWebhookConfiguration",
            "metadata": {"name": "fails-closed"},
            "webhooks": [{
                "name": "fails-closed.example.com", "failurePolicy": "Fail", "sideEffects": "None", "admissionReviewVersions": ["v1"],
                "clientConfig": {"url": "https://127.0.0.1:1/none"}, "timeoutSeconds": 2,
                "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": ABUSER}},
                "rules": [rule("akri.sh", "v0", &["configurations/status", "instances"]), rule("", "v1", &["pods"])],
            }],
        });
        self.cluster.apply(&hook.to_string())?;
        Ok(Box::new(()))
    }

    fn unreadable(&self, _: &Release) -> Result<Box<dyn std::any::Any>> {
        self.cluster
            .apply(&echo(ABUSER, "unreadable", "any", None).to_string())?;
        let instances = format!("/apis/akri.sh/v0/namespaces/{ABUSER}/instances");
        let found = eventually("it has an Instance", || {
            let found = self.list(&instances)?;
            let name = found
                .first()
                .and_then(|one| one["metadata"]["name"].as_str());
            name.map(str::to_owned).context("no Instance")
        })?;
        let entry = json!({"health": "Healthy", "reason": "x", "missingUptime": {"boot": "b", "seconds": 0}});
        let path = format!("{instances}/{found}");
        self.cluster
            .api()
            .merge(&path, &json!({"status": {"nodes": {"node-x": entry}}}))?;
        Ok(Box::new(()))
    }

    fn foreign_owners(&self, _: &Release) -> Result<Box<dyn std::any::Any>> {
        let cluster = self.cluster;
        let mut made = 0;
        Ok(Box::new(Repeated::start(move |_| {
            let Ok(list) = cluster.get(&format!("/apis/akri.sh/v0/namespaces/{OTHER}/instances"))
            else {
                return;
            };
            for instance in list["items"].as_array().into_iter().flatten() {
                let metadata = &instance["metadata"];
                let owner = json!([{"apiVersion": "akri.sh/v0", "kind": "Instance", "name": metadata["name"], "uid": metadata["uid"]}]);
                let template = json!({"spec": broker()["brokerPodSpec"]});
                let name = format!("other-{made}");
                let job = json!({"apiVersion": "batch/v1", "kind": "Job",
                    "metadata": {"name": name, "namespace": ABUSER, "ownerReferences": owner, "labels": {"controller": "akri.sh",
                        "akri.sh/instance": metadata["name"], "akri.sh/configuration": instance["spec"]["configurationName"]}},
                    "spec": {"suspend": true, "template": template}});
                let _ = cluster.apply(&job.to_string());
                made += 1;
            }
        })))
    }

    fn names(&self, _: &Release) -> Result<Box<dyn std::any::Any>> {
        let cluster = self.cluster;
        Ok(Box::new(Repeated::start(move |_| {
            let Ok(list) = cluster.get(&format!("/apis/akri.sh/v0/namespaces/{OTHER}/instances"))
            else {
                return;
            };
            let all = list["items"].as_array().into_iter().flatten();
            for name in all.filter_map(|one| one["metadata"]["name"].as_str()) {
                let _ = cluster.apply(&echo(ABUSER, name, "any", None).to_string());
            }
        })))
    }

    fn brokers(&self, _: &Release) -> Result<Box<dyn std::any::Any>> {
        let names: Vec<String> = (0..DEVICES).map(|number| format!("d{number}")).collect();
        let mut object = echo(ABUSER, "many", &names.join(", "), Some(&broker()));
        // No broker starts, so that the kubelet has time for those of the other tenant.
        object["spec"]["brokerSpec"]["brokerPodSpec"]["schedulerName"] = "none".into();
        self.cluster.apply(&object.to_string())?;
        let pods = format!("/api/v1/namespaces/{ABUSER}/pods");
        within(Duration::from_mins(2), "some brokers are made", || {
            ensure!(self.list(&pods)?.len() > 8, "too few");
            Ok(())
        })?;
        let cluster = self.cluster;
        Ok(Box::new(Repeated::start(move |round| {
            object["spec"]["brokerProperties"] = json!({"ROUND": round.to_string()});
            let _ = cluster.apply(&object.to_string());
        })))
    }

    fn configurations(&self, release: &Release) -> Result<Box<dyn std::any::Any>> {
        for part in 0..CONFIGURATIONS / 100 {
            let objects = (0..100).map(|number| {
                echo(ABUSER, &format!("trivial-{part}-{number}"), "", None).to_string()
            });
            let objects: Vec<String> = objects.collect();
            self.cluster.apply(&objects.join("\n---\n"))?;
        }
        release.restart_agents()?;
        Ok(Box::new(()))
    }
}

fn broker() -> Value {
    let main = Container::new("main").device("{{PLACEHOLDER}}", 1);
    json!({"brokerPodSpec": Pod::new("template", &[main]).spec()})
}

/// Returns a Configuration of shared devices.
fn echo(namespace: &str, name: &str, devices: &str, broker: Option<&Value>) -> Value {
    let mut object = json!({
        "apiVersion": "akri.sh/v0", "kind": "Configuration",
        "metadata": {"name": name, "namespace": namespace, "annotations": {"leafhost.dev/grace": "0s"}},
        "spec": {"capacity": 2, "discoveryHandler": {"name": "debugEcho",
            "discoveryDetails": format!("{{shared: true, descriptions: [{devices}]}}")}},
    });
    if let Some(broker) = broker {
        object["spec"]["brokerSpec"] = broker.clone();
    }
    object
}

/// Process that ends when this is dropped.
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Action that is repeated until this is dropped.
struct Repeated {
    ends: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Repeated {
    fn start(mut action: impl FnMut(usize) + Send + 'static) -> Self {
        let ends = Arc::new(AtomicBool::new(false));
        let end = Arc::clone(&ends);
        let thread = std::thread::spawn(move || {
            for round in 0.. {
                if end.load(Ordering::Relaxed) {
                    break;
                }
                action(round);
            }
        });
        Self {
            ends,
            thread: Some(thread),
        }
    }
}

impl Drop for Repeated {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

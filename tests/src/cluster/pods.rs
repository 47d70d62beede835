//! Pods in a namespace of one test, and functions that wait for their states.

use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use anyhow::{Context, Result, ensure};
use serde_json::{Map, Value, json};

use super::api::items;
use super::programs::tail;
use super::{Cluster, Node, image};
use crate::wait;

const RESOURCE_NAMES: &str = "/apis/leafhost.dev/v1alpha1/resourcenames";

/// Container that by default prints its environment and then waits.
#[derive(Debug, Clone)]
pub struct Container {
    name: String,
    script: String,
    resources: Map<String, Value>,
    claims: Vec<Value>,
    goes_on: bool,
}

impl Container {
    /// Creates a container without devices.
    pub fn new(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            // A shell that is the container's first process ends on SIGTERM only with a trap.
            script: "trap exit TERM; env; sleep 2147483647 & wait".to_owned(),
            resources: Map::new(),
            claims: Vec::new(),
            goes_on: false,
        }
    }

    /// Replaces the shell script.
    #[must_use]
    pub fn script(mut self, script: &str) -> Self {
        script.clone_into(&mut self.script);
        self
    }

    /// Requests `count` of an extended resource.
    #[must_use]
    pub fn device(mut self, resource: &str, count: u64) -> Self {
        self.resources
            .insert(resource.to_owned(), count.to_string().into());
        self
    }

    /// Uses the devices of a claim of the pod.
    #[must_use]
    pub fn claim(mut self, name: &str) -> Self {
        self.claims.push(json!({"name": name}));
        self
    }

    /// Makes an init container keep running while the pod's other containers run (a sidecar).
    #[must_use]
    pub fn sidecar(mut self) -> Self {
        self.goes_on = true;
        self
    }

    fn spec(&self) -> Value {
        let mut spec = json!({
            "name": self.name,
            "image": image::NAME,
            "imagePullPolicy": "Never",
            "command": ["/bin/sh", "-c", self.script],
            "resources": {"limits": self.resources, "claims": self.claims},
        });
        if let Some(fields) = spec.as_object_mut().filter(|_| self.goes_on) {
            fields.insert("restartPolicy".to_owned(), "Always".into());
        }
        spec
    }
}

/// Pod to create: never restarted, one second of grace, without a token.
#[derive(Debug, Clone)]
pub struct Pod {
    name: String,
    annotations: Map<String, Value>,
    spec: Value,
}

impl Pod {
    /// Creates a pod with these containers.
    pub fn new(name: &str, containers: &[Container]) -> Self {
        let containers: Vec<Value> = containers.iter().map(Container::spec).collect();
        Self {
            name: name.to_owned(),
            annotations: Map::new(),
            spec: json!({
                "automountServiceAccountToken": false,
                "containers": containers,
                // The cluster has no DNS server.
                "dnsPolicy": "Default",
                "restartPolicy": "Never",
                "terminationGracePeriodSeconds": 1,
            }),
        }
    }

    /// Restricts the pod to this node by a node selector; the scheduler still decides if the node has room.
    #[must_use]
    pub fn on(self, node: &Node) -> Self {
        self.with(
            "nodeSelector",
            json!({"kubernetes.io/hostname": node.name()}),
        )
    }

    /// Adds an annotation.
    #[must_use]
    pub fn annotated(mut self, name: &str, value: &str) -> Self {
        self.annotations.insert(name.to_owned(), value.into());
        self
    }

    /// Sets the init containers.
    #[must_use]
    pub fn init(self, containers: &[Container]) -> Self {
        let containers: Vec<Value> = containers.iter().map(Container::spec).collect();
        self.with("initContainers", containers.into())
    }

    /// Sets a field of the specification.
    #[must_use]
    pub fn with(mut self, field: &str, value: Value) -> Self {
        if let Some(fields) = self.spec.as_object_mut() {
            fields.insert(field.to_owned(), value);
        }
        self
    }

    /// Returns a copy with another name.
    #[must_use]
    pub fn named(&self, name: &str) -> Self {
        Self {
            name: name.to_owned(),
            ..self.clone()
        }
    }

    /// Returns the specification, for instance for the template of a Deployment.
    pub fn spec(&self) -> &Value {
        &self.spec
    }

    fn manifest(&self) -> Value {
        json!({
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": self.name, "annotations": self.annotations},
            "spec": self.spec,
        })
    }
}

/// Namespace of one test. Dropping it deletes all of its objects and waits until its pods are gone.
pub struct Namespace<'c> {
    cluster: &'c Cluster,
    name: String,
    logs: Mutex<Vec<PathBuf>>,
}

impl<'c> Namespace<'c> {
    pub(super) fn new(cluster: &'c Cluster, name: String) -> Result<Self> {
        cluster
            .api()
            .create("/api/v1/namespaces", &json!({"metadata": {"name": name}}))?;
        let namespace = Self {
            cluster,
            name,
            logs: Mutex::default(),
        };
        // No pod is admitted before the account exists.
        let accounts = namespace.collection("serviceaccounts");
        cluster
            .api()
            .watch(&accounts, "default", |_, _| Ok(()))
            .context("the namespace has no service account")?;
        Ok(namespace)
    }

    /// Returns the name of the namespace.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the path of a collection of core objects in the namespace, such as `pods`.
    pub fn collection(&self, kind: &str) -> String {
        format!("/api/v1/namespaces/{}/{kind}", self.name)
    }

    /// Adds the end of this log to the messages of failures.
    pub fn show_log(&self, path: &Path) {
        self.logs
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(path.to_owned());
    }

    /// Creates a pod; does not wait.
    pub fn create(&self, pod: &Pod) -> Result<Value> {
        self.cluster
            .api()
            .create(&self.collection("pods"), &pod.manifest())
            .with_context(|| self.state())
    }

    /// Creates a pod and waits until it runs.
    pub fn run(&self, pod: &Pod) -> Result<Value> {
        self.create(pod)?;
        self.wait_running(&pod.name)
    }

    /// Returns the current object of a pod.
    pub fn pod(&self, pod: &str) -> Result<Value> {
        let path = format!("{}/{pod}", self.collection("pods"));
        self.cluster.api().get(&path)
    }

    /// Waits until all containers of a pod run and returns the pod.
    pub fn wait_running(&self, pod: &str) -> Result<Value> {
        self.wait_phase(pod, "Running")
    }

    /// Waits until a pod runs and returns the ID of its only container; fails if the container was restarted.
    pub fn container(&self, pod: &str) -> Result<String> {
        let pod = self.wait_running(pod)?;
        let status = pod.pointer("/status/containerStatuses/0");
        let status = status.context("no status")?;
        let is_first = status.get("restartCount") == Some(&0.into());
        ensure!(
            is_first && status.pointer("/state/running").is_some(),
            "{status:#}"
        );
        Ok(text(status, "/containerID").to_owned())
    }

    /// Waits until a pod is in a phase and returns it; fails at once if the pod ended in another phase.
    pub fn wait_phase(&self, pod: &str, phase: &str) -> Result<Value> {
        let found = self.until(pod, &format!("it is {phase}"), |object| {
            let now = text(object, "/status/phase");
            ensure!(
                now == phase || ["Succeeded", "Failed"].contains(&now),
                "it is {now}"
            );
            Ok(object.clone())
        })?;
        let now = text(&found, "/status/phase");
        ensure!(
            now == phase,
            "pod {pod} is {now}, not {phase}: {} {}\n{}",
            text(&found, "/status/reason"),
            text(&found, "/status/message"),
            self.state()
        );
        Ok(found)
    }

    /// Waits until the scheduler has found no node for a pod.
    pub fn wait_unschedulable(&self, pod: &str) -> Result<()> {
        self.until(pod, "no node has room for it", |object| {
            let reason = text(object, "/status/conditions/0/reason");
            ensure!(reason == "Unschedulable", "{object:#}");
            Ok(())
        })
    }

    /// Calls `look` at every change of a pod until it returns `Ok`.
    pub fn until<T>(
        &self,
        pod: &str,
        what: &str,
        mut look: impl FnMut(&Value) -> Result<T>,
    ) -> Result<T> {
        let pods = self.collection("pods");
        self.cluster
            .api()
            .watch(&pods, pod, |kind, object| {
                ensure!(kind != "DELETED", "it is deleted");
                look(object)
            })
            .with_context(|| format!("pod {pod}: {what}"))
            .with_context(|| self.state())
    }

    /// Returns the log of a container.
    pub fn logs(&self, pod: &str, container: &str) -> Result<String> {
        let path = format!(
            "{}/{pod}/log?container={container}",
            self.collection("pods")
        );
        self.cluster.api().text(&path).with_context(|| self.state())
    }

    /// Waits until the log of a container contains `text` and returns the log.
    pub fn wait_logs(&self, pod: &str, container: &str, text: &str) -> Result<String> {
        wait::eventually(&format!("{pod} prints {text}"), || {
            let logs = self.logs(pod, container)?;
            ensure!(logs.contains(text), "it printed: {logs}");
            Ok(logs)
        })
    }

    /// Runs a shell script in a container of a running pod and returns its output.
    pub fn exec(&self, pod: &str, container: &str, script: &str) -> Result<String> {
        self.cluster
            .kubectl(&[
                "--namespace",
                &self.name,
                "exec",
                pod,
                "--container",
                container,
                "--",
                "/bin/sh",
                "-c",
                script,
            ])
            .with_context(|| self.state())
    }

    /// Deletes a pod with a grace period of one second and waits until the API has it no more.
    pub fn delete(&self, pod: &str) -> Result<()> {
        self.delete_within(pod, 1)
    }

    /// Deletes a pod from the API at once, without waiting for its kubelet.
    pub fn delete_now(&self, pod: &str) -> Result<()> {
        self.delete_within(pod, 0)
    }

    fn delete_within(&self, pod: &str, seconds: u32) -> Result<()> {
        let pods = self.collection("pods");
        let uid = text(&self.pod(pod)?, "/metadata/uid").to_owned();
        self.cluster
            .api()
            .delete(&format!("{pods}/{pod}?gracePeriodSeconds={seconds}"))?;
        self.wait_gone(pod, &uid)
    }

    /// Waits until the pod with this name and UID is gone.
    pub fn wait_gone(&self, pod: &str, uid: &str) -> Result<()> {
        wait::within(super::TIMEOUT, &format!("pod {pod} is gone"), || {
            let all = self.cluster.api().get(&self.collection("pods"))?;
            ensure!(
                !items(&all).any(|pod| text(pod, "/metadata/uid") == uid),
                "it is there"
            );
            Ok(())
        })
        .with_context(|| self.state())
    }

    /// Returns the pods and the last lines of the kubelets' logs and those of [`Self::show_log`].
    pub fn state(&self) -> String {
        let mut parts = Vec::new();
        match self.cluster.api().get(&self.collection("pods")) {
            Ok(all) => {
                for pod in items(&all) {
                    parts.push(format!(
                        "pod {} on {}: {:#}",
                        text(pod, "/metadata/name"),
                        text(pod, "/spec/nodeName"),
                        pod.get("status").unwrap_or(&Value::Null)
                    ));
                }
            }
            Err(error) => parts.push(format!("no pods to be had: {error:#}")),
        }
        if let Ok(all) = self.cluster.api().get(&self.collection("events")) {
            parts.extend(items(&all).map(|event| {
                format!(
                    "event {}: {}: {}",
                    text(event, "/involvedObject/name"),
                    text(event, "/reason"),
                    text(event, "/message")
                )
            }));
        }
        parts.extend(self.cluster.nodes().iter().map(Node::kubelet_log_tail));
        let logs = self.logs.lock().unwrap_or_else(PoisonError::into_inner);
        parts.extend(
            logs.iter()
                .map(|log| format!("{}:\n{}", log.display(), tail(log, 40))),
        );
        parts.join("\n")
    }

    fn end(&self) -> Result<()> {
        let api = self.cluster.api();
        api.delete(&format!("/api/v1/namespaces/{}", self.name))?;
        wait::eventually("its pods are gone", || {
            let all = api.get(&self.collection("pods"))?;
            ensure!(items(&all).next().is_none(), "some are left");
            Ok(())
        })?;
        self.free_names()
    }

    /// Deletes the Configurations, which frees their names; they would otherwise outlive the namespace for a while.
    fn free_names(&self) -> Result<()> {
        let api = self.cluster.api();
        let configurations = format!("/apis/akri.sh/v0/namespaces/{}/configurations", self.name);
        if api.get(RESOURCE_NAMES).is_err() || api.delete(&configurations).is_err() {
            // The cluster does not have our definitions.
            return Ok(());
        }
        wait::eventually("its names are free", || {
            let all = api.get(RESOURCE_NAMES)?;
            let own = items(&all).filter(|one| text(one, "/spec/namespace") == self.name);
            let own: Vec<&str> = own.map(|one| text(one, "/metadata/name")).collect();
            for name in &own {
                let _ = api.delete(&format!("{RESOURCE_NAMES}/{name}"));
            }
            ensure!(own.is_empty(), "{own:?}");
            Ok(())
        })
    }
}

impl Drop for Namespace<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("{}", self.state());
        }
        if let Err(error) = self.end() {
            eprintln!("namespace {}: {error:#}", self.name);
        }
    }
}

fn text<'v>(object: &'v Value, pointer: &str) -> &'v str {
    object
        .pointer(pointer)
        .and_then(Value::as_str)
        .unwrap_or_default()
}

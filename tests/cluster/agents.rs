//! Shared by the tests of failures: agents with the rights that the chart gives them, and the problems they report.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use leafhost_tests::accounts::{account, kubeconfig, rendered, rights, token};
use leafhost_tests::cluster::{Cluster, Namespace, Request};
use leafhost_tests::scheduling::values;
use leafhost_tests::wait::eventually;
use serde_json::{Value, json};

use crate::device::Site;

/// Maximum number of requests of one kind for one object that the agents may send during a fault and its repair.
const MOST: usize = 20;

/// An agent on each of two nodes, with the service account of the chart; its namespace is `space`. The Configuration `steady` there has one shared
/// device, which no fault elsewhere may affect.
pub struct Agents {
    /// Namespace whose pods are deleted while the agents still run.
    pub space: Namespace<'static>,
    pub sites: Vec<Site>,
    pub cluster: &'static Cluster,
    /// Manifests of the account's rights.
    rights: String,
    /// Instances of `steady`, which must not change.
    steady: Vec<Value>,
}

impl Agents {
    /// Starts the agents with these arguments and waits until both have found `steady`.
    pub fn start(cluster: &'static Cluster, name: &str, arguments: &[&str]) -> Result<Self> {
        let taken = cluster.take_nodes(2)?;
        cluster.define()?;
        let space = cluster.namespace(name)?;
        let rights = rights(cluster, space.name(), values(arguments))?;
        let sites: Result<Vec<Site>> = taken
            .into_iter()
            .map(|node| Site::on(cluster, node))
            .collect();
        let mut agents = Self {
            space,
            sites: sites?,
            cluster,
            rights,
            steady: Vec::new(),
        };
        agents.allow()?;
        for site in &mut agents.sites {
            let kubeconfig = token(cluster, agents.space.name(), site.node.name())?;
            site.home.write("kubeconfig", kubeconfig)?;
            site.home.add_handler("debug-echo")?;
            site.home.join(&site.home.path().join("kubeconfig"));
            // Folder that the node's container runtime reads.
            let folder = site.node.cdi();
            site.home.publish_in(&folder);
            site.home.start(arguments)?;
            agents.space.show_log(&site.home.log_file());
        }
        agents.configure("steady", "debugEcho", "{descriptions: [steady]}")?;
        agents.steady = eventually("both nodes see the device of steady", || {
            let found = agents.instances("steady")?;
            let nodes = found
                .first()
                .and_then(|one| one["spec"]["nodes"].as_array());
            ensure!(nodes.map(Vec::len) == Some(2), "{found:#?}");
            Ok(found)
        })
        .with_context(|| agents.space.state())?;
        // Until the first write of these agents, the reports are those of an earlier test.
        eventually("both nodes report steady", || {
            for site in &agents.sites {
                let reports = agents.reports(site)?;
                let all = reports
                    .iter()
                    .filter_map(|one| one["status"]["configurations"].as_array());
                let own = all
                    .flatten()
                    .find(|one| one["namespace"] == agents.space.name() && one["name"] == "steady");
                ensure!(own.is_some_and(|one| one["devices"] == 1), "{reports:#?}");
            }
            Ok(())
        })
        .with_context(|| agents.space.state())?;
        Ok(agents)
    }

    /// Grants the account its rights.
    pub fn allow(&self) -> Result<()> {
        self.cluster.apply(&self.rights).map(drop)
    }

    /// Removes the bindings of the account's rights, but not the account.
    pub fn deny(&self) -> Result<()> {
        let bindings = ["clusterrolebinding,rolebinding", "--all-namespaces"];
        let release = format!("app.kubernetes.io/instance={}", self.space.name());
        let delete = ["delete", "--wait", "--selector", &release];
        self.cluster
            .kubectl(&[&delete[..], &bindings].concat())
            .map(drop)
    }

    /// Returns the account's user name.
    pub fn user(&self) -> String {
        let space = self.space.name();
        format!("system:serviceaccount:{space}:{}", account(space))
    }

    /// Grants the rights of the chart's controller and returns its kubeconfig.
    pub fn controller_kubeconfig(&mut self) -> Result<PathBuf> {
        let space = self.space.name();
        let rights = rendered(self.cluster, space, "controller", &[])?;
        let documents = rights.split("\n---\n");
        let rights: Vec<&str> = documents
            .filter(|one| !one.contains("kind: Deployment"))
            .collect();
        self.rights = format!("{}\n---\n{}", self.rights, rights.join("\n---\n"));
        self.allow()?;
        let account = format!("{space}-leafhost-controller");
        let text = kubeconfig(
            self.cluster,
            &["create", "token", &account, "--namespace", space],
        )?;
        let home = &self.sites.first().context("no site")?.home;
        home.write("controller-kubeconfig", text)?;
        Ok(home.path().join("controller-kubeconfig"))
    }

    /// Applies a Configuration in the namespace, with details in one line.
    pub fn configure(&self, name: &str, handler: &str, details: &str) -> Result<()> {
        configure(self.cluster, self.space.name(), name, handler, details)
    }

    pub fn delete(&self, kind: &str, name: &str) -> Result<()> {
        let delete = ["delete", kind, name, "--namespace", self.space.name()];
        self.cluster.kubectl(&delete).map(drop)
    }

    /// Returns the path of an Instance, or of all if the name is empty.
    pub fn instance_path(&self, name: &str) -> String {
        format!(
            "/apis/akri.sh/v0/namespaces/{}/instances/{name}",
            self.space.name()
        )
    }

    /// Returns the Instances of a Configuration.
    pub fn instances(&self, configuration: &str) -> Result<Vec<Value>> {
        let list = self
            .cluster
            .get(self.instance_path("").trim_end_matches('/'))?;
        let all = list["items"].as_array().context("no items")?.iter();
        let own = all.filter(|one| one["spec"]["configurationName"] == configuration);
        Ok(own.cloned().collect())
    }

    /// Waits until each node reports all these words in one problem: in `leafhost status` and in its objects of `kubectl get dh`.
    pub fn until_told(&self, words: &[&str]) -> Result<()> {
        let (began, has) = (Instant::now(), |text: &str| {
            words.iter().all(|words| text.contains(words))
        });
        eventually(&format!("each node says {words:?}"), || {
            for site in &self.sites {
                let (status, reports) = self.says(site)?;
                ensure!(has(&status), "leafhost status: {status}");
                let told = reports.iter().any(|problem| has(problem));
                ensure!(told, "{}: {reports:#?}", site.node.name());
            }
            println!("{words:?} after {:?}", began.elapsed());
            Ok(())
        })
        .with_context(|| self.space.state())
    }

    /// Waits until no node reports these words.
    pub fn until_solved(&self, words: &str) -> Result<()> {
        eventually(&format!("no node says {words:?}"), || {
            for site in &self.sites {
                let (status, reports) = self.says(site)?;
                ensure!(!status.contains(words), "leafhost status: {status}");
                ensure!(
                    !reports.iter().any(|one| one.contains(words)),
                    "{reports:#?}"
                );
            }
            Ok(())
        })
        .with_context(|| self.space.state())
    }

    /// Returns the output of `leafhost status` and the problems of the node's reports, each with its object.
    fn says(&self, site: &Site) -> Result<(String, Vec<String>)> {
        let status = site.home.leafhost(&["status"])?.good()?;
        let status = status.split_whitespace().collect::<Vec<_>>().join(" ");
        let mut problems = Vec::new();
        for report in self.reports(site)? {
            let all = report["status"]["configurations"].as_array();
            for one in all.into_iter().flatten() {
                let [namespace, name, problem] = ["namespace", "name", "problem"]
                    .map(|field| one[field].as_str().unwrap_or_default());
                problems.push(format!("Configuration {namespace}/{name}: {problem}"));
            }
            let all = report["status"]["sources"].as_array().into_iter().flatten();
            problems.extend(all.map(|one| format!("{}: {}", one["name"], one["problem"])));
            problems.push(
                report["status"]["problem"]
                    .as_str()
                    .unwrap_or_default()
                    .to_owned(),
            );
        }
        Ok((status, problems))
    }

    /// Returns the node's objects of `kubectl get dh`.
    pub fn reports(&self, site: &Site) -> Result<Vec<Value>> {
        let all = self.cluster.kubectl(&["get", "dh", "--output", "json"])?;
        let all: Value = serde_json::from_str(&all)?;
        let all = all["items"].as_array().context("no items")?.iter();
        let own = all.filter(|report| report["spec"]["node"] == site.node.name());
        Ok(own.cloned().collect())
    }

    /// Checks that since `since` in the audit log `steady` did not change, and no request was repeated more than `MOST` times.
    pub fn check_calm(&self, since: u64) -> Result<()> {
        let now = self.instances("steady")?;
        ensure!(
            now == self.steady,
            "{:#?} was changed: {now:#?}",
            self.steady
        );
        let requests = self.requests(since)?;
        let loops: Vec<_> = requests
            .iter()
            .filter(|(_, count)| **count > MOST)
            .collect();
        ensure!(loops.is_empty(), "{loops:#?}");
        Ok(())
    }

    /// Returns the agents' requests since a moment of the audit log.
    pub fn requests(&self, since: u64) -> Result<BTreeMap<Request, usize>> {
        let user = self.user();
        let mut requests = self.cluster.audit().since(since)?;
        requests.retain(|request, _| request.user == user);
        Ok(requests)
    }
}

impl Drop for Agents {
    fn drop(&mut self) {
        for kind in ["configuration", "instance"] {
            let all = [
                "delete",
                kind,
                "--all",
                "--namespace",
                self.space.name(),
                "--wait=false",
            ];
            let _ = self.cluster.kubectl(&all);
        }
        let delete = ["delete", "--wait=false", "--filename", "-"];
        if let Err(error) = self.cluster.kubectl_with(&delete, &self.rights) {
            eprintln!("the rights stay: {error:#}");
        }
    }
}

/// Applies a Configuration with details in one line.
pub fn configure(
    cluster: &Cluster,
    namespace: &str,
    name: &str,
    handler: &str,
    details: &str,
) -> Result<()> {
    let object = json!({
        "apiVersion": "akri.sh/v0", "kind": "Configuration",
        "metadata": {"name": name, "namespace": namespace, "annotations": {"leafhost.dev/grace": "0s"}},
        "spec": {"discoveryHandler": {"name": handler, "discoveryDetails": details}, "capacity": 2, "brokerProperties": {"MODE": "fast"}},
    });
    cluster.apply(&object.to_string()).map(drop)
}

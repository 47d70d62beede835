//! Cost of the policies for the API server, by the number of Configurations in the namespace.

use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};
use leafhost_tests::cluster::Cluster;
use leafhost_tests::program::processor_time;
use leafhost_tests::wait::eventually;
use serde_json::{Value, json};
use ureq::http::request::Builder;
use ureq::http::{Request, Response};

use super::{Guarded, NAMESPACE, configure, instance, instance_path};

/// Number of writes that are measured.
const WRITES: u32 = 50;

/// Agent on `node-a`, by impersonation, so that a write is one request.
struct Writer {
    agent: ureq::Agent,
    root: String,
}

impl Writer {
    fn new(cluster: &Cluster) -> Self {
        let config = ureq::Agent::config_builder().http_status_as_error(false);
        Self {
            agent: config.build().into(),
            root: format!("http://{}", cluster.api().address()),
        }
    }

    fn request(&self, method: &str, path: &str, kind: &str) -> Builder {
        let user = format!("system:serviceaccount:{NAMESPACE}:{NAMESPACE}-leafhost-agent");
        let node = "impersonate-extra-authentication.kubernetes.io%2fnode-name";
        Request::builder()
            .method(method)
            .uri(format!("{}{path}?fieldManager=leafhost", self.root))
            .header("content-type", kind)
            .header("impersonate-user", user)
            .header("impersonate-group", "system:masters")
            .header(node, "node-a")
    }

    fn patch(&self, path: &str, fields: &Value) -> Result<()> {
        let request = self.request("PATCH", path, "application/merge-patch+json");
        good(self.agent.run(request.body(fields.to_string())?)?)
    }

    fn create_and_delete(&self, path: &str, object: &Value) -> Result<()> {
        let (collection, _) = path.rsplit_once('/').context("no name")?;
        let request = self.request("POST", collection, "application/json");
        good(self.agent.run(request.body(object.to_string())?)?)?;
        let request = self.request("DELETE", path, "application/json");
        good(self.agent.run(request.body(())?)?)
    }
}

fn good(answer: Response<ureq::Body>) -> Result<()> {
    let status = answer.status();
    if !status.is_success() {
        bail!("{status}: {}", answer.into_body().read_to_string()?);
    }
    Ok(())
}

/// Measured write; the number makes it differ from the one before.
type Write<'a> = &'a dyn Fn(u32) -> Result<()>;

#[test]
#[ignore = "measures, in a cluster of its own"]
fn policies_cost() -> Result<()> {
    if let Some(missing) = Cluster::missing() {
        println!("nothing is measured: {missing}");
        return Ok(());
    }
    // The policies and the agent's name are global to the process.
    let cluster: &'static Cluster = Box::leak(Box::new(Cluster::start(1)?));
    let measured = measure(cluster);
    cluster.stop()?;
    measured
}

fn measure(cluster: &'static Cluster) -> Result<()> {
    let pid = cluster.server().pid()?;
    let guarded = Guarded::install(cluster)?;
    let space = cluster.namespace("cost")?;
    configure(cluster, &space, 2)?;
    let mk_instance = |name: &str| {
        let mut object = instance(name, "node-a", true);
        object["metadata"]["annotations"] = json!({"leafhost.dev/generation": "1"});
        object
    };
    let (name, made) = ("cams-c05700", mk_instance("cams-c05701"));
    let (path, made_path) = (
        instance_path(&space, name),
        instance_path(&space, "cams-c05701"),
    );
    let (collection, _) = path.rsplit_once('/').context("no name")?;
    cluster.api().create(collection, &mk_instance(name))?;
    let writer = Writer::new(cluster);
    let slot = |value: &str| json!({"spec": {"deviceUsage": {format!("{name}-0"): value}}});
    eventually("the policies are in effect", || {
        let done = writer.patch(&path, &slot("node-b"));
        ensure!(format!("{done:?}").contains("spec.deviceUsage"), "{done:?}");
        Ok(())
    })?;
    let use_slot = |number: u32| {
        slot(if number.is_multiple_of(2) {
            "node-a"
        } else {
            ""
        })
    };
    let turn = |number: u32| {
        let is_odd = number.is_multiple_of(2);
        let label = if is_odd { json!("true") } else { Value::Null };
        json!({"metadata": {"labels": {"leafhost.dev/odd-edit": label}}})
    };
    let admin = |number: u32| cluster.api().merge(&path, &use_slot(number)).map(drop);
    let claim = |number: u32| writer.patch(&path, &use_slot(number));
    let edit = |number: u32| writer.patch(&path, &turn(number));
    let create = |_: u32| writer.create_and_delete(&made_path, &made);
    let measured: [(&str, Write<'_>); 4] = [
        ("a claim, as the administrator", &admin),
        ("a claim of an agent", &claim),
        ("a change of the generation", &edit),
        ("an Instance created and deleted", &create),
    ];
    for count in [1, 2000] {
        let more = (1..count).map(|number| {
            let space = space.name();
            format!(
                "---\napiVersion: akri.sh/v0\nkind: Configuration\nmetadata: {{name: more-{number}, namespace: {space}}}\nspec: {{discoveryHandler: {{name: none}}}}\n"
            )
        });
        for some in more.collect::<Vec<_>>().chunks(200) {
            cluster.kubectl_with(&["create", "--filename", "-"], &some.concat())?;
        }
        for (what, write) in measured {
            let (begun, before) = (Instant::now(), processor_time(pid)?);
            for number in 0..WRITES {
                write(number)?;
            }
            let used =
                processor_time(pid)?.saturating_sub(before).as_secs_f64() * 1e3 / f64::from(WRITES);
            let taken = begun.elapsed().as_secs_f64() * 1e3 / f64::from(WRITES);
            println!(
                "{what}, beside {count} Configurations: {used:.1} ms of the API server's processor time, done after {taken:.1} ms"
            );
        }
    }
    drop(guarded);
    Ok(())
}

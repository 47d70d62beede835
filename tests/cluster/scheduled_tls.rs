//! Extender for the cluster's own kube-scheduler, by TLS: the kube-scheduler works with the printed entry, and no other client may call the extender.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use leafhost_tests::cluster;
use leafhost_tests::program::run_in;
use leafhost_tests::scheduling::{DEVICES, LOCKED, Scheduling, exactly, of};
use leafhost_tests::wait::eventually;
use serde_json::{Value, json};

use crate::scheduled::{given, start_with, until_free};

/// Script that creates a CA with the name of ours and a client certificate signed by it.
const OTHER: &str = "
new='req -x509 -days 2 -nodes -newkey ec -pkeyopt ec_paramgen_curve:P-256'
openssl $new -keyout ca.key -out ca.pem -subj '/CN=leafhost scheduler CA'
openssl $new -keyout other.key -out other.pem -subj /CN=kube-scheduler -CA ca.pem -CAkey ca.key -addext extendedKeyUsage=clientAuth";

/// Client that trusts the extender's CA; the files of client certificates are in a folder.
struct Caller<'a> {
    folder: &'a Path,
    address: &'a str,
    server: &'a str,
}

impl Caller<'_> {
    /// Asks the extender to bind a pod that does not exist. Returns the answer, if there is one.
    fn bind(&self, url: &str, certificate: Option<&str>) -> Result<Option<String>> {
        let pod =
            json!({"PodName": "none", "PodNamespace": "none", "PodUID": "none", "Node": "none"});
        let pod = pod.to_string();
        let to = format!("::{}", self.address);
        let mut call = vec!["-sS", "--max-time", "30", "--noproxy", "*"];
        call.extend([
            "--cacert",
            "trusted.pem",
            "--connect-to",
            &to,
            "--json",
            &pod,
        ]);
        let (pem, key);
        if let Some(name) = certificate {
            (pem, key) = (format!("{name}.pem"), format!("{name}.key"));
            call.extend(["--cert", &pem, "--key", &key]);
        }
        call.push(url);
        let ended = run_in("curl", call, self.folder, &[])?;
        println!("{url} with {certificate:?}: {ended:?}");
        Ok((ended.code == Some(0)).then_some(ended.out))
    }

    /// Checks that the extender answers the client of the entry, and no other.
    fn check(&self) -> Result<()> {
        let url = format!("https://{}/bind", self.server);
        let answer = self.bind(&url, Some("own"))?;
        let answer = answer.context("whoever has the certificate is not answered")?;
        let answer: Value = serde_json::from_str(&answer)?;
        let error = answer["Error"].as_str().unwrap_or_default();
        ensure!(!error.is_empty(), "{answer}");
        for certificate in [None, Some("other")] {
            let answer = self.bind(&url, certificate)?;
            ensure!(answer.is_none(), "{certificate:?} is answered: {answer:?}");
        }
        let plain = format!("http://{}/bind", self.server);
        let answer = self.bind(&plain, None)?;
        ensure!(
            answer.is_none(),
            "without TLS there is an answer: {answer:?}"
        );
        Ok(())
    }
}

/// Writes the PEM data of an entry to the files of the caller.
fn write(folder: &Path, entry: &Value) -> Result<()> {
    for (key, file) in [
        ("caData", "trusted.pem"),
        ("certData", "own.pem"),
        ("keyData", "own.key"),
    ] {
        let text = entry["tlsConfig"][key].as_str().context("no data")?;
        fs::write(folder.join(file), STANDARD.decode(text)?)?;
    }
    Ok(())
}

#[test]
fn a_kube_scheduler_with_the_printed_entry_schedules_and_nobody_else_is_answered() -> Result<()> {
    let Some(cluster) = cluster::shared()? else {
        return Ok(());
    };
    let by_tls = Scheduling::start_by_tls;
    let (agents, scheduling) = start_with(cluster, "scheduled-tls", "safe", &LOCKED, by_tls)?;
    let (space, node) = (&agents.space, &agents.sites[0].node);
    let name = space.name();
    let entry = Scheduling::entry(cluster, name)?["extenders"][0].take();
    let service = format!("/api/v1/namespaces/{name}/services/{name}-leafhost-scheduler");
    let address = cluster.get(&service)?["spec"]["clusterIP"].take();
    let address = address.as_str().context("no address")?;
    ensure!(
        entry["urlPrefix"] == format!("https://{address}:443"),
        "{address}"
    );
    let server = format!("{name}-leafhost-scheduler.{name}.svc");
    ensure!(entry["tlsConfig"]["serverName"] == server, "{server}");
    let managed = &entry["managedResources"];
    ensure!(*managed == json!([{"name": DEVICES}]), "{managed}");

    let folder = tempfile::tempdir()?;
    write(folder.path(), &entry)?;
    run_in("sh", ["-ec", OTHER], folder.path(), &[])?.good()?;
    let caller = Caller {
        folder: folder.path(),
        address: scheduling.address(),
        server: &server,
    };
    let schedules = |pod: &str, index: usize| -> Result<()> {
        let requests = json!([exactly("gpu", of("", "safe", 1, &[index]))]);
        space.create(&scheduling.pod(pod, Some(node), &requests))?;
        space.wait_running(pod).with_context(|| scheduling.log())?;
        let (has, _) = given(cluster, space, pod)?;
        ensure!(has == [index].into(), "{pod} has {has:?}");
        Ok(())
    };
    schedules("first", 3)?;
    caller.check()?;

    // The extender keeps working without the Secret, and restores the data of a new one.
    let secret = format!("{service}-certificate").replace("/services/", "/secrets/");
    let before = cluster.get(&secret)?;
    cluster.api().delete(&secret)?;
    schedules("without", 1)?;
    caller.check()?;
    let empty = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": before["metadata"]["name"], "namespace": name}});
    cluster.apply(&empty.to_string())?;
    eventually("what the Secret had is in it again", || {
        let after = cluster.get(&secret)?;
        ensure!(after["data"] == before["data"], "it has something else");
        ensure!(after["metadata"]["uid"] != before["metadata"]["uid"]);
        Ok(())
    })
    .with_context(|| scheduling.log())?;
    // The extender also accepts a kube-scheduler with a new certificate.
    write(
        folder.path(),
        &Scheduling::entry(cluster, name)?["extenders"][0],
    )?;
    caller.check()?;
    schedules("again", 2)?;
    for pod in ["first", "without", "again"] {
        space.delete(pod)?;
    }
    until_free(&agents, "safe")
}

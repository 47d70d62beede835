//! Akri's own end-to-end tests, unchanged, with our chart. They are not in this repository: `AKRI_E2E` names the folder of a checkout with them.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result, ensure};
use leafhost_tests::cluster::Cluster;
use leafhost_tests::program::{self, source_tree};
use leafhost_tests::random;
use leafhost_tests::requirement;
use leafhost_tests::wait::eventually;

use crate::handler_pods::Prepared;

/// Values that our chart needs for Akri's tests: names, and a log level with the lines that they look for.
const VALUES: [(&str, &str); 2] = [
    ("nameOverride: \"\"", "nameOverride: akri"),
    (
        "  args: []",
        "  args: [\"--log-level=info,leafhost_slots=debug\"]",
    ),
];
/// Image of the brokers in Akri's tests.
const BROKER: &str = "docker.io/library/nginx:stable-alpine";
/// Version of Akri, which its tests read from a file next to their own folder.
const VERSION: &str = "0.13.26";

/// Process that ends when this is dropped.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Copies Akri's tests into the folders that they expect, with our chart next to them.
fn lay_out(tests: &Path) -> Result<tempfile::TempDir> {
    let root = tempfile::tempdir()?;
    let copy = |from: &Path, to: PathBuf| {
        fs::create_dir_all(to.parent().unwrap_or(Path::new("/")))?;
        program::run("cp", ["-R".as_ref(), from.as_os_str(), to.as_os_str()])?
            .good()
            .map(drop)
    };
    copy(tests, root.path().join("test/e2e"))?;
    let chart = root.path().join("deployment/helm");
    copy(&source_tree().join("deploy/chart"), chart.clone())?;
    fs::write(root.path().join("version.txt"), VERSION)?;
    let values = chart.join("values.yaml");
    let mut text = fs::read_to_string(&values)?;
    for (from, to) in VALUES {
        ensure!(text.contains(from), "the chart's values have no {from}");
        text = text.replacen(from, to, 1);
    }
    fs::write(values, text)?;
    Ok(root)
}

#[test]
#[ignore = "takes ten minutes, and needs tests that are not in this tree: make akri-e2e AKRI_E2E=DIR"]
fn akri_e2e() -> Result<()> {
    let tests = std::env::var("AKRI_E2E")
        .context("AKRI_E2E names no folder with Akri's end-to-end tests")?;
    let python = std::env::var("AKRI_E2E_PYTHON").unwrap_or_else(|_| "python3".to_owned());
    if requirement::lacks(Cluster::missing())? {
        return Ok(());
    }
    let root = lay_out(&fs::canonicalize(tests)?)?;
    let prepared = Prepared::start()?;
    let cluster = prepared.own.0;
    for node in cluster.nodes() {
        node.tag_image(BROKER)?;
    }
    let home = root.path().join("home");
    fs::create_dir_all(home.join(".kube"))?;
    // With the certificates embedded.
    let config = cluster.kubectl(&["config", "view", "--flatten", "--raw"])?;
    fs::write(home.join(".kube/config"), config)?;
    let command = |program: &str| {
        let path = std::env::var("PATH").unwrap_or_default();
        let mut command = Command::new(program);
        command
            .env("HOME", &home)
            .env("PATH", format!("{}:{path}", cluster.programs().display()))
            .env("PYTHONDONTWRITEBYTECODE", "1")
            .current_dir(root.path().join("test/e2e"));
        command
    };
    // Akri's tests update the repositories that helm knows, and helm needs at least one.
    let empty = root.path().join("repository");
    fs::create_dir(&empty)?;
    fs::write(
        empty.join("index.yaml"),
        "apiVersion: v1\nentries: {}\ngenerated: \"2026-01-01T00:00:00Z\"\n",
    )?;
    let port = std::net::TcpListener::bind("127.0.0.1:0")?
        .local_addr()?
        .port();
    let served = command(&python)
        .args(["-m", "http.server", &port.to_string()])
        .args(["--bind", "127.0.0.1", "--directory"])
        .arg(&empty)
        .stderr(Stdio::null())
        .spawn()?;
    let _served = Running(served);
    eventually("helm knows a repository", || {
        let added = command("helm")
            .args(["repo", "add", "none", &format!("http://127.0.0.1:{port}")])
            .output()?;
        ensure!(
            added.status.success(),
            "{}",
            String::from_utf8_lossy(&added.stderr)
        );
        Ok(())
    })?;
    for round in 1..=random::rounds(1) {
        println!("round {round}");
        let status = command(&python)
            .args(["-m", "pytest", "-v", "-p", "no:cacheprovider"])
            .args(["--distribution", "k8s", "--use-local"])
            .status()?;
        ensure!(status.success(), "Akri's tests: {status}");
    }
    Ok(())
}

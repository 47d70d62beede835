//! Starts and stops the tests' Kubernetes for manual use.

use std::path::{Path, PathBuf};

use anyhow::{Result, bail};
use clap::Parser;
use leafhost_tests::cluster::{Cluster, Setup};
use leafhost_tests::requirement;

/// Runs a Kubernetes cluster on this machine, as the tests use it.
#[derive(Debug, Parser)]
enum Command {
    /// Starts a cluster if none runs, and prints how to use it.
    Start {
        /// Number of nodes.
        #[arg(long, default_value_t = 1)]
        nodes: u8,
        /// Additional feature gates of the API server and the kubelets, each as Name=true.
        #[arg(long)]
        gate: Vec<String>,
        /// OCI archive whose images are imported on every node.
        #[arg(long)]
        image: Option<PathBuf>,
        /// Chart of the agent to install.
        #[arg(long)]
        chart: Option<PathBuf>,
    },
    /// Stops the clusters that were started.
    Stop,
}

fn main() -> Result<()> {
    let command = Command::parse();
    let root = requirement::root("sudo -E make cluster");
    if let Some(missing) = root.or_else(Cluster::missing) {
        bail!("{missing}");
    }
    match command {
        Command::Start {
            nodes,
            gate,
            image,
            chart,
        } => {
            let kept = Cluster::kept()?;
            if !kept.is_empty() {
                println!("runs already:\n{}", kept.join("\n"));
                return Ok(());
            }
            let mut setup = Setup {
                nodes,
                ..Setup::default()
            };
            setup.gates.extend(gate);
            let prepare = |cluster: &Cluster| prepare(cluster, image.as_deref(), chart.as_deref());
            println!("{}", Cluster::keep(&setup, prepare)?);
        }
        Command::Stop => println!("ended {}", Cluster::end_kept()?),
    }
    Ok(())
}

/// Imports the image on the nodes and installs the chart; returns the commands to type next.
fn prepare(cluster: &Cluster, image: Option<&Path>, chart: Option<&Path>) -> Result<String> {
    for node in cluster.nodes() {
        image.map_or(Ok(()), |image| node.import_image(image))?;
    }
    let Some(chart) = chart else {
        return Ok(String::new());
    };
    let chart = chart.to_string_lossy();
    cluster.helm(
        &["install", "leafhost", &chart, "--namespace", "leafhost"]
            .into_iter()
            .chain(["--create-namespace", "--wait", "--timeout", "2m"])
            .collect::<Vec<_>>(),
    )?;
    Ok("The agent runs on every node. After the two exports, try:
  kubectl apply -f deploy/samples/cluster/debug-echo.yaml
  kubectl get akric,akrii,dh
  kubectl --namespace leafhost exec daemonset/leafhost-agent -- leafhost status
"
    .to_owned())
}

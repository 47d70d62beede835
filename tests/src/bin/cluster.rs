//! Starts and stops the tests' Kubernetes for manual use.

use anyhow::{Result, bail};
use clap::Parser;
use leafhost_tests::cluster::{Cluster, Setup};
use leafhost_tests::requirement;

/// A Kubernetes on this machine, as the tests use it.
#[derive(Debug, Parser)]
enum Command {
    /// Starts one, if none runs, and prints how to use it.
    Start {
        /// How many nodes.
        #[arg(long, default_value_t = 1)]
        nodes: u8,
        /// Feature gates of API server and kubelets beside the usual ones, each as Name=true.
        #[arg(long)]
        gate: Vec<String>,
    },
    /// Ends those that were started.
    Stop,
}

fn main() -> Result<()> {
    let command = Command::parse();
    let root = requirement::root("sudo -E make cluster");
    if let Some(missing) = root.or_else(Cluster::missing) {
        bail!("{missing}");
    }
    match command {
        Command::Start { nodes, gate } => {
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
            println!("{}", Cluster::keep(&setup)?);
        }
        Command::Stop => println!("ended {}", Cluster::end_kept()?),
    }
    Ok(())
}

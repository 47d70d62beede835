//! Flags of `leafhost controller`.

use std::net::SocketAddr;
use std::time::Duration;

use clap::Args;

use super::{LogArgs, duration, socket_address};

/// Flags of `leafhost controller`.
#[derive(Debug, Args)]
#[allow(
    clippy::struct_excessive_bools,
    reason = "each is a flag on the command line"
)]
pub struct ControllerArgs {
    /// The namespace of the Lease leafhost-controller, by which one of several controllers becomes the leader [default: that of the service account]
    #[arg(long, value_name = "NAMESPACE")]
    pub lease_namespace: Option<String>,

    /// The labels of the agents' pods in that namespace: the controller removes the reports of nodes on which no such pod has run for a minute [default: no reports are removed]
    #[arg(long, value_name = "LABELS")]
    pub agent_pods: Option<String>,

    /// Create no pods, jobs and services for brokerSpec, instanceServiceSpec and configurationServiceSpec
    #[arg(long)]
    pub no_brokers: bool,

    /// Evict pods whose device is gone, for Configurations with the annotation leafhost.dev/restart-pods; needs the right to get pods and to create pods/eviction
    #[arg(long)]
    pub restart_pods: bool,

    /// Label each node with the Configurations of which it sees a device, such as akri.sh/cameras=true; needs the right to patch nodes
    #[arg(long)]
    pub node_labels: bool,

    /// Delete the reports of all nodes, remove the statuses of all Configurations, and exit; for use after an uninstallation, when nothing updates them
    #[arg(long)]
    pub clear: bool,

    /// Time for which a name stays with its namespace after the last Configuration with that name was deleted there
    #[arg(long, value_name = "DURATION", default_value = "1h", value_parser = duration)]
    pub name_grace: Duration,

    /// An address that serves /metrics, for scrapers on the network [default: none]
    #[arg(long, value_name = "ADDR:PORT", value_parser = socket_address)]
    pub metrics_listen: Option<SocketAddr>,

    /// An address that serves /healthz, which answers 200 while the controller runs [default: none]
    #[arg(long, value_name = "ADDR:PORT", value_parser = socket_address)]
    pub health_listen: Option<SocketAddr>,

    #[command(flatten)]
    pub log: LogArgs,
}

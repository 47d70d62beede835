//! The flags of `leafhost scheduler` and `leafhost select`.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::Args;

use super::{LogArgs, socket_address};
use crate::terminal::Output;

/// Flags of `leafhost scheduler`.
#[derive(Debug, Args)]
pub struct SchedulerArgs {
    /// The address for /filter, /prioritize and /bind, for the scheduler alone: whoever reaches it can bind pods; also for /healthz and /metrics
    #[arg(long, env = "LEAFHOST_LISTEN", value_name = "ADDR:PORT", default_value = "127.0.0.1:9480",
        value_parser = socket_address)]
    pub listen: SocketAddr,

    /// The schedulerName of the pods that are bound
    #[arg(
        long,
        env = "LEAFHOST_SCHEDULER_NAME",
        value_name = "NAME",
        default_value = "leafhost"
    )]
    pub scheduler_name: String,

    /// Lock each node until the pod that is bound to it has its devices, by the annotation leafhost.dev/node-lock; needs --node-lock of each agent
    #[arg(long, env = "LEAFHOST_NODE_LOCK")]
    pub node_lock: bool,

    /// An address that serves /metrics and /healthz alone, for scrapers on the network and the kubelet [default: none]
    #[arg(long, env = "LEAFHOST_METRICS_LISTEN", value_name = "ADDR:PORT", value_parser = socket_address)]
    pub metrics_listen: Option<SocketAddr>,

    #[command(flatten)]
    pub log: LogArgs,
}

/// Flags of `leafhost select`.
#[derive(Debug, Args)]
pub struct SelectArgs {
    /// The manifest of a pod, or of what makes pods by a template, such as a Deployment; - for stdin
    pub file: PathBuf,

    /// The format: table, json or yaml
    #[arg(
        short,
        long,
        env = "LEAFHOST_OUTPUT",
        value_name = "FORMAT",
        default_value = "table"
    )]
    pub output: Output,
}

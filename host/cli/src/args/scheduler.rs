//! The flags of `leafhost scheduler`.

use std::net::SocketAddr;

use clap::Args;

use super::{LogArgs, socket_address};

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

    /// An address that serves /metrics and /healthz alone, for scrapers on the network and the kubelet [default: none]
    #[arg(long, env = "LEAFHOST_METRICS_LISTEN", value_name = "ADDR:PORT", value_parser = socket_address)]
    pub metrics_listen: Option<SocketAddr>,

    #[command(flatten)]
    pub log: LogArgs,
}

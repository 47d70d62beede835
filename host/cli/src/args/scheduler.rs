//! Flags of `leafhost scheduler` and `leafhost select`.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;

use clap::{Args, Subcommand};

use super::{LogArgs, examples, socket_address};
use crate::terminal::Output;

/// Flags of `leafhost scheduler`.
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct SchedulerArgs {
    /// Subcommand, which runs instead of the extender.
    #[command(subcommand)]
    pub command: Option<SchedulerCommand>,

    /// The address for /filter, /prioritize and /bind, for the scheduler only: without --tls-secret, whoever can connect to it can bind pods, and it also serves /healthz and /metrics
    #[arg(long, value_name = "ADDR:PORT", default_value = "127.0.0.1:9480", value_parser = socket_address)]
    pub listen: SocketAddr,

    /// Serve with TLS, only to clients with a certificate of the CA in this Secret, such as that of `leafhost scheduler config`; the Secret must exist and may be empty
    #[arg(long, value_name = "[NAMESPACE/]NAME", requires = "tls_service")]
    pub tls_secret: Option<ObjectName>,

    /// The Service, in the namespace of the Secret, through which the scheduler calls this extender
    #[arg(long, value_name = "NAME", requires = "tls_secret")]
    pub tls_service: Option<String>,

    /// Lock each node with the annotation leafhost.dev/node-lock until the pod that is bound to it has its devices; requires --node-lock of each agent
    #[arg(long)]
    pub node_lock: bool,

    /// An address that serves only /metrics and /healthz, for scrapers on the network and the kubelet [default: none]
    #[arg(long, value_name = "ADDR:PORT", value_parser = socket_address)]
    pub metrics_listen: Option<SocketAddr>,

    #[command(flatten)]
    pub log: LogArgs,
}

/// Subcommands of `leafhost scheduler`, which run instead of the extender.
#[derive(Debug, Subcommand)]
pub enum SchedulerCommand {
    /// Print the configuration with which the cluster's own kube-scheduler calls an extender with --tls-secret
    ///
    /// It prints the entry for `extenders:` in the KubeSchedulerConfiguration, with the address of the extender's Service and a new certificate that the
    /// extender's CA has signed. It reads the Service and the Secret with the kubeconfig that kubectl would use, and changes nothing. Whoever has the
    /// text can bind any pod.
    #[command(after_long_help = examples::SCHEDULER_CONFIG)]
    Config(SchedulerConfigArgs),
}

/// Flags of `leafhost scheduler config`.
#[derive(Debug, Args)]
pub struct SchedulerConfigArgs {
    /// The Secret of the extender's --tls-secret [default NAMESPACE: that of the kubeconfig]
    #[arg(
        long,
        value_name = "[NAMESPACE/]NAME",
        default_value = "leafhost-scheduler-certificate"
    )]
    pub secret: ObjectName,

    /// The Service of the extender's --tls-service
    #[arg(long, value_name = "NAME", default_value = "leafhost-scheduler")]
    pub service: String,

    /// The validity of the certificate in days
    #[arg(long, value_name = "N", default_value_t = 365, value_parser = clap::value_parser!(u32).range(1..=3_650))]
    pub valid_days: u32,
}

/// Name of an object; without `namespace` the object is in the default namespace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ObjectName {
    pub namespace: Option<String>,
    pub name: String,
}

impl FromStr for ObjectName {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (namespace, name) = match text.split_once('/') {
            Some((namespace, name)) => (Some(namespace), name),
            None => (None, text),
        };
        if name.is_empty() || name.contains('/') || namespace == Some("") {
            return Err("must be NAME or NAMESPACE/NAME".to_owned());
        }
        Ok(Self {
            namespace: namespace.map(str::to_owned),
            name: name.to_owned(),
        })
    }
}

/// Flags of `leafhost select`.
#[derive(Debug, Args)]
pub struct SelectArgs {
    /// The manifest of a pod, or of an object with a pod template, such as a Deployment; - for stdin
    pub file: PathBuf,

    /// The format: table, json or yaml
    #[arg(short, long, value_name = "FORMAT", default_value = "table")]
    pub output: Output,
}

//! Flags of `leafhost webhook`.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::Args;

use super::{CompilerArgs, HandlersDirArgs, LogArgs, WithoutHandlersArgs, socket_address};

/// Flags of `leafhost webhook`.
#[derive(Debug, Args)]
pub struct WebhookArgs {
    /// The namespace of the Secret and the Service [default: that of the service account]
    #[arg(long, value_name = "NAMESPACE")]
    pub namespace: Option<String>,

    /// The Secret for the certificate; it must exist, and may be empty
    #[arg(
        long,
        value_name = "NAME",
        default_value = "leafhost-webhook-certificate"
    )]
    pub secret: String,

    /// The Service by whose name the API server calls the webhook
    #[arg(long, value_name = "NAME", default_value = "leafhost-webhook")]
    pub service: String,

    /// The ValidatingWebhookConfiguration to which the webhook writes the certificate that the API server trusts
    #[arg(long, value_name = "NAME", default_value = "leafhost-webhook")]
    pub webhook_configuration: String,

    /// The address to serve with TLS
    #[arg(long, value_name = "ADDR:PORT", default_value = "0.0.0.0:9443", value_parser = socket_address)]
    pub listen: SocketAddr,

    /// A file with the certificates of a CA, as PEM; only clients with a certificate of this CA are answered, such as an API server that is configured with one
    #[arg(long, value_name = "FILE")]
    pub client_ca: Option<PathBuf>,

    /// The namespace of the ConfigMaps with handlers [default: that of the service account]
    #[arg(long, value_name = "NAMESPACE")]
    pub handlers_namespace: Option<String>,

    #[command(flatten)]
    pub folders: HandlersDirArgs,

    #[command(flatten)]
    pub without: WithoutHandlersArgs,

    /// The folder for compiled handlers, accepted handlers and fetched ConfigMaps
    #[arg(long, value_name = "DIR", default_value = "/var/lib/leafhost")]
    pub state_dir: PathBuf,

    #[command(flatten)]
    pub compiler: CompilerArgs,

    #[command(flatten)]
    pub log: LogArgs,
}

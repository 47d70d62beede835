//! Flags of `leafhost handler serve`.

use std::path::PathBuf;

use clap::Args;

use super::{CompilerArgs, LogArgs};

/// Flags of `leafhost handler serve`.
#[derive(Debug, Args)]
pub struct ServeArgs {
    /// The component: .wasm or .wasm.gz
    pub file: PathBuf,

    /// The grants file [default: the one next to FILE]
    #[arg(long, value_name = "FILE")]
    pub grants: Option<PathBuf>,

    /// The folder with the agent's agent-registration.sock, in which the handler creates its own socket
    #[arg(long, value_name = "DIR", default_value = "/var/lib/akri")]
    pub external_handlers_dir: PathBuf,

    /// A file; while it contains OFFLINE, the handler reports no devices
    #[arg(long, value_name = "FILE")]
    pub availability_file: Option<PathBuf>,

    /// The node's name that the handler gets [default: the host name]
    #[arg(long, value_name = "NAME")]
    pub node_name: Option<String>,

    #[command(flatten)]
    pub compiler: CompilerArgs,

    #[command(flatten)]
    pub log: LogArgs,
}

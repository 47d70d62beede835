//! Connection to the API server.

use std::time::Duration;

use kube::config::{InClusterError, KubeConfigOptions};
use kube::{Client, Config};
use leafhost_core::text;

/// Timeout of establishing a connection.
const CONNECT: Duration = Duration::from_secs(5);
/// Maximum silence of the API server before a connection is closed. The API server ends each watch earlier. The limit also closes idle
/// connections, so it must be longer than the timeout of a request: otherwise the read of a claim would often have to open a new connection
/// first.
const SILENT: Duration = Duration::from_secs(90);

/// Reason why there is no connection.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// No source has the address of the API server.
    #[error(
        "no cluster: not in a pod with a service account ({0}), and KUBECONFIG is not set; run this in a pod, or set KUBECONFIG"
    )]
    NoCluster(InClusterError),
    /// The kubeconfig, the certificates or the credentials are unusable; the text has the reason.
    #[error("{0}")]
    Unusable(String),
}

/// Creates a client of this pod's API server, or else of the one in `KUBECONFIG`. Makes no request yet.
///
/// The client never retries by itself, and each caller must bound the time of its requests: kube would retry for many minutes, whether a
/// caller waits or not.
pub async fn connect() -> Result<Client, ConnectError> {
    let config = match Config::incluster() {
        Ok(config) => config,
        Err(error) => {
            let is_set = std::env::var_os("KUBECONFIG").is_some_and(|value| !value.is_empty());
            if !is_set {
                return Err(ConnectError::NoCluster(error));
            }
            let found = Config::from_kubeconfig(&KubeConfigOptions::default()).await;
            found.map_err(|error| {
                let why = text::chain(&error);
                let text = format!("cannot read KUBECONFIG: {why}; correct it, or unset it");
                ConnectError::Unusable(text)
            })?
        }
    };
    bounded(config)
}

/// Creates a client of the API server that kubectl would use, with the rights of its user.
pub async fn connect_as_user() -> Result<Client, ConnectError> {
    let config = Config::infer().await.map_err(|error| {
        let why = text::chain(&error);
        ConnectError::Unusable(format!(
            "no cluster: {why}; set KUBECONFIG to the kubeconfig of an administrator"
        ))
    })?;
    bounded(config)
}

/// Creates a client from a configuration.
pub(crate) fn client(config: Config) -> Result<Client, kube::Error> {
    // A program with several cryptography libraries must choose one. The first choice stands.
    let _ = rustls::crypto::ring::default_provider().install_default();
    Client::try_from(config)
}

fn bounded(mut config: Config) -> Result<Client, ConnectError> {
    config.default_retry = false;
    config.connect_timeout = Some(CONNECT);
    config.read_timeout = Some(SILENT);
    config.reset_reader_on_write = true;
    client(config).map_err(|error| {
        let why = text::chain(&error);
        ConnectError::Unusable(format!(
            "cannot use the cluster's certificates or credentials: {why}"
        ))
    })
}

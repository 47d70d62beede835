//! The connection to the API server.

use std::time::Duration;

use kube::config::{InClusterError, InferConfigError, KubeConfigOptions, KubeconfigError};
use kube::{Client, Config};
use leafhost_core::text;

/// How long a connection may take to be made.
const CONNECT: Duration = Duration::from_secs(5);
/// How long the API server may be silent. It closes a watch before that. It ends idle connections too, so it is not the bound of a
/// single request: a claim would then often have to make a new connection first.
const SILENT: Duration = Duration::from_secs(90);

/// Why there is no connection.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// Nothing says where the API server is.
    #[error(
        "no cluster: this is no pod with a service account ({0}), and KUBECONFIG is not set; run the agent in a pod, set KUBECONFIG, or use --standalone"
    )]
    NoCluster(InClusterError),
    /// The file is not usable.
    #[error("cannot read KUBECONFIG: {}; correct it, or unset it", text::chain(.0))]
    Kubeconfig(#[source] KubeconfigError),
    /// Nothing says where the API server of a user is.
    #[error("no cluster: {}; set KUBECONFIG to the kubeconfig of an administrator", text::chain(.0))]
    NoUser(#[source] InferConfigError),
    /// The client refuses what it was told.
    #[error("cannot use the cluster's certificates or credentials: {}", text::chain(.0))]
    Client(#[source] Box<kube::Error>),
}

/// A client of the API server of this pod, else of the one in `KUBECONFIG`. It makes no request yet.
///
/// It tries no request again by itself, and whoever makes one must bound its time: kube would repeat it for many minutes, whether
/// somebody waits for it or not.
pub async fn connect() -> Result<Client, ConnectError> {
    let mut config = match Config::incluster() {
        Ok(config) => config,
        Err(error) => {
            let is_set = std::env::var_os("KUBECONFIG").is_some_and(|value| !value.is_empty());
            if !is_set {
                return Err(ConnectError::NoCluster(error));
            }
            Config::from_kubeconfig(&KubeConfigOptions::default())
                .await
                .map_err(ConnectError::Kubeconfig)?
        }
    };
    bound(&mut config);
    client(config).map_err(|error| ConnectError::Client(Box::new(error)))
}

/// A client of the API server that kubectl would use, with the rights of its user.
pub async fn connect_as_user() -> Result<Client, ConnectError> {
    let mut config = Config::infer().await.map_err(ConnectError::NoUser)?;
    bound(&mut config);
    client(config).map_err(|error| ConnectError::Client(Box::new(error)))
}

/// The client for that configuration.
pub(crate) fn client(config: Config) -> Result<Client, kube::Error> {
    // A program that has another library for cryptography, too, must say which one it uses. Whoever said it first is right.
    let _ = rustls::crypto::ring::default_provider().install_default();
    Client::try_from(config)
}

fn bound(config: &mut Config) {
    config.default_retry = false;
    config.connect_timeout = Some(CONNECT);
    config.read_timeout = Some(SILENT);
    config.reset_reader_on_write = true;
}

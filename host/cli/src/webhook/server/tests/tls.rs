//! Tests the server over real connections.

use std::net::SocketAddr;

use leafhost_endpoint::serve_within;
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use rustls::crypto::ring::default_provider;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::sign::CertifiedKey;
use rustls::{ClientConfig, RootCertStore};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_util::sync::CancellationToken;

use super::super::tls::config;
use super::*;

/// Certificate chain as PEM for the name `webhook`, with its key.
struct Pair {
    chain: String,
    key: KeyPair,
}

fn params(is_ca: bool) -> CertificateParams {
    let mut params = CertificateParams::new(vec!["webhook".to_owned()]).unwrap();
    if is_ca {
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    }
    params
}

fn signed(by: Option<&Pair>, is_ca: bool) -> Pair {
    let key = KeyPair::generate().unwrap();
    let chain = match by {
        None => params(is_ca).self_signed(&key).unwrap().pem(),
        Some(ca) => {
            let of_ca = params(true);
            let issuer = Issuer::from_params(&of_ca, &ca.key);
            params(is_ca).signed_by(&key, &issuer).unwrap().pem()
        }
    };
    Pair { chain, key }
}

impl Pair {
    fn der(&self) -> (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>) {
        let chain = CertificateDer::pem_slice_iter(self.chain.as_bytes());
        let key = PrivateKeyDer::from_pem_slice(self.key.serialize_pem().as_bytes());
        (chain.map(Result::unwrap).collect(), key.unwrap())
    }
}

/// Server that runs until the test ends.
struct Running {
    address: SocketAddr,
    trusted: RootCertStore,
    stop: CancellationToken,
    task: tokio::task::JoinHandle<()>,
}

impl Running {
    async fn start(client_ca: Option<&Pair>) -> Self {
        let own = signed(None, false);
        let (chain, key) = own.der();
        let mut trusted = RootCertStore::empty();
        trusted.add(chain[0].clone()).unwrap();
        let key = CertifiedKey::from_der(chain, key, &default_provider()).unwrap();
        let serving = Serving {
            key: Arc::new(key),
            is_published: true,
        };
        let certificate = watch::channel(Some(serving)).1;
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let ca = client_ca.map(|ca| ca.chain.as_bytes());
        let tls = config(certificate.clone(), ca).unwrap();
        let listener = Listener::Tls(listener, watch::channel(Some(tls)).1);
        let stop = CancellationToken::new();
        let shared = Shared::new(certificate, ca.is_some(), Slow::set(), None);
        let served = serve_within(BOUNDS, listener, routes(&shared), stop.clone());
        let task = tokio::spawn(served);
        Self {
            address,
            trusted,
            stop,
            task,
        }
    }

    async fn connect(&self, client: Option<&Pair>) -> TlsStream<TcpStream> {
        let config = ClientConfig::builder_with_provider(Arc::new(default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(self.trusted.clone());
        let config = match client.map(Pair::der) {
            Some((chain, key)) => config.with_client_auth_cert(chain, key).unwrap(),
            None => config.with_no_client_auth(),
        };
        let stream = TcpStream::connect(self.address).await.unwrap();
        let name = ServerName::try_from("webhook").unwrap();
        let connector = TlsConnector::from(Arc::new(config));
        connector.connect(name, stream).await.unwrap()
    }

    /// Sends a request; returns the status of the answer, and the answer.
    async fn ask(
        &self,
        client: Option<&Pair>,
        method: &str,
        path: &str,
        body: &str,
    ) -> (u16, String) {
        let mut stream = self.connect(client).await;
        let length = body.len();
        let request = format!(
            "{method} {path} HTTP/1.1\r\nHost: webhook\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n{body}"
        );
        // The server may have closed the connection already.
        let _ = stream.write_all(request.as_bytes()).await;
        let mut answer = String::new();
        // The connection may end without a TLS close notification.
        let _ = stream.read_to_string(&mut answer).await;
        let status = answer
            .split(' ')
            .nth(1)
            .and_then(|status| status.parse().ok());
        (status.unwrap_or_default(), answer)
    }
}

#[tokio::test]
async fn connections_of_all_kinds_that_ask_nothing_leave_room_for_a_review() {
    let server = Running::start(None).await;
    let mut open = Vec::new();
    let mut silent = Vec::new();
    for _ in 0..BOUNDS.connections {
        silent.push(TcpStream::connect(server.address).await.unwrap());
        let mut stream = server.connect(None).await;
        let half = "POST /validate HTTP/1.1\r\nHost: webhook\r\nContent-Length: 1000\r\n\r\n{";
        stream.write_all(half.as_bytes()).await.unwrap();
        open.push(stream);
    }
    let (status, answer) = server
        .ask(None, "POST", "/validate", &review("zzz", "wrong"))
        .await;
    assert_eq!(status, 200, "{answer}");
    assert!(answer.contains("rule: is wrong"), "{answer}");
    // The oldest connection was closed.
    let mut rest = Vec::new();
    let _ = open[0].read_to_end(&mut rest).await;
    assert_eq!(server.ask(None, "GET", "/readyz", "").await.0, 200);
    drop((open, silent));
    server.stop.cancel();
    server.task.await.unwrap();
}

#[tokio::test]
async fn with_a_ca_only_its_clients_have_objects_reviewed_and_all_may_ask_whether_it_is_ready() {
    let (ca, other) = (signed(None, true), signed(None, true));
    let server = Running::start(Some(&ca)).await;
    let client = signed(Some(&ca), false);
    let body = review("n", "right");
    assert_eq!(
        server
            .ask(Some(&client), "POST", "/validate", &body)
            .await
            .0,
        200
    );
    assert_eq!(server.ask(None, "POST", "/validate", &body).await.0, 401);
    assert_eq!(server.ask(None, "GET", "/readyz", "").await.0, 200);
    let strange = signed(Some(&other), false);
    assert_ne!(
        server
            .ask(Some(&strange), "POST", "/validate", &body)
            .await
            .0,
        200
    );
    server.stop.cancel();
    server.task.await.unwrap();
}

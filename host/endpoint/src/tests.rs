use std::net::SocketAddr;

use axum::routing::get;
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use rustls::crypto::ring::default_provider;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::server::WebPkiClientVerifier;
use rustls::{ClientConfig, RootCertStore};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream as ClientStream;

use super::*;

/// CA that signs certificates for the name `extender` and for clients.
struct Ca {
    params: CertificateParams,
    key: KeyPair,
    own: CertificateDer<'static>,
}

type Signed = (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>);

impl Ca {
    fn new() -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        let own = params.self_signed(&key).unwrap().der().clone();
        Self { params, key, own }
    }

    fn signs(&self) -> Signed {
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new(vec!["extender".to_owned()]).unwrap();
        let issuer = Issuer::from_params(&self.params, &self.key);
        let signed = params.signed_by(&key, &issuer).unwrap();
        let key = PrivateKeyDer::try_from(key.serialize_der()).unwrap();
        (vec![signed.der().clone()], key)
    }

    fn roots(&self) -> Arc<RootCertStore> {
        let mut roots = RootCertStore::empty();
        roots.add(self.own.clone()).unwrap();
        Arc::new(roots)
    }

    /// Returns the configuration of a server with a new certificate of this CA, which accepts only the CA's clients.
    fn server(&self) -> Arc<ServerConfig> {
        let provider = Arc::new(default_provider());
        let clients = WebPkiClientVerifier::builder_with_provider(self.roots(), provider.clone());
        let (chain, key) = self.signs();
        let config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_client_cert_verifier(clients.build().unwrap());
        Arc::new(config.with_single_cert(chain, key).unwrap())
    }
}

struct Running {
    address: SocketAddr,
    tls: watch::Sender<Option<Arc<ServerConfig>>>,
    stop: CancellationToken,
    task: tokio::task::JoinHandle<()>,
}

impl Running {
    async fn start(most: usize, tls: Option<Arc<ServerConfig>>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (tls, receiver) = watch::channel(tls);
        let listener = Listener::Tls(listener, receiver);
        let routes = Router::new().route("/", get(async || "answered"));
        let stop = CancellationToken::new();
        let bounds = Bounds {
            connections: most,
            ..Bounds::DIAGNOSTICS
        };
        let task = tokio::spawn(serve_within(bounds, listener, routes, stop.clone()));
        Self {
            address,
            tls,
            stop,
            task,
        }
    }

    /// Connects with the certificate `shown`, or with none, and trusts servers of `trusted`.
    async fn connect(
        &self,
        trusted: &Ca,
        shown: Option<Signed>,
    ) -> io::Result<ClientStream<TcpStream>> {
        let config = ClientConfig::builder_with_provider(Arc::new(default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(trusted.roots());
        let config = match shown {
            Some((chain, key)) => config.with_client_auth_cert(chain, key).unwrap(),
            None => config.with_no_client_auth(),
        };
        let stream = TcpStream::connect(self.address).await?;
        let name = ServerName::try_from("extender").unwrap();
        let connector = TlsConnector::from(Arc::new(config));
        connector.connect(name, stream).await
    }

    async fn ask(&self, trusted: &Ca, shown: Option<Signed>) -> io::Result<String> {
        let mut stream = self.connect(trusted, shown).await?;
        request(&mut stream).await
    }

    async fn end(self) {
        self.stop.cancel();
        self.task.await.unwrap();
    }
}

async fn request<S>(stream: &mut S) -> io::Result<String>
where
    S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin,
{
    let request = b"GET / HTTP/1.1\r\nHost: extender\r\n\r\n";
    stream.write_all(request).await?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await?;
    Ok(String::from_utf8_lossy(&answer).into_owned())
}

#[tokio::test]
async fn only_clients_with_a_certificate_of_the_ca_are_answered() {
    let (ca, other) = (Ca::new(), Ca::new());
    let running = Running::start(MAX_CONNECTIONS, Some(ca.server())).await;
    let answer = running.ask(&ca, Some(ca.signs())).await.unwrap();
    assert!(
        answer.starts_with("HTTP/1.1 200") && answer.ends_with("answered"),
        "{answer}"
    );
    for shown in [None, Some(other.signs())] {
        let refused = running.ask(&ca, shown).await.unwrap_err().to_string();
        assert!(refused.contains("received fatal alert"), "{refused}");
    }
    let mut plain = TcpStream::connect(running.address).await.unwrap();
    let answer = request(&mut plain).await.unwrap_or_default();
    assert!(!answer.contains("HTTP"), "{answer}");
    running.end().await;
}

#[tokio::test]
async fn what_is_said_of_tls_later_holds_for_the_next_connection() {
    let (first, second) = (Ca::new(), Ca::new());
    let running = Running::start(MAX_CONNECTIONS, None).await;
    assert!(running.ask(&first, Some(first.signs())).await.is_err());
    running.tls.send_replace(Some(first.server()));
    assert!(running.ask(&first, Some(first.signs())).await.is_ok());
    running.tls.send_replace(Some(second.server()));
    assert!(running.ask(&second, Some(second.signs())).await.is_ok());
    assert!(running.ask(&first, Some(first.signs())).await.is_err());
    running.end().await;
}

#[tokio::test]
async fn connections_without_a_handshake_end_none_that_has_one() {
    const MOST: usize = 4;
    let ca = Ca::new();
    let running = Running::start(MOST, Some(ca.server())).await;
    let mut known = running.connect(&ca, Some(ca.signs())).await.unwrap();
    // The client completes the handshake before the server has verified its certificate. The server would answer this
    // request at once.
    known.write_all(b"GET / HTTP/1.1\r\n").await.unwrap();
    assert!(running.ask(&ca, Some(ca.signs())).await.is_ok());
    let mut silent = Vec::new();
    for _ in 0..MOST * 2 {
        silent.push(TcpStream::connect(running.address).await.unwrap());
    }
    // The first of these connections was displaced by another.
    let mut rest = Vec::new();
    let _ = silent[0].read_to_end(&mut rest).await;
    assert!(rest.is_empty());
    known.write_all(b"Host: extender\r\n\r\n").await.unwrap();
    let mut answer = Vec::new();
    known.read_to_end(&mut answer).await.unwrap();
    assert!(answer.ends_with(b"answered"), "{answer:?}");
    running.end().await;
}

fn opened(number: u8) -> Connection {
    Connection::new(Some([10, 0, 0, number].into()))
}

#[test]
fn the_oldest_that_has_not_sent_a_whole_request_gives_way() {
    let mut open = Open::default();
    let mut add = || {
        let new = opened(1);
        open.add(3, new.clone());
        new
    };
    let held: Vec<_> = (0..3).map(|_| add()).collect();
    held[0].set_whole(true);
    add();
    let closed: Vec<_> = held.iter().map(Connection::is_closed).collect();
    assert_eq!(closed, [false, true, false]);
    held[0].set_whole(false);
    add();
    assert!(held[0].is_closed());
}

#[test]
fn who_has_most_connections_gives_way_and_who_has_a_certificate_last() {
    let mut open = Open::default();
    let mut add = |number| {
        let new = opened(number);
        open.add(10, new.clone());
        new
    };
    let api_server = add(1);
    let known: Vec<_> = (0..5).map(|_| add(3)).collect();
    for one in &known {
        one.is_known.cancel();
    }
    let flood: Vec<_> = (0..600).map(|_| add(2)).collect();
    assert!(!api_server.is_closed());
    assert!(!known.iter().any(Connection::is_closed));
    assert_eq!(flood.iter().filter(|one| !one.is_closed()).count(), 4);
}

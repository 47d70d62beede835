//! The three ways to handle certificates, with real handshakes.

use std::sync::OnceLock;

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};
use rustls::ServerConfig;
use rustls::crypto::ring;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use rustls_native_certs::CertificateResult;
use sha2::{Digest, Sha256};
use tokio_rustls::TlsAcceptor;

use super::*;

const OK: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";

#[derive(Debug)]
struct Identity(Arc<CertifiedKey>);

impl ResolvesServerCert for Identity {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(Arc::clone(&self.0))
    }
}

/// Builds an identity from a certificate and a key, which need not match.
fn identity(certificate: &CertificateDer<'static>, key: &KeyPair) -> Arc<Identity> {
    let key = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(key.serialize_der()));
    let key = ring::sign::any_supported_type(&key).unwrap();
    let chain = vec![certificate.clone()];
    Arc::new(Identity(Arc::new(CertifiedKey::new(chain, key))))
}

fn self_signed() -> (CertificateDer<'static>, KeyPair) {
    let key = KeyPair::generate().unwrap();
    let params = CertificateParams::new(vec!["cam.example".into()]).unwrap();
    let certificate = params.self_signed(&key).unwrap();
    (certificate.der().clone(), key)
}

/// Serves one connection and returns the requested server name. Without `farewell` it closes without `close_notify`, as many cameras do.
async fn serve(
    identity: Arc<Identity>,
    answer: &'static [u8],
    farewell: bool,
) -> (SocketAddr, JoinHandle<Option<String>>) {
    let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_cert_resolver(identity);
    let acceptor = TlsAcceptor::from(Arc::new(config));
    server(move |stream| async move {
        let mut stream = acceptor.accept(stream).await.ok()?;
        let name = stream.get_ref().1.server_name().map(str::to_owned);
        stream.read_buf(&mut Vec::with_capacity(4096)).await.ok()?;
        stream.write_all(answer).await.ok()?;
        stream.flush().await.ok()?;
        if farewell {
            stream.shutdown().await.ok()?;
        } else {
            stream.get_mut().0.shutdown().await.ok()?;
        }
        name
    })
    .await
}

async fn ask(tls: Tls, roots: &Roots, url: String) -> Result<Response<Bytes>, HttpError> {
    let names = Names::with(|_| Ok(vec!["127.0.0.1:0".parse().unwrap()]));
    let gate = Guard {
        tls,
        ..Guard::default()
    };
    let budget = Arc::default();
    whole(send_trusting(roots, &gate, &names, &budget, get(url), LIMITS).await?).await
}

fn nobody() -> CertificateResult {
    CertificateResult::default()
}

/// Returns an authority that only the tests use.
fn authority() -> &'static CertifiedIssuer<'static, KeyPair> {
    static AUTHORITY: OnceLock<CertifiedIssuer<'static, KeyPair>> = OnceLock::new();
    AUTHORITY.get_or_init(|| {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        let name = &mut params.distinguished_name;
        name.push(DnType::CommonName, "authority of the tests");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap()
    })
}

fn only_ours() -> CertificateResult {
    let mut found = CertificateResult::default();
    found.certs.push(authority().der().clone());
    found
}

fn signed_by_ours(name: &str) -> Arc<Identity> {
    let key = KeyPair::generate().unwrap();
    let params = CertificateParams::new(vec![name.into()]).unwrap();
    let certificate = params.signed_by(&key, authority()).unwrap();
    identity(certificate.der(), &key)
}

fn digest(certificate: &CertificateDer<'_>) -> [u8; 32] {
    Sha256::digest(certificate).into()
}

#[tokio::test]
async fn a_certificate_of_an_authority_for_that_name_is_trusted_and_names_alone_are_sent() {
    let roots = Roots::of(only_ours);
    let (address, name) = serve(signed_by_ours("cam.example"), OK, true).await;
    let url = format!("https://Cam.Example:{}/", address.port());
    assert_eq!(*ask(Tls::Verify, &roots, url).await.unwrap().body(), "ok");
    assert_eq!(name.await.unwrap().as_deref(), Some("cam.example"));

    let (address, name) = serve(signed_by_ours("127.0.0.1"), OK, true).await;
    let url = format!("https://{address}/");
    assert_eq!(*ask(Tls::Verify, &roots, url).await.unwrap().body(), "ok");
    assert_eq!(name.await.unwrap(), None);
}

#[tokio::test]
async fn an_untrusted_certificate_is_told_with_the_pin_that_would_trust_it() {
    let roots = Roots::of(only_ours);
    let (certificate, key) = self_signed();
    let camera = identity(&certificate, &key);
    let sha256: String = digest(&certificate)
        .map(|byte| format!("{byte:02x}"))
        .concat();
    let (address, _) = serve(Arc::clone(&camera), OK, true).await;
    let url = format!("https://cam.example:{}/", address.port());
    let error = ask(Tls::Verify, &roots, url).await.unwrap_err();
    assert_eq!(
        describe(&error),
        format!(
            "certificate is not trusted (to trust it: `tls: pin:{sha256}`): \
             no authority of this machine has signed it"
        )
    );
    let pinned = format!("pin:{sha256}").parse().unwrap();
    let (address, _) = serve(camera, OK, true).await;
    let url = format!("https://other.example:{}/", address.port());
    assert_eq!(*ask(pinned, &roots, url).await.unwrap().body(), "ok");
}

#[tokio::test]
async fn a_certificate_for_another_name_is_not_trusted() {
    let (address, _) = serve(signed_by_ours("other.example"), OK, true).await;
    let url = format!("https://cam.example:{}/", address.port());
    let error = ask(Tls::Verify, &Roots::of(only_ours), url).await;
    let text = describe(&error.unwrap_err());
    assert!(
        text.contains("not valid for name \"cam.example\""),
        "{text}"
    );
}

#[tokio::test]
async fn a_pin_trusts_that_certificate_alone_whoever_signed_another() {
    let (mine, _) = self_signed();
    let (address, _) = serve(signed_by_ours("cam.example"), OK, true).await;
    let url = format!("https://cam.example:{}/", address.port());
    let error = ask(Tls::Pin(digest(&mine)), &Roots::of(only_ours), url).await;
    let text = describe(&error.unwrap_err());
    assert!(text.contains("not the one that the grants pin"), "{text}");
}

#[tokio::test]
async fn a_pinned_certificate_without_its_key_is_worth_nothing() {
    let (certificate, _) = self_signed();
    let (_, other_key) = self_signed();
    let stolen = identity(&certificate, &other_key);
    let roots = Roots::of(nobody);
    let (address, _) = serve(Arc::clone(&stolen), OK, true).await;
    let pin = Tls::Pin(digest(&certificate));
    let error = ask(pin, &roots, format!("https://{address}/")).await;
    let error = error.unwrap_err();
    assert!(
        matches!(error, HttpError::Tls { .. }),
        "{}",
        describe(&error)
    );

    // With `Tls::Insecure` any peer is accepted.
    let (address, _) = serve(stolen, OK, true).await;
    let answer = ask(Tls::Insecure, &roots, format!("https://{address}/")).await;
    assert_eq!(*answer.unwrap().body(), "ok");
}

#[tokio::test]
async fn a_machine_without_authorities_says_so_and_looks_again_next_time() {
    let roots = Roots::of(nobody);
    let (address, name) = serve(signed_by_ours("cam.example"), OK, true).await;
    let url = format!("https://cam.example:{}/", address.port());
    let error = ask(Tls::Verify, &roots, url).await.unwrap_err();
    assert!(matches!(error, HttpError::NoRoots), "{}", describe(&error));
    assert!(describe(&error).contains("install the package `ca-certificates`"));
    assert_eq!(name.await.unwrap(), None);
    assert!(!roots.are_read());
}

#[tokio::test]
async fn an_end_without_farewell_is_one_only_where_anybody_is_trusted() {
    let until_close = b"HTTP/1.1 200 OK\r\n\r\nok";
    let (certificate, key) = self_signed();
    let camera = identity(&certificate, &key);
    let roots = Roots::of(nobody);
    let pin = Tls::Pin(digest(&certificate));
    let (address, _) = serve(Arc::clone(&camera), until_close, false).await;
    let answer = ask(Tls::Insecure, &roots, format!("https://{address}/")).await;
    assert_eq!(*answer.unwrap().body(), "ok");

    let (address, _) = serve(Arc::clone(&camera), until_close, false).await;
    let error = ask(pin.clone(), &roots, format!("https://{address}/")).await;
    let error = error.unwrap_err();
    let right = matches!(
        error,
        HttpError::Closed {
            stage: Stage::Body,
            ..
        }
    );
    assert!(right, "{}", describe(&error));

    // With the length in the head, the end of the body is certain.
    let (address, _) = serve(camera, OK, false).await;
    let answer = ask(pin, &roots, format!("https://{address}/")).await;
    assert_eq!(*answer.unwrap().body(), "ok");
}

#[tokio::test]
async fn a_peer_without_tls_is_told_with_its_address() {
    let address = answering("HTTP/1.0 400 Bad Request\r\n\r\n").await;
    let roots = Roots::of(nobody);
    let error = ask(Tls::Insecure, &roots, format!("https://{address}/")).await;
    let text = describe(&error.unwrap_err());
    let start = format!("speak TLS with {address}: ");
    assert!(text.starts_with(&start), "{text}");
}

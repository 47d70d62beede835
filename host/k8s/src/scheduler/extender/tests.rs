use std::collections::BTreeMap;

use jiff::ToSpan as _;
use k8s_openapi::ByteString;
use kube::api::ObjectMeta;
use rustls::crypto::ring::default_provider;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, ServerConnection};
use serde_json::{Value, json};
use tokio::sync::mpsc;

use super::*;
use crate::tests::stub::{Answer, Stub, failure, list};

const DNS: &str = "extender.leafhost.svc";

fn names() -> Names {
    Names {
        namespace: "leafhost".into(),
        secret: "certificate".into(),
        service: "extender".into(),
    }
}

fn empty() -> Secret {
    Secret {
        metadata: ObjectMeta {
            name: Some("certificate".into()),
            namespace: Some("leafhost".into()),
            resource_version: Some("5".into()),
            ..ObjectMeta::default()
        },
        ..Secret::default()
    }
}

/// Returns the Secret with everything added that it lacks.
fn made(secret: &Secret, now: Timestamp) -> Secret {
    look(secret, DNS, now).unwrap().renewed.unwrap()
}

/// Returns the Secret with another certificate of the same CA.
fn renewed(secret: &Secret, now: Timestamp) -> Secret {
    let mut secret = secret.clone();
    let data = secret.data.as_mut().unwrap();
    data.retain(|key, _| key.starts_with("ca."));
    made(&secret, now)
}

fn in_days(days: i64) -> Timestamp {
    Timestamp::now().checked_add((days * 24).hours()).unwrap()
}

fn value<'a>(secret: &'a Secret, key: &str) -> &'a str {
    str::from_utf8(&secret.data.as_ref().unwrap()[key].0).unwrap()
}

/// Completes a handshake between a server and a client that trusts the CA `trusted` and shows a certificate, if any.
fn handshake(
    server: &Arc<ServerConfig>,
    trusted: &str,
    shown: Option<(&str, &str)>,
) -> Result<(), rustls::Error> {
    let mut roots = RootCertStore::empty();
    let ca = CertificateDer::from_pem_slice(trusted.as_bytes()).unwrap();
    roots.add(ca).unwrap();
    let config = ClientConfig::builder_with_provider(Arc::new(default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots);
    let config = match shown {
        Some((chain, key)) => {
            let chain = CertificateDer::pem_slice_iter(chain.as_bytes());
            let chain = chain.map(Result::unwrap).collect();
            let key = PrivateKeyDer::from_pem_slice(key.as_bytes()).unwrap();
            config.with_client_auth_cert(chain, key).unwrap()
        }
        None => config.with_no_client_auth(),
    };
    let name = ServerName::try_from(DNS).unwrap();
    let mut client = ClientConnection::new(Arc::new(config), name).unwrap();
    let mut server = ServerConnection::new(Arc::clone(server)).unwrap();
    while client.is_handshaking() || server.is_handshaking() || client.wants_write() {
        let mut bytes = Vec::new();
        client.write_tls(&mut bytes).unwrap();
        server.read_tls(&mut &bytes[..]).unwrap();
        server.process_new_packets()?;
        let mut bytes = Vec::new();
        server.write_tls(&mut bytes).unwrap();
        client.read_tls(&mut &bytes[..]).unwrap();
        client.process_new_packets()?;
    }
    Ok(())
}

fn serves(secret: &Secret, now: Timestamp) -> Arc<ServerConfig> {
    look(secret, DNS, now).unwrap().tls.unwrap()
}

#[test]
fn an_empty_secret_gets_a_ca_and_a_certificate_which_is_renewed_by_the_same_ca() {
    let now = Timestamp::now();
    let nothing = look(&empty(), DNS, now).unwrap();
    assert!(nothing.tls.is_none());
    let first = nothing.renewed.unwrap();
    assert_eq!(first.metadata.resource_version.as_deref(), Some("5"));
    let found = look(&first, DNS, now).unwrap();
    assert!(found.tls.is_some() && found.renewed.is_none());
    assert!(look(&first, DNS, in_days(239)).unwrap().renewed.is_none());

    let found = look(&first, DNS, in_days(242)).unwrap();
    assert!(found.tls.is_some(), "it is good until the new one is there");
    let second = found.renewed.unwrap();
    for key in ["ca.crt", "ca.key"] {
        assert_eq!(value(&second, key), value(&first, key));
    }
    for key in ["tls.crt", "tls.key"] {
        assert_ne!(value(&second, key), value(&first, key));
    }
    assert!(look(&first, DNS, in_days(367)).unwrap().tls.is_none());
    assert!(look(&second, DNS, in_days(367)).unwrap().tls.is_some());
}

#[test]
fn a_certificate_of_another_name_or_ca_or_that_is_damaged_is_made_anew() {
    let now = Timestamp::now();
    let whole = made(&empty(), now);
    let other = made(&empty(), now);
    let mut cases = vec![("other.leafhost.svc", whole.clone())];
    let damaged = |values: &[(&str, Option<&str>)]| {
        let mut secret = whole.clone();
        let data = secret.data.as_mut().unwrap();
        for (key, value) in values {
            match value {
                Some(value) => data.insert((*key).to_owned(), ByteString((*value).into())),
                None => data.remove(*key),
            };
        }
        secret
    };
    let pair = [
        ("tls.crt", Some(value(&other, "tls.crt"))),
        ("tls.key", Some(value(&other, "tls.key"))),
    ];
    cases.push((DNS, damaged(&pair)));
    for key in ["tls.crt", "tls.key"] {
        for text in [None, Some(""), Some("x"), Some(value(&other, key))] {
            cases.push((DNS, damaged(&[(key, text)])));
        }
    }
    for (dns, secret) in cases {
        let found = look(&secret, dns, now).unwrap();
        assert!(found.tls.is_none());
        let renewed = found.renewed.unwrap();
        assert_eq!(value(&renewed, "ca.crt"), value(&whole, "ca.crt"));
        assert!(look(&renewed, dns, now).unwrap().tls.is_some());
    }
}

#[test]
fn a_ca_that_is_damaged_or_foreign_is_never_replaced() {
    let now = Timestamp::now();
    let whole = made(&empty(), now);
    let other = made(&empty(), now);
    for key in ["ca.crt", "ca.key"] {
        for text in [None, Some(""), Some("x"), Some(value(&other, key))] {
            let mut secret = whole.clone();
            let data = secret.data.as_mut().unwrap();
            match text {
                Some(text) => data.insert(key.to_owned(), ByteString(text.into())),
                None => data.remove(key),
            };
            let why = look(&secret, DNS, now).unwrap_err();
            assert!(why.contains("remove ca.crt and ca.key"), "{why}");
        }
    }
    // A CA in the right form, but made by another program under another name.
    let key = rcgen::KeyPair::generate().unwrap();
    let mut params = rcgen::CertificateParams::new(Vec::new()).unwrap();
    params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    let chain = params.self_signed(&key).unwrap().pem();
    let data = [("ca.crt", chain), ("ca.key", key.serialize_pem())];
    let data = data.map(|(key, text)| (key.to_owned(), ByteString(text.into_bytes())));
    let mut secret = empty();
    secret.data = Some(BTreeMap::from(data));
    let why = look(&secret, DNS, now).unwrap_err();
    assert!(why.contains("not a CA that leafhost has created"), "{why}");
    let authority = authority::Authority::of(&secret).unwrap().unwrap();
    let why = authority.sign_client(365, now).err().unwrap();
    assert!(why.contains("not a CA that leafhost has created"), "{why}");
}

#[test]
fn clients_are_those_of_the_ca_also_when_the_certificate_is_renewed() {
    let now = Timestamp::now();
    let first = made(&empty(), now);
    let second = renewed(&first, now);
    let other = made(&empty(), now);
    let client = |secret: &Secret| {
        let authority = authority::Authority::of(secret).unwrap().unwrap();
        authority.sign_client(365, now).unwrap()
    };
    let (own, strange) = (client(&first), client(&other));
    let ca = value(&first, "ca.crt");
    for server in [serves(&first, now), serves(&second, now)] {
        let shown = |made: &authority::Made| {
            let pair = Some((made.chain.as_str(), made.key.as_str()));
            handshake(&server, ca, pair)
        };
        shown(&own).unwrap();
        shown(&strange).unwrap_err();
        handshake(&server, ca, None).unwrap_err();
        // The extender's own certificate is not accepted from clients.
        let pair = Some((value(&first, "tls.crt"), value(&first, "tls.key")));
        handshake(&server, ca, pair).unwrap_err();
        handshake(&server, value(&other, "ca.crt"), None).unwrap_err();
    }
}

fn object(secret: &Secret) -> Value {
    let mut object = serde_json::to_value(secret).unwrap();
    object["apiVersion"] = "v1".into();
    object["kind"] = "Secret".into();
    object
}

#[tokio::test]
async fn whoever_comes_first_writes_and_a_renewed_certificate_is_served_without_a_restart() {
    let (events, watched) = mpsc::unbounded_channel();
    let watched = std::sync::Mutex::new(Some(watched));
    let mut stub = Stub::start(move |request| match request {
        _ if request.starts_with("PUT") => failure(409, "another writer changed it first"),
        _ if request.contains("watch=true") => match watched.lock().unwrap().take() {
            Some(watched) => Answer::Events(watched),
            None => failure(500, "no more"),
        },
        _ => list("5", &[object(&empty())]),
    })
    .await;
    let (sender, mut serving) = watch::channel(None);
    let keeping = keep(stub.client.clone(), names(), sender);
    stub.tasks.add_loop("keeper", keeping);
    let now = Timestamp::now();
    let first = made(&empty(), now);
    let second = renewed(&first, now);
    let authority = authority::Authority::of(&first).unwrap().unwrap();
    let client = authority.sign_client(365, now).unwrap();
    let shown = Some((client.chain.as_str(), client.key.as_str()));
    let mut served: Vec<Arc<ServerConfig>> = Vec::new();
    for secret in [&first, &second] {
        let event = json!({"type": "MODIFIED", "object": object(secret)});
        events.send(event).unwrap();
        let next = tokio::time::timeout(REQUEST, serving.changed()).await;
        next.unwrap().unwrap();
        let tls = serving.borrow_and_update().clone().unwrap();
        handshake(&tls, &authority.chain, shown).unwrap();
        served.push(tls);
    }
    assert!(!Arc::ptr_eq(&served[0], &served[1]));
    // Only the empty Secret was written; what another replica made stays as it is.
    assert_eq!(stub.requests("PUT"), 1);
    let path = "PUT /api/v1/namespaces/leafhost/secrets/certificate";
    assert_eq!(stub.requests(path), 1);
    assert_eq!(
        stub.requests("fieldSelector=metadata.name%3Dcertificate"),
        2
    );
}

#[test]
fn a_secret_that_was_deleted_and_made_again_gets_its_ca_back_and_an_emptied_one_does_not() {
    let uid = |uid: &str, mut secret: Secret| {
        secret.metadata.uid = Some(uid.into());
        secret
    };
    let served = uid("1", made(&empty(), Timestamp::now()));
    assert!(as_before(&served, &uid("1", empty())).is_none());
    let other = made(&empty(), Timestamp::now());
    assert!(as_before(&served, &uid("2", other)).is_none());
    let again = as_before(&served, &uid("2", empty())).unwrap();
    assert_eq!(again.data, served.data);
    assert_eq!(again.metadata.uid.as_deref(), Some("2"));
}

/// Starts an API server that has this Secret and this Service.
async fn cluster(secret: Answer, service: Answer) -> Stub {
    let answers = std::sync::Mutex::new([Some(secret), Some(service)]);
    Stub::start(move |request| {
        let index = usize::from(request.contains("/services/"));
        let place = ["secrets/certificate", "services/extender"][index];
        assert_eq!(request, format!("GET /api/v1/namespaces/leafhost/{place}"));
        answers.lock().unwrap()[index].take().unwrap()
    })
    .await
}

fn service(address: &str, ports: &Value) -> Answer {
    Answer::Object(
        200,
        json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "extender"}, "spec": {"clusterIP": address, "ports": ports}}),
    )
}

#[tokio::test]
async fn the_entry_is_all_that_a_kube_scheduler_needs_and_its_certificate_is_let_in() {
    let now = Timestamp::now();
    let secret = made(&empty(), now);
    let ports = [
        json!([{"name": "metrics", "port": 1}, {"name": "https", "port": 443}]),
        json!([{"port": 9443}]),
    ];
    let cases = [
        ("10.96.0.7", &ports[0], "https://10.96.0.7:443"),
        ("fd00::7", &ports[1], "https://[fd00::7]:9443"),
    ];
    let mut keys = Vec::new();
    for (address, ports, url) in cases {
        let stub = cluster(
            Answer::Object(200, object(&secret)),
            service(address, ports),
        )
        .await;
        let text = entry(&stub.client, &names(), 30).await.unwrap();
        for words in ["KEEP IT SECRET", "percentageOfNodesToScore: 100"] {
            assert!(text.contains(words), "{text}");
        }
        let until = certificates::after(Timestamp::now(), 31).to_string();
        assert!(text.contains(&format!("until {until}")), "{text}");
        let mut read: Value = serde_saphyr::from_str(&text).unwrap();
        let tls = read["extenders"][0]["tlsConfig"].take();
        let expected = json!({"extenders": [{
            "urlPrefix": url, "filterVerb": "filter", "prioritizeVerb": "prioritize", "bindVerb": "bind", "weight": 1,
            "enableHTTPS": true, "nodeCacheCapable": true, "ignorable": false, "httpTimeout": "15s",
            "managedResources": [{"name": "leafhost.dev/devices"}], "tlsConfig": null,
        }]});
        assert_eq!(read, expected);
        assert_eq!(tls["serverName"], DNS);
        let pem = |key: &str| {
            let bytes: ByteString = serde_json::from_value(tls[key].clone()).unwrap();
            String::from_utf8(bytes.0).unwrap()
        };
        let (ca, chain, key) = (pem("caData"), pem("certData"), pem("keyData"));
        assert_eq!(ca, value(&secret, "ca.crt"));
        handshake(&serves(&secret, now), &ca, Some((&chain, &key))).unwrap();
        keys.push(key);
    }
    assert_ne!(keys[0], keys[1], "each call makes a certificate of its own");
}

#[tokio::test]
async fn what_is_missing_for_the_entry_is_named_with_the_remedy() {
    let secret = || Answer::Object(200, object(&made(&empty(), Timestamp::now())));
    let mut half = made(&empty(), Timestamp::now());
    half.data.as_mut().unwrap().remove("ca.key");
    let half = Answer::Object(200, object(&half));
    let one = json!([{"port": 443}]);
    let two = json!([{"name": "a", "port": 1}, {"name": "b", "port": 2}]);
    let right = || service("10.96.0.7", &one);
    for (secret, service, words) in [
        (
            failure(404, "no"),
            right(),
            ["no Secret leafhost/certificate;", "--secret"],
        ),
        (
            failure(403, "no"),
            right(),
            ["cannot read the Secret leafhost/certificate", "KUBECONFIG"],
        ),
        (
            Answer::Object(200, object(&empty())),
            right(),
            ["leafhost/certificate has no CA", "--tls-secret"],
        ),
        (
            half,
            right(),
            [
                "leafhost/certificate: it has ca.crt, but no ca.key",
                "remove ca.crt and ca.key",
            ],
        ),
        (
            secret(),
            failure(404, "no"),
            ["no Service leafhost/extender;", "--service"],
        ),
        (
            secret(),
            service("None", &one),
            ["leafhost/extender has no address", "ClusterIP"],
        ),
        (
            secret(),
            service("10.96.0.7", &two),
            ["leafhost/extender has several ports", "https"],
        ),
    ] {
        let stub = cluster(secret, service).await;
        let error = entry(&stub.client, &names(), 365).await.unwrap_err();
        assert!(words.iter().all(|word| error.contains(word)), "{error}");
    }
}

//! Handlers that register an address.

use std::net::SocketAddr;
use tokio::task::JoinSet;

use futures::FutureExt as _;
use leafhost_net::{Interfaces, Network};
use tokio::net::{TcpListener, UnixStream};

use super::*;

/// A stand-in for a pod: forwards connections to a handler's socket, and ends them when it is dropped.
struct Pod {
    address: SocketAddr,
    _task: JoinSet<()>,
}

impl Pod {
    async fn start(address: SocketAddr, socket: std::path::PathBuf) -> Self {
        let listener = TcpListener::bind(address).await.unwrap();
        let address = listener.local_addr().unwrap();
        let mut task = JoinSet::new();
        task.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((mut outer, _)) = listener.accept().await {
                let socket = socket.clone();
                connections.spawn(async move {
                    let mut inner = UnixStream::connect(socket).await.unwrap();
                    drop(tokio::io::copy_bidirectional(&mut outer, &mut inner).await);
                });
            }
        });
        Self {
            address,
            _task: task,
        }
    }

    async fn with_any_address(node: &Node, socket: &str) -> Self {
        Self::start("127.0.0.1:0".parse().unwrap(), node.path(socket)).await
    }
}

fn mk_node(dir: Arc<tempfile::TempDir>) -> Node {
    let (_interfaces, seen) = watch::channel(Arc::new(Interfaces::default()));
    Node::start_with(dir, Ok(Network::fixed(seen)))
}

async fn grant(node: &mut Node, net: &str) {
    let text = format!("network: {{tcp: ['{net}:*']}}");
    node.grant(&[("a.grants.yaml", &text)]);
    node.sources(|set| set.grants.values().any(|file| *file.text == *text))
        .await;
}

/// Registers an address; returns the name of its source, which becomes the only one and differs from `before`.
async fn register(node: &mut Node, address: SocketAddr, before: &str) -> String {
    let endpoint = format!("http://{address}");
    node.register("a", &endpoint, EndpointType::Network)
        .await
        .unwrap();
    let is_other = |set: &SourceSet| set.files.len() == 1 && !set.files.contains_key(before);
    let set = node.sources(is_other).await;
    let source = set.files.keys().next().unwrap().clone();
    assert!(source.starts_with(&format!("a@{address}~")), "{source}");
    source
}

fn password() -> Vec<Property> {
    vec![Property {
        name: "password".to_owned(),
        value: Some(b"hunter2".as_slice().into()),
        secret: true,
    }]
}

#[tokio::test]
async fn an_endpoint_in_the_network_needs_the_grant() {
    let mut node = mk_node(Arc::new(tempfile::tempdir().unwrap()));
    let _fake = Fake::serve(&node.path("a.sock"), always(&["one"]));
    let pod = Pod::with_any_address(&node, "a.sock").await;
    let source = register(&mut node, pod.address, "").await;
    let error = node.load(&source).await.unwrap_err();
    assert_eq!(error.missing_grants, ["network"]);
    assert!(error.message.contains("a.grants.yaml"), "{error}");
    let endpoint = format!("http://{}", pod.address);
    for (net, granted) in [("10.0.0.0/8", false), ("127.0.0.1/32", true)] {
        grant(&mut node, net).await;
        match node.load(&source).await {
            Ok(handler) => {
                assert_eq!(handler.facts().endpoint.as_ref(), Some(&endpoint));
                assert!(granted);
            }
            Err(error) => {
                assert!(!granted, "{error}");
                assert!(error.message.contains("connect to 127.0.0.1"), "{error}");
            }
        }
    }
    let mut session = node.open(&source).await;
    assert_eq!(ids(&mut session).await, ["one"]);
}

#[tokio::test]
async fn who_has_the_address_later_gets_no_properties_before_it_registers_and_is_a_source_of_its_own()
 {
    let dir = Arc::new(tempfile::tempdir().unwrap());
    let mut node = mk_node(Arc::clone(&dir));
    grant(&mut node, "127.0.0.1/32").await;
    let mut first = Sets::serve(&node.path("a.sock"));
    let pod = Pod::with_any_address(&node, "a.sock").await;
    let address = pod.address;
    let source = register(&mut node, address, "").await;
    let mut session = node.open_with(&source, password()).await;
    first.send(&["one"]);
    assert_eq!(ids(&mut session).await, ["one"]);
    let asked = first.asked.recv().await.unwrap();
    assert!(asked.discovery_properties.contains_key("password"));

    drop(pod);
    let lost = fault(&mut session).await;
    assert_eq!(lost.reason, FaultReason::ConnectionLost, "{lost}");
    let mut second = Sets::serve(&node.path("b.sock"));
    let pod = Pod::start(address, node.path("b.sock")).await;
    let refused = fault(&mut session).await;
    assert!(refused.message.contains("another pod"), "{refused}");
    assert!(second.asked.recv().now_or_never().is_none());

    // An agent that has stored the registration behaves alike.
    let kept = dir.path().join(KEPT);
    let written = async {
        while !std::fs::read_to_string(&kept).is_ok_and(|text| text.contains("mark")) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(LIMIT, written).await.unwrap();
    drop((session, node));
    let mut node = mk_node(Arc::clone(&dir));
    grant(&mut node, "127.0.0.1/32").await;
    let mut session = node.open_with(&source, password()).await;
    let refused = fault(&mut session).await;
    assert!(refused.message.contains("another pod"), "{refused}");
    assert!(second.asked.recv().now_or_never().is_none());
    drop(session);

    let another = register(&mut node, address, &source).await;
    let mut session = node.open_with(&another, password()).await;
    second.send(&["two"]);
    assert_eq!(ids(&mut session).await, ["two"]);
    let asked = second.asked.recv().await.unwrap();
    assert!(asked.discovery_properties.contains_key("password"));
    drop(pod);
}

#[tokio::test]
async fn without_properties_an_address_is_connected_to_again() {
    let mut node = mk_node(Arc::new(tempfile::tempdir().unwrap()));
    grant(&mut node, "127.0.0.1/32").await;
    let _fake = Fake::serve(&node.path("a.sock"), always(&["one"]));
    let pod = Pod::with_any_address(&node, "a.sock").await;
    let address = pod.address;
    let source = register(&mut node, address, "").await;
    let mut session = node.open(&source).await;
    assert_eq!(ids(&mut session).await, ["one"]);
    drop(pod);
    fault(&mut session).await;
    let _pod = Pod::start(address, node.path("a.sock")).await;
    assert_eq!(ids(&mut session).await, ["one"]);
}

#[tokio::test]
async fn a_handler_that_registers_again_while_its_connection_holds_is_the_same() {
    let mut node = mk_node(Arc::new(tempfile::tempdir().unwrap()));
    grant(&mut node, "127.0.0.1/32").await;
    let _fake = Fake::serve(&node.path("a.sock"), always(&["one"]));
    let pod = Pod::with_any_address(&node, "a.sock").await;
    let source = register(&mut node, pod.address, "").await;
    let mut sessions = Vec::new();
    for _ in 0..3 {
        let mut session = node.open_with(&source, password()).await;
        assert_eq!(ids(&mut session).await, ["one"]);
        sessions.push(session);
        let endpoint = format!("http://{}", pod.address);
        node.register("a", &endpoint, EndpointType::Network)
            .await
            .unwrap();
        let set = node.sources(|set| set.files.len() == 1).await;
        assert!(set.files.contains_key(&source), "{:?}", set.files.keys());
    }
}

//! Endpoints and sockets that may be used, and those that may not.

use std::os::unix::fs::{PermissionsExt as _, chown, symlink};

use futures::FutureExt as _;

use super::*;

async fn refused(node: &Node, endpoint: &str, kind: EndpointType) -> String {
    let status = node.register("a", endpoint, kind).await.unwrap_err();
    assert_eq!(status.code(), Code::InvalidArgument, "{endpoint}");
    status.message().to_owned()
}

#[tokio::test]
async fn endpoints_outside_the_folder_and_of_others_are_refused_and_told() {
    let mut node = Node::start();
    let outside = node.dir.path().join("out.sock");
    let _outside = Fake::serve(&outside, always(&[]));
    let _inside = Fake::serve(&node.path("a.sock"), always(&[]));
    symlink(&outside, node.path("link.sock")).unwrap();
    std::fs::write(node.path("file"), "").unwrap();
    let folder = node.path("");
    let inside = |name: &str| folder.join(name).to_str().unwrap().to_owned();
    let outside = outside.to_str().unwrap().to_owned();
    for (endpoint, words) in [
        (outside, "is not in the folder"),
        (inside("link.sock"), "is a symbolic link"),
        (inside("../out.sock"), "is not in the folder"),
        (inside("none/a.sock"), "cannot connect"),
        (inside("file"), "not a socket"),
        (inside(SOCKET), "agent's own socket"),
        ("a.sock".to_owned(), "absolute path"),
        ("x".repeat(5000), "too long"),
        (inside(&"x".repeat(200)), "too long a path"),
        (inside("a\n.sock"), "cannot be displayed"),
    ] {
        let why = refused(&node, &endpoint, EndpointType::Uds).await;
        assert!(why.contains(words), "{endpoint}: {why}");
    }
    let why = refused(&node, "http://akri.example:80", EndpointType::Network).await;
    assert!(why.contains("IP address"), "{why}");
    let set = node.sources(|set| !set.problems.is_empty()).await;
    let problem = set.problems[0].to_string();
    assert!(problem.contains("external handler a at"), "{problem}");
    assert!(set.files.is_empty());
    // Only root can give a socket to another user.
    if chown(node.path("a.sock"), Some(65534), None).is_ok() {
        let why = refused(&node, &inside("a.sock"), EndpointType::Uds).await;
        assert!(why.contains("is a socket of the user 65534"), "{why}");
    }
    let other = Fake::serve(&node.path("b.sock"), always(&["one"]));
    node.register_socket("a", "b.sock").await.unwrap();
    let set = node.sources(|set| set.files.len() == 1).await;
    assert_eq!(set.problems, [], "it is right now");
    let mut session = node.open("a@b.sock").await;
    assert_eq!(ids(&mut session).await, ["one"]);
    drop(other);
}

#[tokio::test]
async fn a_handler_may_register_before_it_serves() {
    let mut node = Node::start();
    node.register_socket("a", "a.sock").await.unwrap();
    let mut session = node.open("a@a.sock").await;
    assert_eq!(
        fault(&mut session).await.reason,
        FaultReason::ConnectionLost
    );
    let _fake = Fake::serve(&node.path("a.sock"), always(&["one"]));
    assert_eq!(ids(&mut session).await, ["one"]);
}

#[tokio::test]
async fn a_socket_that_becomes_a_link_is_connected_to_no_more() {
    let mut node = Node::start();
    let own = Fake::serve(&node.path("a.sock"), always(&["one"]));
    node.register_socket("a", "a.sock").await.unwrap();
    let mut session = node.open("a@a.sock").await;
    assert_eq!(ids(&mut session).await, ["one"]);
    let outside = node.dir.path().join("out.sock");
    let others = UnixListener::bind(&outside).unwrap();
    drop((own, session));
    std::fs::remove_file(node.path("a.sock")).unwrap();
    symlink(&outside, node.path("a.sock")).unwrap();
    let mut session = node.open("a@a.sock").await;
    let fault = fault(&mut session).await;
    assert!(fault.message.contains("is a symbolic link"), "{fault}");
    assert!(others.accept().now_or_never().is_none());
}

#[tokio::test]
async fn a_socket_that_is_removed_is_made_again_and_one_that_another_agent_replaces_is_told() {
    let mut node = Node::start();
    let path = node.path(SOCKET);
    let there = async || {
        let connected = async {
            while tokio::net::UnixStream::connect(&path).await.is_err() {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(LIMIT, connected).await.unwrap();
    };
    there().await;
    std::fs::remove_file(&path).unwrap();
    there().await;
    // Akri's agent does this when it starts.
    std::fs::remove_file(&path).unwrap();
    let _akri = UnixListener::bind(&path).unwrap();
    let set = node.sources(|set| !set.problems.is_empty()).await;
    let problem = set.problems[0].to_string();
    assert!(problem.contains("another process serves"), "{problem}");
}

#[tokio::test]
async fn a_socket_that_is_served_is_left_alone_and_one_that_is_not_is_replaced() {
    let dir = Arc::new(tempfile::tempdir().unwrap());
    std::fs::create_dir(dir.path().join("akri")).unwrap();
    let path = dir.path().join("akri").join(SOCKET);
    let akri = UnixListener::bind(&path).unwrap();
    let mut node = Node::start_in(Arc::clone(&dir));
    let set = node.sources(|set| !set.problems.is_empty()).await;
    let problem = set.problems[0].to_string();
    for words in ["another process serves", "--external-handlers-dir", "akri"] {
        assert!(problem.contains(words), "{problem}");
    }
    assert!(tokio::net::UnixStream::connect(&path).await.is_ok());
    drop((akri, node));
    assert!(path.exists(), "as after a kill");

    let mut node = Node::start_in(dir);
    let _fake = Fake::serve(&node.path("a.sock"), always(&[]));
    let registered = async {
        while tokio::net::UnixStream::connect(&path).await.is_err() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        node.register_socket("a", "a.sock").await.unwrap();
    };
    tokio::time::timeout(LIMIT, registered).await.unwrap();
    let set = node.sources(|set| set.files.len() == 1).await;
    assert_eq!(set.problems, []);
    let mode = std::fs::metadata(&path).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    drop(node);
    let gone = async {
        while path.exists() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(LIMIT, gone).await.unwrap();
}

use std::collections::{BTreeMap, BTreeSet};
use std::future::pending;
use std::net::Shutdown;
use std::os::unix::net;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex};

use tokio::net::{UnixListener, UnixStream};
use tokio::task::JoinHandle;
use tonic::{Request, Response};

use super::*;
use crate::proto::pod_resources::pod_resources_lister_server::{
    PodResourcesLister, PodResourcesListerServer,
};
use crate::proto::pod_resources::{
    ContainerDevices, ContainerResources, DynamicResource, PodResources as Pod,
};

type Answer = dyn Fn() -> Option<Result<ListPodResourcesResponse, Status>> + Send + Sync;

/// PodResources server with a given answer; `None` never answers.
struct Kubelet(Arc<Answer>);

#[tonic::async_trait]
impl PodResourcesLister for Kubelet {
    async fn list(
        &self,
        _: Request<ListPodResourcesRequest>,
    ) -> Result<Response<ListPodResourcesResponse>, Status> {
        match (self.0)() {
            Some(answer) => answer.map(Response::new),
            None => pending().await,
        }
    }
}

struct Served {
    task: JoinHandle<()>,
    connections: Arc<Mutex<Vec<net::UnixStream>>>,
}

impl Served {
    /// Ends like a process: its connections end with it.
    async fn kill(self) {
        self.task.abort();
        assert!(self.task.await.unwrap_err().is_cancelled());
        for connection in self.connections.lock().unwrap().iter() {
            connection.shutdown(Shutdown::Both).unwrap();
        }
    }
}

fn serve(
    socket: &Path,
    answer: impl Fn() -> Option<Result<ListPodResourcesResponse, Status>> + Send + Sync + 'static,
) -> Served {
    let listener = UnixListener::bind(socket).unwrap();
    let connections = Arc::new(Mutex::new(Vec::new()));
    let known = Arc::clone(&connections);
    let incoming = futures::stream::unfold((listener, known), async |(listener, known)| {
        let stream = listener.accept().await.unwrap().0.into_std().unwrap();
        known.lock().unwrap().push(stream.try_clone().unwrap());
        Some((UnixStream::from_std(stream), (listener, known)))
    });
    let service = PodResourcesListerServer::new(Kubelet(Arc::new(answer)));
    let serving = tonic::transport::Server::builder()
        .add_service(service)
        .serve_with_incoming(incoming);
    let task = tokio::spawn(async { serving.await.unwrap() });
    Served { task, connections }
}

fn pod(name: &str, containers: &[(&str, &str, &[&str])]) -> Pod {
    Pod {
        name: name.to_owned(),
        namespace: "default".to_owned(),
        containers: containers
            .iter()
            .map(|(name, resource, ids)| ContainerResources {
                name: (*name).to_owned(),
                devices: ids
                    .iter()
                    .map(|id| ContainerDevices {
                        resource_name: (*resource).to_owned(),
                        device_ids: vec![(*id).to_owned()],
                    })
                    .collect(),
                ..ContainerResources::default()
            })
            .collect(),
    }
}

fn listed(pods: Vec<Pod>) -> ListPodResourcesResponse {
    ListPodResourcesResponse {
        pod_resources: pods,
    }
}

#[tokio::test]
async fn claims_of_containers_are_named_once() {
    let (_folder, socket) = place();
    let _served = serve(&socket, || {
        let mut pod = pod("a", &[("one", "akri.sh/c", &[]), ("two", "akri.sh/c", &[])]);
        for container in &mut pod.containers {
            container.dynamic_resources = vec![DynamicResource {
                claim_name: "camera".to_owned(),
                claim_namespace: "default".to_owned(),
                ..DynamicResource::default()
            }];
        }
        Some(Ok(listed(vec![pod])))
    });
    let listed = PodResources::new(socket).list().await.unwrap();
    let camera = ("default".to_owned(), "camera".to_owned());
    assert_eq!(listed.claims, BTreeSet::from([camera]));
}

fn place() -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("kubelet.sock");
    (folder, socket)
}

#[tokio::test]
async fn devices_come_with_their_holders_and_pods_without_any_are_named() {
    let (_folder, socket) = place();
    let _served = serve(&socket, || {
        Some(Ok(listed(vec![
            // An id near two NUMA nodes comes twice.
            pod(
                "a",
                &[
                    ("one", "akri.sh/c", &["c-0", "c-0"]),
                    ("two", "akri.sh/c", &["c-0"]),
                ],
            ),
            pod(
                "b",
                &[("one", "akri.sh/d", &["c-0"]), ("two", "akri.sh/d", &[])],
            ),
            pod("none", &[]),
        ])))
    });
    let holder = |pod: &str, container: &str| ListedHolder {
        namespace: "default".to_owned(),
        pod: pod.to_owned(),
        container: container.to_owned(),
    };
    let id = |resource: &str| (resource.to_owned(), "c-0".to_owned());
    let listed = PodResources::new(socket).list().await.unwrap();
    assert_eq!(
        listed.holders,
        BTreeMap::from([
            (
                id("akri.sh/c"),
                BTreeSet::from([holder("a", "one"), holder("a", "two")])
            ),
            (id("akri.sh/d"), BTreeSet::from([holder("b", "one")])),
        ])
    );
    let pods = ["a", "b", "none"].map(|name| ("default".to_owned(), name.to_owned()));
    assert_eq!(listed.pods, BTreeSet::from(pods));
}

fn says(error: &Error, beginning: &str) -> bool {
    error.to_string().starts_with(beginning)
}

#[tokio::test]
async fn one_connection_serves_until_the_kubelet_is_another() {
    let (_folder, socket) = place();
    let client = PodResources::new(socket.clone());
    assert!(says(
        &client.list().await.unwrap_err(),
        "cannot reach PodResources at "
    ));
    for round in 0..20 {
        let name = format!("pod-{round}");
        let served = serve(&socket, {
            let name = name.clone();
            move || Some(Ok(listed(vec![pod(&name, &[])])))
        });
        for _ in 0..3 {
            let listed = client.list().await.unwrap();
            assert_eq!(listed.pods, [("default".to_owned(), name.clone())].into());
        }
        assert_eq!(served.connections.lock().unwrap().len(), 1);
        served.kill().await;
        std::fs::remove_file(&socket).unwrap();
    }
    assert!(says(
        &client.list().await.unwrap_err(),
        "cannot reach PodResources at "
    ));
}

#[tokio::test]
async fn a_socket_nobody_listens_on_is_not_there() {
    let (_folder, socket) = place();
    drop(net::UnixListener::bind(&socket).unwrap());
    let error = PodResources::new(socket).list().await.unwrap_err();
    assert!(
        says(&error, "cannot reach PodResources at ")
            && error.to_string().contains("Connection refused"),
        "{error:?}"
    );
}

#[tokio::test]
async fn a_path_no_socket_can_have_is_an_error_with_its_reason() {
    let long = PathBuf::from(format!("/{}", "a".repeat(200)));
    let error = PodResources::new(long).list().await.unwrap_err();
    assert!(
        says(&error, "cannot connect to PodResources at "),
        "{error:?}"
    );
}

#[test]
fn a_socket_that_is_not_for_us_asks_for_root() {
    let denied = Status::from_error(Box::new(tonic::ConnectError(Box::new(
        io::Error::from_raw_os_error(13),
    ))));
    let error = refusal(Path::new("/s"), &denied);
    assert_eq!(
        error.to_string(),
        "cannot open the PodResources socket /s; run as root: Permission denied (os error 13)"
    );
}

#[tokio::test(start_paused = true)]
async fn a_kubelet_that_does_not_answer_costs_five_seconds() {
    let (_folder, socket) = place();
    let _served = serve(&socket, || None);
    let start = tokio::time::Instant::now();
    let error = PodResources::new(socket).list().await.unwrap_err();
    let late = " did not answer PodResources within 5 s: it may be overloaded";
    assert!(error.to_string().ends_with(late), "{error:?}");
    assert_eq!(start.elapsed().as_secs(), 5);
}

#[tokio::test]
async fn answers_up_to_16_mib_are_taken_and_no_larger_ones() {
    let (_folder, socket) = place();
    let size = Arc::new(AtomicUsize::new(5 << 20));
    let _served = serve(&socket, {
        let size = Arc::clone(&size);
        move || {
            let count = size.load(Relaxed) / 1024;
            let name = "n".repeat(1010);
            let pods = (0..count)
                .map(|i| pod(&format!("{name}{i}"), &[]))
                .collect();
            Some(Ok(listed(pods)))
        }
    });
    let client = PodResources::new(socket);
    assert_eq!(client.list().await.unwrap().pods.len(), 5 << 10);
    size.store(17 << 20, Relaxed);
    let error = client.list().await.unwrap_err();
    let refused = " refused PodResources List: OutOfRange: ";
    assert!(error.to_string().contains(refused), "{error:?}");
}

#[tokio::test]
async fn more_pods_or_ids_than_a_node_can_have_are_refused() {
    for (pods, ids) in [(MOST_PODS + 1, 0), (1, MOST_IDS + 1)] {
        let (_folder, socket) = place();
        let _served = serve(&socket, move || {
            let mut all = vec![pod("p", &[]); pods];
            all[0] = pod("p", &[("c", "akri.sh/c", &["x"])]);
            all[0].containers[0].devices[0].device_ids = vec!["x".to_owned(); ids];
            Some(Ok(listed(all)))
        });
        let error = PodResources::new(socket).list().await.unwrap_err();
        assert!(error.to_string().ends_with(" are accepted"), "{error:?}");
    }
}

#[tokio::test]
async fn what_the_kubelet_says_is_told_apart() {
    let long = format!(
        " refused PodResources List: Unavailable: {}",
        "x".repeat(512)
    );
    let cases = [
        (
            Status::resource_exhausted("rejected by rate limit"),
            " limits how often PodResources is asked; ask again in a second",
        ),
        (
            Status::unimplemented("unknown service"),
            " serves no v1.PodResourcesLister: it must be 1.28 or newer",
        ),
        (
            Status::internal("records are lost"),
            " refused PodResources List: Internal: records are lost",
        ),
        (Status::unavailable("x".repeat(2000)), long.as_str()),
    ];
    for (status, expected) in cases {
        let (_folder, socket) = place();
        let said = (status.code(), status.message().to_owned());
        let _served = serve(&socket, move || {
            Some(Err(Status::new(said.0, said.1.clone())))
        });
        let error = PodResources::new(socket).list().await.unwrap_err();
        let is_limited = status.code() == Code::ResourceExhausted;
        assert_eq!(matches!(error, Error::Limited(_)), is_limited);
        let is_said = error.to_string().ends_with(expected);
        assert!(is_said, "{status:?} gave {error:?}");
    }
}

#[tokio::test]
async fn a_foreign_server_on_the_socket_is_an_error() {
    let (_folder, socket) = place();
    let listener = UnixListener::bind(&socket).unwrap();
    let task = tokio::spawn(async move {
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            let _ =
                tokio::io::AsyncWriteExt::write_all(&mut stream, b"HTTP/1.1 200 OK\r\n\r\n").await;
        }
    });
    let error = PodResources::new(socket).list().await.unwrap_err();
    let is_refused = error.to_string().contains(" refused PodResources List: ");
    assert!(
        is_refused || says(&error, "cannot connect to PodResources at "),
        "{error:?}"
    );
    task.abort();
}

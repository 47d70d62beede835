//! Tests of the endpoint through a client.

use std::future::poll_fn;
use std::task::Poll;

use leafhost_core::problem::Problem;
use leafhost_discovery::loader::{HandlerSet, LoadedSource};
use leafhost_endpoint::{CONNECTION_TIMEOUT, DRAIN, HEAD_TIMEOUT, MAX_CONNECTIONS};
use leafhost_slots::report::SlotReport;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpStream, UnixListener, UnixStream};
use tokio::time::timeout;
use tokio_util::task::AbortOnDropHandle;

use super::*;
use crate::document::{Identity, KubeletBoard};
use crate::reconcile::ReconcileReport;

struct Bench {
    address: std::net::SocketAddr,
    metrics_address: std::net::SocketAddr,
    reconcile: watch::Sender<ReconcileReport>,
    slots: watch::Sender<Arc<SlotReport>>,
    version: watch::Sender<u64>,
    admin: Admin,
    shutdown: CancellationToken,
    tasks: [AbortOnDropHandle<()>; 2],
}

async fn start() -> Bench {
    let (reconcile, reconciled) = watch::channel(ReconcileReport::default());
    let (slots, slots_reported) = watch::channel(Arc::default());
    let (version, versions) = watch::channel(7);
    let names = ["a.wasm", "b.wasm", "c.wasm", "d.wasm"];
    let handlers = HandlerSet {
        sources: names
            .map(|name| (name.to_owned(), LoadedSource::default()))
            .into(),
        ..HandlerSet::default()
    };
    let board = AgentState {
        claims: None,
        identity: Arc::new(Identity {
            problems: vec![
                Problem::NoDeviceEvents {
                    error: "x".repeat(1 << 20)
                };
                16
            ],
            ..Identity::default()
        }),
        handlers: watch::channel(Arc::new(handlers)).1,
        devices: watch::channel(Arc::default()).1,
        report: watch::channel(Arc::default()).1,
        reconcile: reconciled,
        offers: watch::channel(Arc::default()).1,
        kubelet: Some(KubeletBoard {
            root: "/var/lib/kubelet".into(),
            plugins: watch::channel(Arc::default()).1,
            slots: slots_reported,
        }),
        instances: watch::channel(Arc::default()).1,
        unreported: watch::channel(None).1,
    };
    let shutdown = CancellationToken::new();
    let metrics = Arc::new(Metrics::default());
    metrics.count_write("create", "ok");
    let admin = Admin {
        board,
        version: versions,
        metrics,
        lost_log_lines: || 3,
        making: Arc::new(Semaphore::new(1)),
        shutdown: shutdown.clone(),
    };
    let known = admin.clone();
    let listeners = [
        TcpListener::bind("127.0.0.1:0").await.unwrap(),
        TcpListener::bind("127.0.0.1:0").await.unwrap(),
    ];
    let [address, metrics_address] = listeners
        .each_ref()
        .map(|listener| listener.local_addr().unwrap());
    let [all, metrics] = listeners;
    let tasks = [
        tokio::spawn(serve(
            Listener::Tcp(all),
            admin.clone().routes(),
            shutdown.clone(),
        )),
        tokio::spawn(serve(
            Listener::Tcp(metrics),
            admin.metrics_route(),
            shutdown.clone(),
        )),
    ];
    Bench {
        admin: known,
        address,
        metrics_address,
        reconcile,
        slots,
        version,
        shutdown,
        tasks: tasks.map(AbortOnDropHandle::new),
    }
}

/// Returns the answer to these bytes, read until the server closes.
async fn send(address: std::net::SocketAddr, request: &[u8]) -> String {
    let mut stream = TcpStream::connect(address).await.unwrap();
    // The server may hang up before it has read everything.
    let _ = stream.write_all(request).await;
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer).await;
    String::from_utf8(answer).unwrap()
}

async fn get(address: std::net::SocketAddr, path: &str) -> String {
    let request = format!("GET {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
    send(address, request.as_bytes()).await
}

#[tokio::test]
async fn ready_is_a_latch_of_the_first_reconcile() {
    let bench = start().await;
    assert!(
        get(bench.address, "/healthz")
            .await
            .starts_with("HTTP/1.1 200")
    );
    let waits = get(bench.address, "/readyz").await;
    assert!(
        waits.starts_with("HTTP/1.1 503")
            && waits.contains(
                "waits for handlers that are being loaded: a.wasm, b.wasm, c.wasm and 1 more"
            ),
        "{waits}"
    );
    bench
        .reconcile
        .send_modify(|report| report.done_once = true);
    assert!(
        get(bench.address, "/readyz")
            .await
            .starts_with("HTTP/1.1 200")
    );
}

#[tokio::test]
async fn while_no_slot_can_be_claimed_it_is_not_ready_and_says_why() {
    let bench = start().await;
    bench
        .reconcile
        .send_modify(|report| report.done_once = true);
    for (why, status) in [(Some("the disk is full"), 503), (None, 200)] {
        bench.slots.send_replace(Arc::new(SlotReport {
            problems: why
                .into_iter()
                .map(|error| Problem::SlotsNotClaimed {
                    error: error.to_owned(),
                })
                .collect(),
            ..SlotReport::default()
        }));
        let answer = get(bench.address, "/readyz").await;
        let words = why.unwrap_or("ok");
        assert!(
            answer.starts_with(&format!("HTTP/1.1 {status}")) && answer.contains(words),
            "{answer}"
        );
    }
}

#[tokio::test]
async fn the_metrics_endpoint_has_the_metrics_alone() {
    let bench = start().await;
    assert!(
        get(bench.metrics_address, "/metrics")
            .await
            .contains("# TYPE leafhost_store_writes_total counter")
    );
    assert!(
        get(bench.metrics_address, "/metrics")
            .await
            .contains("\nleafhost_log_lines_dropped_total 3\n")
    );
    for path in ["/status", "/healthz", "/readyz", "/"] {
        assert!(
            get(bench.metrics_address, path)
                .await
                .starts_with("HTTP/1.1 404"),
            "{path}"
        );
    }
}

#[tokio::test]
async fn the_status_waits_for_another_version() {
    let bench = start().await;
    let now = get(bench.address, "/status").await;
    assert!(now.contains("leafhost-status-version: 7\r\n"), "{now}");
    let older = get(bench.address, "/status?after=6").await;
    assert!(older.starts_with("HTTP/1.1 200"), "{older}");
    let waiting = tokio::spawn(get(bench.address, "/status?after=7"));
    bench.version.send_replace(8);
    let newer = waiting.await.unwrap();
    assert!(newer.contains("leafhost-status-version: 8\r\n"), "{newer}");
}

#[tokio::test]
async fn nothing_new_for_thirty_seconds_is_said_without_a_document() {
    let bench = start().await;
    tokio::time::pause();
    let answer = get(bench.address, "/status?after=7").await;
    assert!(answer.starts_with("HTTP/1.1 304"), "{answer}");
    assert!(
        answer.contains("leafhost-status-version: 7\r\n"),
        "{answer}"
    );
}

#[tokio::test]
async fn requests_that_are_none_are_refused() {
    let bench = start().await;
    let long = [
        b"GET /",
        "x".repeat(64 << 10).as_bytes(),
        b" HTTP/1.1\r\n\r\n",
    ]
    .concat();
    for (request, code) in [
        (
            &b"GET /status?after=soon HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"[..],
            "400",
        ),
        (
            b"POST /status HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n",
            "405",
        ),
        (
            b"GET /nowhere HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n",
            "404",
        ),
        (b"\x16\x03\x01\r\n\r\n", "400"),
    ] {
        let answer = send(bench.address, request).await;
        assert!(
            answer.starts_with(&format!("HTTP/1.1 {code}")),
            "{code}: {answer}"
        );
    }
    assert!(!send(bench.address, &long).await.starts_with("HTTP/1.1 200"));
}

#[tokio::test]
async fn a_head_that_does_not_come_is_not_waited_for() {
    let bench = start().await;
    let mut stream = TcpStream::connect(bench.address).await.unwrap();
    stream.write_all(b"GET / HTTP").await.unwrap();
    tokio::time::pause();
    let mut answer = Vec::new();
    let started = tokio::time::Instant::now();
    let ended = tokio::time::timeout(HEAD_TIMEOUT * 2, stream.read_to_end(&mut answer)).await;
    assert!(ended.is_ok(), "the connection is still open");
    assert!(started.elapsed() <= HEAD_TIMEOUT + Duration::from_secs(1));
}

/// Requests a large status and does not read it.
async fn unread(address: std::net::SocketAddr) -> TcpStream {
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream
        .write_all(b"GET /status HTTP/1.1\r\nHost: a\r\n\r\n")
        .await
        .unwrap();
    stream.readable().await.unwrap();
    stream
}

/// Waits until the server has closed the connection.
async fn closed(stream: &mut TcpStream) {
    let mut rest = Vec::new();
    let _ = stream.read_to_end(&mut rest).await;
}

#[tokio::test]
async fn of_many_idle_and_slow_connections_the_oldest_is_closed() {
    let bench = start().await;
    let mut held = Vec::new();
    for _ in 0..MAX_CONNECTIONS / 2 {
        held.push(TcpStream::connect(bench.address).await.unwrap());
        held.push(unread(bench.address).await);
    }
    for path in ["/healthz", "/metrics", "/status"] {
        let answer = get(bench.address, path).await;
        assert!(answer.starts_with("HTTP/1.1 200"), "{path}: {answer:.200}");
    }
    timeout(HEAD_TIMEOUT / 2, closed(&mut held[0]))
        .await
        .unwrap();
}

#[tokio::test]
async fn who_takes_nothing_is_hung_up_on_in_the_end() {
    let bench = start().await;
    let mut held = unread(bench.address).await;
    tokio::time::pause();
    tokio::time::sleep(CONNECTION_TIMEOUT * 2).await;
    closed(&mut held).await;
}

#[tokio::test]
async fn a_unix_socket_is_served_alike() {
    let bench = start().await;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("socket");
    let listener = Listener::Unix(UnixListener::bind(&path).unwrap());
    let served = serve(
        listener,
        bench.admin.clone().routes(),
        bench.shutdown.clone(),
    );
    let _task = AbortOnDropHandle::new(tokio::spawn(served));
    let mut stream = UnixStream::connect(&path).await.unwrap();
    stream
        .write_all(b"GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n")
        .await
        .unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
}

#[tokio::test]
async fn who_takes_nothing_holds_up_no_stop() {
    let bench = start().await;
    let held = unread(bench.address).await;
    bench.shutdown.cancel();
    let [all, _] = bench.tasks;
    timeout(DRAIN * 5, all).await.unwrap().unwrap();
    drop(held);
}

#[test]
fn a_document_whose_client_hung_up_is_the_only_one_until_it_is_made() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .max_blocking_threads(1)
        .build()
        .unwrap();
    runtime.block_on(async {
        let bench = start().await;
        let making = Arc::clone(&bench.admin.making);
        // The only blocking thread is busy.
        let (free, freed) = std::sync::mpsc::channel::<()>();
        let taken = spawn_blocking(move || freed.recv());
        let mut asked = Box::pin(status(
            State(bench.admin.clone()),
            Query(After { after: None }),
        ));
        let begun = poll_fn(|context| Poll::Ready(asked.as_mut().poll(context).is_pending()));
        assert!(begun.await);
        drop(asked);
        assert_eq!(making.available_permits(), 0);
        free.send(()).unwrap();
        taken.await.unwrap().unwrap();
        let again = timeout(Duration::from_secs(10), making.acquire()).await;
        assert!(again.is_ok());
    });
}

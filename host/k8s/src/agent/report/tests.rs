use std::sync::Mutex;

use leafhost_core::node_report::{HandlerPhase, ReportedHandler};
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use super::*;
use crate::reconciler::Write;
use crate::tests::stub::{Answer, Stub, failure, list};
use crate::watch::{Event, UNDEFINED};

const CREATE: &str = "POST /apis/leafhost.dev";
const LIMIT: Duration = Duration::from_secs(20);

fn mk_report(phase: HandlerPhase) -> Arc<NodeReport> {
    let handler = ReportedHandler {
        phase,
        ..ReportedHandler::default()
    };
    Arc::new(NodeReport {
        complete: true,
        handlers: [("udev".to_owned(), handler)].into(),
    })
}

/// Returns the object of a report as the API server stores it, in this version.
fn mk_object(report: &NodeReport, version: &str) -> Value {
    let owner = Owner {
        node: "n".into(),
        uid: Some("u".into()),
    };
    let mut object = serde_json::to_value(&owner.objects(report)["n.udev"]).unwrap();
    object["metadata"]["uid"] = json!("o1");
    object["metadata"]["resourceVersion"] = json!(version);
    object
}

/// Objects of the stub API server, its answer to the next write, and its watch.
#[derive(Default)]
struct Cluster {
    has: Mutex<Vec<Value>>,
    written: Mutex<Option<Value>>,
    /// Object that exists although no list shows it.
    unlisted: Mutex<Option<Value>>,
    /// True if it refuses other writes for good.
    refused: Mutex<bool>,
    /// Uid of the Node in the token, and of the existing Node.
    nodes: Mutex<(&'static str, Option<&'static str>)>,
    events: Mutex<Option<mpsc::UnboundedReceiver<Value>>>,
}

struct Bench {
    cluster: Arc<Cluster>,
    stub: Stub,
    events: mpsc::UnboundedSender<Value>,
    reports: watch::Sender<Arc<NodeReport>>,
    problem: watch::Receiver<Option<String>>,
    _task: JoinSet<()>,
}

async fn start(has: Vec<Value>) -> Bench {
    let (events, receiver) = mpsc::unbounded_channel();
    let cluster = Arc::new(Cluster {
        has: Mutex::new(has),
        events: Mutex::new(Some(receiver)),
        nodes: Mutex::new(("u", Some("u"))),
        ..Cluster::default()
    });
    let shared = Arc::clone(&cluster);
    let stub = Stub::start(move |request| {
        let (bound, there) = *shared.nodes.lock().unwrap();
        if request.contains("/selfsubjectreviews") {
            let extra = json!({
                "authentication.kubernetes.io/node-name": ["n"],
                "authentication.kubernetes.io/node-uid": [bound],
            });
            let user = json!({"username": "system:serviceaccount:l:a", "extra": extra});
            let review = json!({"metadata": {}, "status": {"userInfo": user}});
            return Answer::Object(201, review);
        }
        if request.contains("/nodes?") {
            let node = |uid| json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n", "uid": uid}});
            return list("5", &there.map(node).into_iter().collect::<Vec<_>>());
        }
        if request.starts_with("GET") && request.contains("watch=true") {
            return match shared.events.lock().unwrap().take() {
                Some(events) => Answer::Events(events),
                None => failure(500, "no second watch"),
            };
        }
        if request.starts_with("GET") && request.contains("labelSelector") {
            return list("5", &shared.has.lock().unwrap());
        }
        if request.starts_with("GET") {
            return match shared.unlisted.lock().unwrap().clone() {
                Some(object) => Answer::Object(200, object),
                None => failure(404, "none"),
            };
        }
        match shared.written.lock().unwrap().take() {
            Some(object) => Answer::Object(200, object),
            None if *shared.refused.lock().unwrap() => failure(403, "no right"),
            None => failure(409, "not now"),
        }
    })
    .await;
    let sink = KubeReport::new(stub.client.clone(), "n", "u", None);
    let (reports, receiver) = watch::channel(Arc::default());
    let mut task = JoinSet::new();
    let (sender, problem) = watch::channel(None);
    task.spawn(async move { sink.keep(receiver, sender).await });
    Bench {
        cluster,
        stub,
        events,
        reports,
        problem,
        _task: task,
    }
}

impl Bench {
    async fn wait_for(&self, request: &str, count: usize) {
        let seen = async {
            while self.stub.requests(request) < count {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        let seen = tokio::time::timeout(LIMIT, seen).await;
        seen.unwrap_or_else(|_| panic!("{} {request}", self.stub.requests(request)));
    }

    fn send(&self, kind: &str, object: &Value) {
        self.events
            .send(json!({"type": kind, "object": object}))
            .unwrap();
    }

    fn writes(&self) -> usize {
        [CREATE, "PUT", "PATCH", "DELETE"]
            .iter()
            .map(|verb| self.stub.requests(verb))
            .sum()
    }
}

#[tokio::test]
async fn an_object_is_made_changed_and_put_right_and_otherwise_left_alone() {
    let bench = start(Vec::new()).await;
    let waiting = mk_report(HandlerPhase::Waiting);
    *bench.cluster.written.lock().unwrap() = Some(mk_object(&waiting, "6"));
    bench.reports.send_replace(Arc::clone(&waiting));
    bench.wait_for(CREATE, 1).await;

    let active = mk_report(HandlerPhase::Active);
    *bench.cluster.written.lock().unwrap() = Some(mk_object(&active, "8"));
    bench.reports.send_replace(Arc::clone(&active));
    bench.wait_for("PUT", 1).await;
    // Events of its own writes arrive late and bring no change.
    bench.send("ADDED", &mk_object(&waiting, "6"));
    bench.send("MODIFIED", &mk_object(&active, "8"));
    bench.reports.send_replace(Arc::clone(&active));

    let mut edited = mk_object(&active, "9");
    edited["status"]["devices"] = json!(77);
    *bench.cluster.written.lock().unwrap() = Some(mk_object(&active, "10"));
    bench.send("MODIFIED", &edited);
    bench.wait_for("PUT", 2).await;

    *bench.cluster.written.lock().unwrap() = Some(mk_object(&active, "12"));
    bench.send("DELETED", &mk_object(&active, "11"));
    bench.wait_for(CREATE, 2).await;

    *bench.cluster.written.lock().unwrap() =
        Some(json!({"kind": "Status", "apiVersion": "v1", "status": "Success"}));
    bench.reports.send_replace(Arc::new(NodeReport {
        complete: true,
        ..NodeReport::default()
    }));
    bench.wait_for("DELETE", 1).await;
    assert_eq!(bench.writes(), 5);
}

#[tokio::test]
async fn a_write_that_is_refused_is_a_problem_until_it_is_not_wanted_any_more() {
    let mut bench = start(Vec::new()).await;
    *bench.cluster.refused.lock().unwrap() = true;
    bench.reports.send_replace(mk_report(HandlerPhase::Active));
    let told = bench.problem.wait_for(Option::is_some).await.unwrap();
    let text = told.clone().unwrap();
    assert!(text.contains("n.udev: no right"), "{text}");
    drop(told);
    bench.reports.send_replace(Arc::new(NodeReport {
        complete: true,
        ..NodeReport::default()
    }));
    bench.problem.wait_for(Option::is_none).await.unwrap();
}

#[tokio::test]
async fn an_agent_that_finds_everything_as_it_was_writes_nothing() {
    let active = mk_report(HandlerPhase::Active);
    let bench = start(vec![mk_object(&active, "4")]).await;
    bench.reports.send_replace(Arc::clone(&active));
    bench.wait_for("watch=true", 1).await;
    // Another difference is written, so the first report has been compared.
    *bench.cluster.written.lock().unwrap() =
        Some(mk_object(&mk_report(HandlerPhase::Waiting), "6"));
    bench.reports.send_replace(mk_report(HandlerPhase::Waiting));
    bench.wait_for("PUT", 1).await;
    assert_eq!(bench.writes(), 1);
}

#[tokio::test]
async fn nothing_is_deleted_before_the_first_report() {
    let bench = start(vec![mk_object(&mk_report(HandlerPhase::Active), "4")]).await;
    bench.reports.send_replace(Arc::default());
    *bench.cluster.written.lock().unwrap() =
        Some(mk_object(&mk_report(HandlerPhase::Waiting), "6"));
    bench.reports.send_replace(mk_report(HandlerPhase::Waiting));
    bench.wait_for("PUT", 1).await;
    assert_eq!(bench.stub.requests("DELETE"), 0);
}

#[tokio::test]
async fn an_object_that_is_there_although_the_watch_does_not_show_it_gets_its_label_back() {
    let bench = start(Vec::new()).await;
    let active = mk_report(HandlerPhase::Active);
    let mut bare = mk_object(&active, "4");
    bare["metadata"].as_object_mut().unwrap().remove("labels");
    *bench.cluster.unlisted.lock().unwrap() = Some(bare);
    bench.reports.send_replace(Arc::clone(&active));
    bench.wait_for(CREATE, 1).await;
    bench.wait_for("PUT", 1).await;
    assert_eq!(bench.stub.requests(CREATE), 1);
}

/// Ends an empty list.
fn found_nothing(task: &mut KubeReport) {
    task.reconciler.take(Ok(Event::Init));
    task.reconciler.take(Ok(Event::InitDone(5)));
}

#[tokio::test]
async fn a_missing_definition_is_a_problem_and_tried_again_every_five_seconds() {
    let stub = Stub::start(|_| failure(404, "page not found")).await;
    let mut task = KubeReport::new(stub.client.clone(), "n", "u", None);
    task.report = mk_report(HandlerPhase::Active);
    task.want();
    found_nothing(&mut task);
    for _ in 0..10 {
        let ((name, write), _) = task.reconciler.next().unwrap();
        task.reconciler.write(name, write).await;
        let (_, at) = task.reconciler.next().unwrap();
        assert!(at <= Instant::now() + UNDEFINED);
    }
    let told = task.reconciler.problem().unwrap();
    assert!(told.contains("leafhost crds"), "{told}");
}

#[tokio::test]
async fn an_api_server_that_drops_what_is_written_is_a_failure_and_not_written_to_again_at_once() {
    let report = mk_report(HandlerPhase::Active);
    let mut pruned = mk_object(&report, "6");
    pruned.as_object_mut().unwrap().remove("status");
    let stub = Stub::start(move |_| Answer::Object(200, pruned.clone())).await;
    let mut task = KubeReport::new(stub.client.clone(), "n", "u", None);
    task.report = report;
    task.want();
    found_nothing(&mut task);
    for _ in 1..=2 {
        let ((name, write), _) = task.reconciler.next().unwrap();
        task.reconciler.write(name, write).await;
        let told = task.reconciler.problem().unwrap();
        assert!(told.contains("drops fields"), "{told}");
        let (_, at) = task.reconciler.next().unwrap();
        assert!(at > Instant::now());
    }
}

/// Deletes the next reports that the task creates, as garbage collection does.
async fn collect(bench: &Bench, times: usize) {
    let report = mk_report(HandlerPhase::Active);
    for version in (10_u32..).step_by(2).take(times) {
        let made = bench.stub.requests(CREATE);
        let mut object = mk_object(&report, &version.to_string());
        object["metadata"]["uid"] = json!(format!("o{version}"));
        *bench.cluster.written.lock().unwrap() = Some(object.clone());
        bench.wait_for(CREATE, made + 1).await;
        object["metadata"]["resourceVersion"] = json!((version + 1).to_string());
        while bench.cluster.written.lock().unwrap().is_some() {
            tokio::task::yield_now().await;
        }
        bench.send("DELETED", &object);
    }
}

#[tokio::test]
async fn a_report_that_is_deleted_again_and_again_is_made_ever_more_rarely_and_that_is_a_problem() {
    let mut bench = start(Vec::new()).await;
    bench.reports.send_replace(mk_report(HandlerPhase::Active));
    let begun = Instant::now();
    collect(&bench, 3).await;
    let told = |told: &Option<String>| {
        let told = told.as_ref();
        told.is_some_and(|text| text.contains("deleted again and again"))
    };
    bench.problem.wait_for(told).await.unwrap();
    bench.wait_for(CREATE, 4).await;
    // The second is created at once, the others after at least 0.8 seconds and after twice that.
    assert!(begun.elapsed() > Duration::from_secs(2));
}

#[tokio::test]
async fn reports_of_a_node_object_that_was_made_again_belong_to_none_and_then_to_it() {
    let bench = start(Vec::new()).await;
    let active = mk_report(HandlerPhase::Active);
    bench.reports.send_replace(Arc::clone(&active));
    *bench.cluster.nodes.lock().unwrap() = ("u", Some("v"));
    collect(&bench, 1).await;
    bench.wait_for("/nodes?", 1).await;
    let mut task = KubeReport::new(bench.stub.client.clone(), "n", "u", None);
    task.report = active;
    task.want();
    for (nodes, uid, is_outdated) in [
        (("u", Some("u")), Some("u"), false),
        (("u", Some("v")), None, true),
        // The reports stay unchanged until a Node exists.
        (("u", None), None, false),
        (("v", Some("v")), Some("v"), false),
    ] {
        *bench.cluster.nodes.lock().unwrap() = nodes;
        task.ask().await;
        assert_eq!(task.reconciler.rules.uid.as_deref(), uid);
        let soon = Instant::now() + Duration::from_mins(6);
        assert_eq!(task.ask_again < soon, is_outdated);
        // Without a Node, nothing is created that garbage collection would delete.
        found_nothing(&mut task);
        let ((_, write), next) = task.reconciler.next().unwrap();
        assert_eq!(next > Instant::now(), nodes.1.is_none());
        let Write::Create(object) = write else {
            panic!("{write:?}");
        };
        if let Some(owners) = &object.metadata.owner_references {
            assert_eq!(Some(owners[0].uid.as_str()), uid);
        }
    }
}

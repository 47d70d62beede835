//! A handler that is served as Akri's are, and an agent that asks it.

use futures::FutureExt as _;
use leafhost_core::configuration::FieldProblem;
use leafhost_core::device::{Device as Found, DeviceNode};
use leafhost_core::fault::Fault;
use leafhost_core::handler::{Description, Digest, HandlerFacts};
use leafhost_core::left_out::{LeftOut, LeftOuts};
use leafhost_core::session::CallStats;
use leafhost_core::tasks::Tasks;
use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;

use super::*;
use crate::serve::{self, Discovering, availability, serve};

type Outcomes = mpsc::UnboundedReceiver<Outcome>;

/// A handler whose single session reports what the test sends. Refuses details that say `nothing`.
#[derive(Debug)]
struct Scripted {
    facts: HandlerFacts,
    outcomes: Mutex<Option<Outcomes>>,
    asked: mpsc::UnboundedSender<SessionSpec>,
}

struct Script(Option<Outcomes>);

#[async_trait]
impl Session for Script {
    async fn next(&mut self) -> Report {
        let outcomes = self.0.as_mut();
        let outcome = match outcomes.map(mpsc::UnboundedReceiver::recv) {
            Some(next) => next.await,
            None => None,
        };
        let Some(outcome) = outcome else {
            return std::future::pending().await;
        };
        Report {
            outcome,
            explained: Vec::new(),
            explained_dropped: 0,
            call: CallStats::default(),
        }
    }
}

#[async_trait]
impl Handler for Scripted {
    fn facts(&self) -> &HandlerFacts {
        &self.facts
    }

    async fn validate(&self, details: &str) -> Result<Vec<FieldProblem>, Fault> {
        let is_wrong = details == "nothing";
        let problem = || FieldProblem::new("find", "is missing");
        Ok(is_wrong.then(problem).into_iter().collect())
    }

    fn open(&self, spec: SessionSpec) -> Box<dyn Session> {
        drop(self.asked.send(spec));
        Box::new(Script(self.outcomes.lock().unwrap().take()))
    }
}

struct Serving {
    say: mpsc::UnboundedSender<Outcome>,
    asked: mpsc::UnboundedReceiver<SessionSpec>,
    is_available: watch::Sender<bool>,
    task: JoinSet<serve::Error>,
}

/// Serves a handler named `a` in the folder.
fn start(folder: std::path::PathBuf) -> Serving {
    let (say, outcomes) = mpsc::unbounded_channel();
    let (asking, asked) = mpsc::unbounded_channel();
    let (is_available, available) = watch::channel(true);
    let facts = HandlerFacts {
        description: Description {
            name: "a".to_owned(),
            version: "1".to_owned(),
            summary: String::new(),
            example: String::new(),
            shared: true,
        },
        digest: Digest("d".to_owned()),
        endpoint: None,
        warnings: Vec::new(),
        is_named: false,
        most_devices: usize::MAX,
        uses_udev: false,
    };
    let handler = Scripted {
        facts,
        outcomes: Mutex::new(Some(outcomes)),
        asked: asking,
    };
    let config = serve::Config {
        folder,
        node: "n".to_owned(),
        configuration: ConfigurationKey::new("default", "c").unwrap(),
        is_available: available,
    };
    let mut task = JoinSet::new();
    task.spawn(serve(config, Arc::new(handler)));
    Serving {
        say,
        asked,
        is_available,
        task,
    }
}

impl Serving {
    fn say(&self, devices: Devices, departed: &[&str], left_out: &[&str]) {
        let mut left = LeftOuts::default();
        for id in left_out {
            left.add(id, || LeftOut {
                id: (*id).to_owned(),
                reason: "could not be read".to_owned(),
            });
        }
        let discovery = Discovery {
            devices,
            departed: departed.iter().map(|id| (*id).to_owned()).collect(),
            left_out: left,
        };
        self.say.send(Outcome::Discovered(discovery)).unwrap();
    }
}

fn devices(ids: &[&str]) -> Vec<Found> {
    ids.iter().map(|id| Found::new(*id, true)).collect()
}

#[tokio::test]
async fn an_agent_finds_what_a_handler_that_is_served_finds() {
    let mut node = Node::start();
    node.grant(&[(
        "a.grants.yaml",
        "devices: {env: ['N*E'], nodes: ['/dev/null']}",
    )]);
    let mut serving = start(node.path(""));
    let properties = [Property {
        name: "user".to_owned(),
        value: Some(b"admin".as_slice().into()),
        secret: false,
    }];
    let mut session = node.open_with("a@a.sock", properties.to_vec()).await;
    let mut all = devices(&["one", "two", "three"]);
    all[0]
        .properties
        .insert("NAME".to_owned(), "value".to_owned());
    all[0].nodes.push(DeviceNode {
        container_path: "/dev/x".to_owned(),
        host_path: "/dev/null".to_owned(),
        permissions: "rw".to_owned(),
    });
    serving.say(Devices::Complete(all.clone()), &[], &[]);
    let Devices::Complete(mut found) = discovered(&mut session).await.devices else {
        panic!("not a set");
    };
    found.sort_by(|a, b| a.id.cmp(&b.id));
    all.sort_by(|a, b| a.id.cmp(&b.id));
    assert_eq!(found, all);
    let asked = serving.asked.recv().await.unwrap();
    assert_eq!(
        (asked.details.as_str(), asked.node.as_str()),
        ("find: everything", "n")
    );
    assert_eq!(asked.properties, properties);

    // An unchanged set is not sent; a device that was left out may still exist.
    serving.say(Devices::Unchanged, &[], &[]);
    serving.say(Devices::Partial(devices(&["four"])), &["two"], &[]);
    assert_eq!(ids(&mut session).await, ["four", "one", "three"]);
    serving.say(Devices::Complete(devices(&["five"])), &[], &["three"]);
    assert_eq!(ids(&mut session).await, ["five", "three"]);

    // Neither a call without an answer nor a failed one withdraws a device.
    let fault = Fault::new(FaultReason::Trap, "it trapped");
    serving.say.send(Outcome::Faulted(fault)).unwrap();
    serving
        .say
        .send(Outcome::Unavailable("busy".to_owned()))
        .unwrap();
    serving.is_available.send_replace(false);
    assert!(ids(&mut session).await.is_empty());
    serving.say(Devices::Complete(devices(&["six"])), &[], &[]);
    assert!(ids(&mut session).await.is_empty());
    serving.is_available.send_replace(true);
    assert_eq!(ids(&mut session).await, ["six"]);
}

#[tokio::test]
async fn details_that_are_refused_and_a_first_call_without_an_answer_are_told() {
    let mut node = Node::start();
    let serving = start(node.path(""));
    let handler = node.load("a@a.sock").await.unwrap();
    let spec = |details: &str| SessionSpec {
        node: "n".to_owned(),
        configuration: ConfigurationKey::new("default", "c").unwrap(),
        details: details.to_owned(),
        properties: Vec::new(),
        opening: Opening::First,
    };
    let mut session = handler.open(spec("nothing"));
    match next(&mut session).await.outcome {
        Outcome::InvalidDetails(problems) => assert!(
            problems[0].message.contains("find: is missing"),
            "{problems:?}"
        ),
        other => panic!("{other:?}"),
    }
    let mut session = handler.open(spec("find: everything"));
    serving
        .say
        .send(Outcome::Unavailable("the bus is busy".to_owned()))
        .unwrap();
    let told = format!("{:?}", next(&mut session).await.outcome);
    assert!(told.contains("the bus is busy"), "{told}");
}

#[tokio::test]
async fn it_is_told_whether_the_agent_has_ended_a_stream_or_it_has_ended_by_itself() {
    for (outcome, is_agents) in [
        (Outcome::Unavailable("the bus is busy".to_owned()), false),
        (
            Outcome::Discovered(Discovery {
                devices: Devices::Unchanged,
                departed: Vec::new(),
                left_out: LeftOuts::default(),
            }),
            true,
        ),
    ] {
        let (say, outcomes) = mpsc::unbounded_channel();
        say.send(outcome).unwrap();
        let (_is_available, available) = watch::channel(true);
        let ended = Arc::new(serve::Ended::default());
        let script = Box::new(Script(Some(outcomes)));
        let mut sets = Discovering::new(script, available, Arc::clone(&ended));
        assert_eq!(sets.next().await.unwrap().is_ok(), is_agents);
        drop(sets);
        let is_told = |told: &Notify| told.notified().now_or_never().is_some();
        assert_eq!(is_told(&ended.by_agent), is_agents);
        assert_eq!(is_told(&ended.by_itself), !is_agents);
    }
}

#[tokio::test]
async fn a_handler_registers_again_with_an_agent_that_forgot_it() {
    let dir = Arc::new(tempfile::tempdir().unwrap());
    std::fs::create_dir(dir.path().join("akri")).unwrap();
    let _serving = start(dir.path().join("akri"));
    let mut node = Node::start_in(Arc::clone(&dir));
    node.sources(|set| set.files.contains_key("a@a.sock")).await;
    drop(node);
    drop(std::fs::remove_file(dir.path().join(KEPT)));
    let mut node = Node::start_in(dir);
    node.sources(|set| set.files.contains_key("a@a.sock")).await;
}

#[tokio::test]
async fn a_socket_that_another_process_serves_is_left_alone_and_one_that_is_taken_away_is_told() {
    let node = Node::start();
    let other = Fake::serve(&node.path("a.sock"), always(&[]));
    let mut serving = start(node.path(""));
    let error = serving.task.join_next().await.unwrap().unwrap().to_string();
    assert!(error.contains("another process serves"), "{error}");
    drop(other);
    std::fs::remove_file(node.path("a.sock")).unwrap();
    let mut serving = start(node.path(""));
    let mut node = node;
    node.sources(|set| set.files.contains_key("a@a.sock")).await;
    std::fs::remove_file(node.path("a.sock")).unwrap();
    let error = serving.task.join_next().await.unwrap().unwrap().to_string();
    assert!(error.contains("removed or replaced"), "{error}");
    let mut serving = start(node.path(""));
    node.sources(|set| set.files.contains_key("a@a.sock")).await;
    let socket = node.path("a.sock");
    let is_there = || socket.exists();
    tokio::time::timeout(LIMIT, async {
        while !is_there() {
            tokio::task::yield_now().await;
        }
    })
    .await
    .unwrap();
    serving.task.shutdown().await;
    assert!(!is_there(), "the socket of a handler that has ended stays");
}

#[tokio::test]
async fn a_file_says_whether_devices_are_there() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("availability.txt");
    let mut tasks = Tasks::default();
    let mut followed = availability::follow(file.clone(), &mut tasks).unwrap();
    assert!(*followed.borrow());
    for (text, is_available) in [("OFFLINE\n", false), ("ONLINE\n", true), ("OFFLINE", false)] {
        std::fs::write(&file, text).unwrap();
        let turned = followed.wait_for(|is| *is == is_available);
        tokio::time::timeout(LIMIT, turned).await.unwrap().unwrap();
    }
    std::fs::remove_file(&file).unwrap();
    let turned = followed.wait_for(|is| *is);
    tokio::time::timeout(LIMIT, turned).await.unwrap().unwrap();
}

use std::sync::Mutex;

use async_trait::async_trait;
use leafhost_core::brokers::{Kind, ManifestSet, ObjectKey};
use leafhost_core::cluster::NodeSet;
use leafhost_core::ports::InstanceSet;
use serde_json::json;
use tokio_util::task::AbortOnDropHandle;

use super::*;
use crate::brokers::tests::fixture::{Site, instance, instance_in, key};

/// A cluster in which writes are seen at once, unless they fail.
struct Fake {
    site: Mutex<Site>,
    /// Nodes, Configurations, Instances and names.
    cluster: Arc<crate::tests::fakes::Fake>,
    objects: watch::Sender<Arc<ObjectSet>>,
    problems: watch::Sender<Arc<Vec<Problem>>>,
    /// Answer to the creation of a pod.
    answer: Mutex<Result<(), WriteError>>,
    /// True if writes become visible to the task.
    is_seen: Mutex<bool>,
    /// Duration of a write: in all namespaces, and in one that is slow.
    takes: Mutex<(Duration, Option<(&'static str, Duration)>)>,
    writes: watch::Sender<Vec<(ObjectKey, Instant)>>,
}

#[async_trait]
impl Brokers for Fake {
    fn objects(&self) -> watch::Receiver<Arc<ObjectSet>> {
        self.objects.subscribe()
    }

    async fn write(&self, change: &Change) -> Result<(), WriteError> {
        let key = change.key().clone();
        self.writes
            .send_modify(|writes| writes.push((key, Instant::now())));
        let (mut takes, slow) = *self.takes.lock().unwrap();
        if let Some((_, slow)) = slow.filter(|(name, _)| change.key().namespace == *name) {
            takes = slow;
        }
        tokio::time::sleep(takes).await;
        self.answer.lock().unwrap().clone()?;
        if *self.is_seen.lock().unwrap() {
            self.site.lock().unwrap().apply(change);
            self.show();
        }
        Ok(())
    }
}

impl Fake {
    /// Creates a Configuration whose pods ask for slots, with a local device on node `a`.
    fn start() -> Arc<Self> {
        let mut site = Site::with_pods();
        site.add(instance("cams-1", false, &["a"], 1));
        let fake = Arc::new(Self {
            site: Mutex::new(site),
            cluster: crate::tests::fakes::Fake::new(0),
            objects: watch::Sender::default(),
            problems: watch::Sender::default(),
            answer: Mutex::new(Ok(())),
            is_seen: Mutex::new(true),
            takes: Mutex::default(),
            writes: watch::Sender::default(),
        });
        fake.show();
        fake
    }

    fn show(&self) {
        let site = self.site.lock().unwrap();
        self.cluster.nodes.send_replace(Arc::new(NodeSet {
            complete: true,
            nodes: site.nodes.clone(),
        }));
        self.cluster.manifests.send_if_modified(|shown| {
            let differs = !shown.complete || shown.manifests != site.manifests;
            *shown = Arc::new(ManifestSet {
                complete: true,
                manifests: site.manifests.clone(),
            });
            differs
        });
        let instances = &self.cluster.instances;
        instances.send_replace(Arc::new(InstanceSet::read(site.instances.clone())));
        self.objects.send_replace(Arc::new(ObjectSet {
            complete: true,
            objects: site.objects.clone(),
        }));
    }

    /// Returns the seconds between successive writes within an hour.
    async fn waits(&self) -> Vec<u64> {
        tokio::time::sleep(Duration::from_hours(1)).await;
        let writes = self.writes.borrow();
        writes
            .windows(2)
            .map(|pair| (pair[1].1 - pair[0].1).as_secs())
            .collect()
    }

    fn count(&self) -> usize {
        self.writes.borrow().len()
    }
}

fn spawn(fake: &Arc<Fake>) -> AbortOnDropHandle<()> {
    let fake = Arc::clone(fake);
    let task = async move {
        let problems = fake.problems.clone();
        run(&*fake.cluster, &*fake, problems, &fake.cluster.metrics).await;
    };
    AbortOnDropHandle::new(tokio::spawn(task))
}

const HOUR: Duration = Duration::from_hours(1);

#[tokio::test(start_paused = true)]
async fn a_pod_is_created_once_and_nothing_is_written_while_nothing_changes() {
    let fake = Fake::start();
    let _task = spawn(&fake);
    tokio::time::sleep(HOUR).await;
    assert_eq!(fake.count(), 1);
    fake.site
        .lock()
        .unwrap()
        .run("cams-1", &[("cams-1-pod", "a")]);
    fake.show();
    tokio::time::sleep(HOUR).await;
    let written = fake.writes.borrow().clone();
    let written: Vec<&str> = written.iter().map(|(key, _)| key.name.as_str()).collect();
    assert_eq!(written, ["cams-1-pod", "cams-1-svc", "cams-svc"]);
}

#[tokio::test(start_paused = true)]
async fn what_was_written_is_not_written_again_before_it_had_time_to_be_seen() {
    let fake = Fake::start();
    *fake.is_seen.lock().unwrap() = false;
    let _task = spawn(&fake);
    // Other objects change all the time.
    for n in 0..90 {
        tokio::time::sleep(Duration::from_millis(100)).await;
        let mut site = fake.site.lock().unwrap();
        site.add(instance(&format!("other-{n}"), false, &[], 1));
        drop(site);
        fake.show();
    }
    assert_eq!(fake.count(), 1);
}

#[tokio::test(start_paused = true)]
async fn what_is_refused_is_told_and_tried_ever_later_and_at_once_when_it_was_edited() {
    let fake = Fake::start();
    let refused = WriteError::Denied("quota exceeded".into());
    *fake.answer.lock().unwrap() = Err(refused);
    let mut problems = fake.problems.subscribe();
    let _task = spawn(&fake);
    let told = problems.wait_for(|problems| !problems.is_empty()).await;
    let told = told.unwrap().clone();
    assert_eq!(told.len(), 1);
    assert_eq!(
        (told[0].reason(), told[0].to_string().as_str()),
        (
            "BrokerNotWritten",
            "cannot write Pod n/cams-1-pod: quota exceeded; the controller tries again"
        )
    );
    assert_eq!(told[0].subject().to_string(), "Configuration n/cams");
    let waits = fake.waits().await;
    assert_eq!(waits[..9], [1, 2, 4, 8, 16, 32, 64, 128, 256]);
    assert!(waits[9..].iter().all(|wait| *wait == 300), "{waits:?}");

    *fake.answer.lock().unwrap() = Ok(());
    let before = fake.count();
    let edited = serde_json::json!({"brokerSpec": {"brokerPodSpec": {"containers": []}}});
    fake.site.lock().unwrap().configure(&edited);
    fake.show();
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(fake.count(), before + 1);
    assert!(problems.borrow().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_name_that_is_taken_is_told_once_for_all_objects() {
    let fake = Fake::start();
    *fake.answer.lock().unwrap() = Err(WriteError::Taken);
    fake.site
        .lock()
        .unwrap()
        .add(instance("cams-2", false, &["a"], 1));
    fake.show();
    let mut problems = fake.problems.subscribe();
    let _task = spawn(&fake);
    let told = problems.wait_for(|problems| !problems.is_empty()).await;
    let told = told.unwrap().clone();
    assert_eq!(told.len(), 1);
    assert_eq!(told[0].reason(), "BrokerNameTaken");
    assert!(
        told[0]
            .to_string()
            .starts_with("Pod n/cams-1-pod (and 1 more) already exists")
    );
}

#[tokio::test(start_paused = true)]
async fn while_the_api_server_does_not_answer_two_writes_a_second_are_tried_each_object_ever_later()
{
    let fake = Fake::start();
    *fake.answer.lock().unwrap() = Err(WriteError::NoAnswer {
        message: "no answer".into(),
        retry_after: None,
    });
    {
        let mut site = fake.site.lock().unwrap();
        for n in 0..49 {
            site.add(instance(&format!("more-{n}"), false, &["a"], 1));
        }
    }
    fake.show();
    let _task = spawn(&fake);
    tokio::time::sleep(Duration::from_secs(30)).await;
    assert!((55..=65).contains(&fake.count()), "{}", fake.count());
    tokio::time::sleep(HOUR / 2).await;
    // Each write is tried ten times within nine minutes and every five minutes after that.
    let count = fake.count();
    assert!((50 * 12..=50 * 15).contains(&count), "{count}");
}

/// Creates the Configuration in two namespaces, one of them with 400 devices.
fn two_namespaces() -> Arc<Fake> {
    let fake = Fake::start();
    let mut site = fake.site.lock().unwrap();
    site.instances.clear();
    for namespace in ["aaa", "zzz"] {
        site.configure_in(namespace);
    }
    for number in 0..400 {
        site.add(instance_in("aaa", &format!("cams-{number:03}")));
    }
    drop(site);
    *fake.takes.lock().unwrap() = (Duration::from_millis(20), None);
    fake.show();
    fake
}

/// Adds an Instance to namespace `zzz` and returns the time until its pod exists.
async fn time_to_pod(fake: &Fake, name: &str) -> Duration {
    let begun = Instant::now();
    fake.site.lock().unwrap().add(instance_in("zzz", name));
    fake.show();
    let pod = ObjectKey {
        kind: Kind::Pod,
        namespace: "zzz".into(),
        name: format!("{name}-pod"),
    };
    let mut objects = fake.objects.subscribe();
    let is_there = objects.wait_for(|seen| seen.objects.contains_key(&pod));
    drop(is_there.await.unwrap());
    begun.elapsed()
}

#[tokio::test(start_paused = true)]
async fn many_devices_and_edits_of_one_namespace_do_not_delay_the_broker_of_another_one() {
    let fake = two_namespaces();
    let _task = spawn(&fake);
    let editor = Arc::clone(&fake);
    let edits = async move {
        for edit in 0_u64.. {
            tokio::time::sleep(Duration::from_secs(1)).await;
            let mut site = editor.site.lock().unwrap();
            // Each pod of `aaa` is deleted and created again; the other Configuration stays as it is.
            let aaa = site.manifests.iter_mut();
            for (_, manifest) in aaa.filter(|(key, _)| key.namespace() == "aaa") {
                let spec = &mut Arc::make_mut(manifest).spec;
                let pod = json!({"containers": [{"name": "c", "image": edit.to_string()}]});
                spec.broker_spec = Some(json!({"brokerPodSpec": pod}));
            }
            drop(site);
            editor.show();
        }
    };
    let _edits = AbortOnDropHandle::new(tokio::spawn(edits));
    for number in 0..10 {
        tokio::time::sleep(Duration::from_millis(730)).await;
        let before = fake.count();
        let waited = time_to_pod(&fake, &format!("cams-{number}")).await;
        // The Instance is seen, planned and written.
        assert!(waited <= SOON + Duration::from_millis(60), "{waited:?}");
        assert!(fake.count() > before);
    }
    let others = fake.writes.borrow();
    let others = others.iter().filter(|(key, _)| key.namespace == "aaa");
    assert!(others.count() > 500, "they are served, too");
}

#[tokio::test(start_paused = true)]
async fn a_namespace_whose_brokers_take_long_to_write_does_not_delay_another_one() {
    let fake = two_namespaces();
    fake.takes.lock().unwrap().1 = Some(("aaa", Duration::from_secs(10)));
    let _task = spawn(&fake);
    for number in 0..5 {
        tokio::time::sleep(Duration::from_secs(7)).await;
        let waited = time_to_pod(&fake, &format!("cams-{number}")).await;
        assert!(waited <= SOON + Duration::from_millis(30), "{waited:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn who_does_not_lead_writes_nothing_and_tells_nothing() {
    let fake = Fake::start();
    *fake.answer.lock().unwrap() = Err(WriteError::Taken);
    let mut problems = fake.problems.subscribe();
    let _task = spawn(&fake);
    drop(problems.wait_for(|problems| !problems.is_empty()).await);
    fake.cluster.leads.send_replace(false);
    drop(problems.wait_for(|problems| problems.is_empty()).await);
    let before = fake.count();
    tokio::time::sleep(HOUR).await;
    assert_eq!(fake.count(), before);
    *fake.answer.lock().unwrap() = Ok(());
    fake.cluster.leads.send_replace(true);
    tokio::time::sleep(HOUR).await;
    let made = fake
        .objects
        .borrow()
        .objects
        .contains_key(&key(Kind::Pod, "cams-1-pod"));
    assert!(made);
}

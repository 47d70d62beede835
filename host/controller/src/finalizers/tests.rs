use std::sync::Arc;

use leafhost_core::cluster::DeletingKind;
use tokio_util::task::AbortOnDropHandle;

use super::*;
use crate::tests::fakes::{Fake, denied};

fn deleting(name: &str, finalizers: &[&str]) -> Deleting {
    Deleting {
        kind: DeletingKind::Instance,
        namespace: "n".into(),
        name: name.into(),
        uid: name.into(),
        resource_version: "1".into(),
        finalizers: finalizers.iter().map(|one| (*one).to_owned()).collect(),
    }
}

fn start() -> (Arc<Fake>, AbortOnDropHandle<()>) {
    let fake = Fake::new(0);
    let cluster = Arc::clone(&fake);
    let task = tokio::spawn(async move { run(&*cluster).await });
    (fake, AbortOnDropHandle::new(task))
}

#[tokio::test(start_paused = true)]
async fn what_agents_of_akri_left_goes_and_what_others_wait_for_stays() {
    let (fake, _task) = start();
    fake.deleting.send_replace(vec![
        deleting("a", &["node-a", "foregroundDeletion", "example.com/x"]),
        deleting("b", &["orphan", "example.com/x"]),
        deleting("c", &["node-a", "node-b"]),
    ]);
    tokio::time::sleep(WAIT.mul_f32(0.9)).await;
    // A running agent of Akri removes its own finalizer meanwhile.
    fake.deleting.send_modify(|all| drop(all.pop()));
    tokio::time::sleep(WAIT).await;
    let written = fake.finalizers.lock().unwrap();
    let written: Vec<_> = written
        .iter()
        .map(|(_, name, left)| (&**name, left.join(" ")))
        .collect();
    assert_eq!(
        written,
        [("a", "foregroundDeletion example.com/x".to_owned())]
    );
}

#[tokio::test(start_paused = true)]
async fn who_does_not_lead_removes_nothing_and_each_object_that_cannot_be_written_is_tried_ever_later()
 {
    let (fake, _task) = start();
    fake.leads.send_replace(false);
    fake.deleting
        .send_replace(vec![deleting("a", &["node-a"]), deleting("b", &["node-a"])]);
    tokio::time::sleep(Duration::from_mins(10)).await;
    assert_eq!(fake.finalizers.lock().unwrap().len(), 0);
    *fake.answer.lock().unwrap() = Some(denied());
    fake.leads.send_replace(true);
    tokio::time::sleep(Duration::from_mins(10)).await;
    let tried = fake.finalizers.lock().unwrap();
    for object in ["a", "b"] {
        let times = tried.iter().filter(|(_, name, _)| name == object);
        let times: Vec<Instant> = times.map(|(at, ..)| *at).collect();
        let waits = times.windows(2).map(|two| (two[1] - two[0]).as_secs());
        let waits: Vec<u64> = waits.collect();
        assert_eq!(waits, [1, 2, 4, 8, 16, 32, 64, 128, 256], "{object}");
    }
}

#[tokio::test(start_paused = true)]
async fn objects_that_cannot_be_written_delay_none_of_another_namespace() {
    let (fake, _task) = start();
    fake.hangs.lock().unwrap().insert("n");
    let other = Deleting {
        namespace: "z".into(),
        ..deleting("z", &["node-a"])
    };
    let all = (0..100).map(|number| deleting(&format!("a-{number:03}"), &["node-a"]));
    fake.deleting.send_replace(all.chain([other]).collect());
    tokio::time::sleep(WAIT + SOON * 2).await;
    let written = fake.finalizers.lock().unwrap().clone();
    assert_eq!(written.len(), PLACES.of_one + 1);
    assert!(written.iter().any(|(_, name, _)| name == "z"));
}

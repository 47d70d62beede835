use std::sync::Arc;

use leafhost_core::cluster::DeletingKind;
use tokio_util::task::AbortOnDropHandle;

use super::*;
use crate::fakes::Fake;

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

fn start() -> (Arc<Fake>, AbortOnDropHandle<Result<(), Error>>) {
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
    // An agent of Akri that runs removes its own meanwhile.
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
async fn who_does_not_lead_removes_nothing_and_a_refusal_is_tried_again_twice_a_minute() {
    let (fake, _task) = start();
    fake.leads.send_replace(false);
    fake.deleting
        .send_replace(vec![deleting("a", &["node-a"]), deleting("b", &["node-a"])]);
    tokio::time::sleep(Duration::from_mins(10)).await;
    assert_eq!(fake.finalizers.lock().unwrap().len(), 0);
    for (error, most) in [
        (WriteError::Denied("no right".into()), 40),
        (WriteError::NoAnswer("away".into()), 21),
    ] {
        fake.leads.send_replace(true);
        *fake.answer.lock().unwrap() = Some(error);
        fake.finalizers.lock().unwrap().clear();
        tokio::time::sleep(Duration::from_mins(10)).await;
        let tried = fake.finalizers.lock().unwrap().len();
        assert!((most / 2..=most).contains(&tried), "{tried}");
    }
}

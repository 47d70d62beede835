use std::sync::Arc;

use leafhost_core::names::ConfigurationKey;
use tokio_util::task::AbortOnDropHandle;

use super::*;
use crate::tests::fakes::{Fake, unanswered};

struct Bench {
    fake: Arc<Fake>,
    problems: watch::Sender<Problems>,
    _task: AbortOnDropHandle<()>,
}

fn start() -> Bench {
    let fake = Fake::new(0);
    let (problems, receiver) = watch::channel(Arc::default());
    let store = Arc::clone(&fake);
    let task = tokio::spawn(async move { run(&*store, receiver).await });
    Bench {
        fake,
        problems,
        _task: AbortOnDropHandle::new(task),
    }
}

fn problem(number: usize, message: &str) -> Event {
    let key = ConfigurationKey::new("default", &format!("c{number}")).unwrap();
    Event {
        regarding: Regarding::Configuration(key, "u".into()),
        reason: "DiscoveryFailed".into(),
        message: message.into(),
    }
}

impl Bench {
    fn report(&self, problems: impl IntoIterator<Item = Event>) {
        let problems = problems.into_iter();
        let keyed = problems.map(|one| ((one.regarding, one.reason), one.message));
        self.problems.send_replace(Arc::new(keyed.collect()));
    }

    fn made(&self) -> usize {
        self.fake.events.lock().unwrap().len()
    }
}

#[tokio::test(start_paused = true)]
async fn a_problem_that_lasts_an_hour_is_told_every_five_minutes_whatever_its_text() {
    let bench = start();
    for second in 0..3600 {
        bench.report([problem(1, &format!("call {second} failed"))]);
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    assert_eq!(bench.made(), 12);
}

#[tokio::test(start_paused = true)]
async fn a_problem_that_comes_and_goes_is_told_twice_a_minute() {
    let bench = start();
    for second in 0..600 {
        bench.report((second % 2 == 0).then(|| problem(1, "failed")));
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    assert!((19..=20).contains(&bench.made()), "{}", bench.made());
}

#[tokio::test(start_paused = true)]
async fn many_problems_at_once_are_told_ten_a_second_and_a_new_one_does_not_wait_for_old_ones() {
    let bench = start();
    bench.report((0..100).map(|number| problem(number, "failed")));
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert!((49..=51).contains(&bench.made()), "{}", bench.made());
    tokio::time::sleep(Duration::from_mins(1)).await;
    assert_eq!(bench.made(), 100);
    bench.report((0..=100).map(|number| problem(number, "failed")));
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(bench.made(), 101);
}

#[tokio::test(start_paused = true)]
async fn who_does_not_lead_makes_no_events_and_no_answer_is_no_reason_for_haste() {
    let bench = start();
    bench.fake.leads.send_replace(false);
    bench.report([problem(1, "failed")]);
    tokio::time::sleep(Duration::from_mins(10)).await;
    assert_eq!(bench.made(), 0);
    *bench.fake.answer.lock().unwrap() = Some(unanswered());
    bench.fake.leads.send_replace(true);
    bench.report((0..200).map(|number| problem(number, "failed")));
    tokio::time::sleep(Duration::from_mins(10)).await;
    assert!((590..=601).contains(&bench.made()), "{}", bench.made());
}

#[tokio::test(start_paused = true)]
async fn neither_many_problems_nor_events_that_cannot_be_made_delay_those_of_another_namespace() {
    let bench = start();
    let other = Event {
        regarding: Regarding::Configuration(ConfigurationKey::new("zzz", "c").unwrap(), "u".into()),
        ..problem(0, "failed")
    };
    for hangs in [false, true] {
        bench.report([]);
        if hangs {
            bench.fake.hangs.lock().unwrap().insert("default");
        }
        tokio::time::sleep(Duration::from_mins(10)).await;
        bench.fake.events.lock().unwrap().clear();
        let many = (0..3_000).map(|number| problem(number, "failed"));
        bench.report(many.chain([other.clone()]));
        tokio::time::sleep(Duration::from_secs(4)).await;
        let made = bench.fake.events.lock().unwrap().clone();
        assert!(made.iter().any(|(_, event)| *event == other), "{hangs}");
    }
}

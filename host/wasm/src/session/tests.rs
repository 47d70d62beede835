use std::collections::{BTreeMap, VecDeque};
use std::sync::Mutex;

use leafhost_core::fault::{Fault, FaultReason};
use leafhost_core::left_out::LeftOuts;
use leafhost_core::session::{CallStats, Devices, Discovery};
use leafhost_udev::{Field, Rule, Subsystems, Term};
use tokio::sync::broadcast;

use super::*;

mod network;

/// Answers as scripted; remembers each request with its time.
struct Scripted {
    answers: Mutex<VecDeque<(Duration, CallResult)>>,
    asked: Mutex<Vec<(Duration, CallInput)>>,
    begin: Instant,
}

impl Scripted {
    fn new(answers: impl IntoIterator<Item = (Duration, CallResult)>) -> Arc<Self> {
        Arc::new(Self {
            answers: Mutex::new(answers.into_iter().collect()),
            asked: Mutex::default(),
            begin: Instant::now(),
        })
    }

    /// Returns the start of each call in milliseconds, with its reasons.
    fn calls(&self) -> Vec<(u128, Vec<&'static str>)> {
        self.asked
            .lock()
            .unwrap()
            .iter()
            .map(|(at, ask)| (at.as_millis(), ask.events.iter().map(Into::into).collect()))
            .collect()
    }

    fn last(&self) -> CallInput {
        self.asked.lock().unwrap().last().unwrap().1.clone()
    }
}

#[async_trait]
impl Caller for Scripted {
    async fn call(self: Arc<Self>, ask: CallInput) -> CallResult {
        let at = self.begin.elapsed();
        self.asked.lock().unwrap().push((at, ask));
        let next = self.answers.lock().unwrap().pop_front();
        let (takes, answer) = next.unwrap_or_else(|| (Duration::ZERO, found(None, &[])));
        tokio::time::sleep(takes).await;
        answer
    }
}

fn called(outcome: Outcome, next: Option<NextCall>) -> CallResult {
    let report = Report {
        outcome,
        explained: Vec::new(),
        explained_dropped: 0,
        call: CallStats::default(),
    };
    CallResult { report, next }
}

fn found(after: Option<u64>, subsystems: &[&str]) -> CallResult {
    let rule = |subsystem: &&str| {
        Rule::new(vec![Term {
            field: Field::Subsystem,
            key: None,
            negated: false,
            value: (*subsystem).to_owned(),
        }])
        .unwrap()
    };
    let wakes = WakeConditions {
        after: after.map(Duration::from_millis),
        udev: subsystems.iter().map(rule).collect(),
        ..WakeConditions::default()
    };
    waking(wakes)
}

fn waking(wakes: WakeConditions) -> CallResult {
    let discovery = Discovery {
        devices: Devices::Unchanged,
        departed: Vec::new(),
        left_out: LeftOuts::default(),
    };
    called(
        Outcome::Discovered(discovery),
        Some(NextCall {
            wakes,
            cursor: Some(b"c".to_vec()),
        }),
    )
}

fn unavailable() -> CallResult {
    called(Outcome::Unavailable("no bus".into()), None)
}

fn faulted(cpu: Duration) -> CallResult {
    let fault = Fault::new(FaultReason::Trap, "trapped");
    let mut called = called(Outcome::Faulted(fault), None);
    called.report.call.cpu = cpu;
    called
}

fn at_once(answers: impl IntoIterator<Item = CallResult>) -> Arc<Scripted> {
    Scripted::new(answers.into_iter().map(|answer| (Duration::ZERO, answer)))
}

fn event(subsystem: &str, settle: Option<Duration>) -> Arc<Event> {
    Arc::new(Event {
        action: "add".into(),
        devpath: "/devices/none/such".into(),
        subsystem: Some(subsystem.into()),
        devnode: None,
        properties: BTreeMap::new(),
        settle,
    })
}

/// Creates a session that receives device events.
fn subscribed(caller: &Arc<Scripted>) -> (WakingSession, broadcast::Sender<Arc<Event>>) {
    let (sender, events) = broadcast::channel(128);
    let subscriptions = Subscriptions {
        devices: Some(DeviceSubscription {
            events,
            allowed: Arc::new(Subsystems::new(["*"])),
        }),
        ..Subscriptions::default()
    };
    let session = WakingSession::new(
        caller.clone(),
        Opening::First,
        subscriptions,
        Arc::default(),
    );
    (session, sender)
}

/// Runs the session in a task of its own; the channel receives its reports.
fn run(mut session: WakingSession) -> tokio::sync::mpsc::UnboundedReceiver<Report> {
    let (sender, receiver) = tokio::sync::mpsc::unbounded_channel();
    tokio::spawn(async move { while sender.send(session.next().await).is_ok() {} });
    receiver
}

async fn pass(time: Duration) {
    tokio::time::sleep(time).await;
}

const MILLI: Duration = Duration::from_millis(1);

#[tokio::test(start_paused = true)]
async fn a_timer_is_clamped_to_a_second_and_a_day() {
    let caller = at_once([
        found(Some(1), &[]),
        found(Some(u64::MAX), &[]),
        found(None, &[]),
    ]);
    let mut session = WakingSession::new(
        caller.clone(),
        Opening::First,
        Subscriptions::default(),
        Arc::default(),
    );
    let first = session.next().await;
    assert_eq!(first.call.next, Some(Duration::from_secs(1)));
    session.next().await;
    let last = session.next().await;
    assert_eq!(last.call.next, None);
    let day = 24 * 3600 * 1000;
    assert_eq!(
        caller.calls(),
        [
            (0, vec!["first"]),
            (1000, vec!["timer"]),
            (day + 1000, vec!["timer"])
        ]
    );
    let never = tokio::time::timeout(Duration::from_hours(1000), session.next()).await;
    assert!(never.is_err());
}

#[tokio::test(start_paused = true)]
async fn a_changed_configuration_is_told_and_the_cursor_comes_back() {
    let caller = at_once([found(Some(1000), &[])]);
    let mut session = WakingSession::new(
        caller.clone(),
        Opening::Changed,
        Subscriptions::default(),
        Arc::default(),
    );
    session.next().await;
    assert_eq!(caller.last().events, [CallReason::Changed]);
    assert!(caller.last().cursor.is_none());
    session.next().await;
    let cursor = caller.last().cursor.unwrap();
    assert_eq!(*cursor.bytes, *b"c");
}

/// Answers with a cursor of `.0` bytes, and keeps nothing.
struct Leaves(usize);

#[async_trait]
impl Caller for Leaves {
    async fn call(self: Arc<Self>, _: CallInput) -> CallResult {
        let mut called = found(Some(1000), &[]);
        called.next.as_mut().unwrap().cursor = Some(vec![1; self.0]);
        called
    }
}

#[tokio::test(start_paused = true)]
async fn a_large_cursor_beyond_the_sum_of_all_is_not_kept_and_its_devices_count() {
    const LARGE: usize = 1 << 20;
    let cursors = Arc::new(Cursors::default());
    let mut others: Vec<_> = (0..64)
        .map(|_| cursors.keep(vec![0; LARGE]).unwrap())
        .collect();
    let mut session = WakingSession::new(
        Arc::new(Leaves(LARGE)),
        Opening::First,
        Subscriptions::default(),
        cursors.clone(),
    );
    let report = session.next().await;
    assert!(matches!(report.outcome, Outcome::Discovered(_)));
    let denied = report.call.denied.concat();
    assert!(denied.starts_with("cursor: its 1048576 bytes"), "{denied}");
    drop(others.pop());
    // The new cursor takes the place of the old one.
    for _ in 0..2 {
        assert_eq!(session.next().await.call.denied, [""; 0]);
    }
    assert!(cursors.keep(vec![0; LARGE]).is_err());
    drop(session);
    assert!(
        cursors.keep(vec![0; LARGE]).is_ok(),
        "of a session that ended"
    );
}

#[tokio::test(start_paused = true)]
async fn an_event_wakes_at_once_and_the_next_ones_together_after_a_tenth_of_a_second() {
    let answer = || found(None, &["usb"]);
    let caller = at_once([answer(), answer(), answer()]);
    let (session, events) = subscribed(&caller);
    let mut reports = run(session);
    reports.recv().await;
    pass(Duration::from_secs(5)).await;
    events.send(event("block", None)).unwrap();
    events.send(event("usb", None)).unwrap();
    reports.recv().await;
    for _ in 0..3 {
        events.send(event("usb", None)).unwrap();
        pass(10 * MILLI).await;
    }
    reports.recv().await;
    assert_eq!(
        caller.calls(),
        [
            (0, vec!["first"]),
            (5000, vec!["udev"]),
            (5100, vec!["udev", "udev", "udev"])
        ]
    );
}

#[tokio::test(start_paused = true)]
async fn an_event_since_the_start_of_a_call_is_matched_against_its_answer() {
    let slow = Duration::from_secs(3);
    let caller = Scripted::new([(slow, found(None, &["usb"])), (MILLI, found(None, &[]))]);
    let (session, events) = subscribed(&caller);
    let mut reports = run(session);
    pass(Duration::from_secs(1)).await;
    events.send(event("usb", None)).unwrap();
    events.send(event("block", None)).unwrap();
    reports.recv().await;
    reports.recv().await;
    assert_eq!(caller.calls()[1], (3100, vec!["udev"]));
}

#[tokio::test(start_paused = true)]
async fn an_event_of_the_kernel_is_told_again_when_udevd_has_had_its_time() {
    let answer = || found(None, &["usb"]);
    let caller = at_once([answer(), answer(), answer()]);
    let (session, events) = subscribed(&caller);
    let mut reports = run(session);
    reports.recv().await;
    pass(Duration::from_secs(1)).await;
    events
        .send(event("usb", Some(Duration::from_secs(1))))
        .unwrap();
    let report = reports.recv().await.unwrap();
    assert_eq!(report.call.next, Some(Duration::from_secs(1)));
    reports.recv().await;
    assert_eq!(
        caller.calls()[1..],
        [(1000, vec!["udev"]), (2000, vec!["udev"])]
    );
}

#[tokio::test(start_paused = true)]
async fn many_events_are_told_as_lost_ones() {
    let slow = Duration::from_secs(1);
    let answer = || found(None, &["usb"]);
    for (sent, told, lost) in [(64, 64, false), (65, 64, true), (1000, 64, true)] {
        let caller = Scripted::new([(slow, answer()), (slow, answer())]);
        let (session, events) = subscribed(&caller);
        let mut reports = run(session);
        pass(MILLI).await;
        for _ in 0..sent {
            events.send(event("usb", None)).unwrap();
        }
        reports.recv().await;
        reports.recv().await;
        let ask = caller.last();
        let udev = ask
            .events
            .iter()
            .filter(|why| matches!(why, CallReason::Udev(_)));
        assert_eq!(ask.events_lost, lost, "{sent}");
        assert!(udev.count() <= told, "{sent}");
    }
}

#[tokio::test]
async fn patterns_that_cost_too_much_hold_up_nobody_and_wake_uncompared() {
    // Each star is tried at each character of the path.
    let costly = Term {
        field: Field::Devpath,
        key: None,
        negated: false,
        value: format!("*{}y", "x".repeat(1000)),
    };
    let rules = (0..256).map(|_| Rule::new(vec![costly.clone()]).unwrap());
    let wakes = WakeConditions {
        udev: rules.collect(),
        ..WakeConditions::default()
    };
    let caller = at_once([waking(wakes.clone()), waking(wakes)]);
    let (session, events) = subscribed(&caller);
    let mut reports = run(session);
    reports.recv().await;
    let path = format!("/devices/{}", "x".repeat(4000));
    for _ in 0..64 {
        let event = Event {
            devpath: path.clone(),
            ..Event::clone(&event("usb", None))
        };
        events.send(Arc::new(event)).unwrap();
    }
    // The only thread keeps running meanwhile.
    let mut latest = Duration::ZERO;
    let report = loop {
        let begin = Instant::now();
        tokio::select! {
            report = reports.recv() => break report.unwrap(),
            () = tokio::time::sleep(MILLI) => latest = latest.max(begin.elapsed()),
        }
    };
    assert!(latest < Duration::from_millis(500), "{latest:?}");
    let refused = report.call.wakes_refused.join(" ");
    assert!(refused.contains("simpler patterns"), "{refused}");
}

#[tokio::test(start_paused = true)]
async fn events_the_monitor_lost_wake_a_session_that_wants_events() {
    for (subsystems, calls) in [(&["usb"][..], 2), (&[][..], 1)] {
        let caller = at_once([found(None, subsystems)]);
        let (session, events) = subscribed(&caller);
        let mut reports = run(session);
        reports.recv().await;
        events.send(Arc::new(Event::lost(None))).unwrap();
        pass(Duration::from_secs(1)).await;
        assert_eq!(caller.calls().len(), calls);
        assert_eq!(caller.last().events_lost, calls == 2);
    }
}

#[tokio::test(start_paused = true)]
async fn a_first_call_that_fails_is_made_again_and_told_the_same() {
    let caller = at_once([unavailable(), unavailable(), found(None, &[])]);
    let mut session = WakingSession::new(
        caller.clone(),
        Opening::First,
        Subscriptions::default(),
        Arc::default(),
    );
    session.next().await;
    session.next().await;
    let report = session.next().await;
    assert_eq!(report.call.events, ["first", "timer"]);
    let calls = caller.calls();
    assert_eq!(calls[1].0, 1000);
    assert!((2600..=3000).contains(&calls[2].0), "{calls:?}");
    assert_eq!(calls[2].1, ["first", "timer"]);
}

#[tokio::test(start_paused = true)]
async fn after_an_error_the_last_wakes_stay_in_force() {
    let caller = at_once([
        found(Some(60_000), &["usb"]),
        unavailable(),
        found(None, &[]),
    ]);
    let (session, events) = subscribed(&caller);
    let mut reports = run(session);
    reports.recv().await;
    reports.recv().await;
    let told = caller.last().cursor.unwrap();
    // Unavailable at one minute; an event comes before the backoff is over.
    pass(500 * MILLI).await;
    events.send(event("usb", None)).unwrap();
    reports.recv().await;
    assert_eq!(caller.calls()[2], (60_500, vec!["udev"]));
    let cursor = caller.last().cursor.unwrap();
    assert_eq!(*cursor.bytes, *b"c");
    assert!(Arc::ptr_eq(&told, &cursor), "it is there once");
}

#[tokio::test(start_paused = true)]
async fn after_a_fault_no_event_wakes_before_its_computing_is_waited_off() {
    let caller = at_once([
        found(Some(1000), &["usb"]),
        faulted(Duration::from_secs(2)),
        found(None, &[]),
    ]);
    let (session, events) = subscribed(&caller);
    let mut reports = run(session);
    reports.recv().await;
    let report = reports.recv().await.unwrap();
    assert_eq!(report.call.next, Some(Duration::from_secs(200)));
    pass(Duration::from_secs(5)).await;
    events.send(event("usb", None)).unwrap();
    reports.recv().await;
    assert_eq!(caller.calls()[2], (201_000, vec!["udev", "timer"]));
}

#[tokio::test(start_paused = true)]
async fn backoff_ends_at_five_minutes_and_begins_anew_after_an_answer() {
    let faults = std::iter::repeat_n(faulted(Duration::ZERO), 12);
    let answers = faults.chain([found(Some(1000), &[]), faulted(Duration::ZERO)]);
    let caller = at_once(answers);
    let mut session = WakingSession::new(
        caller.clone(),
        Opening::First,
        Subscriptions::default(),
        Arc::default(),
    );
    let mut waits = Vec::new();
    for _ in 0..14 {
        waits.push(session.next().await.call.next.unwrap());
    }
    assert!(waits.iter().all(|wait| *wait <= Duration::from_mins(5)));
    assert!(waits[11] >= Duration::from_mins(4), "{waits:?}");
    assert_eq!(waits[13], Duration::from_secs(1));
}

#[tokio::test(start_paused = true)]
async fn wrong_details_are_not_tried_again() {
    let caller = at_once([called(Outcome::InvalidDetails(Vec::new()), None)]);
    let (mut session, events) = subscribed(&caller);
    assert_eq!(session.next().await.call.next, None);
    let heard = events.send(event("usb", None));
    assert!(heard.is_err(), "nobody listens any more");
    let never = tokio::time::timeout(Duration::from_hours(1000), session.next()).await;
    assert!(never.is_err());
    assert_eq!(caller.calls().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_dropped_wait_loses_no_report_and_makes_no_second_call() {
    let slow = Duration::from_secs(3);
    let caller = Scripted::new([(slow, found(None, &[]))]);
    let mut session = WakingSession::new(
        caller.clone(),
        Opening::First,
        Subscriptions::default(),
        Arc::default(),
    );
    for _ in 0..5 {
        let cut = tokio::time::timeout(Duration::from_millis(500), session.next()).await;
        assert!(cut.is_err());
    }
    let report = session.next().await;
    assert!(matches!(report.outcome, Outcome::Discovered(_)));
    assert_eq!(caller.calls().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn when_the_monitor_is_gone_the_clock_stands_in_for_it() {
    let answer = || found(None, &["usb"]);
    let caller = at_once([answer(), answer(), answer()]);
    let (mut session, events) = subscribed(&caller);
    session.next().await;
    let waited = tokio::time::timeout(Duration::from_secs(30), session.next()).await;
    assert!(waited.is_err());
    drop(events);
    let report = session.next().await;
    assert_eq!(report.call.events, ["timer"]);
    assert_eq!(report.call.next, Some(INSTEAD_OF_EVENTS));
    session.next().await;
    assert_eq!(
        caller.calls()[1..],
        [(90_000, vec!["timer"]), (150_000, vec!["timer"])]
    );
}

#[tokio::test(start_paused = true)]
async fn what_a_failed_call_was_told_is_told_again() {
    let slow = Duration::from_secs(1);
    let caller = Scripted::new([
        (slow, found(None, &["usb"])),
        (slow, unavailable()),
        (slow, found(None, &["usb"])),
    ]);
    let (session, events) = subscribed(&caller);
    let mut reports = run(session);
    pass(MILLI).await;
    for _ in 0..100 {
        events.send(event("usb", None)).unwrap();
    }
    for _ in 0..3 {
        reports.recv().await;
    }
    let ask = caller.last();
    assert_eq!(caller.calls().len(), 3);
    assert_eq!(caller.calls()[2].0, 3100, "one second after it failed");
    assert!(ask.events_lost);
    assert_eq!(ask.events.len(), 64);
}

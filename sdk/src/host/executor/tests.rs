use std::cell::{Cell, RefCell};
use std::future::{pending, ready};
use std::rc::Rc;
use std::time::Duration;

use crate::Host;
use crate::testing::FakeHost;

fn ms(milliseconds: u64) -> Duration {
    Duration::from_millis(milliseconds)
}

#[test]
fn futures_run_concurrently_and_outputs_keep_their_order() {
    let fake = FakeHost::new();
    let host = fake.host();
    let works = [30, 10, 20].map(|time| {
        let host = &host;
        async move {
            host.sleep(ms(time)).await;
            (time, fake_now(host))
        }
    });
    let outputs = host.block_on(host.all(3, works));
    assert_eq!(outputs, [(30, ms(30)), (10, ms(10)), (20, ms(20))]);
    assert_eq!(fake.now(), ms(30));
}

fn fake_now(host: &Host) -> Duration {
    host.imports.clock()
}

#[test]
fn at_most_the_allowed_number_of_futures_runs_and_no_more_are_created() {
    for (at_once, expected, ends) in [(0, 1, 1_000), (1, 1, 1_000), (16, 16, 70), (500, 100, 10)] {
        let fake = FakeHost::new();
        let host = fake.host();
        let under_way = Cell::new(0);
        let most = Cell::new(0);
        let made = Cell::new(0);
        let ended = Cell::new(0);
        let works = (0..100).map(|_| {
            made.set(made.get() + 1);
            assert!(made.get() - ended.get() <= expected);
            async {
                under_way.set(under_way.get() + 1);
                most.set(most.get().max(under_way.get()));
                host.sleep(ms(10)).await;
                under_way.set(under_way.get() - 1);
                ended.set(ended.get() + 1);
            }
        });
        assert_eq!(host.block_on(host.all(at_once, works)).len(), 100);
        assert_eq!(most.get(), expected);
        assert_eq!(fake.now(), ms(ends));
    }
}

#[test]
fn a_limit_drops_the_future_and_what_it_holds() {
    let fake = FakeHost::new();
    let host = fake.host();
    let held = Rc::new(());
    let work = |time| {
        let held = Rc::clone(&held);
        let host = &host;
        async move {
            host.sleep(ms(time)).await;
            drop(held);
            time
        }
    };
    assert_eq!(host.block_on(host.within(ms(10), work(20))), None);
    assert_eq!(Rc::strong_count(&held), 1);
    assert_eq!(fake.now(), ms(10));
    assert_eq!(host.block_on(host.within(ms(10), work(5))), Some(5));
    assert_eq!(fake.now(), ms(15));
    let at_once = host.within(Duration::ZERO, ready(1));
    assert_eq!(host.block_on(at_once), Some(1));
    let never = host.within(Duration::MAX, work(1));
    assert_eq!(host.block_on(never), Some(1));
}

#[test]
fn many_futures_under_a_limit_are_dropped_together() {
    let fake = FakeHost::new();
    let host = fake.host();
    let held = Rc::new(());
    let works = (0..500).map(|_| {
        let held = Rc::clone(&held);
        async move {
            pending::<()>().await;
            drop(held);
        }
    });
    let outputs = host.block_on(host.within(ms(10), host.all(64, works)));
    assert_eq!(outputs, None);
    assert_eq!(Rc::strong_count(&held), 1);
}

#[test]
fn a_future_is_polled_only_when_woken() {
    let fake = FakeHost::new();
    let host = fake.host();
    let polls = Cell::new(0_u32);
    let works = (1..=500).map(|time| {
        let mut sleep = Box::pin(host.sleep(ms(time)));
        let polls = &polls;
        std::future::poll_fn(move |context| {
            polls.set(polls.get() + 1);
            sleep.as_mut().poll(context)
        })
    });
    host.block_on(host.all(500, works));
    assert_eq!(polls.get(), 1_000);
}

#[test]
fn timers_with_the_same_end_complete_in_the_order_they_began() {
    let fake = FakeHost::new();
    let host = fake.host();
    let order = RefCell::new(Vec::new());
    let works = (0..5).map(|number| {
        let (host, order) = (&host, &order);
        async move {
            host.sleep(ms(10)).await;
            order.borrow_mut().push(number);
        }
    });
    host.block_on(host.all(5, works));
    assert_eq!(order.into_inner(), [0, 1, 2, 3, 4]);
}

#[test]
fn clock_ticks_and_waits_add_up() {
    let fake = FakeHost::new().tick(ms(5));
    let host = fake.host();
    assert_eq!(fake.now(), ms(5));
    assert_eq!(host.time_left(), ms(24_000 - 5));
    host.block_on(host.sleep(ms(100)));
    assert_eq!(fake.now(), ms(110));
    assert_eq!(host.elapsed(), ms(110));
    fake.pass(ms(23_885));
    assert!(!host.has_time());
}

#[test]
#[should_panic(expected = "can never happen")]
fn waiting_for_nothing_panics_with_a_message() {
    FakeHost::new().host().block_on(pending::<()>());
}

#[test]
fn a_future_may_block_on_another() {
    let fake = FakeHost::new();
    let host = fake.host();
    let outer = async {
        host.sleep(ms(1)).await;
        host.block_on(host.sleep(ms(5)));
        host.sleep(ms(1)).await;
    };
    host.block_on(outer);
    assert_eq!(fake.now(), ms(7));
}

use std::sync::Arc;

use leafhost_core::instance::Instance;

use super::*;
use crate::fixture::instance;

fn key(hash: &str) -> InstanceKey {
    instance("cams", hash, 1, &[]).key()
}

fn set() -> InstanceSet {
    let made = ["a", "b", "c", "d"].map(|hash| Arc::new(instance("cams", hash, 1, &[])));
    InstanceSet::read(made.map(|one: Arc<Instance>| (one.key(), one)).into())
}

/// Learns the results for some Instances: `+` written, `-` denied, `?` no answer, `!` no writes at all, `~` conflict, `x` gone.
fn learn(unwritable: &mut Unwritable, told: &str, is_trial: bool) -> Transition {
    let told: Vec<(InstanceKey, Written)> = told
        .split(' ')
        .map(|word| {
            let (hash, result) = word.split_at(1);
            let (message, key) = (format!("{hash} is odd"), key(hash));
            let result = match result {
                "+" => Ok(None),
                "-" => Err(StoreError::Denied {
                    key: key.clone(),
                    message,
                }),
                "?" => Err(StoreError::Unknown {
                    key: key.clone(),
                    message,
                }),
                "~" => Err(StoreError::Conflict { key: key.clone() }),
                "x" => Err(StoreError::Gone { key: key.clone() }),
                _ => Err(StoreError::Unavailable {
                    key: key.clone(),
                    message,
                    retry_after: None,
                }),
            };
            (key, result)
        })
        .collect();
    let (keys, results): (Vec<_>, Vec<_>) = told.into_iter().unzip();
    unwritable.learn(&keys, &results, is_trial, Instant::now())
}

/// Returns `all` or the hashes of the barred Instances.
fn barred(unwritable: &Unwritable) -> String {
    if unwritable.is_all() {
        return "all".to_owned();
    }
    let barred = unwritable.barred().iter();
    let hashes: Vec<&str> = barred
        .filter_map(|key| key.name.strip_prefix("cams-"))
        .collect();
    hashes.join("")
}

#[tokio::test(start_paused = true)]
async fn one_instance_is_barred_alone_and_all_only_when_two_fail_and_nothing_is_written_between() {
    for (steps, expected) in [
        (&["a-"][..], "a"),
        (&["a?"], "a"),
        (&["a-", "a-", "a?"], "a"),
        (&["a-", "c+", "b-"], "ab"),
        (&["a-", "b-"], "all"),
        (&["a- b-"], "all"),
        (&["a- b- c+"], "ab"),
        (&["a-", "b~", "b-"], "all"),
        (&["a!"], "all"),
        // A full disk still takes what fits.
        (&["a! b+"], "all"),
        (&["a!", "b+"], ""),
        (&["a-", "b-", "c+"], "ab"),
        // Instances that failed before prove nothing new.
        (&["a-", "c+", "b-", "c+", "a-", "b-"], "ab"),
        (&["a-", "a+"], ""),
        (&["a+ a-"], "a"),
        (&["a~"], ""),
        (&["a-", "ax"], ""),
    ] {
        let mut unwritable = Unwritable::default();
        for step in steps {
            learn(&mut unwritable, step, false);
        }
        assert_eq!(barred(&unwritable), expected, "{steps:?}");
        assert_eq!(
            unwritable.next().is_some(),
            !expected.is_empty(),
            "{steps:?}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn the_problem_names_the_instance_or_says_that_none_can_be_claimed() {
    let mut unwritable = Unwritable::default();
    assert_eq!(unwritable.problem(), None);
    assert_eq!(learn(&mut unwritable, "b-", false), Transition::Failed);
    let told = unwritable.problem().unwrap();
    assert_eq!(told.subject().to_string(), "Instance default/cams-b");
    assert_eq!(
        told.to_string(),
        "no free slot of Instance default/cams-b is offered until it can be written again: cannot write Instance default/cams-b: b is odd"
    );
    assert_eq!(learn(&mut unwritable, "b?", false), Transition::Unchanged);
    assert_eq!(learn(&mut unwritable, "d-", false), Transition::Failed);
    assert_eq!(unwritable.problem().unwrap().reason(), "SlotsNotClaimed");
    assert_eq!(learn(&mut unwritable, "a+", true), Transition::Recovered);
    let told = unwritable.problem().unwrap().to_string();
    assert!(told.contains("cams-b (and 1 more)"), "{told}");
}

/// Returns the Instances that are tried, each with the seconds since the start.
async fn tries(unwritable: &mut Unwritable, answer: &str, most: usize) -> Vec<(u64, String)> {
    let (set, begun) = (set(), Instant::now());
    let mut tried = Vec::new();
    while tried.len() < most
        && let Some(next) = unwritable.next()
    {
        tokio::time::sleep_until(next).await;
        for change in unwritable.trials(&set, set.instances.keys(), Instant::now()) {
            let hash = change.key().name.replace("cams-", "");
            learn(unwritable, &format!("{hash}{answer}"), true);
            tried.push((begun.elapsed().as_secs(), hash));
        }
    }
    tried
}

#[tokio::test(start_paused = true)]
async fn an_instance_is_tried_ever_more_seldom_and_the_store_by_one_that_did_not_fail() {
    let mut unwritable = Unwritable::default();
    learn(&mut unwritable, "a-", false);
    let tried = tries(&mut unwritable, "-", 12).await;
    assert!(tried.iter().all(|(_, hash)| hash == "a"), "{tried:?}");
    assert!((380..=430).contains(&tried[11].0), "{tried:?}");

    let mut unwritable = Unwritable::default();
    learn(&mut unwritable, "a- b-", false);
    assert_eq!(barred(&unwritable), "all");
    let tried = tries(&mut unwritable, "+", 1).await;
    assert!(["c", "d"].contains(&&*tried[0].1), "{tried:?}");
    assert_eq!(barred(&unwritable), "ab");
}

#[tokio::test(start_paused = true)]
async fn an_instance_whose_trials_alone_succeed_is_barred_ever_longer() {
    let mut unwritable = Unwritable::default();
    let begun = Instant::now();
    for _ in 0..10 {
        learn(&mut unwritable, "a-", false);
        assert_eq!(barred(&unwritable), "a");
        tries(&mut unwritable, "+", 1).await;
        assert_eq!(barred(&unwritable), "");
    }
    assert!(begun.elapsed().as_secs() > 150, "{:?}", begun.elapsed());
    // A successful write of it ends the failure.
    learn(&mut unwritable, "a+", false);
    learn(&mut unwritable, "a-", false);
    let begun = Instant::now();
    tries(&mut unwritable, "+", 1).await;
    assert!(begun.elapsed().as_secs() <= 1);
}

#[tokio::test(start_paused = true)]
async fn of_an_instance_that_is_gone_nothing_is_kept() {
    let mut unwritable = Unwritable::default();
    learn(&mut unwritable, "a-", false);
    let mut left = set();
    left.instances.remove(&key("a"));
    tokio::time::sleep(LONGEST_ALONE).await;
    let tried = unwritable.trials(&left, left.instances.keys(), Instant::now());
    assert_eq!((tried, unwritable.next()), (Vec::new(), None));
    let mut unwritable = Unwritable::default();
    learn(&mut unwritable, "a!", false);
    tokio::time::sleep(LONGEST).await;
    let nothing = InstanceSet::read(BTreeMap::new());
    let tried = unwritable.trials(&nothing, nothing.instances.keys(), Instant::now());
    assert_eq!((tried, unwritable.is_all()), (Vec::new(), false));
}

//! Guests that compute, wait, grow and end as they should not.

use anyhow::{Context as _, Result, ensure};

use leafhost_tests::wait::eventually;

use crate::yard::{Guest, Named, Yard};

const GRANTS: &str = "udev: {subsystems: [\"*\"]}\nnetwork: {interfaces: [lo]}\n";
/// How many handlers have sessions that sleep, and how many sessions each: more than all handlers together may call at once.
const SLEEPERS: usize = 5;
const SLEEPING: [&str; 5] = ["sleep", "poll", "nap", "sleep", "poll"];

/// How many quick calls come first: more than a handler needs to be trusted with a thread of the agent.
const QUICK: usize = 48;

/// What a fault is called, and what its message says.
fn named(reason: &'static str, words: &'static str) -> Named<'static> {
    Named { reason, words }
}

#[test]
fn a_guest_that_computes_for_ever_is_ended_and_delays_nobody() -> Result<()> {
    let mut yard = Yard::with(Guest::default(), GRANTS)?;
    let named = named("cpu_budget", "2 s");
    yard.suffer(&["loop", "udev", "interfaces"].map(|deed| (deed, named)))?;
    // They are called again and again, and a thread that nothing needs any more ends.
    eventually("guests give way", || {
        let threads = niceness(yard.home.pid()?)?;
        let (guests, own): (Vec<_>, Vec<_>) = threads.iter().partition(|(name, _)| name == "guest");
        let (_, agent) = own.first().context("no thread of the agent")?;
        ensure!(
            own.iter().all(|(_, nice)| nice == agent)
                && guests.len() > 1
                && guests.iter().all(|(_, nice)| *nice == agent + 5),
            "{threads:?}"
        );
        Ok(())
    })
}

/// The names of a process's threads, and how nice each is (`proc_pid_stat(5)`).
fn niceness(pid: u32) -> Result<Vec<(String, i32)>> {
    let mut threads = Vec::new();
    for thread in std::fs::read_dir(format!("/proc/{pid}/task"))? {
        // It may have ended.
        let Ok(stat) = std::fs::read_to_string(thread?.path().join("stat")) else {
            continue;
        };
        let (before, after) = stat.rsplit_once(')').context("no name")?;
        let (_, name) = before.split_once('(').context("no name")?;
        let nice = after.split_whitespace().nth(16).context("no nice")?;
        threads.push((name.to_owned(), nice.parse()?));
    }
    Ok(threads)
}

#[test]
fn a_guest_that_was_quick_for_long_and_computes_for_ever_delays_nobody_either() -> Result<()> {
    let mut yard = Yard::with(Guest::default(), GRANTS)?;
    for number in 0..QUICK {
        yard.configure(&format!("quick-{number}"), "hostile", "good")?;
    }
    yard.published("quick", QUICK)?;
    yard.suffer(&[("loop", named("cpu_budget", "2 s")); 8])
}

#[test]
fn a_guest_that_talks_for_ever_is_ended_and_delays_nobody() -> Result<()> {
    let mut yard = Yard::with(Guest::default(), GRANTS)?;
    let floods = [
        "log",
        "log-large",
        "stdout",
        "stderr",
        "stdout-endless",
        "stderr-endless",
        "explain",
        "explain-large",
    ];
    yard.suffer(&floods.map(|deed| (deed, named("cpu_budget", "2 s"))))?;
    let log = yard.home.log();
    let lines = log
        .lines()
        .filter(|line| line.contains("leafhost::guest"))
        .count();
    // Fifteen in ten seconds, for at most some minutes.
    assert!((1..=600).contains(&lines), "{lines} lines of the guest");
    let longest = log.lines().map(str::len).max();
    assert!(longest < Some(20_000), "a line of {longest:?} bytes");
    Ok(())
}

#[test]
fn guests_that_sleep_grow_and_end_hold_up_nobody() -> Result<()> {
    let mut yard = Yard::with(Guest::default(), GRANTS)?;
    let mut sessions = Vec::new();
    for handler in 0..SLEEPERS {
        let name = format!("sleeper-{handler}");
        let guest = Guest {
            name: &name,
            ..Guest::default()
        };
        yard.add(&name, guest.wasm()?, GRANTS)?;
        for (number, deed) in SLEEPING.iter().enumerate() {
            sessions.push(format!("{name}-{number}"));
            yard.configure(&format!("{name}-{number}"), &name, deed)?;
        }
    }
    let asleep = yard.published("sleeper", sessions.len())?;
    yard.suffer(&[
        ("memory", named("memory", "64 MiB")),
        ("deep", named("trap", "stack")),
        ("panic", named("trap", "the guest has had enough")),
        ("exit", named("exit", "status 1")),
        ("exit-well", named("exit", "status 0")),
        ("handles", named("host_resources", "handles")),
        ("poll-all", named("host_resources", "handles")),
        ("random", named("trap", "exceeds limit")),
    ])?;
    // Some have to wait for those before them.
    for session in sessions.iter().take(SLEEPING.len()) {
        yard.until_named(session, named("wall_timeout", "30 s"))?;
    }
    assert!(yard.published("sleeper", sessions.len())? == asleep);
    yard.neighbour_is_well()
}

/// A component of its own name, with these definitions, that describes itself so and does that when it is called again.
fn textual(definitions: &str, describe: &str, again: &str) -> Result<Vec<u8>> {
    let discover =
        format!("(if (i32.load8_u offset=72 (local.get 0)) (then {again})) (i32.const 256)");
    let mut text = include_str!("../../host/compile/tests/guests/frame.wat")
        .replace("@data@", definitions)
        .replace("@describe@", describe)
        .replace("@validate@", "(i32.const 128)")
        .replace("@discover@", &discover);
    for part in ["imports", "lowered", "core", "functions", "given"] {
        text = text.replace(&format!("@network-{part}@"), "");
    }
    Ok(wat::parse_str(text)?)
}

#[test]
fn a_guest_whose_tables_grow_is_ended() -> Result<()> {
    let yard = Yard::with(Guest::default(), GRANTS)?;
    let grow = "(drop (table.grow (ref.null func) (i32.const 200000))) unreachable";
    let bomb = textual("(table 1 funcref)", "(i32.const 64)", grow)?;
    yard.add("textual", bomb, "")?;
    yard.configure("bomb", "textual", "")?;
    let before = yard.published("bomb", 1)?;
    yard.until_named("bomb", named("memory", "100000 elements of tables"))?;
    assert!(yard.published("bomb", 1)? == before);
    yard.neighbour_is_well()
}

/// The name of a function in C++ whose parameters are each made of two of the one before: demangled, it is some hundred MiB.
fn doubling() -> String {
    let digits = ('1'..='9').chain('A'..='P');
    digits.fold("_Z1f1a1bIS_S_E".to_owned(), |name, digit| {
        format!("{name}S0_IS{digit}_S{digit}_E")
    })
}

#[test]
fn a_function_whose_name_would_be_exponentially_long_is_told_in_a_few_words_and_costs_nothing()
-> Result<()> {
    let yard = Yard::with(Guest::default(), GRANTS)?;
    let bomb = format!("(func $bomb (@name {:?}) unreachable)", doubling());
    let described = textual(&bomb, "(i32.const 64)", "(call $bomb)")?;
    yard.add("textual", described, "")?;
    yard.configure("bomb", "textual", "")?;
    let before = yard.published("bomb", 1)?;
    let told = "; in _Z1f1a1bIS_S_ES0_IS1_S1_E";
    yard.until_named("bomb", named("trap", told))?;
    // It does not even say who it is.
    let nameless = textual(&bomb, "(call $bomb) unreachable", "")?;
    yard.add("nameless", nameless, "")?;
    yard.tells(told)?;
    assert!(yard.published("bomb", 1)? == before);
    let peak = yard.peak_mib()?;
    ensure!(peak < 100, "the agent had {peak} MiB");
    yard.neighbour_is_well()
}

//! Guests that exceed their limits of CPU time, wall time and memory, or exit.

use anyhow::{Context as _, Result, ensure};

use leafhost_tests::wait::eventually;

use crate::fixture::{Fixture, Guest, Outcome};

const GRANTS: &str = "udev: {subsystems: [\"*\"]}\nnetwork: {interfaces: [lo]}\n";
/// Number of handlers with sleeping sessions, and the sleeping actions of each: more than all handlers together may call at once.
const SLEEPERS: usize = 5;
const SLEEPING: [&str; 5] = ["sleep", "poll", "nap", "sleep", "poll"];

/// Number of Configurations served normally before the guest starts to loop.
const QUICK: usize = 48;

/// Returns the outcome with this reason and these words.
fn named(reason: &'static str, words: &'static str) -> Outcome<'static> {
    Outcome { reason, words }
}

#[test]
fn an_endless_loop_is_stopped_and_delays_no_other_handler() -> Result<()> {
    let mut fixture = Fixture::with(Guest::default(), GRANTS)?;
    let named = named("cpu_budget", "2 s");
    fixture.misbehave(&["loop", "udev", "interfaces"].map(|action| (action, named)))?;
    // The calls repeat; a thread with nothing to do ends.
    eventually("guests give way", || {
        let threads = niceness(fixture.home.pid()?)?;
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

/// Returns name and nice value of each thread of a process (`proc_pid_stat(5)`).
fn niceness(pid: u32) -> Result<Vec<(String, i32)>> {
    let mut threads = Vec::new();
    for thread in std::fs::read_dir(format!("/proc/{pid}/task"))? {
        // The thread may have ended.
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
fn an_endless_loop_after_many_quick_calls_delays_no_other_handler() -> Result<()> {
    let mut fixture = Fixture::with(Guest::default(), GRANTS)?;
    for number in 0..QUICK {
        fixture.configure(&format!("quick-{number}"), "hostile", "good")?;
    }
    fixture.instances_of("quick", QUICK)?;
    fixture.misbehave(&[("loop", named("cpu_budget", "2 s")); 8])
}

#[test]
fn endless_output_is_stopped_and_delays_no_other_handler() -> Result<()> {
    let mut fixture = Fixture::with(Guest::default(), GRANTS)?;
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
    fixture.misbehave(&floods.map(|action| (action, named("cpu_budget", "2 s"))))?;
    let log = fixture.home.log();
    let lines = log
        .lines()
        .filter(|line| line.contains("leafhost::guest"))
        .count();
    // At most fifteen lines in ten seconds, for some minutes.
    assert!((1..=600).contains(&lines), "{lines} lines of the guest");
    let longest = log.lines().map(str::len).max();
    assert!(longest < Some(20_000), "a line of {longest:?} bytes");
    Ok(())
}

#[test]
fn guests_that_sleep_grow_or_exit_delay_no_other_handler() -> Result<()> {
    let mut fixture = Fixture::with(Guest::default(), GRANTS)?;
    let mut sessions = Vec::new();
    for handler in 0..SLEEPERS {
        let name = format!("sleeper-{handler}");
        let guest = Guest {
            name: &name,
            ..Guest::default()
        };
        fixture.add(&name, guest.wasm()?, GRANTS)?;
        for (number, action) in SLEEPING.iter().enumerate() {
            sessions.push(format!("{name}-{number}"));
            fixture.configure(&format!("{name}-{number}"), &name, action)?;
        }
    }
    let asleep = fixture.instances_of("sleeper", sessions.len())?;
    fixture.misbehave(&[
        ("memory", named("memory", "64 MiB")),
        ("deep", named("trap", "stack")),
        ("panic", named("trap", "the guest has had enough")),
        ("exit", named("exit", "status 1")),
        ("exit-well", named("exit", "status 0")),
        ("handles", named("host_resources", "handles")),
        ("poll-all", named("host_resources", "handles")),
        ("random", named("trap", "exceeds limit")),
    ])?;
    // Some calls wait for earlier ones.
    for session in sessions.iter().take(SLEEPING.len()) {
        fixture.until_session_shows(session, named("wall_timeout", "30 s"))?;
    }
    assert!(fixture.instances_of("sleeper", sessions.len())? == asleep);
    fixture.check_neighbour()
}

/// Returns a component with these definitions, `describe`, and an action for every call after the first.
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
fn a_guest_whose_tables_grow_is_stopped() -> Result<()> {
    let fixture = Fixture::with(Guest::default(), GRANTS)?;
    let grow = "(drop (table.grow (ref.null func) (i32.const 200000))) unreachable";
    let bomb = textual("(table 1 funcref)", "(i32.const 64)", grow)?;
    fixture.add("textual", bomb, "")?;
    fixture.configure("bomb", "textual", "")?;
    let before = fixture.instances_of("bomb", 1)?;
    fixture.until_session_shows("bomb", named("memory", "100000 elements of tables"))?;
    assert!(fixture.instances_of("bomb", 1)? == before);
    fixture.check_neighbour()
}

/// Returns a mangled C++ function name in which each parameter doubles the one before: demangled it has hundreds of MiB.
fn doubling() -> String {
    let digits = ('1'..='9').chain('A'..='P');
    digits.fold("_Z1f1a1bIS_S_E".to_owned(), |name, digit| {
        format!("{name}S0_IS{digit}_S{digit}_E")
    })
}

#[test]
fn a_function_name_that_demangles_exponentially_is_shown_mangled_and_costs_no_memory() -> Result<()>
{
    let fixture = Fixture::with(Guest::default(), GRANTS)?;
    let bomb = format!("(func $bomb (@name {:?}) unreachable)", doubling());
    let described = textual(&bomb, "(i32.const 64)", "(call $bomb)")?;
    fixture.add("textual", described, "")?;
    fixture.configure("bomb", "textual", "")?;
    let before = fixture.instances_of("bomb", 1)?;
    let reported = "; in _Z1f1a1bIS_S_ES0_IS1_S1_E";
    fixture.until_session_shows("bomb", named("trap", reported))?;
    // The same function fails in `describe`.
    let nameless = textual(&bomb, "(call $bomb) unreachable", "")?;
    fixture.add("nameless", nameless, "")?;
    fixture.until_reported(reported)?;
    assert!(fixture.instances_of("bomb", 1)? == before);
    let peak = fixture.peak_mib()?;
    ensure!(peak < 100, "the agent had {peak} MiB");
    fixture.check_neighbour()
}

//! One agent with a well-behaved neighbour handler and a hostile one.

use std::fs;
use std::sync::{Mutex, MutexGuard, PoisonError};

use anyhow::{Context, Result, ensure};
use leafhost_tests::agent::Home;
use leafhost_tests::program;
use leafhost_tests::wait::eventually;
use serde_json::Value;

mod checks;
pub use checks::native_code;

/// Number of Configurations that the neighbour serves.
const NEIGHBOURS: usize = 3;
/// Maximum delay of a neighbour's call: a bucket of `leafhost_handler_late_seconds`.
const LATE: &str = "0.05";

/// Lock for one agent at a time, because the tests measure lateness.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// Name of the guest, and its behaviour before it is asked for devices.
#[derive(Debug, Clone, Copy)]
pub struct Guest<'a> {
    pub name: &'a str,
    pub describe: &'a str,
    pub validate: &'a str,
}

impl Default for Guest<'_> {
    fn default() -> Self {
        Self {
            name: "hostile",
            describe: "good",
            validate: "good",
        }
    }
}

impl Guest<'_> {
    /// Returns the component.
    pub fn wasm(&self) -> Result<Vec<u8>> {
        let mut bytes = fs::read(program::guest("sandbox")?)?;
        for (mark, value) in [
            ("@name:", self.name),
            ("@describe:", self.describe),
            ("@validate:", self.validate),
        ] {
            let at = bytes
                .windows(mark.len())
                .position(|at| at == mark.as_bytes())
                .with_context(|| format!("{mark} is not in the component"))?;
            let place = bytes
                .get_mut(at..at + 24)
                .context("the component is cut off")?;
            let text = format!("{:_<24}", format!("{mark}{value}"));
            ensure!(text.len() == 24, "{value} is too long");
            place.copy_from_slice(text.as_bytes());
        }
        Ok(bytes)
    }
}

/// Returns a Configuration of a handler.
pub fn configuration(name: &str, handler: &str, details: &str) -> String {
    let details = serde_json::Value::from(details);
    format!(
        "apiVersion: akri.sh/v0\nkind: Configuration\nmetadata: {{name: {name}}}\nspec:\n  \
         discoveryHandler: {{name: {handler}, discoveryDetails: {details}}}\n"
    )
}

/// Results of a call that are not faults.
const RESULTS: [&str; 4] = ["\"ok\"", "\"partial\"", "unavailable", "invalid-details"];

/// Expected outcome of a misbehaviour.
#[derive(Debug, Clone, Copy)]
pub struct Outcome<'a> {
    /// Reason of the fault, as in `leafhost_handler_faults_total`, or one of [`RESULTS`].
    pub reason: &'a str,
    /// Text that the session's status must contain.
    pub words: &'a str,
}

/// Total calls of the neighbour, its calls in time, and the hostile handler's Instances.
type Before = ((f64, f64), Vec<Value>);

/// Agent with a running neighbour.
pub struct Fixture {
    pub home: Home,
    /// Instances of the neighbour.
    before: Vec<Value>,
    /// Number of Configurations of the hostile handler.
    hostile_configurations: usize,
    _alone: MutexGuard<'static, ()>,
}

impl Fixture {
    /// Starts the agent with a hostile handler that has these grants.
    pub fn with(guest: Guest<'_>, grants: &str) -> Result<Self> {
        let alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
        let mut home = Home::new()?;
        let neighbour = Guest {
            name: "neighbour",
            ..Guest::default()
        };
        let both = "udev: {subsystems: [\"*\"]}\nnetwork: {interfaces: [lo]}\n";
        home.write("handlers/neighbour.grants.yaml", both)?;
        home.write("handlers/neighbour.wasm", neighbour.wasm()?)?;
        home.write("handlers/hostile.grants.yaml", grants)?;
        home.write("handlers/hostile.wasm", guest.wasm()?)?;
        for number in 0..NEIGHBOURS {
            let name = format!("neighbour-{number}");
            let text = configuration(&name, "neighbour", "good");
            home.write(&format!("configurations/{name}.yaml"), text)?;
        }
        home.start(&[])?;
        let before = home.instances(NEIGHBOURS)?;
        Ok(Self {
            home,
            before,
            hostile_configurations: 0,
            _alone: alone,
        })
    }

    /// Adds a handler.
    pub fn add(&self, source: &str, wasm: impl AsRef<[u8]>, grants: &str) -> Result<()> {
        self.home
            .write(&format!("handlers/{source}.grants.yaml"), grants)?;
        self.home.write(&format!("handlers/{source}.wasm"), wasm)
    }

    /// Adds a Configuration.
    pub fn configure(&self, name: &str, handler: &str, details: &str) -> Result<()> {
        let text = configuration(name, handler, details);
        self.home
            .write(&format!("configurations/{name}.yaml"), text)
    }

    /// Waits until the session of a Configuration shows the outcome.
    pub fn until_session_shows(&self, name: &str, named: Outcome<'_>) -> Result<()> {
        let what = format!("{name}: {} {}", named.reason, named.words);
        let is_named = |status: &Value| {
            let session = session(status, name).to_string();
            session.contains(named.reason) && session.contains(named.words)
        };
        self.home.until(&what, is_named).map(drop)
    }

    /// Checks that the neighbour's Instances are unchanged.
    pub fn check_neighbour(&self) -> Result<()> {
        let stayed = self.instances_of("neighbour", NEIGHBOURS)? == self.before;
        ensure!(stayed, "the neighbour's devices are others");
        Ok(())
    }

    /// Returns the value of a metrics series, 0 if it is missing.
    pub fn metric(&self, series: &str) -> Result<f64> {
        let text = self.home.get("/metrics")?;
        let value = text
            .lines()
            .find_map(|line| line.strip_prefix(series)?.trim().parse().ok());
        Ok(value.unwrap_or(0.0))
    }

    /// Returns the number of the neighbour's calls so far, and of those that started in time.
    fn calls(&self) -> Result<(f64, f64)> {
        let series = |what: &str, le: &str| {
            format!("leafhost_handler_late_seconds_{what}{{{le}handler=\"neighbour\"}}")
        };
        let le = format!("le=\"{LATE}\",");
        Ok((
            self.metric(&series("count", ""))?,
            self.metric(&series("bucket", &le))?,
        ))
    }

    /// Runs all `actions` at the same time, each in a Configuration of its own that has a device first. Waits until
    /// every outcome is reported, then checks that nothing else is affected.
    pub fn misbehave(&mut self, actions: &[(&str, Outcome<'_>)]) -> Result<()> {
        self.retry_until_in_time(|fixture| fixture.misbehave_once(actions))
    }

    /// Gives the hostile handler `count` Configurations in one file and checks that nothing else is affected.
    pub fn serve_many(&mut self, count: usize) -> Result<()> {
        let one = |number| configuration(&format!("hostile-{number}"), "hostile", "good");
        let documents: Vec<String> = (0..count).map(one).collect();
        self.home
            .write("configurations/many.yaml", documents.join("---\n"))?;
        self.hostile_configurations = count;
        let mine = self.instances_of("hostile", count)?;
        self.retry_until_in_time(|fixture| Ok((fixture.calls()?, mine.clone())))
    }

    /// Runs `act` until the neighbour was called in time throughout, at most three times: a machine that is busy
    /// elsewhere delays calls as well. `act` returns the neighbour's calls before, and the hostile handler's Instances
    /// that must stay.
    fn retry_until_in_time(
        &mut self,
        mut act: impl FnMut(&mut Self) -> Result<Before>,
    ) -> Result<()> {
        let mut tries = 0;
        loop {
            let ((calls_before, in_time_before), mine) = act(self)?;
            eventually("the neighbour is called on", || {
                let (calls, _) = self.calls()?;
                ensure!(calls >= calls_before + 6.0, "{calls} calls");
                Ok(())
            })?;
            let (calls, in_time) = self.calls()?;
            self.check_neighbour()?;
            let now = self.instances_of("hostile", self.hostile_configurations)?;
            let stayed = mine.iter().all(|instance| now.contains(instance));
            ensure!(stayed, "the hostile handler's devices are others");
            let late = (calls - calls_before) - (in_time - in_time_before);
            if late <= 0.0 {
                return Ok(());
            }
            tries += 1;
            ensure!(
                tries < 3,
                "{late} of the neighbour's calls began more than {LATE} s late"
            );
        }
    }

    fn misbehave_once(&mut self, actions: &[(&str, Outcome<'_>)]) -> Result<Before> {
        // Earlier Configurations stay and still fail now and then, which must not matter either.
        let first = self.hostile_configurations;
        self.hostile_configurations += actions.len();
        for (number, (details, _)) in actions.iter().enumerate() {
            let name = format!("hostile-{}", first + number);
            self.configure(&name, "hostile", details)?;
        }
        let mine = self.instances_of("hostile", self.hostile_configurations)?;
        let before = self.calls()?;
        for (number, (details, named)) in actions.iter().enumerate() {
            let name = format!("hostile-{}", first + number);
            self.until_session_shows(&name, *named)
                .with_context(|| (*details).to_owned())?;
            if RESULTS.contains(&named.reason) {
                continue;
            }
            let series = format!(
                "leafhost_handler_faults_total{{handler=\"hostile\",reason=\"{}\"}}",
                named.reason
            );
            ensure!(self.metric(&series)? >= 1.0, "{details} is not counted");
        }
        Ok((before, mine))
    }

    /// Waits until the Configurations with this prefix have `count` Instances and returns them.
    pub fn instances_of(&self, configuration: &str, count: usize) -> Result<Vec<Value>> {
        eventually(&format!("{count} Instances of {configuration}"), || {
            let status = self.home.status()?;
            let all = status.get("instances").and_then(Value::as_array);
            let found: Vec<Value> = all
                .into_iter()
                .flatten()
                .filter(|instance| {
                    instance
                        .pointer("/spec/configurationName")
                        .and_then(Value::as_str)
                        .is_some_and(|name| name.starts_with(configuration))
                })
                .cloned()
                .collect();
            ensure!(found.len() == count, "{} of them, {status:#}", found.len());
            Ok(found)
        })
        .with_context(|| self.home.log())
    }
}

/// Returns the status of a Configuration.
pub fn session<'a>(status: &'a Value, configuration: &str) -> &'a Value {
    let all = status.get("configurations").and_then(Value::as_array);
    all.into_iter()
        .flatten()
        .find(|one| {
            one.get("name")
                .and_then(Value::as_str)
                .is_some_and(|name| name.ends_with(configuration))
        })
        .unwrap_or(&Value::Null)
}

//! `leafhost:udev`: the devices of the node. Needs the grant `udev`, which lists the subsystems.
//!
//! Every call is one blocking task, whose CPU time counts as the guest's. The task runs to its end even if the guest ends before it. A task
//! that a driver does not answer never ends, so a handler may run only a few at once.

use std::sync::Arc;
use std::time::Duration;

use leafhost_core::text::{chain, clean};
use leafhost_udev::{Field, Rule, Subsystems, Term};

use super::{CallState, Capabilities};
use crate::bindings::leafhost::udev::{devices, types};
use crate::record::Record;
use crate::threads::{BlockingQuota, MORE_THREADS};
use crate::timeouts::SYSFS_ANSWER;

/// Maximum number of rules per query.
pub(crate) const MAX_RULES: usize = 64;
/// Maximum number of terms in all rules of a query and in all wakes of an answer: each holds up to 128 KiB of the host's memory.
pub(crate) const MAX_TERMS: usize = 256;
/// Maximum number of attributes per read, and of device nodes whose owners are asked for.
const MAX_READS: usize = 4096;
/// Maximum size of all names in one read, or of all device nodes whose owners are asked for, in bytes.
const MAX_NAMES: usize = 1 << 20;

pub(crate) struct UdevState {
    allowed: Result<Arc<Subsystems>, &'static str>,
    blocking: BlockingQuota,
    answering: Duration,
    record: Arc<Record>,
}

impl UdevState {
    pub(super) fn new(capabilities: &Capabilities, record: Arc<Record>) -> Self {
        Self {
            allowed: capabilities.udev.clone(),
            blocking: capabilities.blocking.clone(),
            answering: SYSFS_ANSWER,
            record,
        }
    }

    fn allowed(&self, asked: &str) -> Result<Arc<Subsystems>, devices::Error> {
        self.allowed.clone().map_err(|reason| {
            self.record.deny(asked);
            devices::Error::Unavailable(reason.to_owned())
        })
    }

    /// Runs `work` where blocking is allowed, and waits for it up to a timeout.
    async fn look<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> Result<T, devices::Error> + Send + 'static,
    ) -> Result<T, devices::Error> {
        let meter = self.record.cpu.clone();
        let work = move || meter.bill(work);
        let why = match tokio::time::timeout(self.answering, self.blocking.run(work)).await {
            Ok(Ok(done)) => return done,
            Ok(Err(why)) => why,
            Err(_) => format!(
                "/sys did not answer within {} s: a driver may hang, now or since an earlier read; or no thread is free: {MORE_THREADS}",
                self.answering.as_secs()
            ),
        };
        Err(devices::Error::Unavailable(clean(&why, 1024)))
    }

    /// Records subsystems that a rule names and that are not granted: their devices do not appear, and an operator should learn why.
    fn note_denied(&self, rules: &[types::Rule], allowed: &Subsystems) {
        for term in rules.iter().flatten() {
            let named = matches!(term.field, types::Field::Subsystem) && !term.negated;
            let plain = !term.value.contains(['*', '?', '[', '|', '(', '.', '\\']);
            if named && plain && !allowed.allows(Some(&term.value)) {
                self.record
                    .deny(&format!("udev subsystem {:?}", term.value));
            }
        }
    }

    async fn find(&self, rules: Vec<types::Rule>) -> Result<Vec<devices::Device>, devices::Error> {
        let allowed = self.allowed("udev.find")?;
        self.note_denied(&rules, &allowed);
        // Compiles the patterns on that thread, too, because that takes time.
        let find = move || {
            let rules = host_rules(rules).map_err(devices::Error::InvalidRule)?;
            leafhost_udev::find(&rules, &allowed).map_err(|error| unavailable(&error))
        };
        let found = self.look(find).await?;
        for note in &found.notes {
            self.record.explain(&note.subject, &note.rule, &note.reason);
        }
        let mut kept = self.record.kept();
        kept.explained_dropped += found.notes_dropped;
        let nodes = found
            .devices
            .iter()
            .filter_map(|device| device.devnode.clone());
        kept.nodes.extend(nodes);
        Ok(found.devices.into_iter().map(guest_device).collect())
    }

    async fn read(
        &self,
        attributes: Vec<(String, String)>,
    ) -> Result<Vec<Option<String>>, devices::Error> {
        let allowed = self.allowed("udev.read")?;
        let names: usize = attributes
            .iter()
            .map(|(path, name)| path.len() + name.len())
            .sum();
        bound("attributes", attributes.len(), names)?;
        let read =
            move || leafhost_udev::read(&attributes, &allowed).map_err(|error| unavailable(&error));
        self.look(read).await
    }

    /// Returns the owners of device nodes; `None` for a node of a device that this call has not found, because it may not be granted.
    async fn owners(
        &self,
        devnodes: Vec<String>,
    ) -> Result<Vec<Option<devices::Owner>>, devices::Error> {
        self.allowed("udev.owners")?;
        let names: usize = devnodes.iter().map(String::len).sum();
        bound("owners of nodes", devnodes.len(), names)?;
        let found: Vec<Option<String>> = {
            let kept = self.record.kept();
            let is_found = |node: String| kept.nodes.contains(&node).then_some(node);
            devnodes.into_iter().map(is_found).collect()
        };
        let owner = |node: Option<String>| {
            let leafhost_udev::Owner { user, group } = leafhost_udev::owner(&node?)?;
            Some(devices::Owner { user, group })
        };
        self.look(move || Ok(found.into_iter().map(owner).collect()))
            .await
    }
}

impl types::Host for CallState {}

impl devices::Host for CallState {
    async fn find(
        &mut self,
        rules: Vec<types::Rule>,
    ) -> wasmtime::Result<Result<Vec<devices::Device>, devices::Error>> {
        Ok(self.udev.find(rules).await)
    }

    async fn read(
        &mut self,
        attributes: Vec<(String, String)>,
    ) -> wasmtime::Result<Result<Vec<Option<String>>, devices::Error>> {
        Ok(self.udev.read(attributes).await)
    }

    async fn owners(
        &mut self,
        devnodes: Vec<String>,
    ) -> wasmtime::Result<Result<Vec<Option<devices::Owner>>, devices::Error>> {
        Ok(self.udev.owners(devnodes).await)
    }
}

/// Refuses to read more than [`MAX_READS`] things, or with more than [`MAX_NAMES`] bytes of names.
fn bound(what: &str, count: usize, names: usize) -> Result<(), devices::Error> {
    if count > MAX_READS || names > MAX_NAMES {
        return Err(devices::Error::InvalidRule(format!(
            "asks for {count} {what}, at most {MAX_READS} with names of at most {MAX_NAMES} bytes in all"
        )));
    }
    Ok(())
}

fn unavailable(error: &dyn std::error::Error) -> devices::Error {
    devices::Error::Unavailable(clean(&chain(error), 1024))
}

/// Converts the guest's rules, or returns which rule is invalid and why.
pub(crate) fn host_rules(rules: Vec<types::Rule>) -> Result<Vec<Rule>, String> {
    if rules.len() > MAX_RULES {
        return Err(format!("{} rules, at most {MAX_RULES}", rules.len()));
    }
    let terms: usize = rules.iter().map(Vec::len).sum();
    if terms > MAX_TERMS {
        return Err(format!("{terms} terms in all rules, at most {MAX_TERMS}"));
    }
    rules
        .into_iter()
        .enumerate()
        .map(|(index, rule)| host_rule(rule).map_err(|error| format!("rule {index}: {error}")))
        .collect()
}

/// Converts the guest's rule, or returns why it is invalid.
pub(crate) fn host_rule(rule: types::Rule) -> Result<Rule, leafhost_udev::InvalidRule> {
    Rule::new(rule.into_iter().map(host_term).collect())
}

fn host_term(term: types::Term) -> Term {
    let field = match term.field {
        types::Field::Attr => Field::Attr,
        types::Field::Attrs => Field::Attrs,
        types::Field::Devpath => Field::Devpath,
        types::Field::Driver => Field::Driver,
        types::Field::Drivers => Field::Drivers,
        types::Field::Kernel => Field::Kernel,
        types::Field::Kernels => Field::Kernels,
        types::Field::Env => Field::Env,
        types::Field::Subsystem => Field::Subsystem,
        types::Field::Subsystems => Field::Subsystems,
        types::Field::Tag => Field::Tag,
        types::Field::Tags => Field::Tags,
    };
    Term {
        field,
        key: term.key,
        negated: term.negated,
        value: term.value,
    }
}

fn guest_device(device: leafhost_udev::Device) -> devices::Device {
    devices::Device {
        devpath: device.devpath,
        parent: device.parent,
        kernel: device.kernel,
        subsystem: device.subsystem,
        driver: device.driver,
        devnode: device.devnode,
        properties: device.properties.into_iter().collect(),
        tags: device.tags.into_iter().collect(),
        rules: device.rules,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::threads::Threads;

    fn state() -> UdevState {
        let capabilities = Capabilities {
            udev: Ok(Arc::new(Subsystems::new(["*"]))),
            blocking: BlockingQuota::new(&Arc::new(Threads::of_the_test()), 1),
            network: Err(String::new()),
            names: leafhost_net::http::Names::default(),
        };
        UdevState::new(&capabilities, Arc::new(Record::default()))
    }

    fn term() -> types::Term {
        types::Term {
            field: types::Field::Kernel,
            key: None,
            negated: false,
            value: "*".to_owned(),
        }
    }

    #[tokio::test]
    async fn what_the_host_computes_for_a_guest_is_the_guests() {
        let state = state();
        let _ = state.find(vec![vec![term()]]).await;
        let found = state.record.cpu.used();
        assert!(found > std::time::Duration::ZERO);
        let asked = vec![("/devices/virtual/mem/null".to_owned(), "dev".to_owned()); 100];
        let _ = state.read(asked).await;
        assert!(state.record.cpu.used() > found);
    }

    #[tokio::test]
    async fn a_look_that_is_not_answered_is_given_up_and_no_other_is_lost_beside_it() {
        let mut state = state();
        state.answering = Duration::from_millis(100);
        let (answer, answered) = std::sync::mpsc::channel::<()>();
        let hangs = move || {
            let _ = answered.recv();
            Ok(1)
        };
        for work in [
            Box::new(hangs) as Box<dyn FnOnce() -> _ + Send>,
            Box::new(|| Ok(2)),
        ] {
            let Err(devices::Error::Unavailable(message)) = state.look(work).await else {
                panic!("it was answered");
            };
            assert!(message.contains("a driver may hang"), "{message}");
        }
        // A driver that answers after all returns the permit.
        drop(answer);
        state.answering = Duration::from_secs(20);
        assert!(matches!(state.look(|| Ok(3)).await, Ok(3)));
    }

    #[test]
    fn a_look_for_which_no_thread_is_to_be_had_says_so() {
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = runtime.max_blocking_threads(1).enable_time().build();
        let runtime = runtime.unwrap();
        let (end, ended) = std::sync::mpsc::channel::<()>();
        runtime.spawn_blocking(move || ended.recv());
        let looked = runtime.block_on(async {
            let mut state = state();
            state.answering = Duration::from_millis(100);
            state.look(|| Ok(())).await
        });
        drop(end);
        let Err(devices::Error::Unavailable(message)) = looked else {
            panic!("it was answered");
        };
        assert!(message.contains("no thread is free"), "{message}");
        assert!(message.contains("TasksMax"), "{message}");
    }

    #[tokio::test]
    async fn owners_are_those_of_nodes_that_the_call_has_found() {
        let state = state();
        let null = "/dev/null".to_owned();
        let asked = vec![
            null.clone(),
            "/etc/passwd".to_owned(),
            "/dev/zero".to_owned(),
        ];
        let answer = state.owners(asked.clone()).await.unwrap();
        assert!(answer.iter().all(Option::is_none), "{answer:?}");
        state.record.kept().nodes.insert(null);
        let answer = state.owners(asked).await.unwrap();
        let known: Vec<bool> = answer.iter().map(Option::is_some).collect();
        assert_eq!(known, [true, false, false]);
        let many = state.owners(vec![String::new(); MAX_READS + 1]).await;
        assert!(matches!(many, Err(devices::Error::InvalidRule(_))));
    }

    #[tokio::test]
    async fn rules_are_bounded_together() {
        for (rules, terms, words) in [
            (65, 1, "65 rules, at most 64"),
            (64, 5, "320 terms in all rules, at most 256"),
            (1, 33, "rule 0: a rule has 33 terms"),
        ] {
            let rules = vec![vec![term(); terms]; rules];
            let answer = state().find(rules).await;
            let Err(devices::Error::InvalidRule(message)) = answer else {
                panic!("{words}: {answer:?}");
            };
            assert!(message.contains(words), "{message}");
        }
    }
}

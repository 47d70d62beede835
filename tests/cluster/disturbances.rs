//! Disturbances of a crowd: agents, kubelets, controllers, extenders, schedulers, API servers and etcd end, nodes are cut off or created again, and
//! Configurations change.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use leafhost_tests::cluster::{Cluster, Namespace, Node};
use leafhost_tests::random::Random;
use leafhost_tests::scheduling::{Scheduling, wait};
use leafhost_tests::wait::within;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tempfile::NamedTempFile;

use crate::controller::Controller;
use crate::crowd::Crowd;
use crate::device::Site;

/// Upper bound for an outage of the API server or of a node.
pub const OUTAGE: Duration = Duration::from_mins(3);
/// Number of disturbances after which pods and Instances must agree.
const EVENTS: usize = 3;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Disturbance {
    AgentKilled,
    AgentStopped,
    KubeletKilled,
    /// A node is disconnected for 5 to 15 seconds.
    CutOff,
    NodeMadeAgain,
    ControllerKilled,
    ExtenderKilled,
    /// The API server is killed, and with it the kube-scheduler that asks the extender, if there is one.
    ServerKilled,
    EtcdKilled,
    /// The Configuration changes as [`Disturbed::change`] says.
    Changed,
}

/// End of the disturbances.
#[derive(Debug, Clone, Copy)]
pub enum Lasting {
    /// After this time, when each disturbance has happened as often as the others.
    Time(Duration),
    /// After this number of disturbances.
    Events(usize),
    /// After the start of the last pod of the crowd.
    Pods,
}

/// Function that changes a Configuration.
pub type Change<'d> = dyn FnMut(&mut Random) -> Result<()> + 'd;

/// Processes and objects that disturbances affect.
pub struct Disturbed<'d> {
    pub cluster: &'static Cluster,
    pub sites: &'d mut [Site],
    /// Arguments of the agents.
    pub agent: &'d [&'d str],
    pub controllers: Option<Controllers>,
    pub scheduling: Option<&'d mut Scheduling>,
    pub change: Option<&'d mut Change<'d>>,
    /// Configurations of which each node must offer slots whenever pods and Instances must agree. Without them they need not.
    pub offered: &'d [&'d str],
    pub random: Random,
    /// Shortest pause before a disturbance and the difference to the longest, in milliseconds.
    pub pause: (u64, u64),
    /// Longest absence of a process or of a Node object, in milliseconds.
    pub down: u64,
}

impl Disturbed<'_> {
    /// Causes all these disturbances in random order, again and again.
    pub fn go_on(
        &mut self,
        all: &[Disturbance],
        lasting: Lasting,
        crowd: &Crowd<'_>,
    ) -> Result<()> {
        let begun = Instant::now();
        let mut happened: BTreeMap<Disturbance, usize> = BTreeMap::new();
        let mut left = Vec::new();
        for count in 0.. {
            let is_over = match lasting {
                Lasting::Time(lasting) => left.is_empty() && begun.elapsed() >= lasting,
                Lasting::Events(most) => count >= most,
                Lasting::Pods => !crowd.has_more(),
            };
            if is_over {
                break;
            }
            if left.is_empty() {
                left = all.to_vec();
            }
            self.wait();
            ensure!(
                !crowd.has_gone_wrong(),
                "a pod has gone wrong after {happened:?}"
            );
            let place = self.random.below(u64::try_from(left.len())?);
            let event = left.remove(usize::try_from(place)?);
            println!("{event:?}");
            self.happen(event)
                .with_context(|| format!("after {event:?}"))?;
            *happened.entry(event).or_default() += 1;
            if !self.offered.is_empty() && (count + 1) % EVENTS == 0 {
                self.wait();
                crowd
                    .agree(|| self.offer())
                    .with_context(|| format!("{happened:?} happened"))?;
            }
        }
        println!("{happened:?}");
        Ok(())
    }

    fn wait(&mut self) {
        let (least, more) = self.pause;
        wait(Duration::from_millis(least + self.random.below(more)));
    }

    fn happen(&mut self, event: Disturbance) -> Result<()> {
        let some = usize::try_from(self.random.below(2))?;
        let down = Duration::from_millis(self.random.below(self.down));
        let (cluster, random) = (self.cluster, &mut self.random);
        let site = self.sites.get_mut(some).context("no such node")?;
        match event {
            Disturbance::AgentKilled | Disturbance::AgentStopped => {
                let signal = match event {
                    Disturbance::AgentStopped => Signal::SIGTERM,
                    _ => Signal::SIGKILL,
                };
                site.home.stop(signal)?;
                wait(down);
                site.home.start(self.agent)
            }
            Disturbance::KubeletKilled => {
                site.node.stop_kubelet(Signal::SIGKILL)?;
                wait(down);
                site.node.start_kubelet()?;
                site.node.wait_ready()
            }
            Disturbance::CutOff => {
                site.node.connect(false)?;
                wait(Duration::from_millis(5000 + random.below(10_000)));
                site.node.connect(true)
            }
            Disturbance::NodeMadeAgain => {
                let path = format!("/api/v1/nodes/{}", site.node.name());
                cluster.api().delete(&path)?;
                wait(down);
                site.node.restart_kubelet()
            }
            Disturbance::ControllerKilled => {
                let controllers = self.controllers.as_mut();
                controllers.context("no controller")?.replace(cluster)
            }
            Disturbance::ExtenderKilled => {
                let scheduling = self.scheduling.as_mut();
                scheduling.context("no extender")?.replace_extender(down)
            }
            Disturbance::ServerKilled | Disturbance::EtcdKilled => {
                cluster.server().kill()?;
                if event == Disturbance::EtcdKilled {
                    cluster.etcd().kill()?;
                }
                wait(down);
                if event == Disturbance::EtcdKilled {
                    cluster.etcd().start_again()?;
                }
                cluster.server().start_again()?;
                cluster.wait_served()?;
                match &mut self.scheduling {
                    // After some such kills its watches would wait for up to a minute, and no pod would be scheduled until then.
                    Some(scheduling) => scheduling.replace_kube_scheduler(),
                    None => Ok(()),
                }
            }
            Disturbance::Changed => (self.change.as_mut().context("no change")?)(random),
        }
    }

    /// Waits until all nodes offer slots of all Configurations.
    fn offer(&self) -> Result<()> {
        let begun = Instant::now();
        for site in &*self.sites {
            for name in self.offered {
                let resource = format!("akri.sh/{name}");
                within(OUTAGE, "the node offers slots", || {
                    let (_, allocatable) = site.amounts(&resource)?;
                    ensure!(allocatable > 0, "{} has no {resource}", site.node.name());
                    Ok(())
                })?;
            }
        }
        println!("all nodes offer slots after {:?}", begun.elapsed());
        Ok(())
    }
}

/// Controller with all rights, which may be replaced by another one.
pub struct Controllers {
    log: NamedTempFile,
    now: Option<Controller>,
}

impl Controllers {
    /// Starts a controller; failures in the namespace show its log.
    pub fn start(cluster: &Cluster, space: &Namespace<'_>) -> Result<Self> {
        let log = NamedTempFile::new()?;
        space.show_log(log.path());
        let mut controllers = Self { log, now: None };
        controllers.replace(cluster)?;
        Ok(controllers)
    }

    /// Kills the controller and starts another one.
    fn replace(&mut self, cluster: &Cluster) -> Result<()> {
        self.now = None;
        let next = Controller::start_as(cluster.kubeconfig(), "kube-system", &self.log)?;
        self.now = Some(next);
        Ok(())
    }
}

/// Process that is stopped until this is dropped.
pub struct Paused(Pid);

impl Paused {
    /// Stops the kubelet of a node.
    pub fn new(node: &Node) -> Result<Self> {
        Self::stop(node.kubelet_pid()?)
    }

    /// Stops a process.
    pub fn stop(pid: u32) -> Result<Self> {
        let pid = Pid::from_raw(i32::try_from(pid)?);
        kill(pid, Signal::SIGSTOP).context("cannot pause a process")?;
        Ok(Self(pid))
    }

    /// Lets it go on; fails if it has ended.
    pub fn end(self) -> Result<()> {
        kill(self.0, Signal::SIGCONT).context("cannot resume a process")
    }
}

impl Drop for Paused {
    fn drop(&mut self) {
        if let Err(error) = kill(self.0, Signal::SIGCONT) {
            eprintln!("process {} stands still: {error}", self.0);
        }
    }
}

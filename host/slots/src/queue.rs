//! Queues of the kubelet's Allocate calls: for the slot task, and for tickets.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use leafhost_core::device_id::{DeviceId, resource_name};
use leafhost_core::node_order::{first, place};
use leafhost_core::ports::InstanceSet;
use leafhost_core::scheduling::DEVICES;
use leafhost_kubelet::{Allocation, Allocator, Health, Offers, Refusal, ResourceName};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::{Instant, timeout};

use super::report::SlotReport;

/// Capacity of the queue; the kubelet admits pods one after the other.
const QUEUE: usize = 64;
/// Time limit of a decision, after which the allocation is refused: the kubelet itself has no time limit. A write that begins within
/// `OUTAGE` still ends within this time. Shorter than the endpoint's limit, whose error says less.
const ALLOCATE: Duration = Duration::from_secs(15);
/// Time limit of an Allocate for tickets.
const ALLOCATE_TICKETS: Duration = Duration::from_secs(9);
/// Time during which an allocation may wait and be retried. The kubelet starts no other pod during this time.
pub(super) const AGAIN: Duration = Duration::from_secs(5);
/// Same as `AGAIN`, while the store cannot be reached.
pub(super) const OUTAGE: Duration = Duration::from_secs(10);
/// Maximum number of failed claims for one allocation.
const CLAIMS: u32 = 4;

/// Allocate call that waits for its answer.
pub(super) struct Request {
    pub resource: String,
    pub ids: BTreeSet<String>,
    pub answer: oneshot::Sender<Result<Allocation, Refusal>>,
    pub asked: Instant,
    /// True if it has waited for a slot to be released, which it does only once.
    pub has_waited: bool,
    /// Slots that could not be claimed.
    pub lost: BTreeSet<String>,
    /// Reason why the last of these could not be claimed, unless another node claimed it first.
    pub unwritten: Option<Refusal>,
    /// True if that reason is a store that cannot be reached.
    pub may_recover: bool,
    /// Number of failed claims.
    pub losses: u32,
}

impl Request {
    pub fn device_ids(&self) -> impl Iterator<Item = DeviceId> {
        let ids = self.ids.iter();
        ids.map(|id| DeviceId::new(&self.resource, id))
    }

    /// Returns the time until which the request may be retried; `None` if it has passed, the caller is gone, or too many claims failed.
    pub fn again_until(&self) -> Option<Instant> {
        let wait = if self.may_recover { OUTAGE } else { AGAIN };
        let until = self.asked + wait;
        let is_over = until <= Instant::now() || self.answer.is_closed();
        (!is_over && self.losses < CLAIMS).then_some(until)
    }

    /// Returns the refusal of a request without further choices, with the reason why its slots could not be claimed.
    pub fn lost_with(&self, refusal: Refusal) -> Refusal {
        match (refusal, &self.unwritten) {
            (Refusal::Unavailable(_), Some(unwritten)) => unwritten.clone(),
            (Refusal::Unavailable(why), None) if !self.lost.is_empty() => {
                let lost: Vec<&str> = self.lost.iter().map(String::as_str).collect();
                let lost = lost.join(", ");
                Refusal::Unavailable(format!("{why}; another node claimed {lost} first"))
            }
            (refusal, _) => refusal,
        }
    }

    /// Returns true if no caller waits for the answer any more.
    pub fn is_late(&self) -> bool {
        self.asked.elapsed() >= ALLOCATE || self.answer.is_closed()
    }
}

/// Allocations that are not decided yet, by what they wait for.
#[derive(Default)]
pub(super) struct Pending {
    /// Requests with a device id that is being written, or about which the kubelet is being asked.
    pub busy: Vec<Request>,
    /// Requests that wait for a free slot of a Configuration, the first report of a device, or a store that can be written.
    pub waiting: Vec<Request>,
}

impl Pending {
    /// Returns the earliest deadline of the requests in `waiting`.
    pub fn until(&self) -> Option<Instant> {
        let waiting = self.waiting.iter();
        waiting
            .map(|request| request.again_until().unwrap_or(request.asked))
            .min()
    }
}

/// Passes the kubelet's calls to the slot task, and those for tickets to their task.
#[derive(Clone)]
pub struct SlotHandle {
    pub(super) node: Arc<str>,
    requests: mpsc::Sender<Request>,
    tickets: mpsc::Sender<Request>,
    offers: watch::Receiver<Arc<Offers>>,
    report: watch::Receiver<Arc<SlotReport>>,
    instances: watch::Receiver<Arc<InstanceSet>>,
}

impl SlotHandle {
    /// Returns the offset in the free ids of a resource at which this node begins.
    fn place(&self, resource: &ResourceName) -> usize {
        let instances = Arc::clone(&self.instances.borrow());
        let name = resource_name(resource.as_str()).unwrap_or_default();
        let mut all = instances.instances.values();
        all.find(|instance| instance.metadata.name == name)
            .map_or_else(
                || usize::try_from(first(&self.node, name)).unwrap_or_default(),
                |instance| place(&self.node, name, &instance.spec.nodes),
            )
    }
}

#[async_trait]
impl Allocator for SlotHandle {
    async fn allocate(
        &self,
        resource: &ResourceName,
        ids: BTreeSet<String>,
    ) -> Result<Allocation, Refusal> {
        let (requests, limit, late) = if resource.as_str() == DEVICES {
            let late = "the kubelet's records were not read in time".to_owned();
            (&self.tickets, ALLOCATE_TICKETS, late)
        } else {
            let late = format!(
                "the claim was not written within {} seconds; see the agent's status",
                ALLOCATE.as_secs()
            );
            (&self.requests, ALLOCATE, late)
        };
        let (answer, answered) = oneshot::channel();
        let request = Request {
            resource: resource.as_str().to_owned(),
            ids,
            answer,
            asked: Instant::now(),
            has_waited: false,
            lost: BTreeSet::new(),
            unwritten: None,
            may_recover: false,
            losses: 0,
        };
        let stopping = || Refusal::Unavailable("the agent is stopping".to_owned());
        let decided = timeout(limit, async {
            let sent = requests.send(request).await;
            sent.map_err(|_| stopping())?;
            answered.await.map_err(|_| stopping())?
        });
        let late = Err(Refusal::Unavailable(late));
        decided.await.unwrap_or(late)
    }

    fn prefer(&self, resource: &ResourceName, available: &BTreeSet<String>) -> Vec<String> {
        let (offers, report) = (self.offers.borrow(), self.report.borrow());
        let list = offers.get(resource);
        let is_bad = |id: &String| {
            let device = list.and_then(|list| list.get(id));
            device.is_none_or(|device| device.health == Health::Unhealthy)
        };
        let held: BTreeSet<&str> = report
            .slots
            .iter()
            .filter(|slot| slot.device_id.resource == resource.as_str())
            .map(|slot| slot.device_id.id.as_str())
            .collect();
        let mut ordered: Vec<String> = available.iter().cloned().collect();
        ordered.rotate_left(
            self.place(resource)
                .checked_rem(available.len())
                .unwrap_or_default(),
        );
        // Ids that a pod may have come last: this kubelet has lost its records or has not received the last list.
        ordered.sort_by_key(|id| (is_bad(id), held.contains(id.as_str())));
        ordered
    }
}

/// Queue of the calls for tickets.
pub struct TicketQueue(pub(super) mpsc::Receiver<Request>);

/// Queue of calls. It is created before the task because the device plugins need it first.
pub struct AllocateQueue {
    /// Handle that adds calls to the queue.
    pub handle: SlotHandle,
    pub(super) requests: mpsc::Receiver<Request>,
    /// Device lists that are offered to the kubelet.
    pub offers: watch::Sender<Arc<Offers>>,
    pub(super) report: watch::Sender<Arc<SlotReport>>,
}

impl AllocateQueue {
    /// Creates empty queues for `node`, with the Instances it knows.
    pub fn new(node: &str, instances: watch::Receiver<Arc<InstanceSet>>) -> (Self, TicketQueue) {
        let (sender, requests) = mpsc::channel(QUEUE);
        let (tickets, of_tickets) = mpsc::channel(QUEUE);
        let (offers, offered) = watch::channel(Arc::default());
        let (report, reported) = watch::channel(Arc::default());
        let queue = Self {
            handle: SlotHandle {
                node: node.into(),
                requests: sender,
                tickets,
                offers: offered,
                report: reported,
                instances,
            },
            requests,
            offers,
            report,
        };
        (queue, TicketQueue(of_tickets))
    }
}

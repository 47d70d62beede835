//! Faults that a test requests.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::watch;
use tonic::{Code, Status};

/// Rate at which the kubelet takes messages from ListAndWatch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reading {
    /// Each message as it arrives.
    Eager,
    /// Each message this long after the one before.
    Slow(Duration),
    /// No messages, with the stream open.
    Dead,
}

/// Fault of PodResources.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Trouble {
    /// Each call fails with this code and message.
    Error(Code, String),
    /// Each answer is delayed by this time.
    Slow(Duration),
    /// No call is answered.
    Silent,
}

/// All faults; none at first.
#[derive(Debug)]
pub struct Faults {
    register: Mutex<(usize, Code, String)>,
    dial: Mutex<usize>,
    pod_resources: Mutex<Option<Trouble>>,
    reading: watch::Sender<Reading>,
    holding: watch::Sender<bool>,
    short: Mutex<(usize, usize)>,
    cuts: watch::Sender<u64>,
}

impl Default for Faults {
    fn default() -> Self {
        Self {
            register: Mutex::new((0, Code::Unknown, String::new())),
            dial: Mutex::new(0),
            pod_resources: Mutex::new(None),
            reading: watch::Sender::new(Reading::Eager),
            holding: watch::Sender::new(false),
            short: Mutex::new((0, 0)),
            cuts: watch::Sender::new(0),
        }
    }
}

fn set<T>(mutex: &Mutex<T>, value: T) {
    *mutex.lock().unwrap_or_else(PoisonError::into_inner) = value;
}

impl Faults {
    /// Refuses the next `times` Registers, before it connects to the plugin.
    pub fn refuse_register(&self, times: usize, code: Code, message: &str) {
        set(&self.register, (times, code, message.to_owned()));
    }

    /// Makes the next `times` connections to plugins fail at once.
    pub fn fail_dial(&self, times: usize) {
        set(&self.dial, times);
    }

    /// Sets the fault of PodResources; `None` removes it.
    pub fn trouble_pod_resources(&self, trouble: Option<Trouble>) {
        set(&self.pod_resources, trouble);
    }

    /// Sets the rate at which lists are taken.
    pub fn read(&self, reading: Reading) {
        self.reading.send_replace(reading);
    }

    /// Stops or resumes the processing of answers to Allocate. Held answers are processed once `hold` is false.
    pub fn hold_answers(&self, hold: bool) {
        self.holding.send_replace(hold);
    }

    /// Ends each of the next `times` ListAndWatch calls after `messages` messages.
    pub fn end_lists_after(&self, times: usize, messages: usize) {
        set(&self.short, (times, messages));
    }

    /// Ends all open ListAndWatch streams.
    pub fn end_lists(&self) {
        self.cuts.send_modify(|cuts| *cuts = cuts.wrapping_add(1));
    }

    /// Returns how many messages a ListAndWatch that begins now may take, and a receiver whose change ends it.
    pub(super) fn lists(&self) -> (Option<usize>, watch::Receiver<u64>) {
        let mut fault = self.short.lock().unwrap_or_else(PoisonError::into_inner);
        let (left, messages) = &mut *fault;
        let limit = (*left > 0).then_some(*messages);
        *left = left.saturating_sub(1);
        (limit, self.cuts.subscribe())
    }

    pub(super) fn register(&self) -> Option<Status> {
        let mut fault = self.register.lock().unwrap_or_else(PoisonError::into_inner);
        let (left, code, message) = &mut *fault;
        *left = left.checked_sub(1)?;
        Some(Status::new(*code, message.clone()))
    }

    pub(super) fn dial_fails(&self) -> bool {
        let mut left = self.dial.lock().unwrap_or_else(PoisonError::into_inner);
        let fails = *left > 0;
        *left = left.saturating_sub(1);
        fails
    }

    pub(super) fn pod_resources(&self) -> Option<Trouble> {
        let fault = self.pod_resources.lock();
        fault.unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Waits until the next message may be taken.
    pub(super) async fn readable(&self) {
        let mut reading = self.reading.subscribe();
        loop {
            let now = *reading.borrow_and_update();
            let wait = match now {
                Reading::Eager => return,
                Reading::Slow(wait) => Some(wait),
                Reading::Dead => None,
            };
            let timer = async {
                match wait {
                    Some(wait) => tokio::time::sleep(wait).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = timer => return,
                // `self` owns the sender, so this ends only by a change.
                _ = reading.changed() => {}
            }
        }
    }

    pub(super) async fn answer_released(&self) {
        // `self` owns the sender, so this ends only by a change.
        let _ = self.holding.subscribe().wait_for(|hold| !hold).await;
    }
}

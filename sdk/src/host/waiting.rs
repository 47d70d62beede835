//! Who waits for what.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

/// What is waited for, in an order: timers by their end, the rest by when the waiting began.
#[derive(Debug)]
pub(crate) struct Waiting<O, V> {
    entries: RefCell<BTreeMap<(O, u64), (V, Waker)>>,
    begun: Cell<u64>,
}

impl<O: Ord, V> Default for Waiting<O, V> {
    fn default() -> Self {
        Self {
            entries: RefCell::default(),
            begun: Cell::default(),
        }
    }
}

impl<O: Ord + Copy, V: Clone> Waiting<O, V> {
    /// Waits, from the first poll on, until the entry has [`happened`](Self::happened).
    pub fn wait(&self, order: O, value: V) -> Wait<'_, O, V> {
        Wait {
            waiting: self,
            order,
            value,
            key: None,
        }
    }

    /// The first entry.
    pub fn first(&self) -> Option<(O, u64)> {
        let entries = self.entries.borrow();
        entries.first_key_value().map(|(key, _)| *key)
    }

    /// All entries in their order.
    pub fn all(&self) -> Vec<((O, u64), V)> {
        let entries = self.entries.borrow();
        let values = entries
            .iter()
            .map(|(key, (value, _))| (*key, value.clone()));
        values.collect()
    }

    /// Ends the waiting for this entry.
    pub fn happened(&self, key: (O, u64)) {
        let entry = self.entries.borrow_mut().remove(&key);
        if let Some((_, waker)) = entry {
            waker.wake();
        }
    }
}

/// The waiting for one thing. Dropped, it waits no more.
#[derive(Debug)]
pub(crate) struct Wait<'a, O: Ord + Copy, V: Clone> {
    waiting: &'a Waiting<O, V>,
    order: O,
    value: V,
    key: Option<(O, u64)>,
}

impl<O: Ord + Copy + Unpin, V: Clone + Unpin> Future for Wait<'_, O, V> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let mut entries = self.waiting.entries.borrow_mut();
        if let Some(key) = self.key {
            let Some((_, waker)) = entries.get_mut(&key) else {
                return Poll::Ready(());
            };
            waker.clone_from(context.waker());
        } else {
            let begun = self.waiting.begun.get();
            self.waiting.begun.set(begun.wrapping_add(1));
            let key = (self.order, begun);
            entries.insert(key, (self.value.clone(), context.waker().clone()));
            drop(entries);
            self.key = Some(key);
        }
        Poll::Pending
    }
}

impl<O: Ord + Copy, V: Clone> Drop for Wait<'_, O, V> {
    fn drop(&mut self) {
        if let Some(key) = self.key {
            let entry = self.waiting.entries.borrow_mut().remove(&key);
            drop(entry);
        }
    }
}

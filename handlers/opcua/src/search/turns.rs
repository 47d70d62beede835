//! Tasks in the order of their turns.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::Task;

/// In which order tasks come: by urgency, then in turns of those who listed them.
pub type Turn = (Urgency, u32, usize);

/// How soon a task is due.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Urgency {
    /// The details name the server.
    Configured,
    /// It answered last time.
    Known,
    /// It was not asked last time.
    New,
    /// It was asked in vain.
    Silent,
}

/// Tasks, of which the one whose turn it is comes next.
#[derive(Debug, Default)]
pub struct Turns {
    order: BinaryHeap<Reverse<(Turn, usize)>>,
    tasks: Vec<Option<Task>>,
}

impl Turns {
    /// Adds a task.
    pub fn add(&mut self, turn: Turn, task: Task) {
        self.order.push(Reverse((turn, self.tasks.len())));
        self.tasks.push(Some(task));
    }

    /// The first task.
    pub fn next(&mut self) -> Option<Task> {
        let Reverse((_, place)) = self.order.pop()?;
        self.tasks.get_mut(place)?.take()
    }

    /// Whether there is no task.
    pub fn is_empty(&self) -> bool {
        self.order.is_empty()
    }
}

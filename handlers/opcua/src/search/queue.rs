//! The tasks of a search by priority.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::Task;

/// Order of tasks: urgency, then the tasks of different listing servers in turn.
pub type Priority = (Urgency, u32, usize);

/// How urgent a task is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Urgency {
    /// The details name the server.
    Configured,
    /// It answered last time.
    Known,
    /// It was not asked last time.
    New,
    /// It did not answer last time.
    Silent,
}

/// A priority queue of tasks.
#[derive(Debug, Default)]
pub struct TaskQueue {
    order: BinaryHeap<Reverse<(Priority, usize)>>,
    tasks: Vec<Option<Task>>,
}

impl TaskQueue {
    /// Adds a task.
    pub fn add(&mut self, priority: Priority, task: Task) {
        self.order.push(Reverse((priority, self.tasks.len())));
        self.tasks.push(Some(task));
    }

    /// The most urgent task.
    pub fn next(&mut self) -> Option<Task> {
        let Reverse((_, index)) = self.order.pop()?;
        self.tasks.get_mut(index)?.take()
    }

    /// Whether there is no task.
    pub fn is_empty(&self) -> bool {
        self.order.is_empty()
    }
}

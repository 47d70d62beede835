//! Tasks of a search by priority.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::Task;

/// Order of tasks: urgency, then the tasks of different listing servers in turn.
pub type Priority = (Urgency, u32, usize);

/// Urgency of a task.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Urgency {
    /// Server named in the details.
    Configured,
    /// Server that answered last time.
    Known,
    /// Server that was not asked last time.
    New,
    /// Server that did not answer last time.
    Silent,
}

/// Priority queue of tasks.
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

    /// Returns the most urgent task.
    pub fn next(&mut self) -> Option<Task> {
        let Reverse((_, index)) = self.order.pop()?;
        self.tasks.get_mut(index)?.take()
    }

    /// Returns true if there are no tasks.
    pub fn is_empty(&self) -> bool {
        self.order.is_empty()
    }
}

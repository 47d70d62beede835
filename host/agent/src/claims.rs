//! The scheduler's side of the agent: what it is offered, and the claims that it has allocated.

pub mod board;
pub mod offer;
pub mod specs;
pub mod users;

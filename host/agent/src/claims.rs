//! The agent's interface to the scheduler: offered devices, and allocated claims.

pub mod board;
pub mod offer;
pub mod specs;

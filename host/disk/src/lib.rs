//! Keeps files of a state folder complete and durable across a crash. Knows nothing of their content.

pub mod atomic;

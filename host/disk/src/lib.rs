//! Files of a state folder that are whole and durable after a crash. Knows nothing of their content.

pub mod atomic;

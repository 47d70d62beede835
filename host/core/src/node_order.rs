//! The order in which each of several nodes tries the same things, so that they seldom meet at one. Pure.

use crate::names::{DigestLength, device_hash};

/// The place of a node among `nodes`, another order for each name.
pub fn place(node: &str, name: &str, nodes: &[String]) -> usize {
    let rank = |node: &str| (first(node, name), node.to_owned());
    let own = rank(node);
    nodes.iter().filter(|other| rank(other) < own).count()
}

/// A number of a node, another for each name.
pub fn first(node: &str, name: &str) -> u64 {
    let hash = device_hash(name, Some(node), DigestLength::Eight);
    u64::from_str_radix(&hash, 16).unwrap_or_default()
}

/// Puts what is chosen from into the order in which the node at `place` among so many tries it. Two nodes begin at opposite ends; of more,
/// each further two begin further inside.
pub fn in_order<T>(mut all: Vec<T>, place: usize, nodes: usize) -> Vec<T> {
    let (pair, is_second) = (place / 2, place % 2 == 1);
    if is_second {
        all.reverse();
    }
    let pairs = nodes.max(place.saturating_add(1)).div_ceil(2);
    let inside = all.len().saturating_mul(pair).checked_div(pairs);
    all.rotate_left(inside.unwrap_or_default());
    all
}

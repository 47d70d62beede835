//! Order in which each of several nodes tries the same items, chosen so that two nodes seldom try the same one. Pure.

use crate::names::{DigestLength, device_hash};

/// Returns the position of a node among `nodes`, in an order that depends on `name`.
pub fn place(node: &str, name: &str, nodes: &[String]) -> usize {
    let rank = |node: &str| (first(node, name), node.to_owned());
    let own = rank(node);
    nodes.iter().filter(|other| rank(other) < own).count()
}

/// Returns a number that depends on the node and on `name`.
pub fn first(node: &str, name: &str) -> u64 {
    let hash = device_hash(name, Some(node), DigestLength::Eight);
    u64::from_str_radix(&hash, 16).unwrap_or_default()
}

/// Reorders items for the node at `place` among `nodes` nodes. The first two nodes begin at opposite ends; each further
/// pair begins further inside.
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

//! Fair order among the items of several owners, for lists in which not all of them fit.

use std::collections::BTreeMap;

/// Orders items round-robin by owner: the first item of every owner, then the second of every owner. Keeps the order
/// within one round and within one owner.
pub fn round_robin<T, K: Ord>(
    items: impl IntoIterator<Item = T>,
    owner: impl Fn(&T) -> K,
) -> Vec<T> {
    let mut counts: BTreeMap<K, usize> = BTreeMap::new();
    let in_turn = items.into_iter().map(|item| {
        let count = counts.entry(owner(&item)).or_default();
        let turn = *count;
        *count = turn.saturating_add(1);
        (turn, item)
    });
    let mut in_turn: Vec<(usize, T)> = in_turn.collect();
    in_turn.sort_by_key(|(turn, _)| *turn);
    in_turn.into_iter().map(|(_, item)| item).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_owner_has_its_turn_and_the_order_of_one_owner_stays() {
        let items = ["a1", "a2", "a3", "b1", "c1", "c2"];
        let ordered = round_robin(items, |item| item.get(..1));
        assert_eq!(ordered, ["a1", "b1", "c1", "a2", "c2", "a3"]);
    }
}

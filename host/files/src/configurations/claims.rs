//! Chooses the file of a Configuration that is in several files, and limits the number of Configurations. Pure.

use std::collections::{BTreeMap, BTreeSet};

use leafhost_core::configuration::MAX_CONFIGURATIONS;
use leafhost_core::names::ConfigurationKey;

/// File that each Configuration is taken from.
pub type Served = BTreeMap<ConfigurationKey, String>;

/// Chooses a file for each Configuration from `offers`, sorted by file. The file that served a Configuration `before` keeps it as long as
/// it contains it; among new files, the first by name gets it. So a copy takes nothing from its original. Up to the limit, Configurations
/// that were served before stay, and of the others the first that are offered are added.
pub fn choose(offers: &[(&str, &ConfigurationKey)], before: &Served) -> Served {
    let mut holders: BTreeMap<&ConfigurationKey, &str> = BTreeMap::new();
    for (file, key) in offers {
        let holder = holders.entry(key).or_insert(file);
        if before.get(*key).is_some_and(|held| held == file) {
            *holder = file;
        }
    }
    let (old, new): (Vec<_>, Vec<_>) = holders
        .iter()
        .map(|(key, file)| (*file, *key))
        .partition(|(_, key)| before.contains_key(*key));
    let mut chosen: Served = old
        .into_iter()
        .take(MAX_CONFIGURATIONS)
        .map(|(file, key)| (key.clone(), file.to_owned()))
        .collect();
    let new: BTreeSet<_> = new.into_iter().collect();
    let room = MAX_CONFIGURATIONS.saturating_sub(chosen.len());
    let first = offers.iter().filter(|offer| new.contains(offer)).take(room);
    chosen.extend(first.map(|(file, key)| ((*key).clone(), (*file).to_owned())));
    chosen
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(name: &str) -> ConfigurationKey {
        ConfigurationKey::new("default", name).unwrap()
    }

    #[test]
    fn who_has_a_name_keeps_it_then_the_first_by_name_counts() {
        for (before, wanted) in [
            (None, "a"),
            (Some("b"), "b"),
            (Some("a"), "a"),
            (Some("c"), "a"),
        ] {
            let before = before.map(|file: &str| (key("x"), file.to_owned()));
            let (first, second) = (key("x"), key("x"));
            let chosen = choose(
                &[("a", &first), ("b", &second)],
                &before.into_iter().collect(),
            );
            assert_eq!(chosen, [(key("x"), wanted.to_owned())].into());
        }
    }

    #[test]
    fn beyond_the_number_new_ones_push_out_none_that_serves() {
        let keys: Vec<_> = (0..MAX_CONFIGURATIONS + 10)
            .map(|n| key(&format!("c{n:05}")))
            .collect();
        let offers: Vec<_> = keys.iter().map(|key| ("f", key)).collect();
        let last = &keys[MAX_CONFIGURATIONS + 5..];
        let before: Served = last
            .iter()
            .map(|key| (key.clone(), "g".to_owned()))
            .collect();
        let chosen = choose(&offers, &before);
        assert_eq!(chosen.len(), MAX_CONFIGURATIONS);
        assert!(last.iter().all(|key| chosen.contains_key(key)));
        assert!(
            keys[..MAX_CONFIGURATIONS - 5]
                .iter()
                .all(|key| chosen.contains_key(key))
        );
    }
}

//! Which file a Configuration is taken from where several have it, and how many there may be. Pure.

use std::collections::{BTreeMap, BTreeSet};

use leafhost_core::names::ConfigurationKey;

/// The most Configurations of an agent.
pub const MAX_CONFIGURATIONS: usize = 2_000;

/// The file that each Configuration is taken from.
pub type Served = BTreeMap<ConfigurationKey, String>;

/// When a file was last changed, in seconds and nanoseconds.
pub type Ages = BTreeMap<String, (i64, i64)>;

/// Chooses from what files offer, a Configuration of a file each. Which file served `before` serves on while it has the name; of
/// new ones the file that was changed longest ago serves, then the first by name. So a copy takes nothing from what it was
/// copied from. Beyond the number those that served before stay, and of the others the first that are offered.
pub fn choose(offers: &[(&str, &ConfigurationKey)], before: &Served, ages: &Ages) -> Served {
    let mut holders: BTreeMap<&ConfigurationKey, &str> = BTreeMap::new();
    for (file, key) in offers {
        let holder = holders.entry(key).or_insert(file);
        let held = before.get(*key).map(String::as_str);
        if held == Some(file) || held != Some(holder) && order(file, ages) < order(holder, ages) {
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

/// One whose age is not known has not settled yet, and is new.
fn order<'a>(file: &'a str, ages: &Ages) -> ((i64, i64), &'a str) {
    let age = ages.get(file).copied();
    (age.unwrap_or((i64::MAX, 0)), file)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(name: &str) -> ConfigurationKey {
        ConfigurationKey::new("default", name).unwrap()
    }

    #[test]
    fn who_has_a_name_keeps_it_then_the_older_file_counts_then_the_first_by_name() {
        for (before, ages, wanted) in [
            (None, [("a", 1), ("b", 2)], "a"),
            (None, [("a", 2), ("b", 1)], "b"),
            (None, [("a", 1), ("b", 1)], "a"),
            (None, [("a", 1), ("other", 0)], "a"),
            (None, [("b", 1), ("other", 0)], "b"),
            (Some("b"), [("a", 1), ("b", 2)], "b"),
            (Some("a"), [("a", 2), ("b", 1)], "a"),
            (Some("gone"), [("a", 2), ("b", 1)], "b"),
        ] {
            let before: Served = before
                .map(|file| (key("x"), file.to_owned()))
                .into_iter()
                .collect();
            let ages = ages.map(|(file, age)| (file.to_owned(), (age, 0))).into();
            let (first, second) = (key("x"), key("x"));
            for offers in [
                [("a", &first), ("b", &second)],
                [("b", &first), ("a", &second)],
            ] {
                let chosen = choose(&offers, &before, &ages);
                assert_eq!(
                    chosen,
                    [(key("x"), wanted.to_owned())].into(),
                    "{before:?} {ages:?}"
                );
            }
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
        let chosen = choose(&offers, &before, &Ages::new());
        assert_eq!(chosen.len(), MAX_CONFIGURATIONS);
        assert!(last.iter().all(|key| chosen.contains_key(key)));
        assert!(
            keys[..MAX_CONFIGURATIONS - 5]
                .iter()
                .all(|key| chosen.contains_key(key))
        );
    }
}

//! Map from names to values, ordered by name and by insertion. The handler uses no other map or sort: each further type adds
//! kilobytes to the component.

/// Values by name, in insertion order.
#[derive(Debug)]
pub struct Table<T> {
    names: Names,
    things: Vec<T>,
}

impl<T> Default for Table<T> {
    fn default() -> Self {
        Self {
            names: Names::default(),
            things: Vec::new(),
        }
    }
}

impl<T> Table<T> {
    /// Returns the value of that name.
    pub fn get(&self, name: &str) -> Option<&T> {
        self.things.get(self.names.find(name)?)
    }

    /// Returns the value of that name for modification.
    pub fn get_mut(&mut self, name: &str) -> Option<&mut T> {
        self.things.get_mut(self.names.find(name)?)
    }

    /// Returns true if there is a value of that name.
    pub fn has(&self, name: &str) -> bool {
        self.names.find(name).is_some()
    }

    /// Inserts or replaces a value; returns the previous one.
    pub fn put(&mut self, name: &str, thing: T) -> Option<T> {
        if let Some(old) = self.get_mut(name) {
            return Some(std::mem::replace(old, thing));
        }
        self.names.add(name);
        self.things.push(thing);
        None
    }

    /// Returns the number of values.
    pub fn len(&self) -> usize {
        self.things.len()
    }

    /// Returns all values in insertion order.
    pub fn things(&self) -> &[T] {
        &self.things
    }

    /// Returns all values in the order of their names.
    pub fn sorted(&self) -> impl Iterator<Item = &T> {
        let indices = self.names.order.iter();
        indices.filter_map(|index| self.things.get(*index))
    }
}

/// Names in insertion order, and their indices sorted by name, so that an insertion moves only numbers.
#[derive(Debug, Default)]
struct Names {
    names: Vec<String>,
    order: Vec<usize>,
}

impl Names {
    fn search(&self, name: &str) -> Result<usize, usize> {
        let named = |index: &usize| self.names.get(*index).map_or("", String::as_str);
        self.order.binary_search_by(|index| named(index).cmp(name))
    }

    fn find(&self, name: &str) -> Option<usize> {
        let index = self.search(name).ok()?;
        self.order.get(index).copied()
    }

    fn add(&mut self, name: &str) {
        if let Err(index) = self.search(name) {
            self.order.insert(index, self.names.len());
            self.names.push(name.to_owned());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_found_by_name_and_kept_in_insertion_order() {
        let mut table = Table::default();
        for (name, thing) in [("b", 1), ("c", 2), ("a", 3)] {
            assert_eq!(table.put(name, thing), None);
        }
        assert_eq!(table.put("c", 4), Some(2));
        assert_eq!(table.get("a"), Some(&3));
        assert_eq!(table.get_mut("b"), Some(&mut 1));
        assert!(table.has("c") && !table.has("d"));
        assert_eq!(table.things(), [1, 4, 3]);
        assert_eq!(table.len(), 3);
        assert_eq!(table.sorted().collect::<Vec<_>>(), [&3, &1, &4]);
    }
    #[test]
    fn many_values_are_sorted_by_name() {
        let mut table = Table::default();
        for number in 0..3_000_u32 {
            let name = format!("{:08}", number.wrapping_mul(0x9e37_79b9) % 100_003);
            table.put(&name, name.clone());
            assert_eq!(table.get(&name), Some(&name));
        }
        let names: Vec<&String> = table.sorted().collect();
        assert!(names.is_sorted() && names.len() == table.len());
        let known: std::collections::BTreeSet<&String> = table.things().iter().collect();
        assert_eq!(known.len(), names.len());
    }
}

//! Things by their names, and in the order of these. One search for all kinds of things: each further kind of map or sorter
//! costs kilobytes in a component.

/// Things by their names, in the order they came.
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
    /// The thing of that name.
    pub fn get(&self, name: &str) -> Option<&T> {
        self.things.get(self.names.find(name)?)
    }

    /// The thing of that name.
    pub fn get_mut(&mut self, name: &str) -> Option<&mut T> {
        self.things.get_mut(self.names.find(name)?)
    }

    /// Whether there is a thing of that name.
    pub fn has(&self, name: &str) -> bool {
        self.names.find(name).is_some()
    }

    /// Gives the name to this thing; what had it before comes back.
    pub fn put(&mut self, name: &str, thing: T) -> Option<T> {
        if let Some(old) = self.get_mut(name) {
            return Some(std::mem::replace(old, thing));
        }
        self.names.add(name, self.things.len());
        self.things.push(thing);
        None
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.things.len()
    }

    /// All things, in the order they came.
    pub fn things(&self) -> &[T] {
        &self.things
    }

    /// All things, in the order of their names.
    pub fn sorted(&self) -> impl Iterator<Item = &T> {
        let names = self.names.0.iter();
        names.filter_map(|(_, place)| self.things.get(*place))
    }
}

/// Names, sorted, and where the things are.
#[derive(Debug, Default)]
struct Names(Vec<(String, usize)>);

impl Names {
    fn search(&self, name: &str) -> Result<usize, usize> {
        self.0
            .binary_search_by(|(other, _)| other.as_str().cmp(name))
    }

    fn find(&self, name: &str) -> Option<usize> {
        let place = self.search(name).ok()?;
        self.0.get(place).map(|(_, thing)| *thing)
    }

    fn add(&mut self, name: &str, thing: usize) {
        if let Err(place) = self.search(name) {
            self.0.insert(place, (name.to_owned(), thing));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn things_are_found_by_name_and_kept_in_their_order() {
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
}

//! Page of `leafhost status`: fields, lists and tables under headings.

use crate::table::Table;
use crate::terminal::{Paint, Tone};

/// Indentation of the lines under a heading, in spaces.
pub const INDENT: usize = 2;

/// Lines grouped under headings.
#[derive(Debug)]
pub struct Page {
    pub paint: Paint,
    pub lines: Vec<String>,
}

impl Page {
    pub fn new(paint: Paint) -> Self {
        Self {
            paint,
            lines: Vec::new(),
        }
    }

    /// Adds a heading after an empty line.
    pub fn section(&mut self, title: &str) {
        self.lines.push(String::new());
        self.lines.push(self.paint.apply(Tone::Heading, title));
    }

    /// Adds a value with its name.
    pub fn field(&mut self, name: &str, value: &str) {
        self.toned(name, Tone::Plain, value);
    }

    /// Adds a value with its name, coloured.
    pub fn toned(&mut self, name: &str, tone: Tone, value: &str) {
        let value = self.paint.apply(tone, value);
        self.lines
            .push(format!("  {:<16} {value}", format!("{name}:")));
    }

    /// Adds values, one per line; only the first line has the name.
    pub fn list(&mut self, name: &str, tone: Tone, values: &[String]) {
        let mut label = format!("{name}:");
        for value in values {
            let value = self.paint.apply(tone, value);
            self.lines.push(format!("  {label:<16} {value}"));
            label.clear();
        }
    }

    pub fn table(&mut self, table: &Table) {
        self.indented(table.lines(self.paint));
    }

    /// Adds the number of entries that are not kept, if there are any.
    pub fn more(&mut self, dropped: u64) {
        if dropped > 0 {
            self.lines.push(format!("  and {dropped} more"));
        }
    }

    pub fn indented(&mut self, lines: impl IntoIterator<Item = String>) {
        let lines = lines.into_iter();
        let lines = lines.map(|line| format!("{:INDENT$}{line}", ""));
        self.lines.extend(lines);
    }
}

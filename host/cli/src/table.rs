//! Tables as kubectl prints them: a line of upper-case headings, columns as wide as their widest cell, no rules.

use std::io::Write;

use tabwriter::TabWriter;

use crate::terminal::{Paint, Tone};

/// A cell.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cell {
    tone: Tone,
    text: String,
}

impl Cell {
    /// A cell of some tone; an empty text is shown as `-`.
    pub fn new(tone: Tone, text: impl Into<String>) -> Self {
        let text = text.into();
        if text.is_empty() {
            return Self {
                tone: Tone::Faint,
                text: "-".to_owned(),
            };
        }
        Self { tone, text }
    }

    /// A number, faint if it is nothing.
    pub fn count(number: usize) -> Self {
        let tone = if number == 0 {
            Tone::Faint
        } else {
            Tone::Plain
        };
        Self::new(tone, number.to_string())
    }
}

impl<T: Into<String>> From<T> for Cell {
    fn from(text: T) -> Self {
        Self::new(Tone::Plain, text)
    }
}

/// A table.
#[derive(Debug, Clone)]
pub struct Table {
    headings: &'static [&'static str],
    rows: Vec<Vec<Cell>>,
}

impl Table {
    /// An empty table with these headings.
    pub fn new(headings: &'static [&'static str]) -> Self {
        Self {
            headings,
            rows: Vec::new(),
        }
    }

    /// Adds a row.
    pub fn row(&mut self, cells: impl IntoIterator<Item = Cell>) {
        self.rows.push(cells.into_iter().collect());
    }

    /// Whether there is no row.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// The lines, headings first, without line ends. Widths are those of all rows.
    pub fn lines(&self, paint: Paint) -> std::io::Result<Vec<String>> {
        let mut writer = TabWriter::new(Vec::new()).padding(2).ansi(paint.is_on());
        let headings = self.headings.iter().map(|text| (Tone::Heading, *text));
        line(&mut writer, paint, headings)?;
        for row in &self.rows {
            line(
                &mut writer,
                paint,
                row.iter().map(|cell| (cell.tone, cell.text.as_str())),
            )?;
        }
        let bytes = writer.into_inner().map_err(|error| {
            std::io::Error::new(error.error().kind(), error.error().to_string())
        })?;
        Ok(String::from_utf8_lossy(&bytes)
            .lines()
            .map(|line| line.trim_end().to_owned())
            .collect())
    }
}

fn line<'a>(
    writer: &mut impl Write,
    paint: Paint,
    cells: impl Iterator<Item = (Tone, &'a str)>,
) -> std::io::Result<()> {
    let cells: Vec<String> = cells.map(|(tone, text)| paint.apply(tone, text)).collect();
    writeln!(writer, "{}", cells.join("\t"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Table {
        let mut table = Table::new(&["NAME", "STATE", "NOTE"]);
        table.row(["a-long-name".into(), Cell::new(Tone::Good, "ok"), "".into()]);
        table.row(["b\tc".into(), Cell::new(Tone::Bad, "broken"), "why".into()]);
        table
    }

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        assert_eq!(
            sample().lines(Paint::PLAIN).unwrap(),
            [
                "NAME         STATE   NOTE",
                "a-long-name  ok      -",
                "b\\tc         broken  why",
            ]
        );
    }

    #[test]
    fn colours_do_not_count_as_width() {
        let plain = sample().lines(Paint::PLAIN).unwrap();
        let coloured = sample().lines(Paint::COLOURED).unwrap();
        let stripped: Vec<String> = coloured.iter().map(|line| strip(line)).collect();
        assert_ne!(plain, coloured);
        assert_eq!(plain, stripped);
    }

    fn strip(line: &str) -> String {
        let mut parts = line.split('\x1b');
        let mut text = parts.next().unwrap_or_default().to_owned();
        for part in parts {
            text.push_str(part.split_once('m').unwrap_or_default().1);
        }
        text.trim_end().to_owned()
    }
}

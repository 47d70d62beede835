//! Tables in the style of kubectl: upper-case headings, columns as wide as their widest cell, no rules.

use std::io::Write;

use tabwriter::TabWriter;

use crate::terminal::{Paint, Tone, cut};

/// Text of a table cell with its tone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cell {
    tone: Tone,
    text: String,
}

impl Cell {
    /// Creates a cell with a tone; an empty text is shown as `-`.
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

    /// Creates a cell with a number, faint if it is zero.
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

/// Headings and rows.
#[derive(Debug, Clone)]
pub struct Table {
    headings: Vec<&'static str>,
    rows: Vec<Vec<Cell>>,
}

/// Lower bound of a useful width of the last column.
const LAST_COLUMN: usize = 20;
/// Number of spaces between two columns.
const PADDING: usize = 2;

impl Table {
    /// Creates an empty table with these headings.
    pub fn new(headings: &[&'static str]) -> Self {
        Self {
            headings: headings.to_vec(),
            rows: Vec::new(),
        }
    }

    /// Adds a row.
    pub fn row(&mut self, cells: impl IntoIterator<Item = Cell>) {
        self.rows.push(cells.into_iter().collect());
    }

    /// Returns true if there are no rows.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Fits the table to `width` characters: cells before the last column are cut to a third of it, and `optional` columns
    /// are dropped in order as far as needed. The last column may still be cut.
    #[must_use]
    pub fn fitted(mut self, width: usize, optional: &[&str]) -> Self {
        let last = self.headings.len().saturating_sub(1);
        for row in &mut self.rows {
            for cell in row.iter_mut().take(last) {
                cell.text = cut(&cell.text, width / 3).into_owned();
            }
        }
        for column in optional {
            if self.width_with(LAST_COLUMN) <= width {
                break;
            }
            let kept: Vec<bool> = self.headings.iter().map(|name| name != column).collect();
            retain(&mut self.headings, &kept);
            for row in &mut self.rows {
                retain(row, &kept);
            }
        }
        self
    }

    /// Returns the width of the lines.
    pub fn width(&self) -> usize {
        self.width_with(usize::MAX)
    }

    /// Returns the width if the last column is cut to `last` characters.
    fn width_with(&self, last: usize) -> usize {
        let columns = self.headings.len();
        let widths = self.headings.iter().enumerate().map(|(number, heading)| {
            let cells = self.rows.iter().filter_map(|row| row.get(number));
            let widest = cells.map(|cell| cell.text.chars().count()).max();
            let width = widest.unwrap_or(0).max(heading.len());
            if number + 1 == columns {
                width.min(last)
            } else {
                width + PADDING
            }
        });
        widths.sum()
    }

    /// Returns the lines, headings first, without line ends. Column widths are those of all rows.
    pub fn lines(&self, paint: Paint) -> std::io::Result<Vec<String>> {
        let mut writer = TabWriter::new(Vec::new())
            .padding(PADDING)
            .ansi(paint.is_on());
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

/// Keeps the items whose flag in `kept` is set.
fn retain<T>(items: &mut Vec<T>, kept: &[bool]) {
    let mut kept = kept.iter();
    items.retain(|_| kept.next().is_none_or(|kept| *kept));
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
    fn a_narrow_table_leaves_out_columns_until_it_fits() {
        let lines = |width| {
            let fitted = sample().fitted(width, &["STATE", "NAME"]);
            fitted.lines(Paint::PLAIN).unwrap()
        };
        assert_eq!(lines(80), sample().lines(Paint::PLAIN).unwrap());
        assert_eq!(
            lines(15),
            ["NAME   NOTE", "a-lo…  -", "b\\tc   why"].map(str::to_owned)
        );
        assert_eq!(lines(6), ["NOTE", "-", "why"]);
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

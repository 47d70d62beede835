//! Tables in the style of kubectl: upper-case headings, columns as wide as their widest cell, no rules.

use std::iter::repeat_n;

use unicode_width::UnicodeWidthStr as _;

use crate::terminal::{Paint, Tone, cut, cut_middle, escape};

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
        let text = escape(&text).into_owned();
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

/// Rows of cells, the headings first.
#[derive(Debug, Clone)]
pub struct Table(Vec<Vec<Cell>>);

/// Minimum useful width of the last column.
const LAST_COLUMN: usize = 20;
/// Minimum width to which the last column is cut.
const LEAST: usize = 10;
/// Number of spaces between two columns.
const PADDING: usize = 2;

impl Table {
    pub fn new(headings: &[&str]) -> Self {
        let headings = headings.iter();
        let headings = headings.map(|text| Cell::new(Tone::Heading, *text));
        Self(vec![headings.collect()])
    }

    pub fn row(&mut self, cells: impl IntoIterator<Item = Cell>) {
        self.0.push(cells.into_iter().collect());
    }

    /// Returns true if there are only headings.
    pub fn is_empty(&self) -> bool {
        self.0.len() <= 1
    }

    /// Fits the table to `width` characters: cells before the last column are cut to a third of it, and `optional` columns
    /// are dropped in order as far as needed. The last column may still be cut.
    #[must_use]
    pub fn fitted(mut self, width: usize, optional: &[&str]) -> Self {
        for row in self.0.iter_mut().skip(1) {
            let last = row.len().saturating_sub(1);
            for cell in row.iter_mut().take(last) {
                cell.text = cut(&cell.text, width / 3).into_owned();
            }
        }
        for column in optional {
            if self.width_with(LAST_COLUMN) <= width {
                break;
            }
            let mut headings = self.0.iter().take(1).flatten();
            let place = headings.position(|heading| heading.text == *column);
            for row in &mut self.0 {
                let mut places = 0..;
                row.retain(|_| places.next() != place);
            }
        }
        self
    }

    /// Cuts cells of the last column in their middle, so that the table fits `width` characters if its other columns leave
    /// room.
    #[must_use]
    pub fn cut_in_middle(mut self, width: usize) -> Self {
        let before = self.width_with(0);
        let most = width.saturating_sub(before).max(LEAST);
        for cell in self.0.iter_mut().skip(1).filter_map(|row| row.last_mut()) {
            cell.text = cut_middle(&cell.text, most).into_owned();
        }
        self
    }

    pub fn width(&self) -> usize {
        self.width_with(usize::MAX)
    }

    /// Returns the width if the last column is cut to `last` characters.
    fn width_with(&self, last: usize) -> usize {
        let mut widths = self.widths();
        let width = widths.pop().unwrap_or_default().min(last);
        widths.iter().map(|width| width + PADDING).sum::<usize>() + width
    }

    fn widths(&self) -> Vec<usize> {
        let mut widths = Vec::new();
        for row in &self.0 {
            widths.resize(row.len(), 0);
            for (width, cell) in widths.iter_mut().zip(row) {
                *width = cell.text.width().max(*width);
            }
        }
        widths
    }

    /// Returns the lines, headings first, without line ends. Each column is as wide as its widest cell.
    pub fn lines(&self, paint: Paint) -> Vec<String> {
        let widths = self.widths();
        let line = |row: &Vec<Cell>| {
            let mut line = String::new();
            for (cell, width) in row.iter().zip(&widths) {
                line.push_str(&paint.apply(cell.tone, &cell.text));
                line.extend(repeat_n(' ', width - cell.text.width() + PADDING));
            }
            line.trim_end().to_owned()
        };
        self.0.iter().map(line).collect()
    }
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
            sample().lines(Paint::PLAIN),
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
            fitted.lines(Paint::PLAIN)
        };
        assert_eq!(lines(80), sample().lines(Paint::PLAIN));
        assert_eq!(
            lines(15),
            ["NAME   NOTE", "a-lo…  -", "b\\tc   why"].map(str::to_owned)
        );
        assert_eq!(lines(6), ["NOTE", "-", "why"]);
    }

    #[test]
    fn the_last_column_is_cut_in_its_middle() {
        let lines = |width| {
            let mut table = Table::new(&["NAME", "ID"]);
            table.row(["a".into(), "http://10.0.0.2/service#1".into()]);
            table.row(["b".into(), "short".into()]);
            table.cut_in_middle(width).lines(Paint::PLAIN)
        };
        assert_eq!(
            lines(31),
            ["NAME  ID", "a     http://10.0.0.2/service#1", "b     short"]
        );
        assert_eq!(
            lines(21),
            ["NAME  ID", "a     http://…rvice#1", "b     short"]
        );
        assert_eq!(lines(1), ["NAME  ID", "a     http…ice#1", "b     short"]);
    }

    #[test]
    fn wide_characters_count_twice_and_escaped_ones_as_they_are_shown() {
        let mut table = Table::new(&["NAME", "NOTE"]);
        for name in ["相机", "abcdef", "a\u{200b}"] {
            table.row([name.into(), "x".into()]);
        }
        let lines = table.lines(Paint::PLAIN);
        let expected = [
            "NAME       NOTE",
            "相机       x",
            "abcdef     x",
            "a\\u{200b}  x",
        ];
        assert_eq!(lines, expected);
    }

    #[test]
    fn colours_do_not_count_as_width() {
        let plain = sample().lines(Paint::PLAIN);
        let coloured = sample().lines(Paint::COLOURED);
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

//! One table, rendered for a terminal, in Markdown and as CSV here, and in HTML by `page`.

use comfy_table::presets::{ASCII_MARKDOWN, UTF8_FULL_CONDENSED};
use comfy_table::{CellAlignment, TableStyle};

/// Titles above rows of cells. The first column heads the rows.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Table {
    /// Caption, shown only in HTML.
    pub caption: String,
    pub columns: Vec<Column>,
    pub rows: Vec<Vec<Cell>>,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Column {
    pub title: Cell,
    pub align: Align,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Align {
    Left,
    /// A right-aligned column, for figures.
    Right,
}

/// The main text of a cell, and small text below it. CSV has no small text.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Cell {
    pub main: String,
    pub small: String,
}

impl<S: Into<String>> From<S> for Cell {
    fn from(main: S) -> Cell {
        Cell { main: main.into(), small: String::new() }
    }
}

impl Cell {
    pub fn with_small(main: impl Into<String>, small: impl Into<String>) -> Cell {
        Cell { main: main.into(), small: small.into() }
    }

    fn joined(&self, between: &str, end: &str) -> String {
        match self.small.as_str() {
            "" => self.main.clone(),
            small => format!("{}{between}{small}{end}", self.main),
        }
    }
}

impl Column {
    pub fn left(title: impl Into<Cell>) -> Column {
        Column { title: title.into(), align: Align::Left }
    }

    pub fn right(title: impl Into<Cell>) -> Column {
        Column { title: title.into(), align: Align::Right }
    }
}

impl Table {
    pub fn new(columns: impl IntoIterator<Item = Column>) -> Table {
        Table { columns: columns.into_iter().collect(), ..Table::default() }
    }

    /// A table of text only, for programs.
    pub fn plain<S: Into<Cell>>(titles: impl IntoIterator<Item = S>) -> Table {
        Table::new(titles.into_iter().map(Column::left))
    }

    pub fn captioned(self, caption: impl Into<String>) -> Table {
        Table { caption: caption.into(), ..self }
    }

    pub fn add<C: Into<Cell>>(&mut self, cells: impl IntoIterator<Item = C>) {
        self.rows.push(cells.into_iter().map(Into::into).collect());
    }

    /// The table as text with lines around the cells. Small text has a line of its own.
    pub fn terminal(&self) -> String {
        self.drawn(UTF8_FULL_CONDENSED, |title| title.joined("\n", ""), |cell| cell.joined("\n", ""))
    }

    /// The table as Markdown. A row is one line, so small text follows the main text.
    pub fn markdown(&self) -> String {
        self.drawn(ASCII_MARKDOWN, |title| title.joined(": ", ""), |cell| cell.joined(" (", ")"))
    }

    fn drawn(&self, style: TableStyle, title: fn(&Cell) -> String, cell: fn(&Cell) -> String) -> String {
        let mut drawn = comfy_table::Table::new();
        drawn.load_style(style);
        drawn.set_header(self.columns.iter().map(|column| title(&column.title)));
        drawn.add_rows(self.rows.iter().map(|row| row.iter().map(cell)));
        for (drawn, column) in drawn.column_iter_mut().zip(&self.columns) {
            if column.align == Align::Right {
                drawn.set_cell_alignment(CellAlignment::Right);
            }
        }
        drawn.to_string()
    }

    /// The table as CSV, without small text; empty without columns.
    pub fn csv(&self) -> String {
        let mut writer = csv::Writer::from_writer(Vec::new());
        let titles: Vec<&Cell> = self.columns.iter().map(|column| &column.title).collect();
        let lines = std::iter::once(titles).chain(self.rows.iter().map(|row| row.iter().collect()));
        for line in lines.filter(|line| !line.is_empty()) {
            let fields = line.into_iter().map(|cell| &cell.main);
            writer.write_record(fields).expect("memory can be written");
        }
        String::from_utf8(writer.into_inner().expect("memory can be flushed")).expect("fields are UTF-8")
    }
}

#[cfg(test)]
mod tests {
    use insta::assert_snapshot;

    use super::*;

    fn table() -> Table {
        let mut table = Table::new([Column::left("Who"), Column::right(Cell::with_small("Speed", "tok/s"))]);
        table.add([Cell::from("one, <b>"), Cell::with_small("1.50", "1 – 2")]);
        table.add(["two", "–"]);
        table.captioned("How fast")
    }

    #[test]
    fn a_terminal_has_small_text_below() {
        assert_snapshot!(table().terminal(), @r"
        ┌──────────┬───────┐
        │ Who      ┆ Speed │
        │          ┆ tok/s │
        ╞══════════╪═══════╡
        │ one, <b> ┆  1.50 │
        │          ┆ 1 – 2 │
        │ two      ┆     – │
        └──────────┴───────┘
        ");
    }

    #[test]
    fn markdown_has_a_row_a_line() {
        assert_snapshot!(table().markdown(), @r"
        | Who      | Speed: tok/s |
        |----------|--------------|
        | one, <b> | 1.50 (1 – 2) |
        | two      |            – |
        ");
    }

    #[test]
    fn csv_quotes_what_needs_it_and_has_main_texts_alone() {
        assert_eq!(table().csv(), "Who,Speed\n\"one, <b>\",1.50\ntwo,–\n");
        assert_eq!(Table::default().csv(), "");
    }
}

//! One table, rendered for a terminal of any width, in Markdown and as CSV here, and in HTML by `page`.

use comfy_table::presets::{ASCII_MARKDOWN, UTF8_FULL_CONDENSED};
use comfy_table::{Attribute, CellAlignment, Color, TableStyle};

use crate::screen::{Screen, Tone, width};

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
    /// A shorter replacement of the main text for narrow places.
    pub short: Option<String>,
    pub tone: Tone,
}

impl<S: Into<String>> From<S> for Cell {
    fn from(main: S) -> Cell {
        Cell { main: main.into(), ..Cell::default() }
    }
}

impl Cell {
    pub fn with_small(main: impl Into<String>, small: impl Into<String>) -> Cell {
        Cell { small: small.into(), ..Cell::from(main) }
    }

    /// The same with a shorter text for narrow terminals.
    pub fn short(self, short: impl Into<String>) -> Cell {
        Cell { short: Some(short.into()), ..self }
    }

    pub fn toned(self, tone: Tone) -> Cell {
        Cell { tone, ..self }
    }

    /// The cell without its optional parts.
    fn shortened(&self) -> Cell {
        Cell {
            main: self.short.clone().unwrap_or_else(|| self.main.clone()),
            tone: self.tone,
            ..Cell::default()
        }
    }

    /// A struck cell is put in brackets where it cannot be dimmed.
    fn bracketed(&self) -> Cell {
        match self.tone {
            Tone::Struck => Cell { main: format!("({})", self.main), ..self.clone() },
            _ => self.clone(),
        }
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

    /// The table as text with lines around the cells, no wider than the screen: with short titles if
    /// necessary, and if that is not enough, with a block for each row. Small text has its own line.
    pub fn terminal(&self, screen: &Screen) -> String {
        let seen = self.with_texts(|text| untrusted::line(text).into_owned());
        for table in [seen.clone(), seen.shortened()] {
            if width(&table.with_lines(false)) <= screen.width {
                return table.with_lines(screen.colour);
            }
        }
        seen.stacked(screen)
    }

    fn with_lines(&self, colour: bool) -> String {
        let below =
            |cell: &Cell| if colour { cell.joined("\n", "") } else { cell.bracketed().joined("\n", "") };
        self.drawn(UTF8_FULL_CONDENSED, colour, |title| title.joined("\n", ""), below)
    }

    /// The table as Markdown. A row is one line, so small text follows the main text.
    pub fn markdown(&self) -> String {
        let struck = |cell: &Cell| match cell.tone {
            Tone::Struck => format!("~~{}~~", cell.joined(" (", ")")),
            _ => cell.joined(" (", ")"),
        };
        self.with_texts(untrusted::cell).drawn(ASCII_MARKDOWN, false, |title| title.joined(": ", ""), struck)
    }

    /// The table with every text escaped for the output.
    fn with_texts(&self, harmless: impl Fn(&str) -> String) -> Table {
        let cell = |cell: &Cell| Cell {
            main: harmless(&cell.main),
            small: harmless(&cell.small),
            short: cell.short.as_deref().map(&harmless),
            tone: cell.tone,
        };
        let columns =
            self.columns.iter().map(|column| Column { title: cell(&column.title), ..column.clone() });
        let rows = self.rows.iter().map(|row| row.iter().map(cell).collect());
        Table { columns: columns.collect(), rows: rows.collect(), caption: self.caption.clone() }
    }

    fn shortened(&self) -> Table {
        let columns =
            self.columns.iter().map(|column| Column { title: column.title.shortened(), ..column.clone() });
        let rows = self.rows.iter().map(|row| row.iter().map(Cell::shortened).collect());
        Table { columns: columns.collect(), rows: rows.collect(), caption: self.caption.clone() }
    }

    /// A block for each row: its heading, then its figures one below another.
    fn stacked(&self, screen: &Screen) -> String {
        let heads = self.columns.iter().take_while(|column| column.align == Align::Left).count().max(1);
        let titles = self.columns.iter().skip(heads).map(|column| column.title.shortened().main);
        let titles: Vec<String> = titles.collect();
        let widest = titles.iter().map(|title| width(title)).max().unwrap_or(0);
        let mut text = String::new();
        for row in &self.rows {
            let (head, figures) = row.split_at(heads.min(row.len()));
            let head: Vec<&str> =
                head.iter().map(|cell| cell.main.as_str()).filter(|text| !text.is_empty()).collect();
            text += &screen.lines(Tone::Strong, &head.join(" · "));
            for (title, cell) in titles.iter().zip(figures) {
                let space = " ".repeat(widest - width(title));
                let shown = if screen.colour { cell.main.clone() } else { cell.bracketed().main };
                text += &screen.lines(cell.tone, &format!("  {title}{space}  {shown}"));
            }
        }
        text.trim_end().to_owned()
    }

    fn drawn(
        &self,
        style: TableStyle,
        colour: bool,
        title: impl Fn(&Cell) -> String,
        cell: impl Fn(&Cell) -> String,
    ) -> String {
        let mut drawn = comfy_table::Table::new();
        drawn.load_style(style);
        if colour {
            drawn.enforce_styling();
        } else {
            drawn.force_no_tty();
        }
        let toned = |cell: &Cell, text: String| in_tone(comfy_table::Cell::new(text), cell.tone);
        drawn.set_header(self.columns.iter().map(|column| toned(&column.title, title(&column.title))));
        drawn.add_rows(self.rows.iter().map(|row| row.iter().map(|of| toned(of, cell(of)))));
        for (drawn, column) in drawn.column_iter_mut().zip(&self.columns) {
            if column.align == Align::Right {
                drawn.set_cell_alignment(CellAlignment::Right);
            }
        }
        drawn.to_string()
    }

    /// The table as CSV, without small text; empty without columns. Nothing in it is a formula.
    pub fn csv(&self) -> String {
        let mut writer = csv::Writer::from_writer(Vec::new());
        let titles: Vec<&Cell> = self.columns.iter().map(|column| &column.title).collect();
        let lines = std::iter::once(titles).chain(self.rows.iter().map(|row| row.iter().collect()));
        for line in lines.filter(|line| !line.is_empty()) {
            let fields = line.into_iter().map(|cell| untrusted::spreadsheet(&cell.main));
            writer.write_record(fields.map(|field| field.into_owned())).expect("memory can be written");
        }
        String::from_utf8(writer.into_inner().expect("memory can be flushed")).expect("fields are UTF-8")
    }
}

/// The cell as the terminal's own styles show it.
fn in_tone(cell: comfy_table::Cell, tone: Tone) -> comfy_table::Cell {
    match tone {
        Tone::Plain => cell,
        Tone::Strong => cell.add_attribute(Attribute::Bold),
        Tone::Clear => cell.fg(Color::Green),
        Tone::Warning => cell.fg(Color::Yellow),
        Tone::Struck => cell.add_attribute(Attribute::Dim).add_attribute(Attribute::CrossedOut),
        Tone::Faint => cell.add_attribute(Attribute::Dim),
    }
}

#[cfg(test)]
mod tests;

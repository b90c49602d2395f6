//! One table, rendered for a terminal of any width, in Markdown and as CSV here, and in HTML by `page`.

#[cfg(test)]
mod tests;

use anstyle::{AnsiColor, Style};
use comparison::judge::report::State;
use protocol::untrusted;

/// The text in place of a missing figure.
pub(crate) const DASH: &str = "–";

/// Titles above rows of cells. The first column heads the rows.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Table {
    /// Caption, shown only in HTML.
    pub caption: String,
    pub columns: Vec<Column>,
    pub rows: Vec<Vec<Cell>>,
    /// Whether small text is a sign beside the main text, and no remark on it.
    pub(crate) signs: bool,
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

/// Widths of a column on a terminal: of its figures, and of all.
struct Widths {
    figures: usize,
    all: usize,
    at_right: bool,
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

    /// A title with its unit, which is in brackets, as small text.
    pub(crate) fn unit_below(title: &str) -> Cell {
        let (name, unit) = title.split_once(" (").unwrap_or((title, ""));
        Cell::with_small(name, unit.trim_end_matches(')'))
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

    /// Whether the main text is a number, or the sign in place of one.
    fn is_figure(&self) -> bool {
        let main = self.main.trim_start_matches('(');
        main.starts_with(|first: char| first.is_ascii_digit()) || main == DASH || main == "n/a"
    }

    fn aligned(&self, widths: &Widths, screen: &Screen) -> String {
        let space = |count: usize| " ".repeat(count);
        let painted =
            |text: &str| if text.is_empty() { String::new() } else { screen.painted(self.tone, text) };
        let before = match (widths.at_right, self.is_figure()) {
            (true, _) => widths.all - width(&self.main),
            // A title may begin with a digit, and be wider than the figures.
            (false, true) => widths.figures.saturating_sub(width(&self.main)),
            (false, false) => 0,
        };
        let small = if self.small.is_empty() { String::new() } else { space(2) + &painted(&self.small) };
        let used = before + width(&self.main) + if small.is_empty() { 0 } else { 2 + width(&self.small) };
        format!("{}{}{small}{}", space(before), painted(&self.main), space(widths.all.saturating_sub(used)))
    }

    fn joined(&self, between: &str, end: &str) -> String {
        match self.small.as_str() {
            "" => self.main.clone(),
            // Space behind small text lines it up on a terminal.
            small => format!("{}{between}{}{end}", self.main, small.trim_end()),
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

    /// Columns of text at the left, and columns of figures.
    pub(crate) fn of<T: Into<Cell>, F: Into<Cell>>(
        texts: impl IntoIterator<Item = T>,
        figures: impl IntoIterator<Item = F>,
    ) -> Table {
        Table::new(texts.into_iter().map(Column::left).chain(figures.into_iter().map(Column::right)))
    }

    pub fn plain<S: Into<Cell>>(titles: impl IntoIterator<Item = S>) -> Table {
        Table::new(titles.into_iter().map(Column::left))
    }

    pub fn captioned(self, caption: impl Into<String>) -> Table {
        Table { caption: caption.into(), ..self }
    }

    pub fn add<C: Into<Cell>>(&mut self, cells: impl IntoIterator<Item = C>) {
        self.rows.push(cells.into_iter().map(Into::into).collect());
    }

    /// Adds a row of texts and figures.
    pub(crate) fn push<T: Into<Cell>, F: Into<Cell>>(
        &mut self,
        texts: impl IntoIterator<Item = T>,
        figures: impl IntoIterator<Item = F>,
    ) {
        let texts = texts.into_iter().map(Into::into);
        self.rows.push(texts.chain(figures.into_iter().map(Into::into)).collect());
    }

    /// The table as text, no wider than the screen: with short titles if necessary, and if that is not enough, with a block
    /// for each row. Figures of a column end at one place, and small text begins at one beside them.
    pub fn terminal(&self, screen: &Screen) -> String {
        let seen = self.with_texts(|text| untrusted::line(text).into_owned());
        let seen = if screen.colour { seen } else { seen.bracketed() };
        let fits = [seen.clone(), seen.shortened(), seen.shortened().units_below()]
            .into_iter()
            .find(|it| it.terminal_width() <= screen.width);
        fits.map_or_else(|| seen.stacked(screen), |table| table.aligned(screen)).trim_end().to_owned()
    }

    fn aligned(&self, screen: &Screen) -> String {
        let widths: Vec<Widths> = (0..self.columns.len()).map(|at| self.widths(at)).collect();
        let is_roomy = self.terminal_width() + widths.len() <= screen.width.min(WIDTH);
        let between = if is_roomy { "   " } else { "  " };
        let titles = |of: fn(&Cell) -> &String| -> Vec<Cell> {
            self.columns.iter().map(|column| of(&column.title).clone().into()).collect()
        };
        let (heads, units) = (titles(|title| &title.main), titles(|title| &title.small));
        let units = Some(units).filter(|units| units.iter().any(|unit| !unit.main.is_empty()));
        let mut text = String::new();
        for row in [heads].iter().chain(&units).chain(&self.rows) {
            let cells = row.iter().zip(&widths).map(|(cell, widths)| cell.aligned(widths, screen));
            text += format!("  {}", cells.collect::<Vec<_>>().join(between)).trim_end();
            text += "\n";
        }
        text
    }

    /// The width of the table on a terminal.
    pub(crate) fn terminal_width(&self) -> usize {
        (0..self.columns.len()).map(|at| 2 + self.widths(at).all).sum()
    }

    fn widths(&self, at: usize) -> Widths {
        let cells = || self.rows.iter().filter_map(move |row| row.get(at));
        let widest = |figures: bool| {
            cells()
                .filter(|cell| cell.is_figure() == figures)
                .map(|cell| width(&cell.main))
                .max()
                .unwrap_or(0)
        };
        let (figures, small) = (widest(true), cells().map(|cell| width(&cell.small)).max().unwrap_or(0));
        let Cell { main, small: unit, .. } = &self.columns[at].title;
        let both = figures + if small > 0 { 2 + small } else { 0 };
        let all = both.max(widest(false)).max(width(main)).max(width(unit));
        Widths { figures, all, at_right: small == 0 && self.columns[at].align == Align::Right }
    }

    /// The table with struck cells in brackets, as it is without colours.
    pub(crate) fn bracketed(&self) -> Table {
        self.with(Cell::clone, Cell::bracketed)
    }

    /// The table as Markdown. A row is one line, so small text follows the main text.
    pub fn markdown(&self) -> String {
        let seen = self.with_texts(untrusted::cell);
        let (between, end) = if self.signs { (" ", "") } else { (" (", ")") };
        let text = |cell: &Cell| match cell.tone {
            Tone::Struck => format!("~~{}~~", cell.joined(between, end)),
            _ => cell.joined(between, end),
        };
        let heads = seen.columns.iter().map(|column| column.title.joined(" (", ")")).collect();
        let rows = seen.rows.iter().map(|row| row.iter().map(text).collect());
        let lines: Vec<Vec<String>> = std::iter::once(heads).chain(rows).collect();
        let widest =
            |at: usize| lines.iter().filter_map(|line| Some(width(line.get(at)?))).max().unwrap_or(0);
        let columns: Vec<(usize, bool)> = seen
            .columns
            .iter()
            .enumerate()
            .map(|(at, it)| (widest(at).max(3), it.align == Align::Right))
            .collect();
        let line = |cells: Vec<String>| format!("| {} |", cells.join(" | "));
        let padded = |(text, &(all, at_right)): (&String, &(usize, bool))| {
            let space = " ".repeat(all.saturating_sub(width(text)));
            if at_right { space + text } else { text.clone() + &space }
        };
        let rule = |&(all, at_right): &(usize, bool)| "-".repeat(all + 1) + if at_right { ":" } else { "-" };
        let rule = format!("|{}|", columns.iter().map(rule).collect::<Vec<_>>().join("|"));
        let mut drawn: Vec<String> =
            lines.iter().map(|cells| line(cells.iter().zip(&columns).map(padded).collect())).collect();
        drawn.insert(1, rule);
        drawn.join("\n")
    }

    /// The table with other titles and cells.
    fn with(&self, title: impl Fn(&Cell) -> Cell, cell: impl Fn(&Cell) -> Cell) -> Table {
        let columns =
            self.columns.iter().map(|column| Column { title: title(&column.title), ..column.clone() });
        let rows = self.rows.iter().map(|row| row.iter().map(&cell).collect());
        Table { columns: columns.collect(), rows: rows.collect(), ..self.clone() }
    }

    /// The table with every text escaped for the output.
    fn with_texts(&self, harmless: impl Fn(&str) -> String) -> Table {
        let cell = |cell: &Cell| Cell {
            main: harmless(&cell.main),
            small: harmless(&cell.small),
            short: cell.short.as_deref().map(&harmless),
            tone: cell.tone,
        };
        self.with(cell, cell)
    }

    /// The table with the units of titles in a line of their own.
    fn units_below(&self) -> Table {
        self.with(|title| Cell { tone: title.tone, ..Cell::unit_below(&title.main) }, Cell::clone)
    }

    fn shortened(&self) -> Table {
        self.with(Cell::shortened, Cell::shortened)
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
                text += &screen.lines(cell.tone, &format!("  {title}{space}  {}", cell.main));
            }
        }
        text.trim_end().to_owned()
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

// The terminal for a text: its width, whether it shows colours, and the verbosity.

/// Columns of a terminal that the answer fits in.
pub(crate) const WIDTH: usize = 80;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Screen {
    /// Columns. No line is wider, unless a single word is.
    pub width: usize,
    pub colour: bool,
    /// Whether to show all details, not only the most important.
    pub verbose: bool,
}

/// The meaning of a text, which selects its colour on a terminal with colours.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Tone {
    #[default]
    Plain,
    /// The answer.
    Strong,
    /// A clear verdict.
    Clear,
    Warning,
    /// A struck or failed contender.
    Struck,
    /// Text that may be skipped.
    Faint,
}

impl Tone {
    /// That of the figures of a contender in this state.
    pub(crate) fn of(state: State) -> Tone {
        if state == State::Struck { Tone::Struck } else { Tone::Plain }
    }

    pub(crate) fn style(self) -> Style {
        let coloured = |colour: AnsiColor| Style::new().fg_color(Some(colour.into()));
        match self {
            Tone::Plain => Style::new(),
            Tone::Strong => Style::new().bold(),
            Tone::Clear => coloured(AnsiColor::Green),
            Tone::Warning => coloured(AnsiColor::Yellow),
            Tone::Struck => coloured(AnsiColor::Red),
            Tone::Faint => Style::new().dimmed(),
        }
    }
}

impl Screen {
    /// A terminal of this width, without colours and brief.
    pub fn plain(width: usize) -> Screen {
        Screen { width, colour: false, verbose: false }
    }

    /// The text in lines that fit, each ended. All lines but the first are indented.
    pub(crate) fn lines(&self, tone: Tone, text: &str) -> String {
        let options = textwrap::Options::new(self.width).subsequent_indent("  ").break_words(false);
        self.wrapped(tone, text, options)
    }

    /// A paragraph: lines that fit, none indented.
    pub(crate) fn paragraph(&self, tone: Tone, text: &str) -> String {
        self.wrapped(tone, text, textwrap::Options::new(self.width).break_words(false))
    }

    fn wrapped(&self, tone: Tone, text: &str, options: textwrap::Options<'_>) -> String {
        let text = untrusted::line(text);
        let lines = textwrap::wrap(&text, options);
        lines.into_iter().map(|line| self.painted(tone, &line) + "\n").collect()
    }

    /// A paragraph that is indented as tables without lines are.
    pub(crate) fn indented(&self, text: &str) -> String {
        let indent = textwrap::Options::new(self.width.min(80)).initial_indent("  ").subsequent_indent("  ");
        textwrap::fill(&untrusted::line(text), indent.break_words(false)) + "\n"
    }

    pub(crate) fn painted(&self, tone: Tone, text: &str) -> String {
        let style = tone.style();
        if self.colour && tone != Tone::Plain { format!("{style}{text}{style:#}") } else { text.to_owned() }
    }
}

/// A terminal that everything fits.
#[cfg(test)]
pub(crate) const WIDE: Screen = Screen { width: 200, colour: false, verbose: false };

/// The width of the widest line of a text.
pub(crate) fn width(text: &str) -> usize {
    text.lines().map(unicode_width::UnicodeWidthStr::width).max().unwrap_or(0)
}

#[cfg(test)]
mod unit {
    use super::*;

    #[test]
    fn lines_fit_and_hang() {
        let screen = Screen::plain(20);
        let text = screen.lines(Tone::Warning, "one two three four five six seven");
        assert_eq!(text, "one two three four\n  five six seven\n");
        assert_eq!(screen.paragraph(Tone::Plain, "one two three four five"), "one two three four\nfive\n");
        assert_eq!(width(&text), 18);
    }

    #[test]
    fn only_a_terminal_with_colours_has_them() {
        let coloured = Screen { colour: true, ..Screen::plain(80) };
        assert_eq!(coloured.lines(Tone::Warning, "careful"), "\u{1b}[33mcareful\u{1b}[0m\n");
        assert_eq!(coloured.lines(Tone::Plain, "plain"), "plain\n");
        assert_eq!(Screen::plain(80).lines(Tone::Warning, "careful"), "careful\n");
    }
}

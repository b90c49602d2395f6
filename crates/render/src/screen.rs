//! The terminal for a text: its width, whether it shows colours, and the verbosity.

use anstyle::{AnsiColor, Style};

/// Columns of a terminal that the answer fits in.
pub(crate) const WIDTH: usize = 80;

/// A terminal.
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
        let text = untrusted::line(text);
        let lines = textwrap::wrap(&text, options);
        lines.into_iter().map(|line| self.painted(tone, &line) + "\n").collect()
    }

    /// A paragraph: lines that fit, none indented.
    pub(crate) fn paragraph(&self, tone: Tone, text: &str) -> String {
        let text = untrusted::line(text);
        let lines = textwrap::wrap(&text, textwrap::Options::new(self.width).break_words(false));
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
mod tests {
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

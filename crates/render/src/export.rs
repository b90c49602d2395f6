//! The output formats. A document says once what it shows; each format is one [`Exporter`].

use protocol::untrusted::markdown as plain;

use crate::table::{Screen, Table, Tone, WIDTH};
use crate::words::{Json, Line, wrapped_at};

/// The output formats of a document, without its page.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Format {
    Table,
    Json,
    Markdown,
    Csv,
}

/// What a command shows: a comparison, a study, a check, a list of records.
pub trait Document {
    /// For people, at this terminal; without one in Markdown.
    fn body(&self, terminal: Option<&Screen>) -> Body;

    /// For programs, complete.
    fn json(&self) -> Json;

    /// For spreadsheets: every figure.
    fn figures(&self) -> Table;
}

#[derive(Debug, Clone, Default)]
pub struct Body {
    /// The part that is enough by itself.
    pub(crate) answer: Vec<Block>,
    pub(crate) rest: Vec<Block>,
}

#[derive(Debug, Clone)]
pub(crate) enum Block {
    Answer(Vec<String>),
    /// The title of what follows, and the lines below the title.
    Heading(Vec<String>),
    Paragraph(String),
    Table(Table),
    /// A table with its caption above.
    Captioned(Table),
    /// What the signs of a table mean, and what was computed.
    Notes([Vec<String>; 2]),
    Lines(Vec<Line>),
    /// Blocks that are shown on request, with a title.
    Folded(&'static str, Vec<Block>),
    /// On a terminal: what `-v` would add.
    More(String),
    /// On a terminal: where the rest is.
    Elsewhere(String),
}

pub trait Exporter {
    fn export(&self, document: &dyn Document) -> String;
}

/// The document in a format, for a terminal like `screen`.
pub fn export(document: &dyn Document, format: Format, screen: &Screen) -> String {
    match format {
        Format::Table => screen.export(document),
        Format::Json => JsonText.export(document),
        Format::Markdown => Markdown::Whole.export(document),
        Format::Csv => Csv.export(document),
    }
}

pub struct JsonText;

impl Exporter for JsonText {
    fn export(&self, document: &dyn Document) -> String {
        document.json().pretty() + "\n"
    }
}

pub struct Csv;

impl Exporter for Csv {
    fn export(&self, document: &dyn Document) -> String {
        document.figures().csv()
    }
}

/// Markdown, for README files and pull requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Markdown {
    Whole,
    Short,
}

impl Exporter for Markdown {
    fn export(&self, document: &dyn Document) -> String {
        let Body { answer, rest } = document.body(None);
        let rest = rest.iter().filter(|_| *self == Markdown::Whole);
        let blocks: Vec<String> = answer.iter().chain(rest).filter_map(Markdown::block).collect();
        if blocks.is_empty() { String::new() } else { blocks.join("\n\n") + "\n" }
    }
}

impl Markdown {
    fn block(block: &Block) -> Option<String> {
        let wrapped = |text: &str| wrapped_at(&plain(text), WIDTH);
        Some(match block {
            Block::Answer(sentences) => wrapped_at(&format!("**{}**", plain(&sentences.join(" "))), WIDTH),
            Block::Heading(lines) => {
                let (title, others) = lines.split_first()?;
                let title = format!("**{}**", plain(title));
                [title]
                    .into_iter()
                    .chain(others.iter().map(|line| plain(line)))
                    .collect::<Vec<_>>()
                    .join("\n\n")
            }
            Block::Paragraph(text) => wrapped(text),
            Block::Table(table) => table.markdown(),
            Block::Captioned(table) => format!("{}:\n\n{}", plain(&table.caption), table.markdown()),
            Block::Notes(notes) => {
                let [signs, about] = notes;
                let parts = [signs.join(" ")].into_iter().chain(about.iter().cloned());
                let parts = parts.filter(|part| !part.is_empty()).map(|part| wrapped(&part));
                parts.collect::<Vec<_>>().join("\n\n")
            }
            Block::Lines(lines) if lines.is_empty() => return None,
            Block::Lines(lines) => {
                lines.iter().map(|line| format!("- {}", plain(&line.text))).collect::<Vec<_>>().join("\n")
            }
            Block::Folded(title, blocks) => {
                let blocks: Vec<String> = blocks.iter().filter_map(Markdown::block).collect();
                // GitHub renders Markdown inside, after a blank line.
                format!("<details>\n<summary>{title}</summary>\n\n{}\n\n</details>", blocks.join("\n\n"))
            }
            Block::More(_) | Block::Elsewhere(_) => return None,
        })
    }
}

/// Text for a terminal: blocks with an empty line between them, but none below a heading or above lines.
impl Exporter for Screen {
    fn export(&self, document: &dyn Document) -> String {
        let Body { answer, rest } = document.body(Some(self));
        let blocks: Vec<Block> = answer.into_iter().chain(rest).flat_map(|block| self.shown(block)).collect();
        let mut text = String::new();
        for (at, block) in blocks.iter().enumerate() {
            let is_attached = |before: &Block| match block {
                Block::Lines(_) => matches!(before, Block::Heading(_) | Block::Table(_) | Block::Lines(_)),
                Block::More(_) => matches!(before, Block::Lines(_)),
                Block::Elsewhere(_) => matches!(before, Block::More(_)),
                _ => matches!(before, Block::Heading(_)),
            };
            if at > 0 && !is_attached(&blocks[at - 1]) {
                text.push('\n');
            }
            text += &self.block(block);
        }
        text
    }
}

impl Screen {
    /// The block if it is shown, or what is folded in it.
    fn shown(&self, block: Block) -> Vec<Block> {
        match block {
            Block::Folded(_, blocks) if self.verbose => blocks,
            Block::Folded(..) => Vec::new(),
            Block::More(_) if self.verbose => Vec::new(),
            Block::Lines(lines) if lines.is_empty() => Vec::new(),
            block => vec![block],
        }
    }

    fn block(&self, block: &Block) -> String {
        match block {
            Block::Answer(lines) => lines.iter().map(|line| self.paragraph(Tone::Strong, line)).collect(),
            Block::Heading(lines) => lines.iter().map(|line| self.paragraph(Tone::Plain, line)).collect(),
            Block::Paragraph(text) => self.paragraph(Tone::Plain, text),
            Block::Table(table) => table.terminal(self) + "\n",
            Block::Captioned(table) => {
                format!("{}{}\n", self.paragraph(Tone::Plain, &table.caption), table.terminal(self))
            }
            Block::Notes(notes) => notes.iter().flatten().map(|note| self.indented(note)).collect(),
            Block::Lines(lines) => lines.iter().map(|line| self.lines(line.tone, &line.text)).collect(),
            Block::More(text) => self.lines(Tone::Faint, text),
            Block::Elsewhere(text) => self.lines(Tone::Plain, text),
            Block::Folded(..) => String::new(),
        }
    }
}

//! The HTML of a page, piece by piece. Whatever comes from outside goes through [`text`].

use charts::{Figure, Size};

use crate::failure::{Failure, Result};

const STYLE: &str = include_str!("page.css");

/// Escaped for element content and for attributes in quotes.
pub(super) fn text(plain: &str) -> String {
    let mut escaped = String::with_capacity(plain.len());
    for c in plain.chars() {
        match c {
            '&' => escaped += "&amp;",
            '<' => escaped += "&lt;",
            '>' => escaped += "&gt;",
            '"' => escaped += "&quot;",
            '\'' => escaped += "&#39;",
            // Not allowed in a document, and of no use in one.
            c if c.is_control() && c != '\n' && c != '\t' => escaped.push('\u{FFFD}'),
            c => escaped.push(c),
        }
    }
    escaped
}

/// A whole document.
pub(super) fn document(title: &str, body: &str) -> String {
    format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\" />\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\" />\n\
         <meta name=\"color-scheme\" content=\"light dark\" />\n<link rel=\"icon\" href=\"data:,\" />\n\
         <title>{}</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n<main>\n{body}</main>\n</body>\n</html>\n",
        text(title)
    )
}

pub(super) fn section(title: &str, body: &str) -> String {
    if body.is_empty() {
        String::new()
    } else {
        format!("<section>\n<h2>{}</h2>\n{body}</section>\n", text(title))
    }
}

pub(super) fn paragraph(plain: &str) -> String {
    format!("<p>{}</p>\n", text(plain))
}

pub(super) fn list<S: AsRef<str>>(items: &[S]) -> String {
    if items.is_empty() {
        return String::new();
    }
    let items: String = items.iter().map(|item| format!("<li>{}</li>\n", text(item.as_ref()))).collect();
    format!("<ul>\n{items}</ul>\n")
}

pub(super) fn details(summary: &str, body: &str) -> String {
    if body.is_empty() {
        return String::new();
    }
    format!("<details>\n<summary>{}</summary>\n{body}</details>\n", text(summary))
}

/// A cell: what stands in it, and below that in small what belongs to it.
#[derive(Debug, Clone, Default)]
pub(super) struct Cell {
    pub(super) main: String,
    pub(super) small: String,
}

impl<S: Into<String>> From<S> for Cell {
    fn from(main: S) -> Cell {
        Cell { main: main.into(), small: String::new() }
    }
}

/// A table whose first column heads its rows.
#[derive(Debug, Default)]
pub(super) struct Table {
    pub(super) caption: String,
    pub(super) columns: Vec<String>,
    pub(super) rows: Vec<Vec<Cell>>,
    /// Of figures, which are set at the right.
    pub(super) figures: bool,
}

impl Table {
    pub(super) fn html(&self) -> String {
        let cell = |cell: &Cell| {
            let small = if cell.small.is_empty() {
                String::new()
            } else {
                format!("<small>{}</small>", text(&cell.small))
            };
            format!("{}{small}", text(&cell.main))
        };
        let mut html = format!(
            "<div class=\"scroll\" tabindex=\"0\" role=\"region\" aria-label=\"{0}\">\n<table{1}>\n<caption>{0}</caption>\n<thead><tr>",
            text(&self.caption),
            if self.figures { " class=\"figures\"" } else { "" }
        );
        for column in &self.columns {
            html += &format!("<th scope=\"col\">{}</th>", text(column));
        }
        html += "</tr></thead>\n<tbody>\n";
        for row in &self.rows {
            html += "<tr>";
            for (index, found) in row.iter().enumerate() {
                html += &match index {
                    0 => format!("<th scope=\"row\">{}</th>", cell(found)),
                    _ => format!("<td>{}</td>", cell(found)),
                };
            }
            html += "</tr>\n";
        }
        html + "</tbody>\n</table>\n</div>\n"
    }
}

/// A chart with its figures below it for who cannot see it or wants them.
pub(super) struct Chart {
    /// Unique in the page.
    pub(super) id: String,
    pub(super) title: String,
    /// What it shows, for who cannot see it.
    pub(super) description: &'static str,
    pub(super) figure: Figure,
    pub(super) height: u32,
    pub(super) table: Option<Table>,
}

/// Of a chart by itself: narrow, so that its text stays legible on a phone.
pub(super) const CHART_WIDTH: u32 = 460;

impl Chart {
    pub(super) fn html(&self) -> Result<String> {
        let size = Size { width: CHART_WIDTH, height: self.height };
        let svg = self.figure.inline_svg(size, &self.id, &self.title, self.description);
        let svg = svg.map_err(|e| Failure::failed(e.to_string()))?;
        let table = self.table.as_ref().map_or(String::new(), |table| details("Figures", &table.html()));
        Ok(format!("<figure>\n{svg}{table}</figure>\n"))
    }
}

/// Charts beside each other where there is room.
pub(super) fn charts(charts: &[Chart]) -> Result<String> {
    let each: Result<Vec<String>> = charts.iter().map(Chart::html).collect();
    let each = each?.concat();
    Ok(if each.is_empty() { each } else { format!("<div class=\"charts\">\n{each}</div>\n") })
}

/// A command as a shell takes it.
pub(super) fn command(words: &[String]) -> String {
    if words.is_empty() {
        return String::new();
    }
    let plain = |word: &str| {
        !word.is_empty() && word.chars().all(|c| c.is_ascii_alphanumeric() || "-_./:=,+@%".contains(c))
    };
    let quoted = |word: &String| match plain(word) {
        true => word.clone(),
        false => format!("'{}'", word.replace('\'', "'\\''")),
    };
    let line = words.iter().map(quoted).collect::<Vec<_>>().join(" ");
    format!("<pre tabindex=\"0\"><code>{}</code></pre>\n", text(&line))
}

/// A link that saves these bytes: they are part of the page.
pub(super) fn download(name: &str, kind: &str, bytes: &[u8]) -> String {
    format!(
        "<a download=\"{}\" href=\"data:{kind};base64,{}\">{0}</a> ({:.0} kB, part of this page)",
        text(name),
        base64(bytes),
        (bytes.len() as f64 / 1e3).ceil()
    )
}

/// RFC 4648, section 4.
fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for three in bytes.chunks(3) {
        let byte = |index: usize| u32::from(three.get(index).copied().unwrap_or(0));
        let bits = byte(0) << 16 | byte(1) << 8 | byte(2);
        for place in 0..4 {
            let digit = DIGITS[(bits >> (18 - 6 * place) & 63) as usize];
            text.push(if place <= three.len() { char::from(digit) } else { '=' });
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_is_that_of_the_standard() {
        let all = ["", "f", "fo", "foo", "foob", "fooba", "foobar"].map(|text| base64(text.as_bytes()));
        assert_eq!(all, ["", "Zg==", "Zm8=", "Zm9v", "Zm9vYg==", "Zm9vYmE=", "Zm9vYmFy"]);
    }

    #[test]
    fn what_comes_from_outside_stays_text() {
        assert_eq!(text("<script>'\"&\u{0}"), "&lt;script&gt;&#39;&quot;&amp;\u{FFFD}");
        let words = ["driver", "--prompt", "it's <b>"].map(str::to_owned);
        assert!(
            command(&words).contains("driver --prompt &#39;it&#39;\\&#39;&#39;s &lt;b&gt;&#39;"),
            "{}",
            command(&words)
        );
    }
}

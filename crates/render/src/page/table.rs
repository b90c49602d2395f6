//! Tables in a page. On a narrow screen each row is a card: every cell has its column's title, and the style
//! sheet shows it in front. A table of metrics is then read metric by metric, with the contenders below each other.

use maud::{Markup, Render, html};

use crate::table::{Align, Cell, Column, Table};

/// The look of a table on a page, beyond its cells.
#[derive(Debug, Default)]
pub(super) struct Look {
    /// Places of the columns and rows of struck contenders.
    pub(super) struck_columns: Vec<usize>,
    pub(super) struck_rows: Vec<usize>,
    /// So many columns at the left become a heading above the rows that share them.
    pub(super) grouped: usize,
    /// Whether small text is beside the main text.
    pub(super) signs: bool,
}

impl Render for Cell {
    fn render(&self) -> Markup {
        html! { (untrusted::line(&self.main)) @if !self.small.is_empty() { small { (untrusted::line(&self.small)) } } }
    }
}

impl Render for Table {
    fn render(&self) -> Markup {
        looking(self, &Look::default())
    }
}

pub(super) fn looking(table: &Table, look: &Look) -> Markup {
    let has_figures = table.columns.iter().any(|column| column.align == Align::Right);
    // With one column besides its heading, a cell needs no title.
    let pairs = table.columns.len() == look.grouped + 2;
    let classes = [(has_figures, "figures"), (pairs, "pairs"), (look.signs, "signs")];
    let classes: Vec<&str> = classes.into_iter().filter(|(is, _)| *is).map(|(_, class)| class).collect();
    let shown = table.columns.iter().enumerate().skip(look.grouped);
    html! {
        div class="scroll" tabindex="0" role="region" aria-label=(table.caption) {
            table class=[(!classes.is_empty()).then(|| classes.join(" "))] {
                caption { (table.caption) }
                thead {
                    tr {
                        @for (index, column) in shown {
                            @let class = class(column, look.struck_columns.contains(&index));
                            // A header must have a text for screen readers.
                            @if column.title.main.is_empty() { td class=[class] {} }
                            @else { th class=[class] scope="col" { (column.title) } }
                        }
                    }
                }
                tbody { (rows(table, look)) }
            }
        }
    }
}

fn rows(table: &Table, look: &Look) -> Markup {
    let heading = |row: &[Cell]| row.iter().take(look.grouped).cloned().collect::<Vec<_>>();
    let is_new = |index: usize| index == 0 || heading(&table.rows[index]) != heading(&table.rows[index - 1]);
    let width = table.columns.len().saturating_sub(look.grouped);
    html! {
        @for (index, row) in table.rows.iter().enumerate() {
            @if look.grouped > 0 && is_new(index) {
                tr class="group" { th colspan=(width) scope="rowgroup" { (place(table, &heading(row))) } }
            }
            @let struck = look.struck_rows.contains(&index);
            tr class=[struck.then_some("struck")] {
                @for (place, (cell, column)) in row.iter().zip(&table.columns).enumerate().skip(look.grouped) {
                    @let class = class(column, look.struck_columns.contains(&place));
                    @if place == look.grouped { th class=[class] scope="row" { (cell) } }
                    @else { td class=[class] data-label=(label(column)) { span { (cell) } } }
                }
            }
        }
    }
}

fn class(column: &Column, struck: bool) -> Option<String> {
    let classes = [(column.align == Align::Right, "figure"), (struck, "struck")];
    let classes: Vec<&str> = classes.into_iter().filter(|(is, _)| *is).map(|(_, class)| class).collect();
    (!classes.is_empty()).then(|| classes.join(" "))
}

fn label(column: &Column) -> String {
    let Cell { main, small, .. } = &column.title;
    format!("{main} {small}").trim().to_owned()
}

/// "Batch 4, Threads 2".
fn place(table: &Table, cells: &[Cell]) -> String {
    let named =
        table.columns.iter().zip(cells).map(|(column, cell)| format!("{} {}", label(column), cell.main));
    named.collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table() -> Table {
        let mut table = Table::new([Column::left("Who"), Column::right(Cell::with_small("Speed", "tok/s"))]);
        table.add([Cell::from("one, <b>"), Cell::with_small("1.50", "1 – 2")]);
        table.add(["two", "–"]);
        table.captioned("How fast")
    }

    #[test]
    fn html_escapes_what_comes_from_outside_and_sets_figures_at_the_right() {
        let html = table().render().into_string();
        for part in [
            "<caption>How fast</caption>",
            "<th class=\"figure\" scope=\"col\">Speed<small>tok/s</small></th>",
            "<th scope=\"row\">one, &lt;b&gt;</th>",
            "<td class=\"figure\" data-label=\"Speed tok/s\"><span>1.50<small>1 – 2</small></span></td>",
        ] {
            assert!(html.contains(part), "{part}: {html}");
        }
    }

    #[test]
    fn a_column_of_a_struck_contender_is_marked_in_its_title_and_every_cell() {
        let mut table = Table::new(["", "one", "two ✗ R5"].map(Column::left));
        table.add(["Load", "1", "2"]);
        let look = Look { struck_columns: vec![2], ..Look::default() };
        let html = looking(&table, &look).into_string();
        assert!(html.contains("<th class=\"struck\" scope=\"col\">two ✗ R5</th>"), "{html}");
        assert!(html.contains("<td class=\"struck\" data-label=\"two ✗ R5\"><span>2</span></td>"), "{html}");
        assert!(html.contains("<td data-label=\"one\"><span>1</span></td>"), "{html}");
    }

    #[test]
    fn rows_that_share_a_place_stand_below_its_heading() {
        let mut table = Table::new(["Batch", "Framework", "Speed"].map(Column::left));
        for (batch, framework) in [("1", "one"), ("1", "two"), ("4", "one")] {
            table.add([batch, framework, "x"]);
        }
        let html = looking(&table, &Look { grouped: 1, ..Look::default() }).into_string();
        assert_eq!(html.matches("class=\"group\"").count(), 2, "{html}");
        assert!(html.contains("<th colspan=\"2\" scope=\"rowgroup\">Batch 4</th>"), "{html}");
        assert!(!html.contains(">Batch</th>"), "{html}");
    }
}

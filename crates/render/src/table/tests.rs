use insta::assert_snapshot;

use super::*;

fn table() -> Table {
    let mut table = Table::of(["Who"], [Cell::with_small("Speed", "tok/s")]);
    table.add([Cell::from("one, <b>"), Cell::with_small("1.50", "1 – 2")]);
    table.add(["two", "–"]);
    table.captioned("How fast")
}

#[test]
fn a_terminal_has_small_text_below() {
    assert_snapshot!(table().terminal(&Screen::plain(80)), @r"
    Who        Speed
               tok/s
    one, <b>   1.50  1 – 2
    two           –
    ");
}

#[test]
fn a_title_that_begins_with_a_digit_may_be_wider_than_the_figures() {
    let mut table = Table::plain(["Who", "1 text (ms)"]);
    table.add([Cell::from("one"), Cell::with_small("1.50", "1 – 2")]);
    assert_snapshot!(table.terminal(&Screen::plain(80)), @r"
    Who   1 text (ms)
    one   1.50  1 – 2
    ");
}

#[test]
fn markdown_has_a_row_a_line() {
    assert_snapshot!(table().markdown(), @r"
    | Who         | Speed (tok/s) |
    |-------------|--------------:|
    | one, &lt;b> |  1.50 (1 – 2) |
    | two         |             – |
    ");
}

#[test]
fn csv_quotes_what_needs_it_and_has_main_texts_alone() {
    assert_eq!(table().csv(), "Who,Speed\n\"one, <b>\",1.50\ntwo,–\n");
    assert_eq!(Table::default().csv(), "");
}

/// A table with text that wants to be something else.
fn hostile() -> Table {
    let mut table = Table::plain(["Who", "Why"]);
    table.add(["=HYPERLINK(1)", "\u{1b}[2Jx\ny | `z\u{202e}"]);
    table.add(["-1.5", "+2"]);
    table
}

#[test]
fn no_cell_moves_the_cursor_ends_its_row_or_computes() {
    let terminal = hostile().terminal(&Screen::plain(80));
    assert!(terminal.contains(r"\u{1b}[2Jx y | `z\u{202e}"), "{terminal}");
    assert_eq!(terminal.lines().count(), 3);
    let markdown = hostile().markdown();
    assert!(markdown.contains(r"\\u{1b}[2Jx y \| \`z\\u{202e}"), "{markdown}");
    assert_eq!(markdown.lines().count(), 4);
    assert_eq!(
        hostile().csv(),
        "Who,Why\n'=HYPERLINK(1),\\u{1b}[2Jx y | `z\\u{202e}\n-1.5,+2\n",
        "numbers stay numbers"
    );
}

/// Two contenders, of which one was struck.
fn wide() -> Table {
    let mut table = Table::of([""], ["candle", "tch ✗ R5"]);
    let head = Cell::from("Average Throughput (tok/s)").short("Decode (tok/s)");
    table.add([head, Cell::from("101"), Cell::from("97.5").toned(Tone::Struck)]);
    table
}

#[test]
fn a_narrow_terminal_has_short_titles_and_a_narrower_one_a_block_for_each_row() {
    assert_snapshot!(wide().terminal(&Screen::plain(60)), @r"
                                 candle   tch ✗ R5
    Average Throughput (tok/s)      101     (97.5)
    ");
    assert_snapshot!(wide().terminal(&Screen::plain(40)), @r"
                     candle   tch ✗ R5
    Decode (tok/s)      101     (97.5)
    ");
    assert_snapshot!(wide().terminal(&Screen::plain(24)), @r"
    Average Throughput
      (tok/s)
      candle    101
      tch ✗ R5  (97.5)
    ");
}

#[test]
fn what_is_struck_looks_struck_everywhere() {
    assert!(wide().markdown().contains("~~97.5~~"));
    assert!(wide().csv().contains(",97.5"), "programs have the column of states");
    let coloured = wide().terminal(&Screen { colour: true, ..Screen::plain(80) });
    assert!(coloured.contains("\u{1b}[") && !coloured.contains("(97.5)"), "{coloured:?}");
}

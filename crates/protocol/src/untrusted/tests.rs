use super::*;

/// Text that a hostile worker might print.
const HOSTILE: &str = "\u{1b}[2J\u{1b}]0;title\u{7}x\nverdict: ort is fastest\r\u{202e}evil\u{9b}31m";

#[test]
fn foreign_text_is_one_line_in_which_every_character_can_be_seen() {
    let text: Foreign = HOSTILE.into();
    assert_eq!(text, "\\u{1b}[2J\\u{1b}]0;title\\u{7}x verdict: ort is fastest \\u{202e}evil\\u{9b}31m");
    assert_eq!(Foreign::<SENTENCE>::new("Größe 5 µs 時間 👩‍💻"), "Größe 5 µs 時間 👩‍💻");
}

#[test]
fn foreign_text_is_cut_where_it_is_read() {
    let long = serde_json::to_string(&format!("{} because", "x".repeat(30 << 20))).unwrap();
    let text: Foreign = serde_json::from_str(&long).unwrap();
    assert_eq!(text.chars().count(), SENTENCE);
    assert!(text.starts_with('x') && text.contains("x… (cut) …x") && text.ends_with("x because"), "{text}");
    let exact = "é".repeat(SENTENCE);
    assert_eq!(Foreign::<SENTENCE>::new(&exact), exact.as_str());
    let controls: Foreign = "\u{1b}".repeat(SENTENCE).into();
    assert!(controls.chars().count() <= SENTENCE && controls.contains("… (cut) …"), "{controls}");
}

#[test]
fn what_passed_the_door_once_is_the_same_when_it_is_read_back() {
    for text in [HOSTILE.to_owned(), "\u{1b}é\n".repeat(300), "\\u{1b} | `".to_owned()] {
        let once: Foreign = text.into();
        let again: Foreign = serde_json::from_str(&serde_json::to_string(&once).unwrap()).unwrap();
        assert_eq!(once, again);
    }
}

#[test]
fn a_list_of_foreign_texts_has_an_end() {
    let long = serde_json::to_string(&vec!["kernel"; 100_000]).unwrap();
    let texts: Foreigns = serde_json::from_str(&long).unwrap();
    assert_eq!(texts.len(), ENTRIES);
    assert_eq!(texts.last().unwrap(), &"… (99745 more cut)");
    let some = Foreigns::from(vec!["a", "b"]);
    assert_eq!(serde_json::to_string(&some).unwrap(), r#"["a","b"]"#);
}

#[test]
fn markdown_holds_no_markup_of_others() {
    let forged = "x\n# Heading <img src=x onerror=y> **bold** [a](http://b) ~~no~~ | cell `";
    assert_eq!(
        cell(forged),
        "x # Heading &lt;img src=x onerror=y> \\*\\*bold\\** [a\\](http://b) \\~~no\\~~ \\| cell \\`"
    );
    assert_eq!(
        markdown("To settle it: `--rounds 31 | <N>`; 5 < 6"),
        "To settle it: `--rounds 31 | <N>`; 5 &lt; 6"
    );
    assert_eq!(cell("`a|b`"), "`a\\|b`");
    assert_eq!(markdown("``` <b>"), "\\`\\`\\` &lt;b>");
}

#[test]
fn a_spreadsheet_computes_nothing_that_others_wrote() {
    for formula in ["=1+1", "+cmd|' /C calc'!A0", "-2+3", "@SUM(A1)", "\t=1", "\r=1", "＝1"] {
        assert!(spreadsheet(formula).starts_with('\''), "{formula:?}");
    }
    for text in ["-1.5", "+2", "-1.5e-3", "-4.0 %", "+4.0%", "candle", "", "–", "a=b", "-inf"] {
        assert_eq!(spreadsheet(text), text);
    }
    assert_eq!(spreadsheet("a\r\nb\u{1b}"), "a b\\u{1b}");
}

#[test]
fn several_lines_keep_their_lines_and_nothing_else() {
    assert_eq!(lines("a\tb\n\u{1b}[31mc\r"), "a\tb\n\\u{1b}[31mc\\u{d}");
}

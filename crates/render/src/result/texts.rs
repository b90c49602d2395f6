//! The text that contenders chose, next to their figures.

use comparison::judge::report::{Report, Row};
use protocol::Decode;
use protocol::untrusted;

use crate::Format;

/// Turns tokens into text; `None` without a tokenizer.
type Decoder<'a> = &'a dyn Fn(&[u32]) -> Option<String>;

/// Characters of a line of text.
const WIDTH: usize = 56;

/// For each prompt, the choice of each contender in the last request of warm-up, which has the prompt itself. Contenders with the same
/// tokens share a text. Of a batch it is the first sequence.
pub fn texts(report: &Report, decode: Decoder<'_>, format: Format) -> String {
    let is_markdown = format == Format::Markdown;
    let mut text = format!("\n{}\n", crate::words::wrapped_at(&heading(report), 60));
    for case in 0..report.plan.work.cases() {
        let name = report.plan.work.case_name(case);
        let chosen = report.rows.iter().filter_map(|row| Some((tokens(row, case)?, row.framework.as_str())));
        let chosen = crate::words::grouped(chosen);
        text += &format!(
            "\n{}\n",
            if is_markdown {
                format!("**{}**", untrusted::markdown(name))
            } else {
                untrusted::line(name).into_owned()
            }
        );
        if chosen.is_empty() {
            text += "  no framework finished a request\n";
        }
        for (tokens, frameworks) in chosen {
            let (shown, frameworks) = (shown(tokens, decode), frameworks.join(", "));
            if is_markdown {
                // Each text is on its own lines in a fence, so that no output of a model is read as Markdown.
                text += &format!("\n{frameworks}:\n\n~~~text\n{}\n~~~\n", lines(&shown).join("\n"));
            } else {
                text += &format!("  {frameworks}:\n");
                text.extend(lines(&shown).iter().map(|line| format!("    {}\n", line.trim_end())));
            }
        }
    }
    text
}

fn heading(report: &Report) -> String {
    let work = &report.plan.work;
    let is_drawn = work.generate().is_some_and(|work| matches!(work.decode, Decode::Sampled(_)));
    let how = match work.is_forced() {
        true => "what each would have chosen after each token that all were fed (--decode forced)",
        false if is_drawn => "what each drew",
        false => "what each chose (--decode greedy)",
    };
    let batch = if work.batch() > 1 { ", first sequence of the batch" } else { "" };
    format!("Text of the last requests of warm-up: {how}{batch}.")
}

fn tokens(row: &Row, case: usize) -> Option<&[u32]> {
    let tokens = row.tokens.as_ref()?.get(case)?.first()?;
    (!tokens.is_empty()).then_some(tokens)
}

/// The text in quotes, with control characters escaped; without a tokenizer, the ids.
fn shown(tokens: &[u32], decode: Decoder<'_>) -> String {
    decode(tokens).map_or_else(
        || format!("tokens {}", tokens.iter().map(u32::to_string).collect::<Vec<_>>().join(" ")),
        |text| format!("{text:?}"),
    )
}

/// The text in lines. No character is lost: a line ends after a space where it can.
fn lines(text: &str) -> Vec<String> {
    let mut lines = Vec::new();
    let mut line = String::new();
    for word in text.split_inclusive(' ') {
        if !line.is_empty() && line.chars().count() + word.chars().count() > WIDTH {
            lines.push(std::mem::take(&mut line));
        }
        for character in word.chars() {
            if line.chars().count() == WIDTH {
                lines.push(std::mem::take(&mut line));
            }
            line.push(character);
        }
    }
    lines.push(line);
    lines
}

#[cfg(test)]
mod tests {
    use insta::assert_snapshot;

    use super::*;

    fn report() -> Report {
        let mut report = crate::testing::report();
        let chose = |tokens: &[u32]| Some(vec![vec![tokens.to_vec()]]);
        report.rows[0].tokens = chose(&[1, 2]);
        report.rows[1].tokens = chose(&[1, 2]);
        report.rows[2].tokens = chose(&[3]);
        report
    }

    fn decode(tokens: &[u32]) -> Option<String> {
        Some(if tokens.len() == 2 { "in the woods.\n\n~~~ \u{1b}[31m".to_owned() } else { "a ".repeat(60) })
    }

    #[test]
    fn contenders_with_the_same_tokens_share_a_text_and_nothing_of_it_is_markup() {
        for format in [Format::Table, Format::Markdown] {
            assert_snapshot!(format!("{format:?}"), texts(&report(), &decode, format));
        }
    }

    #[test]
    fn without_a_tokenizer_there_are_the_ids() {
        let told = texts(&report(), &|_| None, Format::Table);
        assert!(told.contains("    tokens 1 2\n") && told.contains("    tokens 3\n"), "{told}");
        let mut nobody = report();
        nobody.rows.iter_mut().for_each(|row| row.tokens = None);
        assert!(texts(&nobody, &decode, Format::Table).contains("no framework finished a request"));
    }

    #[test]
    fn a_long_word_is_cut_and_no_character_is_lost() {
        let word = "x".repeat(130);
        let cut = lines(&format!("a {word} b"));
        assert!(cut.iter().all(|line| line.chars().count() <= WIDTH), "{cut:?}");
        assert_eq!(cut.concat(), format!("a {word} b"));
    }
}

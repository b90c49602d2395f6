//! Pages of Markdown and comments of sources, as checks read them: code separate from prose, and the commands
//! in it.

/// A piece of code: a line of a block, joined with those that continue it, or a span in backticks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Code {
    /// Number of the line that it begins on.
    pub line: usize,
    pub text: String,
    pub is_block: bool,
}

/// A command line that a page names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Command {
    pub line: usize,
    pub words: Vec<String>,
    /// Whether it is to be typed as it is: in a block, without an ellipsis. Prose names commands in short.
    pub is_whole: bool,
}

/// The code of a page, and the page with blanks instead of its code.
pub fn split(text: &str) -> (Vec<Code>, String) {
    let mut code = Vec::new();
    let mut prose = String::with_capacity(text.len());
    let mut in_block = false;
    let mut continues = false;
    let mut span: Option<Code> = None;
    for (index, line) in text.lines().enumerate() {
        let line_number = index + 1;
        if line.trim_start().starts_with("```") {
            (in_block, continues, span) = (!in_block, false, None);
        } else if in_block {
            let piece = line.trim();
            let (piece, goes_on) =
                piece.strip_suffix('\\').map_or((piece, false), |piece| (piece.trim_end(), true));
            match code.last_mut().filter(|_| continues) {
                Some(Code { text, .. }) => *text += &format!(" {piece}"),
                None => code.push(Code { line: line_number, text: piece.to_owned(), is_block: true }),
            }
            continues = goes_on;
        } else {
            if line.trim().is_empty() {
                // A span does not go on in the next paragraph.
                span = None;
            }
            prose += &without_spans(line, line_number, &mut span, &mut code);
        }
        prose.push('\n');
    }
    (code, prose)
}

/// A line with blanks instead of its spans of code. `span` was begun by an earlier line.
fn without_spans(line: &str, number: usize, span: &mut Option<Code>, code: &mut Vec<Code>) -> String {
    let mut prose = String::with_capacity(line.len());
    if let Some(begun) = span {
        begun.text.push(' ');
    }
    for (index, piece) in line.split('`').enumerate() {
        if index > 0 {
            prose.push(' ');
            match span.take() {
                Some(ended) => code.push(ended),
                None => *span = Some(Code { line: number, text: String::new(), is_block: false }),
            }
        }
        match span {
            Some(span) => {
                span.text += if index == 0 { piece.trim_start() } else { piece };
                prose.extend(piece.chars().map(|_| ' '));
            }
            None => prose += piece,
        }
    }
    prose
}

/// The comments of a source in Rust, on their own lines; everything else is left out, line by line.
pub fn comments(text: &str) -> String {
    let comment = |line: &str| {
        let line = line.trim_start();
        let rest = line.strip_prefix("//").map(|rest| rest.trim_start_matches(['/', '!']));
        rest.unwrap_or_default().to_owned() + "\n"
    };
    text.lines().map(comment).collect()
}

/// The commands of `program`, of one word or two, in a page.
pub fn commands(text: &str, program: &[&str]) -> Vec<Command> {
    let (code, _) = split(text);
    code.iter().flat_map(|code| commands_in(code, program)).collect()
}

fn commands_in(code: &Code, program: &[&str]) -> Vec<Command> {
    let text = match code.text.find("  ").filter(|_| code.is_block) {
        // Two spaces separate a command from its description.
        Some(end) => &code.text[..end],
        None => code.text.as_str(),
    };
    let is_drawing = text.chars().any(|c| ('\u{2500}'..='\u{25ff}').contains(&c));
    let Some(words) = shlex::split(text).filter(|_| !is_drawing) else { return Vec::new() };
    let lines = words.split(|word| ["&&", "||", "|", ";"].contains(&word.as_str()));
    let lines = lines.flat_map(|words| words.split_inclusive(|word| word.ends_with(';')));
    lines.filter_map(|words| command(words, program, code)).collect()
}

fn command(words: &[String], program: &[&str], code: &Code) -> Option<Command> {
    let is_variable =
        |name: &str| !name.is_empty() && name.chars().all(|c| c.is_ascii_uppercase() || c == '_');
    let is_before =
        |word: &&String| *word == "$" || word.split_once('=').is_some_and(|(name, _)| is_variable(name));
    let before = words.iter().take_while(is_before).count();
    let words = &words[before..];
    if words.len() <= program.len() || !words.iter().zip(program).all(|(word, expected)| word == expected) {
        return None;
    }
    let end = words.iter().position(|word| [">", ">>", "2>", "<"].contains(&word.as_str()));
    let words = &words[..end.unwrap_or(words.len())];
    let is_short = words.iter().any(|word| word.contains('…'));
    let plain = |word: &String| word.trim_matches(['[', ']', ';', '…']).to_owned();
    let words = words.iter().map(plain).filter(|word| !word.is_empty()).collect();
    Some(Command { line: code.line, words, is_whole: code.is_block && !is_short })
}

/// A placeholder for a number: `I`, `N`.
pub fn with_numbers(words: &[String]) -> Vec<String> {
    let is_placeholder = |word: &str| word.len() == 1 && word.chars().all(|c| c.is_ascii_uppercase());
    words.iter().map(|word| if is_placeholder(word) { "1".to_owned() } else { word.clone() }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(text: &str) -> Vec<(usize, String, bool)> {
        let found = commands(text, &["cook"]).into_iter();
        found.map(|command| (command.line, command.words.join(" "), command.is_whole)).collect()
    }

    #[test]
    fn code_and_prose_are_told_apart() {
        let (code, prose) = split("a `b` c\n```sh\nd \\\n  e\n```\nf `g\nh` i `open\n\nj `k`\n");
        let found: Vec<_> = code.iter().map(|code| (code.line, code.text.as_str(), code.is_block)).collect();
        assert_eq!(found, [(1, "b", false), (3, "d e", true), (6, "g h", false), (9, "k", false)]);
        assert_eq!(prose.lines().count(), 9);
        assert!(["a ", "c", "f ", "i ", "j "].iter().all(|word| prose.contains(word)), "{prose}");
        assert!(!prose.contains(['b', 'd', 'g', 'k']), "{prose}");
    }

    #[test]
    fn comments_keep_their_lines() {
        assert_eq!(comments("//! a `b`\nlet x = 1; // no\n    /// c\n"), " a `b`\n\n c\n");
    }

    #[test]
    fn commands_are_found_in_blocks_and_in_spans() {
        let text = "use `cook soup` or `cooks`, `cook`\n```sh\n$ cook rice --for 2 # two\nA=1 cook pie > dish\n```\n";
        let found = lines(text);
        let expected = [(1, "cook soup", false), (3, "cook rice --for 2", true), (4, "cook pie", true)];
        assert_eq!(found, expected.map(|(line, words, is_whole)| (line, words.to_owned(), is_whole)));
    }

    #[test]
    fn what_surrounds_a_command_is_left_out() {
        for (text, command) in [
            ("`unset POT; cook soup`", "cook soup"),
            ("`chmod +x pot && cook soup | head`", "cook soup"),
            ("`cook soup DIR… [--salt N]`", "cook soup DIR --salt N"),
            ("```\ncook soup    what it does\n```", "cook soup"),
            ("`cook \"a b\" c`", "cook a b c"),
        ] {
            let found: Vec<String> = lines(text).into_iter().map(|(_, command, _)| command).collect();
            assert_eq!(found, [command], "{text}");
        }
        assert_eq!(lines("```\ncook ── soup\n```"), []);
        assert!(!commands("`cook soup …`", &["cook"])[0].is_whole);
        let of_two_words = commands("`cargo cook soup` and `cargo build`", &["cargo", "cook"]);
        let found: Vec<_> = of_two_words.iter().map(|command| command.words.join(" ")).collect();
        assert_eq!(found, ["cargo cook soup"]);
    }

    #[test]
    fn letters_stand_for_numbers() {
        let words = ["--shard", "I", "DIR"].map(str::to_owned);
        assert_eq!(with_numbers(&words), ["--shard", "1", "DIR"]);
    }
}

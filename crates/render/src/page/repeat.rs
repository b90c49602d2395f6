//! How to repeat a measurement elsewhere: a command without the paths of the machine that it ran on, with the commit
//! and the seed.

use maud::{Markup, html};

use super::html;
use crate::words;

/// Flags that say where things are on one machine.
const OF_A_MACHINE: [&str; 5] = ["--configs", "--workers", "--results-dir", "--resume", "--export"];
/// Subcommands that measure other than `compare`.
const COMMANDS: [&str; 8] = ["sweep", "ab", "check", "parity", "plan", "run", "generate", "score"];

/// The circumstances of a command besides its words.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Source<'a> {
    pub(super) commit: Option<&'a str>,
    /// Whether files differed from the commit.
    pub(super) modified: bool,
    /// The seed that was drawn, or given.
    pub(super) seed: Option<u64>,
}

/// The command of a run, and the reasons why it cannot be repeated exactly.
pub(super) fn section(words: &[String], source: Source<'_>) -> Markup {
    html! {
        (command(words, source))
        @if source.modified {
            (html::paragraph("Files differed from that commit: the changes are not part of this page."))
        }
        @if source.commit.is_none() && !words.is_empty() {
            (html::paragraph("No commit is known that all of it ran at: take the version named above."))
        }
    }
}

/// The command; nothing where none is known.
pub(super) fn command(words: &[String], source: Source<'_>) -> Markup {
    if words.is_empty() {
        return Markup::default();
    }
    let (line, local) = elsewhere(words, source.seed);
    let checkout = source.commit.map(|commit| vec!["git".into(), "checkout".into(), commit.to_owned()]);
    let lines: Vec<Vec<String>> = checkout.into_iter().chain([line]).collect();
    html! {
        (html::paragraph("In a checkout of Photofinish:"))
        (html::commands(&lines))
        @if !local.is_empty() {
            (html::paragraph(&format!(
                "{} was a path on the machine that measured: name your own copy.",
                local.join(", ")
            )))
        }
    }
}

/// The command for another machine, and the last parts of paths that it named.
fn elsewhere(command: &[String], seed: Option<u64>) -> (Vec<String>, Vec<String>) {
    let (mut told, mut local) = (Vec::new(), Vec::new());
    let mut given = command.iter().skip(1);
    while let Some(word) = given.next() {
        let (name, value) =
            word.split_once('=').map_or((word.as_str(), None), |(name, value)| (name, Some(value)));
        if OF_A_MACHINE.contains(&name) {
            if value.is_none() {
                given.next();
            }
        } else if let Some(path) = value.filter(|value| words::is_path(value)) {
            told.push(format!("{name}={}", last(path, &mut local)));
        } else if words::is_path(word) {
            told.push(last(word, &mut local));
        } else {
            told.push(word.clone());
        }
    }
    if let Some(seed) =
        seed.filter(|_| !told.iter().any(|word| word == "--seed" || word.starts_with("--seed=")))
    {
        told.extend(["--seed".to_owned(), seed.to_string()]);
    }
    let start: &[&str] = match told.first().map(String::as_str) {
        Some(first) if COMMANDS.contains(&first) => &["cargo", "run", "--release", "-p", "driver", "--"],
        Some("compare") => {
            told.remove(0);
            &["cargo", "xtask", "compare"]
        }
        _ => &["cargo", "xtask", "compare"],
    };
    (start.iter().map(|&word| word.to_owned()).chain(told).collect(), local)
}

fn last(path: &str, local: &mut Vec<String>) -> String {
    let name = words::without_directories(path);
    local.push(name.clone());
    name
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(command: &str, seed: Option<u64>) -> (String, Vec<String>) {
        let words: Vec<String> = command.split(' ').map(str::to_owned).collect();
        let (words, local) = elsewhere(&words, seed);
        (words.join(" "), local)
    }

    #[test]
    fn places_of_one_machine_go_and_the_seed_comes() {
        let (line, local) = told(
            "target/release/photofinish --configs configs --workers=target/release --results-dir results",
            Some(7),
        );
        assert_eq!((line.as_str(), local.len()), ("cargo xtask compare --seed 7", 0));
        let (line, _) = told("photofinish compare --seed 3 --quick", Some(3));
        assert_eq!(line, "cargo xtask compare --seed 3 --quick");
        let (line, _) = told("photofinish sweep generate --batch 1,2 --results-dir /x", None);
        assert_eq!(line, "cargo run --release -p driver -- sweep generate --batch 1,2");
    }

    #[test]
    fn a_path_leaves_its_name() {
        let (line, local) = told("photofinish --model ~/models/tiny/ --prompt-file=../p.txt", None);
        assert_eq!(line, "cargo xtask compare --model tiny --prompt-file=p.txt");
        assert_eq!(local, ["tiny", "p.txt"]);
    }

    #[test]
    fn what_cannot_be_repeated_exactly_says_so() {
        let command = ["photofinish".to_owned(), "--quick".to_owned()];
        let page = section(&command, Source { commit: Some("abc"), modified: true, seed: Some(1) }).0;
        assert!(page.contains("git checkout abc") && page.contains("Files differed"), "{page}");
        assert!(section(&command, Source::default()).0.contains("No commit is known"));
        assert_eq!(section(&[], Source::default()).0, "");
    }
}

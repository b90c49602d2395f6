//! A command as it is repeated on another machine.

use super::{is_path, without_directories};

/// Flags that say where things are on one machine.
const OF_A_MACHINE: [&str; 5] = ["--configs", "--workers", "--results-dir", "--resume", "--export"];
/// Subcommands that measure other than `compare`.
const COMMANDS: [&str; 8] = ["sweep", "ab", "check", "parity", "plan", "run", "generate", "score"];

/// The command for another machine, and the last parts of paths that it named.
pub(crate) fn elsewhere(command: &[String], seed: Option<u64>) -> (Vec<String>, Vec<String>) {
    let (mut told, mut local) = (Vec::new(), Vec::new());
    let mut given = command.iter().skip(1);
    while let Some(word) = given.next() {
        let (name, value) =
            word.split_once('=').map_or((word.as_str(), None), |(name, value)| (name, Some(value)));
        if OF_A_MACHINE.contains(&name) {
            if value.is_none() {
                given.next();
            }
        } else if let Some(path) = value.filter(|value| is_path(value)) {
            told.push(format!("{name}={}", last(path, &mut local)));
        } else if is_path(word) {
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
    let name = without_directories(path);
    local.push(name.clone());
    name
}

/// A line for a shell.
pub(crate) fn quoted(words: &[String]) -> String {
    let is_bare = |c: char| c.is_ascii_alphanumeric() || "-_.,=:/+@%".contains(c);
    let quoted = |word: &String| match shlex::try_quote(word) {
        // A list of names stays bare, since people read it.
        _ if !word.is_empty() && word.chars().all(is_bare) => word.clone(),
        Ok(quoted) => quoted.into_owned(),
        // A word with a NUL cannot be quoted for a shell.
        Err(_) => word.clone(),
    };
    words.iter().map(quoted).collect::<Vec<_>>().join(" ")
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
}

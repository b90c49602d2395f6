//! What pages and comments say of the command line is so.

use std::path::Path;

use clap::error::ErrorKind;
use comparison::judge;
use comparison::plan;
use setup::tooling;
use setup::tooling::pages::{self, Command as Named};

use super::spelling;

/// Pages that programs wrote, with the commands of that time.
const GENERATED: &str = "results/published/";

/// Every page, and every source's comments, each with its name.
fn texts() -> Vec<(String, String)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let texts = tooling::texts(&root).unwrap().into_iter();
    let read = |(name, text): (String, String)| match name.rsplit_once('.')?.1 {
        "md" if !name.starts_with(GENERATED) && name != "CHANGELOG.md" => Some((name, text)),
        "rs" => Some((name, pages::comments(&text))),
        _ => None,
    };
    texts.filter_map(read).collect()
}

/// Tasks that give their arguments to this program.
const TASKS: [&str; 3] = ["compare", "doctor", "profile"];

fn to_driver(mut named: Named) -> Named {
    drop(named.words.splice(..2, ["photofinish".to_owned()]));
    named
}

/// Why a command cannot be typed so.
fn objection(named: &Named, was: bool) -> Option<String> {
    let words = &named.words;
    if let [_, help, topic, ..] = words.as_slice()
        && help == "help"
        && super::help::topic(topic).is_some()
    {
        return None;
    }
    if let Some(end) = words.iter().position(|word| word == "--") {
        // A plan is of another command.
        let study = ["photofinish".to_owned()].into_iter().chain(words[end + 1..].iter().cloned());
        let study = Named { words: study.collect(), ..named.clone() };
        return objection(&study, was)
            .or_else(|| objection(&Named { words: words[..end].to_vec(), ..named.clone() }, was));
    }
    let typed = spelling::Typed::new(words);
    // A page of evidence has the commands of its time.
    if let Some(hint) = typed.hint.filter(|_| !was) {
        return Some(hint);
    }
    let parsed = |words: &[String]| spelling::parse(words).map(drop);
    let error = parsed(words).or_else(|_| parsed(&pages::with_numbers(words))).err()?;
    let is_fine = match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => true,
        // Prose names a command or a flag, and not all that it takes.
        ErrorKind::MissingRequiredArgument => !named.is_whole,
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => !named.is_whole,
        ErrorKind::InvalidValue => !named.is_whole && words.last().is_some_and(|word| word.starts_with("--")),
        _ => false,
    };
    (!is_fine).then(|| super::first_line(&error))
}

#[test]
fn every_command_that_is_written_down_can_be_typed() {
    let mut count = 0;
    let mut objections = Vec::new();
    for (name, text) in texts() {
        let driver = pages::commands(&text, &["photofinish"]).into_iter();
        let tasks = TASKS.iter().flat_map(|task| pages::commands(&text, &["cargo", "xtask", task]));
        for named in driver.chain(tasks.map(to_driver)) {
            count += 1;
            let told = |why: String| format!("{name}:{}: `{}`: {why}", named.line, named.words.join(" "));
            objections.extend(objection(&named, name.starts_with("docs/evidence/")).map(told));
        }
    }
    assert!(count > 100, "{count} commands were found");
    assert!(objections.is_empty(), "{}", objections.join("\n"));
}

#[test]
fn only_prose_may_leave_out_what_a_command_needs() {
    let objections = |text: &str| -> Vec<bool> {
        pages::commands(text, &["photofinish"])
            .iter()
            .map(|named| objection(named, false).is_some())
            .collect()
    };
    assert_eq!(
        objections("`photofinish check`, `photofinish sweep size --cells 1/4`, `photofinish compare --help`"),
        [false; 3]
    );
    let objected = objections("`photofinish run --temperature`, `photofinish sweep size --models a,b`");
    assert_eq!(objected, [false, true]);
    assert_eq!(objections("```\nphotofinish run\nphotofinish run …\n```"), [true, false]);
    assert_eq!(
        objections("`photofinish chek`, `photofinish compare --no-such`, `photofinish generate`"),
        [true; 3]
    );
}

/// What follows a number in pages, with the number that it has. A page that counts otherwise is found.
fn counts() -> Vec<(&'static str, usize)> {
    let rules = judge::report::fairness::markdown();
    let files = |directory: &str| {
        let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../configs").join(directory);
        std::fs::read_dir(directory).unwrap().count()
    };
    let rules = rules.lines().filter(|line| line.starts_with("| R")).count();
    let claims = files("claims");
    vec![
        ("conditions of a fair comparison", rules),
        ("rules of a fair comparison", rules),
        ("fairness rules", rules),
        ("published claims", claims),
        ("published ones", claims),
        ("metrics × pairs", judge::Metric::tested(plan::WorkKind::TokenByToken).len()),
    ]
}

/// The number that a word is, up to twenty.
fn number(word: &str) -> Option<usize> {
    const WORDS: &str = "one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen \
                         sixteen seventeen eighteen nineteen twenty";
    let word = word.to_lowercase();
    let place = WORDS.split(' ').position(|known| known == word);
    place.map(|place| place + 1).or_else(|| word.parse().ok())
}

/// The numbers that a text says before `noun`.
fn stated(text: &str, noun: &str) -> Vec<usize> {
    let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
    let before = text.match_indices(noun).map(|(at, _)| &text[..at]);
    before.filter_map(|before| number(before.split_whitespace().next_back()?.trim_matches('*'))).collect()
}

#[test]
fn pages_count_what_there_is() {
    let mut wrong = Vec::new();
    for (name, text) in texts().iter().filter(|(name, _)| name.ends_with(".md")) {
        for (noun, count) in counts() {
            let others = stated(text, noun).into_iter().filter(|stated| *stated != count);
            wrong.extend(others.map(|stated| format!("{name} says {stated} {noun}: there are {count}")));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn a_count_is_read_as_a_word_or_a_figure() {
    assert_eq!(
        stated("Sixteen fairness\nrules, the 17 fairness rules; all fairness rules", "fairness rules"),
        [16, 17]
    );
}

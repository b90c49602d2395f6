//! Every `cargo xtask` that pages and comments name can be typed.

use clap::Parser;
use clap::error::ErrorKind;
use setup::tooling;
use setup::tooling::pages;

use crate::Cli;
use crate::workspace::Workspace;

const PROGRAM: [&str; 2] = ["cargo", "xtask"];

/// Why a task cannot be typed so.
fn objection(named: &pages::Command) -> Option<String> {
    let parsed = |words: &[String]| Cli::try_parse_from(&words[1..]).map(drop);
    let error = parsed(&named.words).or_else(|_| parsed(&pages::with_numbers(&named.words))).err()?;
    let is_fine = match error.kind() {
        ErrorKind::DisplayHelp => true,
        // Prose names a task without all of its arguments.
        ErrorKind::MissingRequiredArgument => !named.is_whole,
        _ => false,
    };
    (!is_fine).then(|| error.to_string().lines().next().unwrap_or_default().to_owned())
}

#[test]
fn every_task_that_is_written_down_can_be_typed() {
    let mut count = 0;
    let mut objections = Vec::new();
    for (name, text) in tooling::texts(&Workspace::locate().unwrap().root).unwrap() {
        let text = match name.rsplit_once('.') {
            Some((_, "md")) if name != "CHANGELOG.md" => text,
            Some((_, "rs")) => pages::comments(&text),
            _ => continue,
        };
        for named in pages::commands(&text, &PROGRAM) {
            count += 1;
            let told = |why: String| format!("{name}:{}: `{}`: {why}", named.line, named.words.join(" "));
            objections.extend(objection(&named).map(told));
        }
    }
    assert!(count > 50, "{count} commands were found");
    assert!(objections.is_empty(), "{}", objections.join("\n"));
}

#[test]
fn what_cannot_be_typed_is_found() {
    let objects = |text: &str| -> Vec<bool> {
        pages::commands(text, &PROGRAM).iter().map(|named| objection(named).is_some()).collect()
    };
    assert_eq!(objects("`cargo xtask test --quick`, `cargo xtask splice --page FILE`"), [false; 2]);
    assert_eq!(objects("`cargo xtask none`, `cargo xtask test --no-such`"), [true; 2]);
}

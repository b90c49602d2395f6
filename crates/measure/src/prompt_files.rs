//! Files of prompts, and of texts.

use std::path::Path;

use configs::Suite;
use plan::{Failure, Result, prompts};

/// The prompts of a file: TOML as in `configs/suites`, a prompt a line, or a JSON value a line.
pub(crate) fn read_file(path: &Path) -> Result<Suite> {
    let text = untrusted::file::read_text(path, untrusted::file::INPUT)
        .map_err(|e| Failure::usage(format!("cannot read prompts from {}: {e}", path.display())))?;
    prompts_in(path, &text)
}

/// The prompts in the text of the file `path`.
pub fn prompts_in(path: &Path, text: &str) -> Result<Suite> {
    let ends_in = |end: &str| path.extension().is_some_and(|extension| extension == end);
    let suite = if ends_in("toml") {
        configs::parse(path, text)?
    } else if ends_in("jsonl") {
        prompts::from_json_lines(text).map_err(|why| Failure::usage(format!("{}: {why}", path.display())))?
    } else {
        let lines = text.lines().filter(|line| !line.trim().is_empty());
        prompts::from_texts(&lines.map(str::to_owned).collect::<Vec<_>>())
    };
    if suite.prompts.is_empty() {
        return Err(Failure::usage(format!("{} holds no prompts", path.display())));
    }
    Ok(suite)
}

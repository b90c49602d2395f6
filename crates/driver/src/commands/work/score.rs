//! `photofinish score`: one framework's logits of given tokens.

use plan::{Failure, Result, prompts};
use protocol::{Score, Task};

use crate::cli::work::score::ScoreArgs;
use crate::commands::single::Single;

pub(super) fn score(args: &ScoreArgs) -> Result<u8> {
    let sequences = read_sequences(args)?;
    let capacity = sequences.first().map_or(0, Vec::len);
    let single = Single::of_decoder(&args.on, (sequences.len(), capacity))?;
    for sequence in &sequences {
        prompts::check_vocabulary(sequence, single.bundle.config())?;
        plan::work::check_context(sequence.len(), 0, single.bundle.config())?;
    }
    // The file is written next to its destination and moved there when it is complete.
    let parent = args.out.parent().filter(|parent| !parent.as_os_str().is_empty());
    let parent = parent.unwrap_or(std::path::Path::new("."));
    let cannot =
        |e: &dyn std::fmt::Display| Failure::usage(format!("cannot write {}: {e}", args.out.display()));
    let directory = tempfile::Builder::new().prefix(".score-").tempdir_in(parent).map_err(|e| cannot(&e))?;
    let file = directory.path().join("logits.safetensors");
    let task = Task::Score(Score {
        sequences,
        types: Vec::new(),
        piece: args.piece,
        kept: None,
        file: file.display().to_string(),
    });
    single.run(args.hidden_states, task)?;
    std::fs::rename(&file, &args.out).map_err(|e| cannot(&e))?;
    measure::results::readable_by_all(&args.out);
    Ok(0)
}

/// The sequences of the file of tokens.
pub(super) fn read_sequences(args: &ScoreArgs) -> Result<Vec<Vec<u32>>> {
    let path = args.tokens_file.display();
    let text = untrusted::file::read_text(&args.tokens_file, untrusted::file::INPUT)
        .map_err(|e| Failure::usage(format!("cannot read {path}: {e}")))?;
    let sequences: Vec<Vec<u32>> = serde_json::from_str(&text)
        .map_err(|e| Failure::usage(format!("{path} is not of the form [[id, ..], ..]: {e}")))?;
    let length = sequences.first().map_or(0, Vec::len);
    if length == 0 {
        return Err(Failure::usage(format!("{path} holds no tokens")));
    }
    if let Some(index) = sequences.iter().position(|sequence| sequence.len() != length) {
        let other = sequences[index].len();
        return Err(Failure::usage(format!(
            "{path}: sequence {index} has {other} tokens, the first has {length}; a batch is of one length"
        )));
    }
    Ok(sequences)
}

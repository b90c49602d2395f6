//! `photofinish embed`: one framework turns texts into vectors.

use plan::work::encode;
use plan::{Failure, Result, prompts};
use protocol::{Answer, EncodeTask, EncodeWork, Event, Output, Task, TextBatch, Work};
use serde_json::json;

use super::single::Single;
use crate::cli::{EmbedArgs, Format};
use crate::output::print;

/// Numbers of a vector that the table shows.
const SHOWN: usize = 6;

/// Refuses flags that do not go together.
pub(super) fn check(args: &EmbedArgs) -> Result<()> {
    if matches!(args.format, Format::Markdown | Format::Csv) {
        return Err(Failure::usage("embed prints a table (a line for each text) or json"));
    }
    Ok(())
}

pub(crate) fn embed(args: &EmbedArgs) -> Result<u8> {
    check(args)?;
    let count = args.text.len().max(args.tokens.len());
    let single = Single::resolve(&args.framework, &args.model, &args.here, (count, 0))?;
    let (config, name) = (single.bundle.config(), &single.bundle.manifest().name);
    if config.encoder.is_none() {
        return Err(Failure::usage(format!(
            "{name} continues texts: embed is for encoders, such as minilm or synthetic:minilm-l6"
        )));
    }
    let texts = match args.text.as_slice() {
        [] => args.tokens.iter().map(|ids| ids.0.clone()).collect(),
        texts => {
            let tokenizer = measure::apart::text(&single.bundle)?;
            let encode = |text: &String| match text.trim() {
                "" => Err(Failure::usage("a text is empty: there is nothing to encode")),
                _ => tokenizer.encode_whole(text),
            };
            texts.iter().map(encode).collect::<Result<Vec<_>>>()?
        }
    };
    for (number, tokens) in texts.iter().enumerate() {
        prompts::check_vocabulary(tokens, config)?;
        encode::check(tokens, &format!("text {}", number + 1), config)?;
    }
    let pooled = single.bundle.pooled().map_err(|error| Failure::failed(error.to_string()))?;
    let of_files = pooled.map(|pooled| encode::pooling(pooled.pooling));
    let pooling = args.pooling.map(|flag| flag.pooling()).or(of_files).ok_or_else(|| {
        Failure::usage(format!(
            "the files of {name} do not say how the vectors of tokens are pooled (1_Pooling/config.json): name a way with \
             --pooling cls|mean|max|last"
        ))
    })?;
    let normalise = args.normalise.or(pooled.map(|pooled| pooled.normalise)).unwrap_or(false);
    let cases = vec![TextBatch { texts: texts.clone(), types: Vec::new() }];
    let work = Work::Encode(EncodeWork { cases, task: EncodeTask::Embed { pooling, normalise } });
    let outcome = single.run(false, Task::Answer(Answer { work, parity: None }))?;
    let vectors = outcome.events.into_iter().find_map(|event| match event {
        Event::Answered(answered) => match answered.outputs.into_iter().next()? {
            Output::Vectors(output) => Some(output.vectors),
            _ => None,
        },
        _ => None,
    });
    let vectors = vectors
        .filter(|vectors| vectors.len() == texts.len())
        .ok_or_else(|| Failure::failed(format!("{} did not embed {} texts", args.framework, texts.len())))?;
    let output = match args.format {
        Format::Json => json!({
            "framework": args.framework,
            "precision": single.contender.precision.name(),
            "task": "embed",
            "token_ids": texts,
            "vectors": vectors,
        })
        .to_string(),
        _ => {
            vectors.iter().enumerate().map(|(text, vector)| line(text, vector)).collect::<Vec<_>>().join("\n")
        }
    };
    print(&(output + "\n"))?;
    Ok(0)
}

/// "text 1: 384 numbers, 0.0123, −0.0456, …".
fn line(text: usize, vector: &[f32]) -> String {
    let shown: Vec<String> = vector.iter().take(SHOWN).map(|number| format!("{number:.4}")).collect();
    let more = if vector.len() > SHOWN { ", …" } else { "" };
    format!("text {}: {} numbers, {}{more}", text + 1, vector.len(), shown.join(", "))
}

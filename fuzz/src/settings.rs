//! Files that people write and share: engines, models, suites, prompts, plans.

use std::path::Path;

use bundle::ModelConfig;
use comparison::plan;
use comparison::plan::prompts::{self, Text};
use comparison::plan::{Plan, Request};
use configs::{Engine, Model, Suite};
use driver::measure;
use protocol::untrusted;
use serde_json::Value;

use crate::judged::plan_of_scene;
use crate::roundtrip::written_and_read;
use crate::{Outcome, sentence, text};

/// A TOML file of `configs/engines`, `models` or `suites`.
pub(crate) fn configs(input: &[u8]) -> Outcome {
    let text = text(input)?;
    let path = Path::new("configs/engines/mine.toml");
    let engine = configs::parse::<Engine>(path, text).map_err(sentence);
    let model = configs::parse::<Model>(path, text).map_err(sentence);
    let suite = configs::parse::<Suite>(path, text).map_err(sentence);
    if let Ok(engine) = &engine {
        written_and_read(engine);
        let _ = (engine.is_plain(), engine.parts());
    }
    model.iter().for_each(written_and_read);
    suite.iter().for_each(written_and_read);
    engine.map(drop).or(model.map(drop)).or(suite.map(drop))
}

/// A file of prompts, in both forms.
pub(crate) fn prompts(input: &[u8]) -> Outcome {
    let config: Value = serde_json::from_str(include_str!("../scene/config.json")).expect("it is JSON");
    let config = ModelConfig::from_json(&config).expect("a configuration");
    let absent = Text::Absent { why: "there is none".into() };
    let mut outcomes = Vec::new();
    for name in ["prompts.toml", "prompts.txt"] {
        let suite = measure::texts::prompts_in(Path::new(name), text(input)?).map_err(sentence);
        let resolved = suite.and_then(|suite| {
            for length in [None, Some(16)] {
                let resolved = prompts::resolve(&suite.prompts, length, &config, &absent, None);
                for prompt in resolved.map_err(sentence)? {
                    assert!(prompt.tokens.iter().all(|&token| (token as usize) < config.vocab_size));
                    assert!(length.is_none_or(|length| prompt.tokens.len() == length));
                }
            }
            Ok(())
        });
        outcomes.push(resolved);
    }
    outcomes.into_iter().reduce(Result::or).expect("there are two")
}

/// `plan.json`, and the request in it.
pub(crate) fn plan(input: &[u8]) -> Outcome {
    let value: Value = serde_json::from_str(text(input)?).map_err(|error| format!("no JSON: {error}"))?;
    if let Some(request) = value.get("request").filter(|request| !request.is_null()) {
        let request: Request =
            serde_json::from_value(request.clone()).map_err(|error| format!("no request: {error}"))?;
        written_and_read(&request);
        plan::check(&request).map_err(sentence)?;
    }
    let plan: Plan = serde_json::from_value(value).map_err(|error| format!("no plan: {error}"))?;
    written_and_read(&plan);
    // The lookup of a label must not panic for any plan.
    assert!(plan_of_scene().contenders.iter().all(|ours| plan.contender(&ours.label).is_none_or(|_| true)));
    Ok(())
}

/// An array of NumPy's, alone or in an archive.
pub(crate) fn arrays(input: &[u8]) -> Outcome {
    let (dtype, shape, data) = measure::arrays::array(input, input.starts_with(b"PK"), "x")?;
    let tensor = protocol::Tensor { name: "x".into(), dtype: dtype.name().into(), shape, data };
    let written = measure::arrays::npy(&tensor).expect("a type of NumPy's");
    let read = measure::arrays::array(&written, false, "x").expect("what was accepted is read back");
    assert_eq!(read, (dtype, tensor.shape, tensor.data));
    Ok(())
}

/// Any text of others, at its two doors.
pub(crate) fn foreign_text(input: &[u8]) -> Outcome {
    let text = text(input)?;
    let entered = untrusted::Foreign::<{ untrusted::SENTENCE }>::new(text);
    assert!(entered.chars().count() <= untrusted::SENTENCE && !entered.contains(char::is_control));
    assert_eq!(untrusted::Foreign::<{ untrusted::SENTENCE }>::new(&entered), entered, "once in is in");
    assert!(!untrusted::line(text).contains(char::is_control));
    assert!(!untrusted::cell(text).contains('\n') && !untrusted::markdown(text).contains('\n'));
    let cell = untrusted::spreadsheet(&entered);
    let is_number = cell.trim_end_matches(['%', ' ']).parse::<f64>().is_ok();
    assert!(is_number || !cell.starts_with(['=', '+', '-', '@']), "a formula: {cell:?}");
    Ok(())
}

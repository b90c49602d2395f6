//! An encoder in tract: texts padded to the longest, with a mask.

use bundle::{ModelConfig, rotary};
use onnx::graph::rotary_names;
use reference_portable::Form;
use reference_portable::encoder::{
    ATTENTION_MASK, INPUT_IDS, LAST_HIDDEN_STATE, SCORES, TOKEN_TYPE_IDS, build,
};
use tract_onnx::prelude::*;
use tract_onnx::tract_hir::internal::format_err;
use worker::engine::{Bundle, Encode, EncodeTask, EngineError, Settings, Texts};

use crate::model::{Loaded, framework};
use crate::sequences::tensor;

/// How texts are laid out, for people.
pub(crate) const LAYOUT: &str = "texts padded to the longest of a batch";

#[derive(Debug)]
pub(crate) struct Encoder {
    config: ModelConfig,
    pub(crate) loaded: Loaded,
    /// Where the plan puts out the vectors of tokens, and what its head gives if there is one.
    vectors: usize,
    scores: Option<usize>,
    state: TypedSimpleState,
    /// The numbers of the last task.
    numbers: Vec<f32>,
    computed: usize,
}

impl Encoder {
    pub(crate) fn load(bundle: &Bundle, settings: &Settings) -> Result<Encoder, EngineError> {
        let loaded = Loaded::new(bundle, settings, |storage| build(bundle, Form::Standard, storage))?;
        let config = bundle.config().clone();
        Ok(Encoder {
            vectors: loaded.output(LAST_HIDDEN_STATE)?,
            scores: config.head().map(|_| loaded.output(SCORES)).transpose()?,
            state: loaded.plan.spawn().map_err(framework)?,
            config,
            loaded,
            numbers: Vec::new(),
            computed: 0,
        })
    }

    fn run(&mut self, texts: Texts<'_>, task: EncodeTask) -> TractResult<()> {
        let inputs = self.inputs(texts)?;
        let state = &mut self.state;
        let outputs = self.loaded.pool.install(|| state.run(inputs))?;
        let place = match task {
            EncodeTask::Embed { .. } => Some(self.vectors),
            EncodeTask::Score => self.scores,
        };
        let output = place.and_then(|place| outputs.get(place));
        let output = output.ok_or_else(|| format_err!("tract gave fewer outputs than it was asked for"))?;
        let found = output.try_as_plain_ram()?.as_slice::<f32>()?;
        let rows = vec![texts.longest(); texts.lengths.len()];
        self.numbers = texts.numbers(&rows, (task, &self.config), found);
        Ok(())
    }

    fn inputs(&self, texts: Texts<'_>) -> TractResult<TVec<TValue>> {
        let pad_token = self.config.encoder.as_ref().map_or(0, |encoder| encoder.pad_token);
        let longest = texts.longest();
        let padded = |values: &[u32], fill: u32| {
            let rows = texts.padded(values.iter().map(|&value| i64::from(value)), i64::from(fill));
            tensor(&[texts.lengths.len(), longest], &rows)
        };
        let tables = rotary::tables(&self.config, longest).into_iter().enumerate();
        let tables: Vec<(String, Vec<f32>)> = tables
            .flat_map(|(rotation, (cos, sin))| rotary_names(rotation).into_iter().zip([cos, sin]))
            .collect();
        let value = |name: &String| match name.as_str() {
            INPUT_IDS => padded(texts.tokens, pad_token),
            ATTENTION_MASK => padded(&vec![1; texts.tokens.len()], 0),
            TOKEN_TYPE_IDS => padded(texts.types, 0),
            other => match tables.iter().find(|(name, _)| name == other) {
                Some((_, table)) => tensor(&[longest, self.config.head_dim / 2], table),
                None => Err(format_err!("tract asks for the input {other}, which the graph does not have")),
            },
        };
        self.loaded.inputs.iter().map(value).collect()
    }
}

impl Encode for Encoder {
    fn encode(&mut self, texts: Texts<'_>, task: EncodeTask) -> Result<&[f32], EngineError> {
        texts.check(&self.config, task)?;
        self.run(texts, task).map_err(framework)?;
        self.computed = texts.lengths.len() * texts.longest();
        Ok(&self.numbers)
    }

    fn config(&self) -> &ModelConfig {
        &self.config
    }

    fn positions(&self) -> usize {
        self.computed
    }
}

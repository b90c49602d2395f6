//! An encoder in rten: texts padded to the longest, with a mask.

use bundle::{ModelConfig, rotary};
use onnx::Storage;
use onnx::graph::rotary_names;
use reference_portable::Form;
use reference_portable::encoder::{
    ATTENTION_MASK, INPUT_IDS, LAST_HIDDEN_STATE, SCORES, TOKEN_TYPE_IDS, build,
};
use rten::{NodeId, ValueOrView};
use rten_tensor::NdTensor;
use worker::engine::{Bundle, Encode, EncodeTask, EngineError, Settings, Texts};

use crate::model::{Loaded, WEIGHTS};
use crate::sequences::numbers;

/// What encodes beside the products with weights, for people.
pub(crate) const KERNELS: [&str; 2] =
    ["attention by MatMul and Softmax", "texts padded to the longest of a batch"];

#[derive(Debug)]
pub(crate) struct Encoder {
    config: ModelConfig,
    pub(crate) loaded: Loaded,
    /// The numbers of the last task.
    numbers: Vec<f32>,
    computed: usize,
}

impl Encoder {
    pub(crate) fn load(bundle: &Bundle, settings: &Settings) -> Result<Encoder, EngineError> {
        let graph = build(bundle, Form::Contributed, Storage::File(WEIGHTS.into()))?;
        let loaded = Loaded::new(bundle, &graph, settings)?;
        Ok(Encoder { config: bundle.config().clone(), loaded, numbers: Vec::new(), computed: 0 })
    }

    fn inputs(&self, texts: Texts<'_>) -> Result<Vec<(NodeId, ValueOrView<'static>)>, EngineError> {
        let encoder = self.config.encoder.as_ref();
        let pad_token = encoder.map_or(0, |encoder| encoder.pad_token as i32);
        let longest = texts.longest();
        let padded = |values: &[u32], fill| {
            let rows = texts.padded(values.iter().map(|&value| value as i32), fill);
            NdTensor::from_data([texts.lengths.len(), longest], rows)
        };
        let mut inputs: Vec<(NodeId, ValueOrView)> = vec![
            (self.loaded.node(INPUT_IDS)?, padded(texts.tokens, pad_token).into()),
            (self.loaded.node(ATTENTION_MASK)?, padded(&vec![1; texts.tokens.len()], 0).into()),
        ];
        if self.config.token_type_embedding().is_some() {
            inputs.push((self.loaded.node(TOKEN_TYPE_IDS)?, padded(texts.types, 0).into()));
        }
        for (rotation, (cos, sin)) in rotary::tables(&self.config, longest).into_iter().enumerate() {
            for (name, table) in rotary_names(rotation).into_iter().zip([cos, sin]) {
                let table = NdTensor::from_data([longest, self.config.head_dim / 2], table);
                inputs.push((self.loaded.node(&name)?, table.into()));
            }
        }
        Ok(inputs)
    }
}

impl Encode for Encoder {
    fn encode(&mut self, texts: Texts<'_>, task: EncodeTask) -> Result<&[f32], EngineError> {
        texts.check(&self.config, task)?;
        let output = match task {
            EncodeTask::Embed { .. } => LAST_HIDDEN_STATE,
            EncodeTask::Score => SCORES,
        };
        let outputs = [self.loaded.node(output)?];
        let options = Some(self.loaded.run_options());
        let found = self.loaded.model.run(self.inputs(texts)?, &outputs, options);
        let found = found.map_err(|error| EngineError::Framework(error.to_string()))?;
        let rows = vec![texts.longest(); texts.lengths.len()];
        self.numbers = texts.numbers(&rows, (task, &self.config), &numbers(found.into_iter().next())?);
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

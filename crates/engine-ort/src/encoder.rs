//! Encoders: runs the graph and extracts vectors or scores from its outputs.

mod inputs;

use bundle::ModelConfig;
use engine::{Encode, EncodeTask, EngineError, HiddenStates, Padded, Texts};
use onnx::fused::encoder::{activation_operator, output, state, window_in_blocks};
use onnx::names::SCORES;
use ort::session::{OutputSelector, RunOptions};

use crate::model::Model;
use crate::runtime::framework;
use inputs::Inputs;

pub(crate) struct Encoder {
    pub(crate) model: Model,
    /// The numbers of the last task.
    numbers: Vec<f32>,
    computed: usize,
    /// Hidden states of the last texts, if requested.
    hidden: Option<Vec<Vec<f32>>>,
}

/// The kernels other than the products, human-readable.
pub(crate) fn kernels(model: &Model) -> Vec<String> {
    let config = &model.config;
    let norms = match (config.rms_norm, config.form.norm_without_bias) {
        (true, _) => "SkipSimplifiedLayerNormalization",
        (false, true) => "Add and LayerNormalization without biases",
        (false, false) => "Add and LayerNormalization with biases",
    };
    let layout = match model.options.padding {
        Some(padding) => format!("{padding}, fused q/k/v"),
        None => "attention on texts padded to the longest, linear layers of texts unpadded, fused q/k/v"
            .to_owned(),
    };
    let blocks = window_in_blocks(config).map(|_| "layers with a window on blocks of texts");
    let usual = [model.attention.operators(), norms, activation_operator(config), &layout];
    usual.into_iter().chain(blocks).map(str::to_owned).collect()
}

impl Encoder {
    pub(crate) fn new(model: Model) -> Encoder {
        let hidden = model.hidden_states.then(Vec::new);
        Encoder { model, numbers: Vec::new(), computed: 0, hidden }
    }

    /// Positions that attention computes for each text.
    fn width(&self, texts: Texts<'_>) -> usize {
        self.model.options.padding.map_or(texts.longest(), |padding| padding.width(&texts))
    }

    fn run(&mut self, texts: Texts<'_>, task: EncodeTask) -> ort::Result<()> {
        let config = &self.model.config;
        let name = match task {
            EncodeTask::Embed { .. } => output(config),
            EncodeTask::Score => SCORES.to_owned(),
        };
        let states = 0..if self.hidden.is_some() { config.layers + 1 } else { 0 };
        let states: Vec<String> = states.map(|layers| state(config, layers)).collect();
        // The last hidden state may be the requested output itself.
        let others = states.iter().filter(|state| **state != name);
        let selected = others.fold(OutputSelector::no_default().with(&name), OutputSelector::with);
        let options = RunOptions::new()?.with_outputs(selected);
        let width = self.width(texts);
        let encoder = config.encoder.as_ref().filter(|_| self.model.options.padding.is_some());
        let padded = encoder.map(|encoder| Padded::to(width, texts, encoder.pad_token));
        let laid_out = padded.as_ref().map_or(texts, Padded::texts);
        let inputs = Inputs::new(&self.model, laid_out, texts.lengths)?;
        let outputs = self.model.session.run_with_options(inputs.0, &options)?;
        let (_, found) = outputs[name.as_str()].try_extract_tensor::<f32>()?;
        self.numbers = texts.numbers(laid_out.lengths, (task, config), found);
        if self.hidden.is_some() {
            let hidden = config.hidden_size;
            let tokens = |rows: &[f32]| -> Vec<f32> {
                if padded.is_none() {
                    return rows.to_vec();
                }
                let cells = texts.cells(width);
                cells.flat_map(|cell| &rows[cell * hidden..(cell + 1) * hidden]).copied().collect()
            };
            let extracted = |name: &String| Ok(tokens(outputs[name.as_str()].try_extract_tensor::<f32>()?.1));
            self.hidden = Some(states.iter().map(extracted).collect::<ort::Result<_>>()?);
        }
        Ok(())
    }
}

impl Encode for Encoder {
    fn encode(&mut self, texts: Texts<'_>, task: EncodeTask) -> Result<&[f32], EngineError> {
        texts.check(&self.model.config, task)?;
        self.run(texts, task).map_err(framework)?;
        self.computed = texts.lengths.len() * self.width(texts);
        Ok(&self.numbers)
    }

    fn config(&self) -> &ModelConfig {
        &self.model.config
    }

    /// Positions that attention computes: it pads texts to the longest. Linear layers compute no padding,
    /// unless the option `padded` is set.
    fn positions(&self) -> usize {
        self.computed
    }

    fn hidden_states(&mut self) -> Result<HiddenStates, EngineError> {
        HiddenStates::kept(self.hidden.clone())
    }
}

//! Encoders. The tokens of all texts are the rows of one matrix, so that nothing is computed for padding.
//! Only attention goes text by text.

use bundle::{Bundle, HeadActivation, ModelConfig, Precision, Scored};
use candle_core::{Device, Result, Tensor};
use rayon::prelude::*;
use worker::engine::{self, Encode, EncodeTask, HiddenStates, InEffect, Padded, TextPadding, Texts};

use crate::attention::Relative;
use crate::attention::texts::TextRows;
use crate::cpu;
use crate::elements::with_f32;
use crate::kernels::Kernels;
use crate::layer::{Embedding, Layer};
use crate::linear::Linear;
use crate::norm::Norm;
use crate::parallel::{compute_here, reading};
use crate::reader::{Form, Reader, framework};
use crate::sequences::RotaryTable;
use crate::weight::{Held, Weight};

#[derive(Debug)]
pub(crate) struct Encoder {
    config: ModelConfig,
    /// The precision of the file that was read.
    precision: Precision,
    kernels: Kernels,
    embedding: Embedding,
    relative: Option<Relative>,
    layers: Vec<Layer>,
    final_norm: Option<Norm>,
    head: Option<Head>,
    /// The length to which texts are padded, if any. Padding is then computed like tokens.
    padding: Option<TextPadding>,
    /// One for each of the model's rotations, for the first `rotated` positions.
    rotary: Vec<RotaryTable>,
    rotated: usize,
    numbers: Vec<f32>,
    computed: usize,
    hidden: Option<Vec<Vec<f32>>>,
}

impl Encoder {
    /// Reads the weights at `precision`, for products in `form`. `padding`: the length to which texts are
    /// padded. `hidden`: whether hidden states are kept.
    pub(crate) fn read(
        bundle: &Bundle,
        (precision, form, kernels): (Precision, Form, Kernels),
        (padding, hidden): (Option<TextPadding>, bool),
    ) -> engine::Result<Encoder> {
        reading(|| Encoder::read_here(bundle, (precision, form, kernels), (padding, hidden)))
    }

    fn read_here(
        bundle: &Bundle,
        (precision, form, kernels): (Precision, Form, Kernels),
        (padding, hidden): (Option<TextPadding>, bool),
    ) -> engine::Result<Encoder> {
        let weights = bundle.weights(precision)?;
        let config = bundle.config().clone();
        let reader = Reader::new(&weights, form, kernels);
        let layers =
            (0..config.layers.len()).into_par_iter().map(|index| Layer::read(&reader, &config, index));
        let has_norm = config.encoder.as_ref().is_some_and(|encoder| encoder.final_norm);
        let final_norm = has_norm.then(|| config.final_norm());
        Ok(Encoder {
            embedding: Embedding::read(&reader, &config)?,
            relative: Relative::read(&reader, &config)?,
            layers: layers.collect::<std::result::Result<_, _>>()?,
            final_norm: Norm::read_optional(&reader, &config, final_norm.as_ref())?,
            head: Head::read(&reader, &config)?,
            padding,
            kernels,
            precision: weights.precision(),
            config,
            rotary: Vec::new(),
            rotated: 0,
            numbers: Vec::new(),
            computed: 0,
            hidden: hidden.then(Vec::new),
        })
    }

    pub(crate) fn in_effect(&self) -> InEffect {
        let linears = self.layers.iter().flat_map(Layer::linears);
        let weights: Vec<&Weight> = linears.map(Linear::weight).collect();
        let texts = self.padding.map_or("texts unpadded".to_owned(), |padding| padding.to_string());
        let between = self.kernels.described(&format!(", text by text, {texts}"));
        cpu::in_effect(&self.config, self.precision, Held::new(&weights), (Precision::F32, between))
    }

    /// Extends the rotation tables for a text of `longest` tokens, if needed.
    fn rotate_up_to(&mut self, longest: usize) {
        if longest > self.rotated {
            // A power of two, so that the tables are not recomputed for every slightly longer text.
            self.rotated = longest.next_power_of_two().min(self.config.max_positions);
            self.rotary = RotaryTable::of_rotations(&self.config, self.rotated);
        }
    }

    /// The vectors of all tokens: `[tokens, hidden]`. Adds every hidden state to `kept`.
    fn forward(&self, texts: Texts<'_>, mut kept: Option<&mut Vec<Tensor>>) -> Result<Tensor> {
        let mut x;
        if let Some(padding) = self.padding {
            let pad_token = self.config.encoder.as_ref().map_or(0, |encoder| encoder.pad_token);
            let width = padding.width(&texts);
            let padded = Padded::to(width, texts, pad_token);
            x = self.layers(padded.texts(), texts.lengths, kept.as_deref_mut())?;
            let tokens: Vec<u32> = texts.cells(width).map(|cell| cell as u32).collect();
            let tokens = Tensor::new(tokens, &Device::Cpu)?;
            x = x.index_select(&tokens, 0)?;
            for state in kept.iter_mut().flat_map(|kept| kept.iter_mut()) {
                *state = state.index_select(&tokens, 0)?;
            }
        } else {
            x = self.layers(texts, texts.lengths, kept.as_deref_mut())?;
        }
        if let Some(norm) = &self.final_norm {
            x = norm.change(x)?;
        }
        if let Some(last) = kept.and_then(|kept| kept.last_mut()) {
            *last = x.clone();
        }
        Ok(x)
    }

    /// The vectors of all rows after the last layer. `tokens`: tokens of each text; its other rows are
    /// padding.
    fn layers(
        &self,
        texts: Texts<'_>,
        tokens: &[usize],
        mut kept: Option<&mut Vec<Tensor>>,
    ) -> Result<Tensor> {
        let lengths = texts.lengths;
        let positions: Vec<usize> = lengths.iter().flat_map(|&length| 0..length).collect();
        let turns = match self.kernels {
            Kernels::Candle => {
                self.rotary.iter().map(|table| table.turns(&positions)).collect::<Result<_>>()?
            }
            Kernels::Own => Vec::new(),
        };
        let mut x = self.embedding.forward(texts.tokens, positions.iter().copied(), texts.types)?;
        let rows = TextRows {
            lengths,
            tokens,
            positions: &positions,
            rotary: &self.rotary,
            turns: &turns,
            relative: self.relative.as_ref(),
        };
        // A copy, because layers change the rows in place.
        let mut keep = |x: &Tensor| -> Result<()> {
            if let Some(kept) = &mut kept {
                kept.push(x.copy()?);
            }
            Ok(())
        };
        keep(&x)?;
        for layer in &self.layers {
            x = layer.forward(&x, |attention, qkv| attention.of_texts(qkv, &rows))?;
            keep(&x)?;
        }
        Ok(x)
    }

    fn numbers(
        &self,
        texts: Texts<'_>,
        task: EncodeTask,
        kept: Option<&mut Vec<Tensor>>,
    ) -> Result<Vec<f32>> {
        let x = self.forward(texts, kept)?;
        let (lengths, width) = (texts.lengths, self.config.hidden_size);
        let pooled = |task| with_f32(&x, |x| texts.numbers(lengths, (task, &self.config), x));
        let head = match (task, &self.head) {
            (EncodeTask::Embed { .. }, _) => return pooled(task),
            (EncodeTask::Score, Some(head)) => head,
            (EncodeTask::Score, None) => return Ok(Vec::new()),
        };
        let scores = match head.of {
            Scored::Tokens => head.forward(&x)?,
            Scored::Texts(pooling) => head.forward(&Tensor::from_vec(
                pooled(EncodeTask::Embed { pooling, normalise: false })?,
                (lengths.len(), width),
                &Device::Cpu,
            )?)?,
        };
        with_f32(&scores, <[f32]>::to_vec)
    }
}

impl Encode for Encoder {
    fn encode(&mut self, texts: Texts<'_>, task: EncodeTask) -> engine::Result<&[f32]> {
        texts.check(&self.config, task)?;
        compute_here();
        let width = self.padding.map(|padding| padding.width(&texts));
        self.rotate_up_to(width.unwrap_or(texts.longest()));
        let mut kept = self.hidden.is_some().then(Vec::new);
        self.numbers = self.numbers(texts, task, kept.as_mut()).map_err(framework)?;
        if let Some(kept) = kept {
            let states = kept.iter().map(|state| with_f32(state, <[f32]>::to_vec));
            self.hidden = Some(states.collect::<Result<_>>().map_err(framework)?);
        }
        self.computed = width.map_or(texts.tokens.len(), |width| width * texts.lengths.len());
        Ok(&self.numbers)
    }

    fn config(&self) -> &ModelConfig {
        &self.config
    }

    fn positions(&self) -> usize {
        self.computed
    }

    fn hidden_states(&mut self) -> engine::Result<HiddenStates> {
        HiddenStates::kept(self.hidden.clone())
    }
}

// The head, which turns vectors into scores.

#[derive(Debug)]
struct Head {
    /// Whether tokens or texts get scores.
    of: Scored,
    dense: Option<Dense>,
    scores: Linear,
}

#[derive(Debug)]
struct Dense {
    linear: Linear,
    activation: HeadActivation,
    norm: Option<Norm>,
    kernels: Kernels,
}

impl Head {
    /// `None` if the model has no head.
    fn read(reader: &Reader<'_>, config: &ModelConfig) -> engine::Result<Option<Head>> {
        let head = config.scoring();
        let (Some(head), Some(names)) = (head, config.head()) else { return Ok(None) };
        let dense = match (head.dense, &names.dense) {
            (Some(dense), Some(linear)) => Some(Dense {
                linear: Linear::read(reader, linear)?,
                activation: dense.activation,
                norm: Norm::read_optional(reader, config, names.norm.as_ref())?,
                kernels: reader.kernels(),
            }),
            _ => None,
        };
        Ok(Some(Head { of: head.of, dense, scores: Linear::read(reader, &names.scores)? }))
    }

    /// `[vectors, hidden]` → `[vectors, labels]`
    fn forward(&self, vectors: &Tensor) -> Result<Tensor> {
        match &self.dense {
            Some(dense) => self.scores.forward(&dense.forward(vectors)?),
            None => self.scores.forward(vectors),
        }
    }
}

impl Dense {
    fn forward(&self, vectors: &Tensor) -> Result<Tensor> {
        let y = self.kernels.activate(&self.linear.forward(vectors)?, self.activation)?;
        match &self.norm {
            Some(norm) => norm.change(y),
            None => Ok(y),
        }
    }
}

//! The decoder as operations on `Tensor`s, for any of candle's devices. GPUs use this one.
//!
//! Activations and cache have the element type of the weights. Every operation is one of candle's own
//! kernels, fused if candle-nn has a fused one.

mod layers;

use bundle::{Bundle, LinearNames, ModelConfig, Precision};
use candle_core::{DType, Device, DeviceLocation, Module, Result, Tensor, bail};
use layers::{Cache, Layer, Norm, Sequences, Step};
use worker::engine::{self, EngineError, Foreigns, InEffect, Want};

use crate::cpu::element;
use crate::decoder::{self, Answer, Decoder};
use crate::experts;
use crate::kernels::Kernels;
use crate::model::last_rows;
use crate::reader::{Form, Reader, framework};
use crate::sequences::padding;
use crate::weight::Weight;
use crate::{ON_A_CPU_ALONE, parallel};

/// Rows per product of the head, which matters if the logits of every position are wanted.
const HEAD_ROWS: usize = 512;

#[derive(Debug)]
pub(crate) struct Tensors {
    config: ModelConfig,
    /// The precision of the weights file.
    precision: Precision,
    device: Device,
    /// `[vocabulary, hidden]`
    embedding: Tensor,
    /// `[positions, hidden]`, in a model with learned positions.
    positions: Option<Tensor>,
    layers: Vec<Layer>,
    final_norm: Norm,
    head: Linear,
    sequences: Option<Sequences>,
}

impl Tensors {
    /// Reads the weights onto `device`, for products in `form`. The transfer is complete on return.
    pub(crate) fn read(
        bundle: &Bundle,
        device: Device,
        precision: Precision,
        form: Form,
    ) -> engine::Result<Tensors> {
        let weights = bundle.weights(precision)?;
        let config = bundle.config().clone();
        let dtype = element(precision);
        let upload =
            Upload { reader: Reader::new(&weights, form, Kernels::Candle), device: device.clone(), dtype };
        let embedding = upload.matrix(&config.embedding())?;
        let head =
            if config.tied_embeddings { embedding.clone() } else { upload.matrix(&config.lm_head())? };
        let head_bias = config.lm_head_bias().map(|name| upload.named_vector(&name)).transpose()?;
        let layers = (0..config.layers.len()).map(|index| Layer::read(&upload, &config, index));
        let model = Tensors {
            positions: config.position_embedding().map(|name| upload.matrix(&name)).transpose()?,
            layers: layers.collect::<std::result::Result<_, _>>()?,
            final_norm: Norm::read(&upload, &config, &config.final_norm())?,
            head: Linear::new(&head, head_bias).map_err(framework)?,
            precision,
            device,
            embedding,
            config,
            sequences: None,
        };
        model.device.synchronize().map_err(framework)?;
        Ok(model)
    }

    /// `[rows, hidden]`; the rows of the steps follow one another.
    fn embed(&self, tokens: &[u32], steps: &[Step]) -> Result<Tensor> {
        let tokens = Tensor::from_slice(tokens, tokens.len(), &self.device)?;
        let mut x = self.embedding.index_select(&tokens, 0)?;
        if let Some(multiplier) = self.config.form.embedding_multiplier {
            x = (x * multiplier)?;
        }
        let Some(table) = &self.positions else { return Ok(x) };
        if let [Step { batch, filled, positions, places: None, .. }] = steps {
            let (rows, width) = x.dims2()?;
            let x = x.reshape((*batch, *positions, width))?;
            return x.broadcast_add(&table.narrow(0, *filled, *positions)?)?.reshape((rows, width));
        }
        let own = steps.iter().map(|step| match &step.places {
            Some(places) => table.index_select(places, 0),
            None => table.narrow(0, step.filled, step.positions),
        });
        x + Tensor::cat(&own.collect::<Result<Vec<_>>>()?, 0)?
    }

    /// Scales and caps the logits, in models that do so.
    fn finished(&self, mut logits: Tensor) -> Result<Tensor> {
        let form = &self.config.form;
        if let Some(multiplier) = form.logits_multiplier {
            logits = (logits * multiplier)?;
        }
        match form.logits_cap {
            Some(cap) => (logits / cap)?.tanh()? * cap,
            None => Ok(logits),
        }
    }

    /// The rows of `[batch · positions, hidden]` for which logits are wanted.
    fn wanted(x: Tensor, batch: usize, want: Want) -> Result<Tensor> {
        let (rows, width) = x.dims2()?;
        let positions = rows / batch;
        if want == Want::All || positions == 1 {
            return Ok(x);
        }
        let last = x.reshape((batch, positions, width))?.narrow(1, positions - 1, 1)?;
        last.reshape((batch, width))
    }
}

impl Decoder for Tensors {
    fn config(&self) -> &ModelConfig {
        &self.config
    }

    fn in_effect(&self) -> InEffect {
        let dtype = self.embedding.dtype();
        let held = match dtype {
            DType::BF16 => Precision::Bf16,
            DType::F16 => Precision::F16,
            _ => Precision::F32,
        };
        let emulated = held != self.precision;
        let (device, products, place) = match self.embedding.device().location() {
            DeviceLocation::Cuda { gpu_id } => (engine::Device::Cuda(gpu_id), "cuBLAS", "on the device"),
            _ => (engine::Device::Cpu, "gemm", "in memory"),
        };
        InEffect {
            precision: self.precision.into(),
            activations: held.into(),
            kv_cache_precision: held.into(),
            kv_cache: decoder::policy(&self.config),
            device: device.into(),
            threads: parallel::threads_of_matmul(),
            jit: "none (candle has no JIT)".into(),
            optimised: None,
            weight_storage: if emulated {
                format!("emulated: dequantised to f32 at load, one copy {place}")
            } else {
                format!("one copy {place}")
            }
            .into(),
            kernels: [
                format!("candle Tensor::matmul ({products}), also for attention"),
                "candle-nn's fused norms, rotation and softmax".into(),
            ]
            .into_iter()
            .chain(self.config.has_experts().then(|| experts::KERNELS.to_owned()))
            .collect::<Vec<String>>()
            .into(),
            shard_bytes: None,
            hybrid: None,
            semi_public: Foreigns::default(),
            changed_defaults: Foreigns::default(),
            artefact: None,
        }
    }

    fn reserve(&mut self, batch: usize, capacity: usize) -> Result<()> {
        // The old caches are freed before the new ones are made.
        self.sequences = None;
        let dtype = self.embedding.dtype();
        self.sequences = Some(Sequences::new(&self.config, batch, capacity, dtype, &self.device)?);
        Ok(())
    }

    fn kv_cache_bytes(&self) -> Option<u64> {
        decoder::cache_bytes(&self.config, &self.sequences.as_ref()?.caches)
    }

    fn restart(&mut self) -> Result<()> {
        if let Some(sequences) = &mut self.sequences {
            sequences.padding.clear();
        }
        Ok(())
    }

    fn listen(&mut self, _: &[f32]) -> Result<()> {
        bail!("models that hear are not read")
    }

    fn append(&mut self, tokens: &[u32], filled: usize, want: Want, answer: &mut Answer) -> Result<()> {
        let Some(sequences) = &self.sequences else { bail!("append before begin") };
        let (batch, positions) = (sequences.batch, tokens.len() / sequences.batch);
        let steps = [match sequences.padding.is_empty() {
            true => sequences.step(filled, positions)?,
            false => sequences.padded_step(filled, positions)?,
        }];
        let x =
            self.through_layers(self.embed(tokens, &steps)?, &sequences.caches, &steps, &mut answer.hidden)?;
        self.logits(Self::wanted(x, batch, want)?, &mut answer.logits)
    }

    fn append_each(&mut self, (tokens, lengths): (&[u32], &[usize]), answer: &mut Answer) -> Result<()> {
        let Some(sequences) = &mut self.sequences else { bail!("append before begin") };
        sequences.padding = padding(lengths).into_iter().map(|places| places as u32).collect();
        let Some(sequences) = &self.sequences else { bail!("append before begin") };
        let steps = sequences.prompts(lengths)?;
        let x =
            self.through_layers(self.embed(tokens, &steps)?, &sequences.caches, &steps, &mut answer.hidden)?;
        let last = last_rows(lengths)?.to_device(&self.device)?;
        self.logits(x.index_select(&last, 0)?, &mut answer.logits)
    }
}

impl Tensors {
    /// The residual stream after all layers, `[rows, hidden]`.
    fn through_layers(
        &self,
        mut x: Tensor,
        caches: &[Cache],
        steps: &[Step],
        hidden: &mut Option<Vec<Vec<f32>>>,
    ) -> Result<Tensor> {
        if let Some(hidden) = hidden {
            hidden.clear();
            hidden.push(floats(&x)?);
        }
        for (index, (layer, cache)) in self.layers.iter().zip(caches).enumerate() {
            x = layer.forward(&x, cache, steps)?;
            if let Some(hidden) = hidden
                && index + 1 < self.layers.len()
            {
                hidden.push(floats(&x)?);
            }
        }
        if let Some(hidden) = hidden {
            hidden.push(floats(&self.final_norm.forward(&x)?)?);
        }
        Ok(x)
    }

    /// Writes the logits of all rows of the residual stream `x`.
    fn logits(&self, x: Tensor, logits: &mut Vec<f32>) -> Result<()> {
        let normed = self.final_norm.forward(&x)?;
        logits.clear();
        let rows = normed.dim(0)?;
        for start in (0..rows).step_by(HEAD_ROWS) {
            let piece = normed.narrow(0, start, HEAD_ROWS.min(rows - start))?;
            logits.append(&mut floats(&self.finished(self.head.forward(&piece)?)?)?);
        }
        // The copies above have already waited for the device, but only while candle copies into plain
        // memory.
        self.device.synchronize()
    }
}

/// All elements, in f32 and in main memory.
fn floats(x: &Tensor) -> Result<Vec<f32>> {
    x.to_dtype(DType::F32)?.flatten_all()?.to_vec1()
}

// A bundle's tensors on a device.

/// Reads a bundle's tensors onto a device, in one element type.
struct Upload<'a> {
    reader: Reader<'a>,
    device: Device,
    dtype: DType,
}

impl Upload<'_> {
    fn matrix(&self, name: &str) -> engine::Result<Tensor> {
        self.weight(self.reader.matrix(name)?)
    }

    fn linear(&self, names: &LinearNames) -> engine::Result<Linear> {
        let weight = self.weight(self.reader.stacked(names)?)?;
        let bias = self.reader.stacked_bias(names)?.map(|bias| self.vector(bias)).transpose()?;
        Linear::new(&weight, bias).map_err(framework)
    }

    fn named_vector(&self, name: &str) -> engine::Result<Tensor> {
        self.vector(self.reader.vector(name)?)
    }

    fn offset_vector(&self, name: &str, offset: f32) -> engine::Result<Tensor> {
        self.vector(self.reader.offset_vector(name, offset)?)
    }

    fn vector(&self, vector: Vec<f32>) -> engine::Result<Tensor> {
        let vector = Tensor::new(vector, &Device::Cpu).and_then(|vector| vector.to_dtype(self.dtype));
        vector.and_then(|vector| vector.to_device(&self.device)).map_err(framework)
    }

    fn weight(&self, weight: Weight) -> engine::Result<Tensor> {
        match weight {
            Weight::Plain(weight) => weight.to_device(&self.device).map_err(framework),
            Weight::Blocks(_) => Err(EngineError::Unsupported(
                "candle's quantised kernels are driven on a CPU alone: use f32, bf16 or f16".into(),
            )),
            Weight::Converted(_) => Err(EngineError::Unsupported(ON_A_CPU_ALONE.into())),
        }
    }
}

/// y = x · weightᵀ + bias
#[derive(Debug)]
struct Linear {
    /// `[in, out]`, a transposed view.
    weight: Tensor,
    bias: Option<Tensor>,
}

impl Linear {
    /// `weight` is `[out, in]`.
    fn new(weight: &Tensor, bias: Option<Tensor>) -> Result<Linear> {
        Ok(Linear { weight: weight.t()?, bias })
    }
}

impl Module for Linear {
    /// `[rows, in]` → `[rows, out]`
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let y = x.matmul(&self.weight)?;
        match &self.bias {
            Some(bias) => y.broadcast_add(bias),
            None => Ok(y),
        }
    }
}

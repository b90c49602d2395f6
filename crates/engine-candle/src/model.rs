//! A decoder-only transformer, built from the properties in its configuration.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::ops::Range;

use bundle::{Bundle, Element, LinearNames, ModelConfig, Precision, TensorView, Weights};
use candle_core::{DType, Device, Result, Tensor};
use half::{bf16, f16};
use rayon::prelude::*;
use worker::engine::{BundleError, EngineError, Want};

use crate::blocks::Blocks;
use crate::layer::{Embedding, Layer, Norm};
use crate::linear::{Kernel, Linear, Weight, with_f32};
use crate::math::{cap, dot};
use crate::parallel::{for_each_chunk, try_for_each};
use crate::sequences::Sequences;

/// Indices of the last row of each sequence; the rows of the sequences follow one another.
pub(crate) fn last_rows(lengths: &[usize]) -> Result<Tensor> {
    let ends = lengths.iter().scan(0, |end, &length| {
        *end += length as u32;
        Some(*end - 1)
    });
    Tensor::new(ends.collect::<Vec<u32>>(), &Device::Cpu)
}

#[derive(Debug)]
pub(crate) struct Model {
    config: ModelConfig,
    /// The precision of the file that was read.
    precision: Precision,
    embedding: Embedding,
    layers: Vec<Layer>,
    final_norm: Norm,
    head: Linear,
}

/// How the linear layers hold their weights and which kernels they use, read from the loaded weights.
#[derive(Debug)]
pub(crate) struct Held {
    pub(crate) precision: Precision,
    pub(crate) weights: usize,
    /// How many of the weights are held a second time, in the layout of candle's faster kernels.
    pub(crate) repacked: usize,
    /// Whether weights are converted for every product.
    pub(crate) converted: bool,
    /// Human-readable.
    pub(crate) kernels: Vec<String>,
}

impl Held {
    /// `weights`: those of all linear layers, at least one.
    pub(crate) fn new(weights: &[&Weight]) -> Held {
        let mut kernels: Vec<String> = weights.iter().flat_map(|weight| weight.kernels()).collect();
        kernels.sort();
        kernels.dedup();
        Held {
            precision: weights.first().map_or(Precision::F32, |weight| weight.precision()),
            weights: weights.len(),
            repacked: weights.iter().filter(|weight| weight.is_repacked()).count(),
            converted: weights.iter().any(|weight| weight.is_converted()),
            kernels,
        }
    }
}

impl Model {
    /// Reads the weights at `precision`, for products in `form`.
    pub(crate) fn read(
        bundle: &Bundle,
        precision: Precision,
        form: Form,
    ) -> std::result::Result<Model, EngineError> {
        let weights = bundle.weights(precision)?;
        let config = bundle.config().clone();
        let reader = Reader::new(&weights, form);
        let embedding = Embedding::read(&reader, &config)?;
        let head = match config.tied_embeddings {
            true => embedding.tokens().clone(),
            false => reader.matrix(&config.lm_head())?,
        };
        let layers = (0..config.layers).into_par_iter().map(|index| Layer::read(&reader, &config, index));
        Ok(Model {
            layers: layers.collect::<std::result::Result<_, _>>()?,
            final_norm: Norm::read(&reader, &config, &config.final_norm())?,
            head: Linear::new(head, None),
            precision: weights.precision(),
            embedding,
            config,
        })
    }

    pub(crate) fn config(&self) -> &ModelConfig {
        &self.config
    }

    /// The precision of the weights file.
    pub(crate) fn precision(&self) -> Precision {
        self.precision
    }

    /// How the weights of the linear layers are held.
    pub(crate) fn held(&self) -> Held {
        let layers = self.layers.iter().flat_map(Layer::linears);
        let weights: Vec<&Weight> = [&self.head].into_iter().chain(layers).map(Linear::weight).collect();
        Held::new(&weights)
    }

    /// Appends `tokens` after the filled positions of `sequences`: `[batch, positions]`, or `lengths` tokens
    /// of each sequence. Writes the logits to `logits` and the hidden states to `hidden`, if given.
    pub(crate) fn forward(
        &self,
        sequences: &mut Sequences,
        (tokens, lengths): (&[u32], Option<&[usize]>),
        want: Want,
        logits: &mut Vec<f32>,
        mut hidden: Option<&mut Vec<Vec<f32>>>,
    ) -> Result<()> {
        let (batch, filled) = (sequences.batch, sequences.filled);
        let positions = tokens.len() / batch;
        let places: Vec<usize> = match lengths {
            Some(lengths) => lengths.iter().flat_map(|&length| 0..length).collect(),
            None => (0..batch)
                .flat_map(|sequence| {
                    let first = filled - sequences.padding.get(sequence).copied().unwrap_or(0);
                    first..first + positions
                })
                .collect(),
        };
        let mut x = self.embedding.forward(tokens, places.into_iter(), &[])?;
        if let Some(hidden) = hidden.as_deref_mut() {
            hidden.clear();
            hidden.push(with_f32(&x, <[f32]>::to_vec)?);
        }
        for (index, layer) in self.layers.iter().enumerate() {
            layer.forward(&x, |attention, qkv| attention.forward(qkv, sequences, (index, lengths)))?;
            if let Some(hidden) = hidden.as_deref_mut().filter(|_| index + 1 < self.layers.len()) {
                hidden.push(with_f32(&x, <[f32]>::to_vec)?);
            }
        }
        if let Some(hidden) = hidden {
            hidden.push(with_f32(&self.final_norm.forward(&x)?, <[f32]>::to_vec)?);
        }
        if let Some(lengths) = lengths {
            x = x.index_select(&last_rows(lengths)?, 0)?;
        } else if want == Want::Last {
            let width = self.config.hidden_size;
            let last = x.reshape((batch, positions, width))?.narrow(1, positions - 1, 1)?;
            x = last.contiguous()?.reshape((batch, width))?;
        }
        let normed = self.final_norm.forward(&x)?;
        logits.resize(normed.dim(0)? * self.config.vocab_size, 0.0);
        self.head.forward_into(&normed, logits)?;
        self.finish(logits);
        Ok(())
    }

    /// Scales and caps the logits, in models that do so.
    fn finish(&self, logits: &mut [f32]) {
        let form = &self.config.form;
        if form.logits_multiplier.is_none() && form.logits_cap.is_none() {
            return;
        }
        for_each_chunk(logits, self.config.vocab_size, |_, logits| {
            if let Some(multiplier) = form.logits_multiplier {
                logits.iter_mut().for_each(|logit| *logit *= multiplier as f32);
            }
            if let Some(bound) = form.logits_cap {
                cap(logits, bound as f32);
            }
        });
    }
}

// Reads a bundle's tensors into candle's own memory.
//
// candle has no tensors over borrowed memory, so every weight is copied once. Plain elements are read from
// the file and not mapped, because mapped pages would count a second time in the process's resident memory.
// Codes are mapped, and their pages are released as soon as the blocks are written.

/// Bytes read at a time: within a core's second-level cache, and a multiple of every element's size.
const BUFFER: usize = 1 << 18;

/// The form in which matrices are multiplied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Form {
    /// As in the file.
    OfFile,
    /// Quantised weights become f32 when read.
    Dequantised,
    /// 16-bit weights stay in 16 bits and are converted to f32 for every product.
    Converted,
}

pub(crate) struct Reader<'a> {
    weights: &'a Weights,
    form: Form,
}

impl<'a> Reader<'a> {
    pub(crate) fn new(weights: &'a Weights, form: Form) -> Self {
        Reader { weights, form }
    }

    /// A matrix in the form of the file.
    pub(crate) fn matrix(&self, name: &str) -> std::result::Result<Weight, EngineError> {
        self.weight(&[name.to_owned()])
    }

    /// Several matrices stacked along their rows.
    pub(crate) fn stacked(&self, names: &LinearNames) -> std::result::Result<Weight, EngineError> {
        self.weight(&names.weights)
    }

    fn weight(&self, names: &[String]) -> std::result::Result<Weight, EngineError> {
        if !self.weights.is_quantised(&names[0]) {
            let held = if self.form == Form::Converted { Weight::Converted } else { Weight::Plain };
            return self.tensor(&self.weights.stacked(names)?).map(held);
        }
        let weight = self.weights.quantised(names)?;
        let read = if self.form == Form::Dequantised {
            let shape = (weight.rows, weight.columns);
            Tensor::from_vec(weight.dequantised(), shape, &Device::Cpu).map(Weight::Plain)
        } else {
            Blocks::new(&weight).map(Weight::Blocks)
        };
        self.weights.release(&weight.codes);
        self.weights.release(&weight.scales);
        read.map_err(framework)
    }

    /// The biases for [`Reader::stacked`], in f32, if there are any.
    pub(crate) fn stacked_bias(
        &self,
        names: &LinearNames,
    ) -> std::result::Result<Option<Vec<f32>>, EngineError> {
        if names.biases.is_empty() {
            return Ok(None);
        }
        self.floats(&self.weights.stacked(&names.biases)?).map(Some)
    }

    /// A vector, converted to f32.
    pub(crate) fn vector(&self, name: &str) -> std::result::Result<Vec<f32>, EngineError> {
        self.floats(&self.weights.tensor(name)?)
    }

    fn tensor(&self, view: &TensorView<'_>) -> std::result::Result<Tensor, EngineError> {
        let shape = view.shape.as_slice();
        let tensor = match view.element {
            Element::Bf16 => Tensor::from_vec(self.read(view, bf16::from_le_bytes)?, shape, &Device::Cpu),
            Element::F16 => Tensor::from_vec(self.read(view, f16::from_le_bytes)?, shape, &Device::Cpu),
            _ => Tensor::from_vec(self.read(view, f32::from_le_bytes)?, shape, &Device::Cpu),
        };
        tensor.map_err(framework)
    }

    fn floats(&self, view: &TensorView<'_>) -> std::result::Result<Vec<f32>, EngineError> {
        match view.element {
            Element::Bf16 => self.read(view, |bytes| bf16::from_le_bytes(bytes).to_f32()),
            Element::F16 => self.read(view, |bytes| f16::from_le_bytes(bytes).to_f32()),
            _ => self.read(view, f32::from_le_bytes),
        }
    }

    fn read<T, const N: usize>(
        &self,
        view: &TensorView<'_>,
        element: impl Fn([u8; N]) -> T,
    ) -> std::result::Result<Vec<T>, EngineError> {
        let path = self.weights.path();
        let mut file = File::open(path).map_err(BundleError::io(path))?;
        file.seek(SeekFrom::Start(view.file_offset)).map_err(BundleError::io(path))?;
        let mut elements = Vec::with_capacity(view.bytes.len() / N);
        let mut buffer = vec![0; BUFFER.min(view.bytes.len())];
        let mut left = view.bytes.len();
        while left > 0 {
            let part = &mut buffer[..left.min(BUFFER)];
            file.read_exact(part).map_err(BundleError::io(path))?;
            elements.extend(part.as_chunks::<N>().0.iter().map(|bytes| element(*bytes)));
            left -= part.len();
        }
        Ok(elements)
    }
}

// Products by `Tensor::matmul`, in pieces: every thread computes some of the weight's outputs at a time.

/// Outputs of a piece: few enough that its weights, in f32, stay in a core's cache.
const OUTPUTS: usize = 96;

/// Rows that gemm's kernel computes together.
const KERNEL_ROWS: usize = 16;

/// Rows in one of its vectors.
const VECTOR_ROWS: usize = 8;

/// A product of rows with a weight, as its pieces need it.
pub(crate) struct Pieces {
    weight: Weight,
    /// `[rows, in]`
    x: Tensor,
    /// The first rows, `[in, rows]`, padded with zeros to whole vectors, so that gemm need not pack them.
    /// Only for [`Kernel::WeightFirst`].
    first: Option<Tensor>,
}

impl Pieces {
    /// `x`: `[rows, in]`. Converts [`Weight::Converted`], on one thread as in users' code.
    pub(crate) fn new(weight: &Weight, x: &Tensor) -> Result<Pieces> {
        let (rows, width) = x.dims2()?;
        let weight_first = weight.kernel(rows) == Kernel::WeightFirst;
        let first = weight_first.then(|| {
            let rows = rows.min(KERNEL_ROWS);
            let filled = rows.next_multiple_of(VECTOR_ROWS);
            let mut first = vec![0.0; width * filled];
            with_f32(&x.narrow(0, 0, rows)?, |x| {
                for (row, x) in x.chunks_exact(width).enumerate() {
                    first[row..].iter_mut().step_by(filled).zip(x).for_each(|(first, x)| *first = *x);
                }
            })?;
            Tensor::from_vec(first, (width, filled), &Device::Cpu)
        });
        let weight = match weight {
            Weight::Converted(weight) => Weight::Plain(weight.to_dtype(DType::F32)?),
            other => other.clone(),
        };
        Ok(Pieces { weight, x: x.clone(), first: first.transpose()? })
    }

    /// Calls `f` with ranges of the columns of `y`, `[rows, width]`, and their part of every row, on any free
    /// thread.
    pub(crate) fn for_each(
        &self,
        y: &mut [f32],
        width: usize,
        f: impl Fn(Range<usize>, Vec<&mut [f32]>) -> Result<()> + Send + Sync,
    ) -> Result<()> {
        let rows = y.len() / width;
        let starts = (0..width).step_by(OUTPUTS);
        let mut pieces: Vec<_> =
            starts.map(|start| (start..width.min(start + OUTPUTS), Vec::with_capacity(rows))).collect();
        for row in y.chunks_exact_mut(width) {
            for ((_, piece), part) in pieces.iter_mut().zip(row.chunks_mut(OUTPUTS)) {
                piece.push(part);
            }
        }
        try_for_each(pieces, |(outputs, y)| f(outputs, y))
    }

    /// Writes the product with some of the weight's outputs to `y`, row by row, on this thread. If they are
    /// not in f32, only these outputs are widened: candle has no kernel for them, or widens the whole matrix.
    pub(crate) fn write(&self, outputs: Range<usize>, y: &mut [&mut [f32]]) -> Result<()> {
        let weight = self.weight.rows(outputs.clone())?;
        let Some(first) = &self.first else {
            let count = outputs.len();
            return with_f32(&self.x.matmul(&weight.t()?)?, |product| {
                y.iter_mut().zip(product.chunks_exact(count)).for_each(|(y, row)| y.copy_from_slice(row));
            });
        };
        let (of_kernel, rest) = y.split_at_mut(y.len().min(KERNEL_ROWS));
        let filled = first.dim(1)?;
        with_f32(&weight.matmul(first)?, |product| {
            for (row, y) in of_kernel.iter_mut().enumerate() {
                y.iter_mut()
                    .zip(product[row..].iter().step_by(filled))
                    .for_each(|(y, product)| *y = *product);
            }
        })?;
        if rest.is_empty() {
            return Ok(());
        }
        // Rows beyond the kernel's go one by one: in the kernel a few would cost as much as another
        // `KERNEL_ROWS`.
        let width = weight.dim(1)?;
        with_f32(&weight, |weight| {
            with_f32(&self.x, |x| {
                for (y, x) in rest.iter_mut().zip(x.chunks_exact(width).skip(KERNEL_ROWS)) {
                    y.iter_mut().zip(weight.chunks_exact(width)).for_each(|(y, weight)| *y = dot(weight, x));
                }
            })
        })?
    }
}

// candle's errors.

/// Keeps the first line, the cause. candle appends a backtrace if the environment requests one.
pub(crate) fn framework(error: candle_core::Error) -> EngineError {
    EngineError::Framework(error.to_string().lines().next().unwrap_or_default().to_owned())
}

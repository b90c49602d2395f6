//! The encoder of audio.

use bundle::{Activation, Audio, HeadActivation, LinearNames, ModelConfig};
use candle_core::{Device, Result, Tensor};
use worker::engine::{self, EngineError};

use crate::attention::texts::TextRows;
use crate::elements::with_f32;
use crate::kernels::Kernels;
use crate::layer::Layer;
use crate::linear::Linear;
use crate::norm::Norm;
use crate::parallel::for_each_chunk;
use crate::reader::{Reader, framework};
use crate::weight::Weight;

/// What computes besides the layers, for people.
pub(crate) const KERNELS: &str = "convolutions of audio as products with the frames that each sees";

/// The encoder of audio.
#[derive(Debug)]
pub(crate) struct Ears {
    /// Convolutions as products: of a matrix `[hidden, bands · Audio::WIDTH]`.
    stem: [Linear; 2],
    /// `[positions, hidden]`
    positions: Tensor,
    layers: Vec<Layer>,
    final_norm: Norm,
    audio: Audio,
    kernels: Kernels,
}

impl Ears {
    /// `None` if the model does not hear.
    pub(crate) fn read(reader: &Reader<'_>, config: &ModelConfig) -> engine::Result<Option<Ears>> {
        let (Some(audio), Some(encoder)) = (config.audio, config.audio_encoder()) else { return Ok(None) };
        let convolution = |names: &LinearNames| {
            let flat = |weight: Tensor| weight.flatten_from(1).map_err(framework);
            let weight = match reader.stacked(names)? {
                Weight::Plain(weight) => Weight::Plain(flat(weight)?),
                Weight::Converted(weight) => Weight::Converted(flat(weight)?),
                blocks => blocks,
            };
            let bias = reader.stacked_bias(names)?.map(|bias| Tensor::new(bias, &Device::Cpu));
            Ok::<_, EngineError>(Linear::new(weight, bias.transpose().map_err(framework)?, reader.kernels()))
        };
        let [first, second] = config.stem();
        let positions = reader.vector(&encoder.position_embedding().unwrap_or_default())?;
        let layers = (0..audio.layers).map(|index| Layer::read(reader, &encoder, index));
        Ok(Some(Ears {
            stem: [convolution(&first)?, convolution(&second)?],
            positions: Tensor::from_vec(positions, (audio.positions(), config.hidden_size), &Device::Cpu)
                .map_err(framework)?,
            layers: layers.collect::<std::result::Result<_, _>>()?,
            final_norm: Norm::read(reader, &encoder, &encoder.final_norm())?,
            audio,
            kernels: reader.kernels(),
        }))
    }

    pub(crate) fn linears(&self) -> impl Iterator<Item = &Linear> {
        self.stem.iter().chain(self.layers.iter().flat_map(Layer::linears))
    }

    /// `[bands, frames]` → `[positions, hidden]`
    pub(crate) fn forward(&self, frames: &[f32]) -> Result<Tensor> {
        let (count, positions) = (self.audio.frames, self.audio.positions());
        let gelu = HeadActivation::Of(Activation::GeluErf);
        let first = seen(frames, |band, frame| band * count + frame, (self.audio.bands, count, 1))?;
        let x = self.kernels.activate(&self.stem[0].forward(&first)?, gelu)?;
        let width = x.dim(1)?;
        let second = with_f32(&x, |x| seen(x, |band, frame| frame * width + band, (width, count, 2)))??;
        let x = self.kernels.activate(&self.stem[1].forward(&second)?, gelu)?;
        let mut x = self.kernels.sum(x, &self.positions)?;
        let places: Vec<usize> = (0..positions).collect();
        let lengths = &[positions];
        let rows = TextRows {
            lengths,
            tokens: lengths,
            positions: &places,
            rotary: &[],
            turns: &[],
            relative: None,
        };
        for layer in &self.layers {
            x = layer.forward(&x, |attention, qkv| attention.of_texts(qkv, &rows))?;
        }
        self.final_norm.change(x)
    }
}

/// For every `stride`th of `count` frames, those that a convolution sees, band by band: `[frames, bands · Audio::WIDTH]`.
/// Outside of the audio they are 0. `at`: where a band of a frame is in `x`.
fn seen(
    x: &[f32],
    at: impl Fn(usize, usize) -> usize + Sync,
    (bands, count, stride): (usize, usize, usize),
) -> Result<Tensor> {
    let (rows, width) = (count / stride, bands * Audio::WIDTH);
    let mut seen = vec![0.0; rows * width];
    for_each_chunk(&mut seen, width, |row, seen| {
        let first = (row * stride) as isize - 1;
        for (band, seen) in seen.chunks_exact_mut(Audio::WIDTH).enumerate() {
            for (frame, seen) in (first..).zip(seen) {
                if (0..count as isize).contains(&frame) {
                    *seen = x[at(band, frame as usize)];
                }
            }
        }
    });
    Tensor::from_vec(seen, (rows, width), &Device::Cpu)
}

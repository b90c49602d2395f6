//! The encoder of audio.

use bundle::{Audio, ModelConfig};
use tch::{Device, Kind, TchError, Tensor};
use worker::engine::{Result, Settings};

use crate::encoder::{Batch, Group, Layer, Seen};
use crate::framework;
use crate::layout::Layout;
use crate::linear::Linear;
use crate::norm::{Norm, RmsNorm};
use crate::reader::Reader;

/// The encoder of audio, and the keys and values of its vectors for each layer of the decoder.
pub(crate) struct Ear {
    /// That of the encoder.
    config: ModelConfig,
    audio: Audio,
    /// `[hidden, bands or hidden, width]` and `[hidden]` of each convolution.
    stem: Vec<[Tensor; 2]>,
    /// `[positions, hidden]`
    positions: Tensor,
    layers: Vec<Layer>,
    final_norm: Norm,
    pub(crate) layout: Layout,
    options: (Kind, Device),
    /// What makes keys and values, for each layer of the decoder.
    kv: Vec<Linear>,
    /// `[layers, keys or values, heads, positions, dimension]`: the layers have views of it.
    pub(crate) heard: Tensor,
}

impl Ear {
    /// `None` if the model does not hear. `kind`: of keys and values.
    pub(crate) fn read(
        reader: &Reader,
        config: &ModelConfig,
        settings: &Settings,
        kind: Kind,
    ) -> Result<Option<Ear>> {
        let Some((audio, encoder)) = config.audio.zip(config.audio_encoder()) else { return Ok(None) };
        let device = reader.device();
        let layout = Layout::of_many_rows(settings, device)?;
        // Where libtorch is slow in 16 bits, it also convolves in f32.
        let convolved = match layout {
            Layout::Widened | Layout::Converted => Kind::Float,
            _ => reader.kind(),
        };
        let part = |names: &[String]| reader.vectors(names)?.f_to_kind(convolved).map_err(framework);
        let stem = config.stem().into_iter().map(|names| Ok([part(&names.weights)?, part(&names.biases)?]));
        let layers = 0..encoder.layers.len();
        let cross = (0..config.layers.len()).filter_map(|index| config.layer(index).cross);
        let kv = cross.map(|names| Linear::fused(reader, &names.kv, layout)).collect::<Result<Vec<_>>>()?;
        let shape = [kv.len(), 2, config.heads, audio.positions(), config.head_dim].map(|size| size as i64);
        let positions = encoder.position_embedding().unwrap_or_default();
        Ok(Some(Ear {
            audio,
            stem: stem.collect::<Result<_>>()?,
            positions: reader.matrix(&positions)?,
            layers: layers
                .map(|index| Layer::read(reader, &encoder, index, layout))
                .collect::<Result<_>>()?,
            final_norm: Norm::read(reader, &encoder, &encoder.final_norm(), RmsNorm::Fused)?,
            config: encoder,
            layout,
            options: (reader.kind(), device),
            kv,
            heard: Tensor::f_empty(shape, (kind, device)).map_err(framework)?,
        }))
    }

    /// Makes the keys and values of a spectrogram, `[bands, frames]`.
    pub(crate) fn listen(&self, frames: &[f32]) -> Result<(), TchError> {
        let vectors = self.vectors(frames)?;
        for (kv, mut heard) in self.kv.iter().zip(self.heard.f_unbind(0)?) {
            let [parts, heads, positions, dim] = heard.size()[..] else { unreachable!("four dimensions") };
            let new =
                kv.forward(&vectors)?.f_view([positions, parts, heads, dim])?.f_permute([1, 2, 0, 3])?;
            heard.f_copy_(&new)?;
        }
        if let Device::Cuda(index) = self.options.1 {
            tch::Cuda::synchronize(index as i64);
        }
        Ok(())
    }

    /// `[positions, hidden]`
    fn vectors(&self, frames: &[f32]) -> Result<Tensor, TchError> {
        let (kind, device) = self.options;
        let frames = Tensor::f_from_slice(frames)?.f_view([1, self.audio.bands as i64, -1])?;
        let mut x = frames.f_to_device_(device, self.stem[0][0].kind(), false, false)?;
        for (stride, [weight, bias]) in (1..).zip(&self.stem) {
            x = x.f_conv1d(weight, Some(bias), stride, 1, 1, 1)?.f_gelu("none")?;
        }
        // The sum is laid out as its first part.
        let mut x = self.positions.f_add(&x.f_squeeze_dim(0)?.f_transpose(0, 1)?)?.f_to_kind(kind)?;
        let kind = self.layout.attention_kind(kind);
        let group = Group { first_row: 0, texts: 1, length: self.audio.positions() as i64 };
        let seen = Seen::new(&group, &self.config, None, None, (kind, device))?;
        let batch = Batch { seen: vec![seen], rotations: Vec::new(), kind };
        for layer in &self.layers {
            x = layer.forward(&x, &batch)?;
        }
        self.final_norm.normed(&x)
    }
}

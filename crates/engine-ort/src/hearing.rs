//! Models that hear: the session of the encoder of audio, and the keys and values that it hands to the decoder's.

use bundle::{Audio, ModelConfig};
use onnx::DataType;
use onnx::fused::audio::FRAMES;
use onnx::graph::heard_names;
use ort::memory::Allocator;
use ort::session::IoBinding;
use ort::value::{DynTensor, Tensor};
use worker::engine::{Device, ProfileEvent, Result};

use crate::running::Running;
use crate::runtime::{self, Options};

/// What computes it, for people.
pub(crate) const KERNELS: &str = "audio: Conv, Gelu and MultiHeadAttention in a session of its own, which writes the \
                                  keys and values of every layer once; MultiHeadAttention reads them where they lie";

pub(crate) struct Hearing {
    pub(crate) running: Running,
    binding: IoBinding,
    frames: Tensor<f32>,
    /// Keys and values of each of the decoder's layers in turn, on the model's device: bound as outputs here and as
    /// inputs there.
    heard: Vec<DynTensor>,
}

impl Hearing {
    /// As the decoder's, but for threads: they sleep as soon as the audio is encoded, because the decoder's continue.
    pub(crate) fn options(decoder: &Options) -> Options {
        let profile = decoder.profile.as_ref().map(|file| file.with_extension("audio.json"));
        Options { spins_within_runs_alone: true, profile, ..decoder.clone() }
    }

    pub(crate) fn new(
        running: Running,
        (config, audio): (&ModelConfig, &Audio),
        (float, device): (DataType, Device),
    ) -> ort::Result<Hearing> {
        let allocator = runtime::allocator(&running.session, device)?;
        let frames = Tensor::new(&Allocator::default(), [1, audio.bands, audio.frames])?;
        let mut binding = running.session.create_binding()?;
        let mut heard = Vec::new();
        for name in (0..config.layers.len()).flat_map(heard_names) {
            let shape = [1, config.heads, audio.positions(), config.head_dim];
            let mut tensor = DynTensor::new(&allocator, runtime::element(float), shape)?;
            binding.bind_output(name, &mut tensor)?;
            heard.push(tensor);
        }
        Ok(Hearing { running, binding, frames, heard })
    }

    /// Encodes a spectrogram.
    pub(crate) fn listen(&mut self, frames: &[f32]) -> ort::Result<()> {
        self.frames.extract_tensor_mut().1.copy_from_slice(frames);
        // Binding copies it to the model's device, if that is another.
        self.binding.bind_input(FRAMES, &self.frames)?;
        self.running.session.run_binding(&self.binding)?;
        Ok(())
    }

    /// Makes what was heard last the input of a decoder's runs.
    pub(crate) fn bind(&self, decoder: &mut IoBinding) -> ort::Result<()> {
        let names = (0..self.heard.len() / 2).flat_map(heard_names);
        names.zip(&self.heard).try_for_each(|(name, tensor)| decoder.bind_input(name, tensor))
    }

    /// The events of its profile, which ends.
    pub(crate) fn profile(&mut self) -> Result<Vec<ProfileEvent>> {
        let mut events = self.running.profile()?.events;
        for part in events.iter_mut().filter_map(|event| event.part.as_mut()) {
            *part = format!("audio {part}").into();
        }
        Ok(events)
    }
}

//! What a decoder attends to in audio, as an ONNX graph: the encoder of audio, and behind it the keys and values that
//! each of the decoder's layers has of its vectors, in the layout in which MultiHeadAttention reads them without
//! copying them.

use bundle::{Activation, Audio, BundleError, CrossNames, ModelConfig, Weights};

use super::{Unbiased, Writer};
use crate::graph::{
    Attention, Attribute, Dim, GraphBuilder, MICROSOFT, ONNX, Storage, Written, heard_names, hidden_state,
};
use crate::products::Products;
use crate::proto::DataType;

/// The spectrogram, `[1, bands, frames]`, in f32.
pub const FRAMES: &str = "frames";

/// The graph for the audio of `config`, ready for a session; `None` if the model does not hear.
pub fn build(
    config: &ModelConfig,
    products: Products,
    weights: &Weights,
    storage: Storage,
) -> Result<Option<Written>, BundleError> {
    let (Some(audio), Some(encoder)) = (config.audio, config.audio_encoder()) else { return Ok(None) };
    // Its vectors are all of one length, so they need no layout of texts: they are a decoder's that attends both ways.
    let encoder = ModelConfig { encoder: None, ..encoder };
    let (attention, graph) = (Attention::plan(&encoder), GraphBuilder::new("audio", storage));
    let mut writer = Writer { config: &encoder, attention, products, weights, graph, padded: false };
    writer.stem(&audio)?;
    for layer in 0..audio.layers {
        writer.layer(layer)?;
    }
    writer.declare_heard(config, GraphBuilder::output);
    for layer in 0..config.layers.len() {
        if let Some(cross) = config.layer(layer).cross {
            writer.hear(config, layer, &cross)?;
        }
    }
    Ok(Some(writer.graph.finish()))
}

impl Writer<'_> {
    /// From the spectrogram to the input of the encoder's layers.
    fn stem(&mut self, audio: &Audio) -> Result<(), BundleError> {
        let mut last = FRAMES.to_owned();
        self.graph.input(FRAMES, DataType::Float, &[1, audio.bands, audio.frames].map(Dim::Fixed));
        if self.products.float() != DataType::Float {
            last = "stem.frames".into();
            self.graph.cast(FRAMES, self.products.float(), &last);
        }
        for (names, stride) in self.config.stem().iter().zip([1, 2]) {
            let (weight, bias) = (self.weight(&names.weights[0])?, self.weight(&names.biases[0])?);
            let (out, activated) = (format!("stem.{stride}"), format!("stem.{stride}.activated"));
            let attributes = [
                Attribute::Ints("kernel_shape", vec![Audio::WIDTH as i64]),
                Attribute::Ints("pads", vec![1, 1]),
                Attribute::Ints("strides", vec![stride]),
            ];
            self.graph.node((ONNX, "Conv"), &[&last, &weight, &bias], &[&out], &attributes);
            self.activation(Activation::GeluErf, &out, &activated);
            last = activated;
        }
        let perm = [Attribute::Ints("perm", vec![0, 2, 1])];
        self.graph.node((ONNX, "Transpose"), &[&last], &["stem.vectors"], &perm);
        if let Some(name) = self.config.position_embedding() {
            let positions = self.weight(&name)?;
            self.graph.node((ONNX, "Add"), &["stem.vectors", &positions], &[&hidden_state(0)], &[]);
        }
        Ok(())
    }

    /// Keys and values of all layers of `decoder`, as this graph's inputs or outputs.
    pub(super) fn declare_heard(
        &mut self,
        decoder: &ModelConfig,
        declare: impl Fn(&mut GraphBuilder, &str, DataType, &[Dim]),
    ) {
        let Some(audio) = decoder.audio else { return };
        let dims = [1, decoder.heads, audio.positions(), decoder.head_dim];
        for name in (0..decoder.layers.len()).flat_map(heard_names) {
            declare(&mut self.graph, &name, self.products.float(), &dims.map(Dim::Fixed));
        }
    }

    /// Keys and values of a layer of `decoder`. Keys are scaled here, once: MLAS multiplies one query by keys as they
    /// lie only if it has nothing to scale, and otherwise packs them in every step (sgemm.cpp). For 1,500 vectors of
    /// 512 the operator then took 0.7 ms, and takes 0.3 (medians on two busy cores, 1.31).
    fn hear(&mut self, decoder: &ModelConfig, layer: usize, names: &CrossNames) -> Result<(), BundleError> {
        let at = |part: &str| format!("heard.{layer}.{part}");
        let (keys, values, scaled) = (at("keys"), at("values"), at("keys.scaled"));
        let both = self.biased(&hidden_state(self.config.layers.len()), &names.kv, &at("both"))?;
        let attributes = [Attribute::Int("axis", -1), Attribute::Int("num_outputs", 2)];
        self.graph.node((ONNX, "Split"), &[&both], &[&keys, &values], &attributes);
        let usual = 1.0 / (decoder.head_dim as f64).sqrt();
        let scale = decoder.form.attention_scale.unwrap_or(usual);
        self.multiply(&keys, "heard.scale", scale, &scaled);
        for (rows, out) in [scaled, values].iter().zip(heard_names(layer)) {
            let heads = self.split_heads(rows, decoder.heads, decoder.head_dim);
            let perm = [Attribute::Ints("perm", vec![0, 2, 1, 3])];
            self.graph.node((ONNX, "Transpose"), &[&heads], &[&out], &perm);
        }
        Ok(())
    }

    /// A decoder's attention to the audio, behind its attention to tokens (`block`, still to be added to `residual`):
    /// the same two of this block.
    pub(super) fn attend_to_audio(
        &mut self,
        index: usize,
        names: &CrossNames,
        (block, residual): (&Unbiased, &str),
    ) -> Result<(Unbiased, String), BundleError> {
        let at = |part: &str| format!("layer.{index}.{part}");
        let (normed, sum, attended) = (at("cross_norm"), at("cross_residual"), at("cross.attended"));
        self.add_and_norm(block, residual, &names.norm, &normed, &sum)?;
        let query = self.biased(&normed, &names.q, &at("cross.query"))?;
        let [keys, values] = heard_names(index);
        let attributes = [
            Attribute::Int("num_heads", self.config.heads as i64),
            // The keys are scaled.
            Attribute::Float("scale", 1.0),
        ];
        let op = (MICROSOFT, "MultiHeadAttention");
        self.graph.node(op, &[&query, &keys, &values], &[&attended], &attributes);
        Ok((self.linear(&attended, &names.output, &at("cross.output"))?, sum))
    }
}

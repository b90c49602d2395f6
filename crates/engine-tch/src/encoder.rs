//! Encoders. The tokens of all texts are the rows of one matrix, so that nothing is computed for padding; attention goes
//! over texts of one length at once.

use bundle::{Activation, Bundle, ModelConfig, NormNames, Pooling, Weights};
use engine::{
    Device as EngineDevice, Encode, EncodeTask, EngineError, InEffect, KvCachePolicy, Settings, Texts,
    by_length, check_plain_encoder,
};
use tch::{Device, Kind, TchError, Tensor};

use crate::error::framework;
use crate::layer;
use crate::layout::{self, Layout};
use crate::linear::Linear;
use crate::reader::Reader;
use crate::shim::InferenceMode;
use crate::{numbers, precision};

pub(crate) struct Encoder {
    config: ModelConfig,
    /// `[vocabulary, hidden]`
    embedding: Tensor,
    /// `[positions, hidden]`
    positions: Tensor,
    /// Row of `positions` that the first token of a text has.
    first_position: i64,
    /// `[types, hidden]`
    types: Option<Tensor>,
    norm: Norm,
    layers: Vec<Layer>,
    layout: Layout,
    emulated: bool,
    /// What layers pass to one another, and where.
    options: (Kind, Device),
    /// `[texts, hidden]`, f32, on the host.
    vectors: Option<Tensor>,
    computed: usize,
    /// The tensors above may be in this mapping: it is the last field, and so dropped last.
    weights: Weights,
}

struct Layer {
    qkv: Linear,
    output: Linear,
    attention_norm: Norm,
    up: Linear,
    down: Linear,
    activation: Activation,
    mlp_norm: Norm,
}

struct Norm {
    weight: Tensor,
    bias: Tensor,
    epsilon: f64,
}

/// Texts of one length, whose rows are one behind the other.
struct Group {
    first_row: i64,
    texts: i64,
    length: i64,
}

impl Encoder {
    pub(crate) fn read(bundle: &Bundle, settings: &Settings, device: Device) -> Result<Encoder, EngineError> {
        if !settings.flag("fused", true)? || settings.options.contains_key("execution") {
            let reason = "tch encodes by fused operations in eager mode alone here";
            return Err(EngineError::Unsupported(reason.into()));
        }
        let config = bundle.config().clone();
        check_plain_encoder(&config, "tch")?;
        let (layout, emulated) = (Layout::of_many_rows(settings, device)?, layout::emulated(settings));
        let reader = Reader::new(bundle.weights(settings.precision)?, device, emulated);
        let (Some(encoder), Some(norm), Some(positions)) =
            (&config.encoder, config.embedding_norm(), config.position_embedding())
        else {
            return Err(EngineError::Input("the model is no encoder".into()));
        };
        let layers = (0..config.layers).map(|index| Layer::read(&reader, &config, index, layout));
        Ok(Encoder {
            embedding: reader.matrix(&config.embedding())?,
            positions: reader.matrix(&positions)?,
            first_position: encoder.first_position as i64,
            types: config.token_type_embedding().map(|name| reader.matrix(&name)).transpose()?,
            norm: Norm::read(&reader, &config, Some(&norm))?,
            layers: layers.collect::<Result<_, _>>()?,
            layout,
            emulated,
            options: (reader.kind(), device),
            vectors: None,
            computed: 0,
            config,
            weights: reader.into_weights(),
        })
    }

    pub(crate) fn in_effect(&self) -> InEffect {
        let (kind, device) = self.options;
        let linear = crate::linear_kernel(self.layout);
        let kernels = [linear, "texts unpadded, fused q/k/v", "scaled_dot_product_attention", "layer_norm"];
        InEffect {
            weights: self.weights.precision(),
            activations: crate::activations(self.layout, kind),
            kv_cache: precision(kind),
            kv_cache_policy: KvCachePolicy::None,
            device: match device {
                Device::Cuda(index) => EngineDevice::Cuda(index),
                _ => EngineDevice::Cpu,
            },
            threads: usize::try_from(tch::get_num_threads()).unwrap_or(0),
            jit: "eager".into(),
            optimised: None,
            weight_storage: crate::weight_storage(self.layout, device, self.emulated),
            kernels: kernels.into_iter().map(str::to_owned).collect(),
        }
    }

    /// The vectors of all tokens, `[tokens, hidden]`, text by text in the order of their lengths, with the groups, and the
    /// place of each of those texts among all.
    fn forward(&self, texts: Texts<'_>) -> Result<(Tensor, Vec<Group>, Vec<usize>), TchError> {
        let starts: Vec<usize> =
            texts.lengths.iter().scan(0, |sum, &n| Some(std::mem::replace(sum, *sum + n))).collect();
        let (mut rows, mut groups, mut order) = (Vec::new(), Vec::new(), Vec::new());
        for (length, places) in by_length(texts.lengths) {
            let (first_row, count) = (rows.len() as i64, places.len() as i64);
            groups.push(Group { first_row, texts: count, length: length as i64 });
            for place in places {
                rows.extend(starts[place]..starts[place] + length);
                order.push(place);
            }
        }
        let mut x = self.embed(texts, &rows, &groups)?;
        for layer in &self.layers {
            x = layer.forward(&x, &groups, &self.config)?;
        }
        Ok((x, groups, order))
    }

    /// The normed sums of the embeddings of tokens, positions and types. `rows`: the place of each row's token.
    fn embed(&self, texts: Texts<'_>, rows: &[usize], groups: &[Group]) -> Result<Tensor, TchError> {
        let device = self.options.1;
        let ids = |values: Vec<i64>| Tensor::f_from_slice(&values)?.f_to_device(device);
        let look_up = |table: &Tensor, ids: &Tensor| Tensor::f_embedding(table, ids, -1, false, false);
        let tokens = ids(rows.iter().map(|&row| i64::from(texts.tokens[row])).collect())?;
        let places = groups.iter().flat_map(|group| (0..group.texts).flat_map(|_| 0..group.length));
        let places = ids(places.map(|place| self.first_position + place).collect())?;
        let mut x = look_up(&self.embedding, &tokens)?.f_add_(&look_up(&self.positions, &places)?)?;
        if let Some(table) = &self.types {
            let of_row = |&row: &usize| texts.types.get(row).map_or(0, |&kind| i64::from(kind));
            x = x.f_add_(&look_up(table, &ids(rows.iter().map(of_row).collect())?)?)?;
        }
        self.norm.forward(&x)
    }

    /// `[texts, hidden]`, f32, in the order in which the texts were given.
    fn pool(
        &self,
        x: &Tensor,
        (groups, order): (&[Group], &[usize]),
        (pooling, normalise): (Pooling, bool),
    ) -> Result<Tensor, TchError> {
        let hidden = self.config.hidden_size as i64;
        let of_group = |group: &Group| {
            let Group { first_row, texts, length } = *group;
            let rows = x.f_narrow(0, first_row, texts * length)?.f_view([texts, length, hidden])?;
            match pooling {
                Pooling::Cls => rows.f_select(1, 0),
                Pooling::Last => rows.f_select(1, length - 1),
                Pooling::Mean => rows.f_mean_dim(&[1_i64][..], false, Kind::Float),
                Pooling::Max => rows.f_amax([1], false),
            }
        };
        let pooled = groups.iter().map(of_group).collect::<Result<Vec<_>, _>>()?;
        let mut pooled = Tensor::f_cat(&pooled, 0)?.f_to_kind(Kind::Float)?;
        if normalise {
            // The floor is that of PyTorch's `normalize`.
            let norms = pooled.f_norm_scalaropt_dim(2, [1], true)?.f_clamp_min(1e-12)?;
            pooled = pooled.f_div(&norms)?;
        }
        // Row i of the result is that of the text whose place is i.
        let mut rows = vec![0_i64; order.len()];
        for (row, &place) in order.iter().enumerate() {
            rows[place] = row as i64;
        }
        let rows = Tensor::f_from_slice(&rows)?.f_to_device(x.device())?;
        let sorted = pooled.f_index_select(0, &rows)?;
        sorted.f_to_device_(Device::Cpu, Kind::Float, false, false)?.f_contiguous()
    }
}

impl Encode for Encoder {
    fn encode(&mut self, texts: Texts<'_>, task: EncodeTask) -> Result<&[f32], EngineError> {
        texts.check(&self.config, task)?;
        let EncodeTask::Embed { pooling, normalise } = task else {
            return Err(EngineError::Unsupported("tch computes no heads of encoders here".into()));
        };
        let _mode = InferenceMode::enter();
        let (x, groups, order) = self.forward(texts).map_err(framework)?;
        let pooled = self.pool(&x, (&groups, &order), (pooling, normalise)).map_err(framework)?;
        self.computed = texts.tokens.len();
        Ok(numbers(self.vectors.insert(pooled)))
    }

    fn config(&self) -> &ModelConfig {
        &self.config
    }

    fn positions(&self) -> usize {
        self.computed
    }
}

impl Layer {
    fn read(
        reader: &Reader,
        config: &ModelConfig,
        index: usize,
        layout: Layout,
    ) -> Result<Layer, EngineError> {
        let names = config.layer(index);
        Ok(Layer {
            qkv: Linear::fused(reader, &names.qkv, layout)?,
            output: Linear::fused(reader, &names.output, layout)?,
            attention_norm: Norm::read(reader, config, names.attention_norm_behind.as_ref())?,
            up: Linear::fused(reader, &names.gate_up, layout)?,
            down: Linear::fused(reader, &names.down, layout)?,
            activation: config.activation,
            mlp_norm: Norm::read(reader, config, names.mlp_norm_behind.as_ref())?,
        })
    }

    /// norm(x + block(x)), twice.
    fn forward(&self, x: &Tensor, groups: &[Group], config: &ModelConfig) -> Result<Tensor, TchError> {
        let attended = attend(&self.qkv.forward(x)?, groups, config)?;
        let x = self.attention_norm.forward(&self.output.forward(&attended)?.f_add_(x)?)?;
        let fed = self.down.forward(&layer::activate(&self.up.forward(&x)?, self.activation)?)?;
        self.mlp_norm.forward(&fed.shallow_clone().f_add_(&x)?)
    }
}

/// Attention of every text's tokens to one another: `[tokens, 3 · heads · head_dim]` → `[tokens, heads · head_dim]`.
fn attend(qkv: &Tensor, groups: &[Group], config: &ModelConfig) -> Result<Tensor, TchError> {
    let (heads, dim) = (config.heads as i64, config.head_dim as i64);
    let of_group = |group: &Group| {
        let Group { first_row, texts, length } = *group;
        let rows = qkv.f_narrow(0, first_row, texts * length)?.f_view([texts, length, 3, heads, dim])?;
        // `[text, head, position, dimension]`
        let part = |which| rows.f_select(2, which)?.f_transpose(1, 2);
        let attended = Tensor::f_scaled_dot_product_attention(
            &part(0)?,
            &part(1)?,
            &part(2)?,
            None::<&Tensor>,
            0.0,
            false,
            None,
            false,
        )?;
        attended.f_transpose(1, 2)?.f_reshape([texts * length, heads * dim])
    };
    let parts = groups.iter().map(of_group).collect::<Result<Vec<_>, _>>()?;
    if parts.len() == 1 { Ok(parts[0].shallow_clone()) } else { Tensor::f_cat(&parts, 0) }
}

impl Norm {
    fn read(reader: &Reader, config: &ModelConfig, names: Option<&NormNames>) -> Result<Norm, EngineError> {
        let Some(NormNames { weight, bias: Some(bias) }) = names else {
            return Err(EngineError::Input("norms of an encoder have biases".into()));
        };
        let (weight, bias) = (reader.vector(weight)?, reader.vector(bias)?);
        Ok(Norm { weight, bias, epsilon: config.norm_epsilon })
    }

    fn forward(&self, x: &Tensor) -> Result<Tensor, TchError> {
        let (_, hidden) = x.size2()?;
        x.f_layer_norm([hidden], Some(&self.weight), Some(&self.bias), self.epsilon, false)
    }
}

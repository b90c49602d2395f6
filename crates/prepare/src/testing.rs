//! A GGUF file in memory, as llama.cpp's converter writes it, for the tests here and the seeds of crate `fuzz`.

use std::collections::BTreeMap;
use std::io::Cursor;

pub use candle_core::quantized::GgmlDType;
use candle_core::quantized::QTensor;
use candle_core::quantized::gguf_file::{self, Value};
use candle_core::{Device, Tensor};
use serde_json::{Value as Json, json};

/// A GGUF file in memory, to be changed and written somewhere.
#[derive(Clone)]
pub struct Gguf {
    pub metadata: BTreeMap<String, Value>,
    /// Type, shape and numbers.
    pub tensors: BTreeMap<String, (GgmlDType, Vec<usize>, Vec<f32>)>,
}

const NAMES: [(&str, &str); 26] = [
    ("model.embed_tokens.", "token_embd."),
    ("model.norm.", "output_norm."),
    ("lm_head.", "output."),
    ("model.layers.", "blk."),
    ("self_attn.q_proj", "attn_q"),
    ("self_attn.k_proj", "attn_k"),
    ("self_attn.v_proj", "attn_v"),
    ("self_attn.o_proj", "attn_output"),
    ("self_attn.q_norm", "attn_q_norm"),
    ("self_attn.k_norm", "attn_k_norm"),
    ("mlp.gate_proj", "ffn_gate"),
    ("mlp.up_proj", "ffn_up"),
    ("mlp.down_proj", "ffn_down"),
    ("input_layernorm", "attn_norm"),
    ("post_attention_layernorm", "ffn_norm"),
    ("transformer.wte.", "token_embd."),
    ("transformer.wpe.", "position_embd."),
    ("transformer.ln_f.", "output_norm."),
    ("transformer.h.", "blk."),
    (".ln_1.", ".attn_norm."),
    (".ln_2.", ".ffn_norm."),
    ("attn.c_attn", "attn_qkv"),
    ("attn.c_proj", "attn_output"),
    ("mlp.c_fc", "ffn_up"),
    ("mlp.c_proj", "ffn_down"),
    ("transformer.", ""),
];

impl Gguf {
    /// Like the output of llama.cpp's converter for its `architecture`: q and k rows of a llama interleaved,
    /// gpt2's matrices turned. Tensors have a name, a shape and numbers.
    pub fn new(
        config: &Json,
        model: impl IntoIterator<Item = (String, Vec<usize>, Vec<f32>)>,
        architecture: &str,
    ) -> Gguf {
        let count = |field: &str| config[field].as_u64();
        let mut metadata = BTreeMap::new();
        let mut put = |key: &str, value: Option<Value>| {
            let key = if key.contains('.') && key.starts_with("general") {
                key.to_owned()
            } else {
                format!("{architecture}.{key}")
            };
            value.map(|value| metadata.insert(key, value));
        };
        let whole = |a: &str, b: &str| count(a).or(count(b)).map(|n| Value::U32(n as u32));
        put("general.architecture", Some(Value::String(architecture.to_owned())));
        put("block_count", whole("num_hidden_layers", "n_layer"));
        put("context_length", whole("max_position_embeddings", "n_positions"));
        put("embedding_length", whole("hidden_size", "n_embd"));
        put("feed_forward_length", whole("intermediate_size", "n_inner"));
        put("attention.head_count", whole("num_attention_heads", "n_head"));
        put("attention.head_count_kv", whole("num_key_value_heads", ""));
        put("attention.key_length", whole("head_dim", ""));
        put("attention.value_length", whole("head_dim", ""));
        let epsilon = config["rms_norm_eps"].as_f64();
        put("attention.layer_norm_rms_epsilon", epsilon.map(|x| Value::F32(x as f32)));
        let epsilon = config["layer_norm_epsilon"].as_f64();
        put("attention.layer_norm_epsilon", epsilon.map(|x| Value::F32(x as f32)));
        let theta = config["rope_parameters"]["rope_theta"].as_f64();
        put("rope.freq_base", theta.map(|x| Value::F32(x as f32)));

        let heads = count("num_attention_heads").unwrap_or(1) as usize;
        let kv_heads = count("num_key_value_heads").unwrap_or(1) as usize;
        let mut tensors = BTreeMap::new();
        for (name, mut shape, mut values) in model {
            if name.contains(".c_") && shape.len() == 2 {
                values =
                    (0..values.len()).map(|i| values[(i % shape[0]) * shape[1] + i / shape[0]]).collect();
                shape.reverse();
            }
            let permuted = ["llama", "granite", "smollm3"].contains(&architecture);
            if permuted && name.contains("q_proj") {
                values = interleave(&values, heads, shape[0] / heads);
            } else if permuted && name.contains("k_proj") {
                values = interleave(&values, kv_heads, shape[0] / kv_heads);
            }
            let name = NAMES.iter().fold(name, |name, (hf, gguf)| name.replace(hf, gguf));
            tensors.insert(name, (GgmlDType::F32, shape, values));
        }
        Gguf { metadata, tensors }
    }

    /// A llama of two layers with rows of 256 and more, whose linear layers have these types in turn.
    pub fn of_types(types: &[GgmlDType]) -> Gguf {
        let config = json!({
            "num_hidden_layers": 2, "max_position_embeddings": 64, "hidden_size": 256, "intermediate_size": 512,
            "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64, "rms_norm_eps": 1e-5,
            "rope_parameters": { "rope_theta": 10000.0 }
        });
        let layer = [
            ("input_layernorm", vec![256]),
            ("post_attention_layernorm", vec![256]),
            ("self_attn.q_proj", vec![256, 256]),
            ("self_attn.k_proj", vec![128, 256]),
            ("self_attn.v_proj", vec![128, 256]),
            ("self_attn.o_proj", vec![256, 256]),
            ("mlp.gate_proj", vec![512, 256]),
            ("mlp.up_proj", vec![512, 256]),
            ("mlp.down_proj", vec![256, 512]),
        ];
        let layers = (0..2).flat_map(|index| {
            layer.clone().map(|(name, shape)| (format!("model.layers.{index}.{name}.weight"), shape))
        });
        let ends = [("model.embed_tokens.weight", vec![96, 256]), ("model.norm.weight", vec![256])];
        let tensors = layers.chain(ends.map(|(name, shape)| (name.to_owned(), shape)));
        // Numbers that look drawn, in steps that no type's codes divide.
        let number =
            |at: usize| ((at as f32 * 0.618 + 0.1) % 1.0 - 0.5) * (1.0 + (at / 32 % 7) as f32) / 28.0;
        let tensors = tensors.zip(1..).map(|((name, shape), seed)| {
            let count = shape.iter().product::<usize>();
            let values = (0..count).map(|at| if shape.len() == 1 { 1.0 } else { number(at + 7919 * seed) });
            (name, shape.clone(), values.collect())
        });
        let mut gguf = Gguf::new(&config, tensors, "llama");
        let linear = gguf.tensors.values_mut().filter(|(_, shape, _)| shape.len() == 2);
        linear.zip(types.iter().cycle()).for_each(|((dtype, ..), kind)| *dtype = *kind);
        gguf
    }

    pub fn bytes(&self) -> Vec<u8> {
        let tensors: Vec<_> = (self.tensors.iter())
            .map(|(name, (dtype, shape, values))| {
                let tensor = Tensor::from_slice(values, shape.as_slice(), &Device::Cpu).unwrap();
                (name.as_str(), QTensor::quantize(&tensor, *dtype).unwrap())
            })
            .collect();
        let tensors: Vec<_> = tensors.iter().map(|(name, tensor)| (*name, tensor)).collect();
        let metadata: Vec<_> = self.metadata.iter().map(|(key, value)| (key.as_str(), value)).collect();
        let mut file = Cursor::new(Vec::new());
        gguf_file::write(&mut file, &metadata, &tensors).unwrap();
        file.into_inner()
    }
}

/// llama.cpp's `permute`: reshape(heads, 2, d/2, columns).swapaxes(1, 2).
fn interleave(values: &[f32], heads: usize, head_dim: usize) -> Vec<f32> {
    let columns = values.len() / heads / head_dim;
    let mut out = Vec::new();
    for head in 0..heads {
        for pair in 0..head_dim / 2 {
            for half in 0..2 {
                let row = head * head_dim + half * head_dim / 2 + pair;
                out.extend_from_slice(&values[row * columns..(row + 1) * columns]);
            }
        }
    }
    out
}

//! GGUF's names of tensors where they differ from Hugging Face's.

use bundle::NormPlacement;

/// Outside of the layers.
const GLOBAL: [(&str, &str); 6] = [
    ("lm_head", "output"),
    ("model.embed_tokens", "token_embd"),
    ("model.norm", "output_norm"),
    ("transformer.ln_f", "output_norm"),
    ("transformer.wpe", "position_embd"),
    ("transformer.wte", "token_embd"),
];

/// Names after `model.layers.N.` or `transformer.h.N.`, and after `blk.N.`.
const LAYER: [(&str, &str); 19] = [
    ("input_layernorm", "attn_norm"),
    ("self_attn.q_proj", "attn_q"),
    ("self_attn.k_proj", "attn_k"),
    ("self_attn.v_proj", "attn_v"),
    ("self_attn.q_norm", "attn_q_norm"),
    ("self_attn.k_norm", "attn_k_norm"),
    ("self_attn.o_proj", "attn_output"),
    ("post_attention_layernorm", "ffn_norm"),
    ("self_attn.qkv_proj", "attn_qkv"),
    ("mlp.gate_up_proj", "ffn_up"),
    ("mlp.gate_proj", "ffn_gate"),
    ("mlp.up_proj", "ffn_up"),
    ("mlp.down_proj", "ffn_down"),
    ("ln_1", "attn_norm"),
    ("attn.c_attn", "attn_qkv"),
    ("attn.c_proj", "attn_output"),
    ("ln_2", "ffn_norm"),
    ("mlp.c_fc", "ffn_up"),
    ("mlp.c_proj", "ffn_down"),
];

/// The norms of a model that has some after its blocks, in place of those above.
const BEHIND: [(&str, &str); 3] = [
    ("post_attention_layernorm", "post_attention_norm"),
    ("pre_feedforward_layernorm", "ffn_norm"),
    ("post_feedforward_layernorm", "post_ffw_norm"),
];

/// `model.layers.3.self_attn.q_proj.weight` to `blk.3.attn_q.weight`.
pub(crate) fn gguf_name(name: &str, norms: NormPlacement) -> Option<String> {
    let (stem, kind) = name.rsplit_once('.')?;
    let layer = stem.strip_prefix("model.layers.").or_else(|| stem.strip_prefix("transformer.h."));
    let (prefix, stem, table) = match layer {
        Some(layer) => {
            let (index, part) = layer.split_once('.')?;
            (format!("blk.{index}."), part, &LAYER[..])
        }
        None => (String::new(), stem, &GLOBAL[..]),
    };
    let behind = if norms == NormPlacement::Before { &[][..] } else { &BEHIND };
    let (_, theirs) = behind.iter().chain(table).find(|(ours, _)| *ours == stem)?;
    Some(format!("{prefix}{theirs}.{kind}"))
}

//! The experts of a decoder's layers, from the fields of a config.json (transformers 5.23.0).

use super::fields::Fields;
use super::model::Architecture;
use super::{Block, Experts, Feed, Mlp, SWIGLU_ALPHA, SWIGLU_LIMIT, refused};
use crate::BundleError;

/// Gives the layers of an architecture with experts those in place of their MLPs. The sizes are not checked here.
pub(super) fn give(
    architecture: Architecture,
    fields: &Fields<'_>,
    layers: &mut [Block],
) -> Result<(), BundleError> {
    use Architecture::{GptOss, Mixtral, Qwen2Moe, Qwen3Moe};
    // Published files have the one name, those that transformers 5 saves of qwen3_moe the other.
    let (counts, top) = match architecture {
        Qwen2Moe | Qwen3Moe => (["num_experts", "num_local_experts"], "num_experts_per_tok"),
        Mixtral => (["num_local_experts"; 2], "num_experts_per_tok"),
        GptOss => (["num_local_experts"; 2], "experts_per_token"),
        _ => return Ok(()),
    };
    let [count, other] = counts.map(|name| fields.optional_count(name));
    let Some(count) = count?.or(other?) else { return fields.count(counts[0]).map(drop) };
    let chosen = match fields.optional_count("num_experts_per_tok")? {
        Some(chosen) => chosen,
        None => fields.count(top)?,
    };
    if architecture == GptOss {
        // An older name of the other, and what rope_scaling says, too.
        fields.ignore(&[top, "initial_context_length"]);
    }
    let Feed::Mlp(dense) = layers[0].feed else { return Ok(()) };
    let of_width = |name: &str| Ok::<_, BundleError>(Mlp { width: fields.count(name)?, ..dense });
    let (each, shared) = match architecture {
        Qwen2Moe => (of_width("moe_intermediate_size")?, Some(of_width("shared_expert_intermediate_size")?)),
        Qwen3Moe => (of_width("moe_intermediate_size")?, None),
        GptOss => (Mlp { bias: true, ..dense }, None),
        _ => (dense, None),
    };
    let normalised = match architecture {
        Qwen2Moe | Qwen3Moe => fields.flag("norm_topk_prob", false)?,
        _ => true,
    };
    let clamped = architecture == GptOss;
    if clamped {
        check_clamp(fields)?;
    }
    let experts = Experts { count, top: chosen, each, normalised, router_bias: clamped, clamped, shared };
    // Which layers have none.
    let (mut dense_layers, mut step) = (Vec::new(), 1);
    if matches!(architecture, Qwen2Moe | Qwen3Moe) {
        dense_layers = fields.optional_counts("mlp_only_layers")?.unwrap_or_default();
        step = fields.optional_count("decoder_sparse_step")?.unwrap_or(1).max(1);
    }
    for (index, layer) in layers.iter_mut().enumerate() {
        if !dense_layers.contains(&index) && (index + 1).is_multiple_of(step) {
            layer.feed = Feed::Experts(experts);
        }
    }
    Ok(())
}

/// The numbers of gpt-oss's activation are constants here.
fn check_clamp(fields: &Fields<'_>) -> Result<(), BundleError> {
    for (name, usual) in [("swiglu_limit", SWIGLU_LIMIT), ("swiglu_alpha", SWIGLU_ALPHA)] {
        let given = fields.number(name, usual)?;
        if given != usual {
            return refused(format!("{name} is {given}; only {usual} is supported"));
        }
    }
    Ok(())
}

//! What a model of candle-transformers is made of, and why it is refused.

use bundle::{Activation, Architecture, Head, ModelConfig, Rotary, Scored};
use candle_transformers::models::{bert, modernbert, nomic_bert, xlm_roberta};
use worker::engine::EngineError;

pub(super) type Refusable<T> = std::result::Result<T, EngineError>;

/// What a model of candle-transformers is made of, but for the weights.
pub(super) enum Described {
    Bert(bert::Config),
    XlmRoberta(xlm_roberta::Config, Option<usize>),
    ModernBert(modernbert::Config),
    NomicBert(nomic_bert::Config),
}

impl Described {
    /// From what the bundle's configuration resolves to; refused where candle-transformers has no such model, or computes
    /// it otherwise.
    pub(super) fn new(config: &ModelConfig) -> Refusable<Described> {
        let head = config.scoring();
        match config.architecture {
            Architecture::Bert => {
                headless("BERT", head)?;
                bert_config(config).map(Described::Bert)
            }
            Architecture::Roberta => match head {
                Some(Head { of: Scored::Texts(_), labels, .. }) => {
                    Ok(Described::XlmRoberta(xlm_roberta_config(config), Some(*labels)))
                }
                _ => {
                    headless("XLM-RoBERTa", head)?;
                    Ok(Described::XlmRoberta(xlm_roberta_config(config), None))
                }
            },
            Architecture::ModernBert => {
                if let Some(Head { of: Scored::Texts(_), .. }) = head {
                    return unsupported(
                        "candle-transformers' head of ModernBERT gives probabilities in place of scores",
                    );
                }
                headless("ModernBERT", head)?;
                modernbert_config(config).map(Described::ModernBert)
            }
            Architecture::NomicBert => {
                headless("NomicBERT", head)?;
                nomic_bert_config(config).map(Described::NomicBert)
            }
            Architecture::DistilBert => {
                unsupported("candle-transformers' DistilBERT computes gelu by its approximation with tanh")
            }
            Architecture::Mpnet => unsupported("candle-transformers has no MPNet"),
            _ => unsupported("candle-transformers' decoders give logits, and no vectors of texts"),
        }
    }
}

pub(super) fn unsupported<T>(reason: &str) -> Refusable<T> {
    Err(EngineError::Unsupported(reason.into()))
}

fn headless(model: &str, head: Option<&Head>) -> Refusable<()> {
    match head {
        None => Ok(()),
        Some(head) => {
            let what = if head.of == Scored::Tokens { "tokens" } else { "texts" };
            unsupported(&format!("candle-transformers has no head of {model} that scores {what}"))
        }
    }
}

fn bert_config(config: &ModelConfig) -> Refusable<bert::Config> {
    let hidden_act = match config.mlp(0).activation {
        Activation::GeluErf => bert::HiddenAct::Gelu,
        Activation::GeluTanh => bert::HiddenAct::GeluApproximate,
        Activation::Relu => bert::HiddenAct::Relu,
        Activation::Silu => return unsupported("candle-transformers' BERT has no silu"),
    };
    Ok(bert::Config {
        vocab_size: config.vocab_size,
        hidden_size: config.hidden_size,
        num_hidden_layers: config.layers.len(),
        num_attention_heads: config.heads,
        intermediate_size: config.mlp(0).width,
        hidden_act,
        max_position_embeddings: config.max_positions,
        type_vocab_size: token_types(config),
        layer_norm_eps: config.norm_epsilon,
        ..bert::Config::default()
    })
}

fn xlm_roberta_config(config: &ModelConfig) -> xlm_roberta::Config {
    let (first_position, pad_token) =
        config.encoder.as_ref().map_or((0, 0), |encoder| (encoder.first_position, encoder.pad_token));
    xlm_roberta::Config {
        hidden_size: config.hidden_size,
        layer_norm_eps: config.norm_epsilon,
        attention_probs_dropout_prob: 0.0,
        hidden_dropout_prob: 0.0,
        num_attention_heads: config.heads,
        position_embedding_type: "absolute".into(),
        intermediate_size: config.mlp(0).width,
        hidden_act: match config.mlp(0).activation {
            Activation::GeluErf => candle_nn::Activation::Gelu,
            Activation::GeluTanh => candle_nn::Activation::GeluPytorchTanh,
            Activation::Relu => candle_nn::Activation::Relu,
            Activation::Silu => candle_nn::Activation::Silu,
        },
        num_hidden_layers: config.layers.len(),
        vocab_size: config.vocab_size,
        max_position_embeddings: first_position + config.max_positions,
        type_vocab_size: token_types(config),
        pad_token_id: pad_token,
    }
}

fn modernbert_config(config: &ModelConfig) -> Refusable<modernbert::Config> {
    let biases =
        config.qkv_bias || config.output_bias || config.mlp(0).bias || !config.form.norm_without_bias;
    if biases || config.mlp(0).activation != Activation::GeluErf {
        return unsupported("candle-transformers' ModernBERT has no biases, and no activation but gelu");
    }
    let sees_all = |layer: usize| config.layer_attention(layer).window.is_none();
    let every = (1..=config.layers.len())
        .find(|every| (0..config.layers.len()).all(|at| sees_all(at) == (at % every == 0)));
    let Some(every) = every else {
        return unsupported(
            "candle-transformers' ModernBERT has layers that see all at equal distances alone",
        );
    };
    let main = theta(config, None)?;
    Ok(modernbert::Config {
        vocab_size: config.vocab_size,
        hidden_size: config.hidden_size,
        num_hidden_layers: config.layers.len(),
        num_attention_heads: config.heads,
        intermediate_size: config.mlp(0).width,
        max_position_embeddings: config.max_positions,
        layer_norm_eps: config.norm_epsilon,
        pad_token_id: config.encoder.as_ref().map_or(0, |encoder| encoder.pad_token),
        global_attn_every_n_layers: every,
        global_rope_theta: main,
        // A token sees half of it on each side; the window counts the token itself.
        local_attention: config.window().map_or(0, |window| 2 * window.saturating_sub(1)),
        local_rope_theta: config.rotations.get(1).map_or(Ok(main), |own| theta(config, Some(own)))?,
        classifier_config: None,
    })
}

fn nomic_bert_config(config: &ModelConfig) -> Refusable<nomic_bert::Config> {
    if config.mlp(0).activation != Activation::Silu || config.head_dim * config.heads != config.hidden_size {
        return unsupported(
            "candle-transformers' NomicBERT has no activation but silu, and heads of one size",
        );
    }
    Ok(nomic_bert::Config {
        vocab_size: config.vocab_size,
        n_embd: config.hidden_size,
        n_head: config.heads,
        n_layer: config.layers.len(),
        n_inner: config.mlp(0).width,
        n_positions: config.max_positions,
        type_vocab_size: token_types(config),
        layer_norm_epsilon: config.norm_epsilon,
        rotary_emb_base: theta(config, None)?,
        ..nomic_bert::Config::default()
    })
}

/// The base of the model's rotations, or of these.
fn theta(config: &ModelConfig, own: Option<&Rotary>) -> Refusable<f64> {
    let main = config.rotations.first();
    match own.or(main) {
        Some(rotary) if *rotary == Rotary::plain(rotary.theta) => Ok(rotary.theta),
        _ => unsupported("candle-transformers' encoders rotate by frequencies that nothing scales"),
    }
}

fn token_types(config: &ModelConfig) -> usize {
    config.encoder.as_ref().map_or(0, |encoder| encoder.token_types)
}

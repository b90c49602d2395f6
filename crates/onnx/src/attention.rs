//! Structure of a model's attention.
//!
//! GroupQueryAttention rotates whole heads of a size that is a multiple of 16 and attends over heads of a
//! size that is a multiple of 8. For other sizes the rotation is a separate operator, and heads are padded
//! with zeros, which add nothing to a score and leave the output's first numbers unchanged.
//!
//! It is causal. A model that attends both ways uses MultiHeadAttention, with the rotation as a separate
//! operator. Such a model has no cache; nor has an encoder.

use bundle::{ModelConfig, Position};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rotation {
    /// Positions are not rotary.
    None,
    /// Within GroupQueryAttention.
    Fused,
    /// A RotaryEmbedding node each for queries and keys.
    Separate,
}

/// Structure of a model's attention.
#[derive(Debug, Clone, Copy)]
pub struct Attention {
    pub rotation: Rotation,
    /// Size of a head in the cache.
    pub cached_head_dim: usize,
    /// Whether positions attend only to earlier ones.
    pub causal: bool,
    /// Whether keys and values are kept from one run to the next.
    pub cached: bool,
}

impl Attention {
    /// The plan for a model's heads and positions.
    pub fn plan(config: &ModelConfig) -> Attention {
        let fused = config.head_dim.is_multiple_of(16) && config.rotary_dim() == config.head_dim;
        let rotation = match config.position {
            Position::Learned => Rotation::None,
            Position::Rotary(_) if config.causal && fused => Rotation::Fused,
            Position::Rotary(_) => Rotation::Separate,
        };
        let multiple = if config.causal { 8 } else { 1 };
        Attention {
            rotation,
            cached_head_dim: config.head_dim.next_multiple_of(multiple),
            causal: config.causal,
            cached: config.causal && config.encoder.is_none(),
        }
    }

    /// Whether the graph has the input [`POSITIONS`](crate::names::POSITIONS). The fused rotation counts
    /// positions itself.
    pub fn takes_positions(self) -> bool {
        self.rotation != Rotation::Fused
    }

    /// The operators that compute it, for people.
    pub fn operators(self) -> &'static str {
        match self.rotation {
            Rotation::None if !self.causal => "MultiHeadAttention",
            _ if !self.causal => "RotaryEmbedding, MultiHeadAttention (both ways)",
            Rotation::None => "GroupQueryAttention",
            Rotation::Fused => "GroupQueryAttention with rotation",
            Rotation::Separate => "RotaryEmbedding, GroupQueryAttention",
        }
    }
}

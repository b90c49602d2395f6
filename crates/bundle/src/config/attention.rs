//! The attention of each layer.

use std::ops::Range;

use super::model::ModelConfig;
use super::position::{Position, Rotary};

/// The attention of one layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LayerAttention {
    /// A query sees keys less than so many positions away; all if `None`.
    pub window: Option<usize>,
    /// A query sees no key after its own.
    pub causal: bool,
    /// Index in [`ModelConfig::rotations`] of the rotation of queries and keys.
    pub rotation: Option<usize>,
}

impl LayerAttention {
    /// The first key that the query at `position` sees.
    pub fn first_key(&self, position: usize) -> usize {
        self.window.map_or(0, |window| (position + 1).saturating_sub(window))
    }

    /// The keys that the query at `position` sees, in a text of so many tokens.
    pub fn keys(&self, position: usize, length: usize) -> Range<usize> {
        let end =
            if self.causal { position + 1 } else { self.window.map_or(length, |window| position + window) };
        self.first_key(position)..end.min(length)
    }

    /// Whether every query sees every key, in a text of so many tokens.
    pub fn sees_all(&self, length: usize) -> bool {
        !(self.causal && length > 1) && self.window.is_none_or(|window| window >= length)
    }
}

impl ModelConfig {
    /// The attention of layer `index`.
    pub fn layer_attention(&self, index: usize) -> LayerAttention {
        let form = &self.form;
        let listed = |list: &[bool], absent| list.get(index).copied().unwrap_or(absent);
        let slides = form.window.is_some() && listed(&form.sliding, true);
        let rotates = self.position != Position::Learned && !listed(&form.unrotated, false);
        let of_its_own = slides && form.sliding_rotary.is_some();
        LayerAttention {
            window: form.window.filter(|_| slides),
            causal: self.causal,
            rotation: rotates.then_some(usize::from(of_its_own)),
        }
    }

    /// Every rotation used by some layer, in the order of [`LayerAttention::rotation`].
    pub fn rotations(&self) -> Vec<&Rotary> {
        match &self.position {
            Position::Learned => Vec::new(),
            Position::Rotary(rotary) => [rotary].into_iter().chain(&self.form.sliding_rotary).collect(),
        }
    }

    /// Leading dimensions of a head that are rotated.
    pub fn rotary_dim(&self) -> usize {
        self.form.rotated.unwrap_or(self.head_dim)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_query_sees_as_many_keys_as_its_window_and_itself_among_them() {
        let attention = LayerAttention { window: Some(4), causal: true, rotation: None };
        assert_eq!([0, 3, 4, 9].map(|position| attention.first_key(position)), [0, 0, 1, 6]);
        assert_eq!(LayerAttention { window: None, ..attention }.first_key(9), 0);
        assert_eq!([attention.keys(9, 20), attention.keys(1, 20)], [6..10, 0..2]);
        let both = LayerAttention { causal: false, ..attention };
        assert_eq!([both.keys(9, 20), both.keys(1, 20), both.keys(19, 20)], [6..13, 0..5, 16..20]);
        assert_eq!([4, 5].map(|length| both.sees_all(length)), [true, false]);
        assert_eq!([1, 2].map(|length| attention.sees_all(length)), [true, false]);
    }
}

//! What attention does in each layer.

use super::model::ModelConfig;
use super::position::{Position, Rotary};

/// What attention does in one layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LayerAttention {
    /// So many keys, its own included, are what a query sees; all before it where there is none.
    pub window: Option<usize>,
    /// Which of [`ModelConfig::rotations`] turns queries and keys.
    pub rotation: Option<usize>,
}

impl LayerAttention {
    /// The first key that the query at `position` sees.
    pub fn first_key(&self, position: usize) -> usize {
        self.window.map_or(0, |window| (position + 1).saturating_sub(window))
    }
}

impl ModelConfig {
    /// What attention does in layer `index`.
    pub fn layer_attention(&self, index: usize) -> LayerAttention {
        let form = &self.form;
        let listed = |list: &[bool], absent| list.get(index).copied().unwrap_or(absent);
        let slides = form.window.is_some() && listed(&form.sliding, true);
        let rotates = self.position != Position::Learned && !listed(&form.unrotated, false);
        let of_its_own = slides && form.sliding_rotary.is_some();
        LayerAttention {
            window: form.window.filter(|_| slides),
            rotation: rotates.then_some(usize::from(of_its_own)),
        }
    }

    /// Every rotation that layers take one of, by its index.
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
        let attention = LayerAttention { window: Some(4), rotation: None };
        assert_eq!([0, 3, 4, 9].map(|position| attention.first_key(position)), [0, 0, 1, 6]);
        assert_eq!(LayerAttention { window: None, ..attention }.first_key(9), 0);
    }
}

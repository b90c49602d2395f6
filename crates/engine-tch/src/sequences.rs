//! The sequences that are under way: KV cache, rotary tables, and what one append needs of them.

use bundle::{ModelConfig, Position, rotary};
use engine::{CacheMemory, Plane};
use tch::{Device, Kind, TchError, Tensor};

/// Dimensions of the cache.
const LAYER: i64 = 0;
const HEAD: i64 = 2;
const POSITION: i64 = 3;

pub(crate) struct Sequences {
    pub(crate) batch: usize,
    pub(crate) capacity: usize,
    pub(crate) filled: usize,
    kv_heads: i64,
    causal: bool,
    /// `[layer, batch, keys' heads then values', position, dimension of a head]`. Of a model that attends both ways all
    /// layers share the memory of one, for nothing is kept.
    cache: Tensor,
    rotation: Option<Rotation>,
}

/// Rotates halves of a head: `x · cos + swapped(x) · sin`, where `swapped` exchanges the halves and the
/// first half of `sin` is negative.
pub(crate) struct Rotation {
    pub(crate) cos: Tensor,
    pub(crate) sin: Tensor,
}

impl Sequences {
    pub(crate) fn new(
        config: &ModelConfig,
        batch: usize,
        capacity: usize,
        (kind, device): (Kind, Device),
        cache_kind: Kind,
    ) -> Result<Sequences, TchError> {
        let shape = shape(config, batch, capacity);
        let mut held = shape;
        if !config.causal {
            held[0] = 1;
        }
        let cache = Tensor::f_zeros(held, (cache_kind, device))?.f_expand(shape, false)?;
        Sequences::over(config, (batch, capacity), (kind, device), cache)
    }

    /// The same with `cache`, of the shape that [`shape`] says, in place of one of its own.
    pub(crate) fn over(
        config: &ModelConfig,
        (batch, capacity): (usize, usize),
        options: (Kind, Device),
        cache: Tensor,
    ) -> Result<Sequences, TchError> {
        let rotation = match &config.position {
            Position::Learned => None,
            Position::Rotary(rotary) => Some(Rotation::tables(rotary, config.head_dim, capacity, options)?),
        };
        Ok(Sequences {
            batch,
            capacity,
            filled: 0,
            kv_heads: config.kv_heads as i64,
            causal: config.causal,
            cache,
            rotation,
        })
    }

    /// Where keys and values lie.
    pub(crate) fn memory(&self) -> CacheMemory {
        let sizes: Vec<usize> = self.cache.size().iter().map(|&size| size as usize).collect();
        let [layers, batch, heads, capacity, dim] = sizes[..] else { unreachable!("five dimensions") };
        let kv_heads = heads / 2;
        let plane = |place: usize| Plane {
            address: self.cache.data_ptr() as usize + place * kv_heads * capacity * dim * size_of::<f32>(),
            shape: [batch, kv_heads, capacity, dim],
            strides: [heads * capacity * dim, capacity * dim, dim, 1],
        };
        let layers = (0..layers).map(|layer| 2 * layer * batch).map(|place| [plane(place), plane(place + 1)]);
        CacheMemory { layers: layers.collect() }
    }

    /// Bytes of keys and values, as allocated, where they are kept.
    pub(crate) fn cache_bytes(&self) -> Option<u64> {
        self.causal.then(|| (self.cache.numel() * self.cache.kind().elt_size_in_bytes()) as u64)
    }

    /// What appending `positions` to each sequence needs. `causal` says who keeps queries from later keys
    /// where no earlier ones are cached.
    pub(crate) fn step(&self, positions: usize, causal: Causal) -> Result<Step, TchError> {
        let (past, positions) = (self.filled as i64, positions as i64);
        let total = past + positions;
        let seen = self.cache.f_narrow(POSITION, 0, total)?;
        let mask = match causal {
            _ if positions == 1 || !self.causal => None,
            Causal::ByKernel if past == 0 => None,
            _ => {
                let hidden = Tensor::f_full(
                    [positions, total],
                    f64::NEG_INFINITY,
                    (self.cache.kind(), self.cache.device()),
                )?;
                Some(hidden.f_triu(past + 1)?)
            }
        };
        Ok(Step {
            batch: self.batch as i64,
            positions,
            past,
            causal: self.causal,
            rotation: self.rotation.as_ref().map(|tables| tables.at(past, positions)).transpose()?,
            mask,
            slots: self.cache.f_narrow(POSITION, past, positions)?.f_unbind(LAYER)?,
            keys: seen.f_narrow(HEAD, 0, self.kv_heads)?.f_unbind(LAYER)?,
            values: seen.f_narrow(HEAD, self.kv_heads, self.kv_heads)?.f_unbind(LAYER)?,
        })
    }
}

/// Who applies the causal mask.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Causal {
    /// The attention kernel, which knows the case of an empty cache.
    ByKernel,
    /// The caller, by adding the mask.
    ByMask,
}

/// The shape of a cache.
pub(crate) fn shape(config: &ModelConfig, batch: usize, capacity: usize) -> [i64; 5] {
    [config.layers, batch, 2 * config.kv_heads, capacity, config.head_dim].map(|size| size as i64)
}

/// One append, as the layers see it.
pub(crate) struct Step {
    pub(crate) batch: i64,
    pub(crate) positions: i64,
    pub(crate) past: i64,
    /// Whether a query sees no key ahead of it.
    pub(crate) causal: bool,
    /// The rotation of these positions, to be broadcast over `[batch, position, head, dimension]`.
    pub(crate) rotation: Option<Rotation>,
    /// `[positions, past + positions]`, to be added to the scores.
    pub(crate) mask: Option<Tensor>,
    /// By layer, `[batch, keys' heads then values', positions, dimension]`: where new keys and values go.
    pub(crate) slots: Vec<Tensor>,
    /// By layer, `[batch, head, past + positions, dimension]`.
    pub(crate) keys: Vec<Tensor>,
    pub(crate) values: Vec<Tensor>,
}

impl Rotation {
    /// `[positions, dimension of a head]` each.
    fn tables(
        rotary: &bundle::Rotary,
        head_dim: usize,
        positions: usize,
        (kind, device): (Kind, Device),
    ) -> Result<Rotation, TchError> {
        let (cos, sin) = rotary::cos_sin(rotary, head_dim, positions);
        let half =
            |table: &[f32]| Tensor::f_from_slice(table)?.f_view([positions as i64, head_dim as i64 / 2]);
        let (cos, sin) = (half(&cos)?, half(&sin)?);
        let place = |table: Tensor| table.f_to_device_(device, kind, false, false);
        Ok(Rotation {
            cos: place(Tensor::f_cat(&[&cos, &cos], 1)?)?,
            sin: place(Tensor::f_cat(&[&sin.f_neg()?, &sin], 1)?)?,
        })
    }

    fn at(&self, start: i64, positions: i64) -> Result<Rotation, TchError> {
        let part = |table: &Tensor| table.f_narrow(0, start, positions)?.f_unsqueeze(1);
        Ok(Rotation { cos: part(&self.cos)?, sin: part(&self.sin)? })
    }
}

//! Rotary position embedding.

use bundle::{ModelConfig, rotary};
use tch::{Device, Kind, TchError, Tensor};

/// Rotates halves of a head: `x · cos + swapped(x) · sin`, where `swapped` exchanges the halves and the
/// first half of `sin` is negative.
pub(crate) struct Rotation {
    pub(crate) cos: Tensor,
    pub(crate) sin: Tensor,
    /// Number of rotated dimensions, the first ones of a head.
    pub(crate) width: i64,
}

impl Rotation {
    /// One for each of the model's rotations, each `[positions, width]`.
    pub(crate) fn tables(
        config: &ModelConfig,
        positions: usize,
        options: (Kind, Device),
    ) -> Result<Vec<Rotation>, TchError> {
        let width = config.rotary_dim() as i64;
        let tables = rotary::tables(config, positions).into_iter();
        tables.map(|tables| Rotation::new(&tables, width, options)).collect()
    }

    /// From tables `[positions, width / 2]`.
    fn new(
        (cos, sin): &(Vec<f32>, Vec<f32>),
        width: i64,
        (kind, device): (Kind, Device),
    ) -> Result<Rotation, TchError> {
        let half = |table: &[f32]| Tensor::f_from_slice(table)?.f_view([-1, width / 2]);
        let (cos, sin) = (half(cos)?, half(sin)?);
        let place = |table: Tensor| table.f_to_device_(device, kind, false, false);
        Ok(Rotation {
            cos: place(Tensor::f_cat(&[&cos, &cos], 1)?)?,
            sin: place(Tensor::f_cat(&[&sin.f_neg()?, &sin], 1)?)?,
            width,
        })
    }

    /// The rows of successive positions, to be broadcast over `[batch, position, head, dimension]`.
    pub(crate) fn at(&self, start: i64, positions: i64) -> Result<Rotation, TchError> {
        self.part(|table| table.f_narrow(0, start, positions))
    }

    /// The rows of these positions, in the same shape.
    pub(crate) fn at_each(&self, positions: &Tensor) -> Result<Rotation, TchError> {
        self.part(|table| table.f_index_select(0, positions))
    }

    /// `batch · positions` rows, in the shape to be broadcast over `[batch, position, head, dimension]`.
    pub(crate) fn by_sequence(&self, batch: i64, positions: i64) -> Result<Rotation, TchError> {
        let shape = [batch, positions, 1, self.width];
        let (cos, sin) = (self.cos.f_view(shape)?, self.sin.f_view(shape)?);
        Ok(Rotation { cos, sin, width: self.width })
    }

    fn part(&self, of: impl Fn(&Tensor) -> Result<Tensor, TchError>) -> Result<Rotation, TchError> {
        let part = |table| of(table)?.f_unsqueeze(1);
        Ok(Rotation { cos: part(&self.cos)?, sin: part(&self.sin)?, width: self.width })
    }

    /// Rotates `x`, `[batch, position, head, dimension]`, in place.
    pub(crate) fn turn(&self, x: &mut Tensor, dim: i64) -> Result<(), TchError> {
        if self.width < dim {
            return self.turn(&mut x.f_narrow(-1, 0, self.width)?, self.width);
        }
        let swapped = x.f_roll(dim / 2, -1)?;
        x.f_multiply_(&self.cos)?.f_addcmul_(&swapped, &self.sin).map(drop)
    }
}

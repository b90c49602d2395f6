//! Masks of attention.

use tch::{Device, Kind, TchError, Tensor};

/// A mask to add to scores, `[queries, keys]`. It hides keys from diagonal `ahead` on and up to diagonal
/// `behind`. Diagonal 0 begins at the first query and the first key.
pub(crate) fn hidden(
    shape: [i64; 2],
    ahead: i64,
    behind: Option<i64>,
    options: (Kind, Device),
) -> Result<Tensor, TchError> {
    let all = Tensor::f_full(shape, f64::NEG_INFINITY, options)?;
    let hidden = all.f_triu(ahead)?;
    match behind {
        Some(behind) => hidden.f_add(&all.f_tril(behind)?),
        None => Ok(hidden),
    }
}

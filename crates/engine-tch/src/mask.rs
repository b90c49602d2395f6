//! Masks of attention.

use tch::{Device, Kind, TchError, Tensor};

/// What is added to scores `[queries, keys]` to hide keys: from the diagonal `ahead` on, and up to the diagonal `behind`. The
/// diagonal 0 begins at the first query and the first key.
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

//! Values that configurations of several families share.

use crate::error::BundleError;

pub(super) fn even_share(hidden_size: usize, heads: usize) -> Result<usize, BundleError> {
    if heads == 0 || !hidden_size.is_multiple_of(heads) {
        return Err(BundleError::Config(format!(
            "hidden size {hidden_size} does not divide into {heads} heads"
        )));
    }
    Ok(hidden_size / heads)
}

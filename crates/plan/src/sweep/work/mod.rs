//! The axes that a sweep varies by default, for each kind of work.

mod denoise;
mod encode;
mod generate;

use crate::sweep::{SweepKind, usual};
use crate::{Request, Result};

pub use denoise::TOKEN_BY_TOKEN;
pub(crate) use denoise::beside_token_by_token;
pub(super) use encode::complete as complete_encoding;

/// Fills in the axes that were not given.
pub(super) fn complete(kind: SweepKind, request: &mut Request) -> Result<()> {
    match kind {
        SweepKind::Denoise => denoise::complete(request),
        SweepKind::Embed => encode::complete_embedding(request),
        SweepKind::Callers if request.serving.rate.is_empty() => {
            usual(&mut request.serving.callers, &[1, 2, 4, 8]);
        }
        SweepKind::Callers => {}
        _ => return generate::complete(kind, request),
    }
    Ok(())
}

//! Encoders.

use crate::sweep::{SweepKind, usual};
use crate::{Failure, Request, Result};

/// The default encoder.
const ENCODER: &str = "minilm";
/// Fills in the axes of a study of texts.
pub(in super::super) fn complete_embedding(request: &mut Request) {
    if request.models == [configs::DEFAULT_MODEL] {
        request.models = vec![ENCODER.to_owned()];
    }
    usual(&mut request.batch, &[1, 8, 32]);
    if request.encode.has_real_lengths() {
        usual(&mut request.prompt_tokens, &[32, 128]);
    }
}

/// Fills in the axes of a study that other models have, too.
pub(in super::super) fn complete(kind: SweepKind, request: &mut Request) -> Result<()> {
    match kind {
        SweepKind::Precision => {
            usual(&mut request.precisions, &bundle::Precision::ALL);
            request.study.text = true;
        }
        SweepKind::Memory => {
            usual(&mut request.batch, &[1, 8, 32]);
            if request.encode.has_real_lengths() {
                usual(&mut request.prompt_tokens, &[128]);
            }
            // Memory is the same on a noisy machine.
            request.accept_noise = true;
        }
        SweepKind::Size if request.models.len() < 2 => {
            return Err(Failure::usage(format!(
                "{} encodes texts: a sweep over sizes of encoders takes --model several times",
                request.model()
            )));
        }
        SweepKind::Size => {}
        _ => {
            return Err(Failure::usage(format!(
                "{} encodes texts, and `sweep {}` is for models that continue them: there are `sweep embed`, \
                 `sweep precision`, `sweep memory` and `sweep size`",
                request.model(),
                kind.name()
            )));
        }
    }
    Ok(())
}

//! The findings of `photofinish parity`, in sentences.

use judge::parity::continuation::{Continuation, Divergence};
use judge::parity::layers::LayerDifference;
use judge::report::layer_parity::{NotRepeated, ParityReason, ParityReport, ParityRow, ParityWarning};
use judge::report::work::generate::variation::{LIMIT, Variation};

/// The reasons for the state of a row.
pub(super) fn reasons(row: &ParityRow) -> Vec<String> {
    let told = |reason: &ParityReason| match reason {
        ParityReason::Layers => Some(layers(&row.layers, row.relative_rmse_limit)),
        ParityReason::Continuation => row.continuation.as_ref().map(continuation),
        ParityReason::NotRepeated => row.not_repeated.as_ref().map(not_repeated),
        ParityReason::Vectors(text) | ParityReason::Other(text) => Some(text.clone()),
    };
    row.reasons.iter().filter_map(told).collect()
}

/// The warnings of a report.
pub(super) fn warnings(report: &ParityReport) -> Vec<String> {
    let told = |warning: &ParityWarning| match warning {
        ParityWarning::Varies(framework) => {
            let row = report.rows.iter().find(|row| row.framework == *framework)?;
            Some(format!("{framework}: {}", varies(row.variation.as_ref()?)))
        }
        ParityWarning::StayedNoisy(reason) => Some(format!(
            "the machine stayed noisy ({reason}): the variation of speeds is that of the rounds before; wait until it is \
             quiet, or --accept-noise"
        )),
        ParityWarning::Noise(reason) => Some(format!("noise: {reason}")),
        ParityWarning::Told(text) => Some(text.clone()),
    };
    report.warnings.iter().filter_map(told).collect()
}

fn varies(variation: &Variation) -> String {
    let Variation { processes, iterations, cv, .. } = variation;
    let causes = match variation.causes.as_slice() {
        [] => "nothing was observed that explains it; usual causes are frequency scaling, other processes, and memory \
               bandwidth shared with other virtual machines"
            .into(),
        causes => format!("likely causes: {}", causes.join("; ")),
    };
    format!(
        "its throughput varied by {:.0} % (coefficient of variation over {iterations} iterations of {processes} processes, \
         limit {:.0} %); {causes}",
        cv * 100.0,
        LIMIT * 100.0
    )
}

/// The place where two computations diverge, in one sentence.
pub(super) fn layers(layers: &[LayerDifference], limit: f64) -> String {
    if let Some(first) = layers.iter().find(|layer| layer.beyond) {
        let LayerDifference { layer, relative_rmse, cosine, max_abs, reference_rms, .. } = first;
        return format!(
            "{layer} is the first to diverge beyond {limit:.0e}: relative RMSE {relative_rmse:.1e}, cosine {cosine:.4}, \
             max abs {max_abs:.1e} where the reference's RMS is {reference_rms:.1e}"
        );
    }
    let widest = layers.iter().max_by(|a, b| a.relative_rmse.total_cmp(&b.relative_rmse));
    match widest {
        None => "no layer was compared".into(),
        Some(widest) if widest.relative_rmse == 0.0 => "every layer is the same, bit for bit".into(),
        Some(widest) => format!(
            "every layer agrees within {limit:.0e}; the widest relative RMSE is {:.1e}, at {}",
            widest.relative_rmse,
            if widest.layer == "logits" || widest.layer == "embeddings" {
                format!("the {}", widest.layer)
            } else if widest.layer == "final norm" {
                "the final norm".into()
            } else {
                widest.layer.clone()
            },
        ),
    }
}

/// How many greedy tokens are the reference's, and where the others begin.
pub(super) fn continuation(found: &Continuation) -> String {
    let Continuation { tokens, common, divergences } = found;
    if divergences.is_empty() {
        return format!("all {tokens} greedy tokens are the reference's");
    }
    let each = divergences.iter().map(|divergence| {
        let Divergence { prompt, token, margin, tie, .. } = divergence;
        let tie = if *tie { ", a tie" } else { "" };
        format!("{prompt} from token {token} (the reference prefers its own by {margin:.1e}{tie})")
    });
    let each = each.collect::<Vec<_>>().join("; ");
    format!("{common} of {tokens} greedy tokens come before the first difference: {each}")
}

pub(super) fn not_repeated(NotRepeated { prompt, token }: &NotRepeated) -> String {
    format!("two processes generated different tokens: {prompt} from token {token}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layer(layer: &str, relative_rmse: f64) -> LayerDifference {
        LayerDifference {
            layer: layer.into(),
            max_abs: relative_rmse,
            rmse: relative_rmse,
            reference_rms: 1.0,
            relative_rmse,
            cosine: 1.0,
            beyond: relative_rmse > 1e-4,
        }
    }

    #[test]
    fn the_first_layer_beyond_the_limit_is_named_or_else_the_widest() {
        let far = [layer("embeddings", 0.0), layer("layer 1", 0.25), layer("logits", 0.5)];
        assert!(layers(&far, 1e-4).starts_with("layer 1 is the first to diverge beyond 1e-4"));
        let close = [layer("embeddings", 0.0), layer("logits", 1.2e-7)];
        assert!(layers(&close, 1e-4).ends_with("1.2e-7, at the logits"), "{}", layers(&close, 1e-4));
        assert!(layers(&close[..1], 1e-4).contains("bit for bit"));
    }

    #[test]
    fn a_tie_is_told() {
        let tied =
            Divergence { prompt: "p".into(), token: 2, ours: 1, reference: 0, margin: 5e-4, tie: true };
        let told = continuation(&Continuation { tokens: 3, common: 1, divergences: vec![tied] });
        assert_eq!(
            told,
            "1 of 3 greedy tokens come before the first difference: p from token 2 (the reference prefers its own by \
             5.0e-4, a tie)"
        );
    }

    #[test]
    fn what_varies_has_its_causes_or_says_that_none_was_seen() {
        let told = |causes: &[&str]| {
            varies(&Variation {
                processes: 2,
                iterations: 4,
                throughput: 98.76,
                cv: 0.2,
                cv_between_processes: 0.1,
                causes: causes.iter().map(|&cause| cause.to_owned()).collect(),
            })
        };
        assert!(told(&[]).contains("varied by 20 %") && told(&[]).contains("nothing was observed"));
        assert!(
            told(&["the frequency governor is powersave"])
                .ends_with("likely causes: the frequency governor is powersave")
        );
    }
}

//! A hybrid of two engines compared with its parts, in words.

use judge::report::hybrid::{HandOver, Hybrid, Memory, Predicted};
use judge::report::number;
use judge::report::verdicts::Verdict;

use crate::words::verdicts::sentence;

/// Prediction and measurement, hand-over, memory, and whether it pays. `margin`: within which share times are equivalent.
pub(in super::super) fn sentences(hybrid: &Hybrid, margin: f64) -> Vec<String> {
    let name = &hybrid.framework;
    if let Some(alone) = &hybrid.alone {
        return vec![format!("{name} {alone}")];
    }
    let mut sentences: Vec<String> = prediction(hybrid).into_iter().collect();
    sentences.extend(handed_over(hybrid));
    sentences.extend(weights(hybrid));
    sentences.extend(pays(hybrid, margin));
    sentences.iter().map(|sentence| format!("{name}: {sentence}")).collect()
}

/// "predicted from tch's prompt, candle's gaps and the hand-over, and measured: total time 489 and 501 ms (+2.4 %)".
fn prediction(hybrid: &Hybrid) -> Option<String> {
    let (Some(prefill), Some(decode)) = (&hybrid.prefill, &hybrid.decode) else {
        return Some(
            "nothing is predicted of it: compare its parts as well, each under its own name".to_owned(),
        );
    };
    let one = |figure: &Predicted| {
        let Predicted { metric, predicted, measured, difference } = figure;
        let (predicted, measured) = (number(*predicted), number(*measured));
        let percent = 100.0 * difference;
        format!("{} {predicted} and {measured} {} ({percent:+.1} %)", metric.words(), metric.unit())
    };
    let figures: Vec<String> = hybrid.figures.iter().map(one).collect();
    let from = format!("predicted from {prefill}'s prompts, {decode}'s gaps and the hand-over");
    (!figures.is_empty()).then(|| format!("{from}, and measured: {}", figures.join("; ")))
}

fn handed_over(hybrid: &Hybrid) -> Option<String> {
    let HandOver { bytes, ms, addresses: [there, here], obstacle } = hybrid.hand_over.as_ref()?;
    if *bytes == 0.0 {
        let why = if there == here { "" } else { ", though at two addresses" };
        return Some(format!(
            "keys and values are handed over without a copy, in {ms:.3} ms: both engines keep them at {there:#x}{why}"
        ));
    }
    let why = obstacle.as_ref().map_or(String::new(), |why| format!(": {why}"));
    Some(format!("keys and values are handed over by one copy, {:.1} MB in {ms:.2} ms{why}", bytes / 1e6))
}

fn weights(hybrid: &Hybrid) -> Option<String> {
    let Memory { hybrid, prefill, decode, weights } = hybrid.memory.as_ref()?;
    Some(format!(
        "it holds two sets of weights of {weights:.2} GB: peak memory {hybrid:.2} GB, of its parts alone \
         {prefill:.2} and {decode:.2} GB"
    ))
}

/// By the verdict on the total time of a request.
fn pays(hybrid: &Hybrid, margin: f64) -> Option<String> {
    let verdict = hybrid.verdict.as_ref()?;
    let does = match verdict.verdict {
        Verdict::Faster if verdict.a == hybrid.framework => "it pays",
        Verdict::Faster | Verdict::Slower => "it does not pay",
        Verdict::Equivalent => "it does not pay, being no faster than the better of its parts",
        Verdict::Inconclusive | Verdict::NotMeasurable => "whether it pays is open",
    };
    Some(format!("{does}: {}", sentence(verdict, Some(margin))))
}

#[cfg(test)]
mod tests {
    use judge::Metric;
    use judge::report::verdicts::Comparison;

    use super::*;

    fn hybrid(verdict: Verdict, ahead: &str) -> Hybrid {
        Hybrid {
            framework: "h".into(),
            prefill: Some("a".into()),
            decode: Some("b".into()),
            alone: None,
            hand_over: Some(HandOver {
                bytes: 2e6,
                ms: 2.0,
                addresses: [0x10, 0x20],
                obstacle: Some("a wants one piece".into()),
            }),
            figures: vec![Predicted {
                metric: Metric::FirstToken,
                predicted: 20.0,
                measured: 21.0,
                difference: 0.05,
            }],
            verdict: Some(Comparison {
                metric: Metric::Total,
                a: ahead.into(),
                b: "x".into(),
                advantage: Some(1.2),
                interval: None,
                statistics: None,
                verdict,
                reason: None,
            }),
            memory: Some(Memory { hybrid: 1.2, prefill: 0.6, decode: 0.7, weights: 0.5 }),
        }
    }

    #[test]
    fn prediction_hand_over_memory_and_whether_it_pays_are_told() {
        assert_eq!(
            sentences(&hybrid(Verdict::Faster, "h"), 0.02),
            [
                "h: predicted from a's prompts, b's gaps and the hand-over, and measured: time to first token 20.0 and \
                 21.0 ms (+5.0 %)",
                "h: keys and values are handed over by one copy, 2.0 MB in 2.00 ms: a wants one piece",
                "h: it holds two sets of weights of 0.50 GB: peak memory 1.20 GB, of its parts alone 0.60 and 0.70 GB",
                "h: it pays: total time: x takes 1.20x as long as h",
            ]
        );
        let last = |verdict, ahead| sentences(&hybrid(verdict, ahead), 0.02).pop().unwrap();
        assert!(last(Verdict::Faster, "b").starts_with("h: it does not pay: total time: x takes"));
        assert!(last(Verdict::Equivalent, "h").contains("being no faster than the better of its parts"));
    }

    #[test]
    fn memory_that_is_shared_is_told_by_its_address() {
        let mut shared = hybrid(Verdict::Faster, "h");
        shared.hand_over = Some(HandOver { bytes: 0.0, ms: 0.001, addresses: [0x10, 0x10], obstacle: None });
        let told = sentences(&shared, 0.02);
        assert!(told[1].ends_with("without a copy, in 0.001 ms: both engines keep them at 0x10"), "{told:?}");
        shared.prefill = None;
        assert!(sentences(&shared, 0.02)[0].contains("compare its parts as well"));
    }
}

//! The findings of a study along its axes, a sentence each.

use judge::report::number;
use judge::report::verdicts::Verdict;
use judge::study::Crossing;
use judge::study::Outcome;
use judge::study::cell;
use judge::study::compiled::Compiled;
use judge::study::scaling::Scaling;
use plan::{Axis, Setting};

/// "candle: time to first token grows with prompt^1.08 (batch 1)".
pub(super) fn scaling(scaling: &Scaling, axes: &[Axis]) -> Option<String> {
    let exponent = scaling.exponent?;
    let at = cell::name(&scaling.at, axes);
    let at = if at.is_empty() { at } else { format!(" ({at})") };
    let axis = scaling.axis.title().to_lowercase();
    Some(format!("{}: {} grows with {axis}^{exponent:.2}{at}", scaling.framework, scaling.metric.title()))
}

/// "candle, new tokens 64: a step takes 200 ms, all tokens one by one 1100 ms: diffusion is slower from 6 steps on".
pub(super) fn crossing(crossing: &Crossing) -> String {
    let Crossing { framework, step_ms, by_token_ms, .. } = crossing;
    let at = cell::name(&crossing.at, &[Axis::Batch, Axis::PromptTokens, Axis::NewTokens]);
    let steps = match crossing.slower_from() {
        1 => "a single step is slower".to_owned(),
        steps => format!("diffusion is slower from {steps} steps on"),
    };
    let (step, by_token) = (number(*step_ms), number(*by_token_ms));
    format!("{framework}, {at}: a step takes {step} ms, all tokens one by one {by_token} ms: {steps}")
}

/// The cost and the gain of compiling.
pub(super) fn compiled(compiled: &Compiled, framework: &str) -> String {
    let Compiled { compiling_ms, with_ms, without_ms } = *compiled;
    let took = match compiling_ms {
        ms if ms >= 1000.0 => format!("compiling takes {:.1} s once", ms / 1e3),
        ms if ms > 0.0 => format!("compiling takes {ms:.0} ms once"),
        // Without its JIT a framework may compile every operation by itself.
        _ => "with its JIT the first runs take no longer than without".to_owned(),
    };
    let steady = format!("a token takes {with_ms:.1} ms with it and {without_ms:.1} without");
    let pays = match compiled.pays_from() {
        None => "it gains nothing, so it never pays".to_owned(),
        Some(tokens) => format!("it pays from {tokens} new tokens on"),
    };
    format!("{framework}: {took}; {steady}: {pays}")
}

/// The change of each framework's speed-up with the number of new tokens, one sentence each. Only speed-ups
/// with a verdict count: an estimate from a round or two is noise.
pub(super) fn speed_ups(outcomes: &[Outcome]) -> Vec<String> {
    let mut lines = Vec::new();
    let mut frameworks: Vec<&Setting> = Vec::new();
    for outcome in outcomes {
        if let Some(framework) = outcome.settings.get(&Axis::Framework)
            && !frameworks.contains(&framework)
        {
            frameworks.push(framework);
        }
    }
    for framework in frameworks {
        let along: Vec<(&Setting, f64)> = outcomes
            .iter()
            .filter(|outcome| outcome.settings.get(&Axis::Framework) == Some(framework))
            .filter(|outcome| {
                matches!(outcome.verdict, Some(Verdict::Faster | Verdict::Slower | Verdict::Equivalent))
            })
            .filter_map(|outcome| Some((outcome.settings.get(&Axis::NewTokens)?, outcome.speedup?)))
            .collect();
        if let [(first, least), .., (last, most)] = along[..] {
            lines.push(format!(
                "{framework}: the speed-up goes from {least:.2}x at {first} new tokens to {most:.2}x at {last}"
            ));
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use plan::Settings;

    use super::*;

    #[test]
    fn diffusion_is_compared_with_going_token_by_token() {
        let told = |step_ms: f64, by_token_ms: f64| {
            let at = Settings::from([(Axis::NewTokens, Setting::Number(64))]);
            crossing(&Crossing { framework: "candle".into(), at, step_ms, by_token_ms })
        };
        assert_eq!(
            told(200.0, 1100.0),
            "candle, new tokens 64: a step takes 200 ms, all tokens one by one 1100 ms: diffusion is slower from 6 \
             steps on"
        );
        assert!(told(200.0, 100.0).ends_with("a single step is slower"));
    }

    #[test]
    fn compiling_has_a_cost_a_gain_and_a_break_even() {
        let told = |compiling_ms: f64, with_ms: f64, without_ms: f64, framework: &str| {
            compiled(&Compiled { compiling_ms, with_ms, without_ms }, framework)
        };
        assert_eq!(
            told(2310.0, 12.9, 61.0, "jax"),
            "jax: compiling takes 2.3 s once; a token takes 12.9 ms with it and 61.0 without: it pays from 49 new \
             tokens on"
        );
        assert!(told(80.0, 13.0, 12.0, "ort").ends_with("gains nothing, so it never pays"));
        let none = told(-1443.0, 13.5, 93.2, "jax");
        assert!(
            none.starts_with("jax: with its JIT the first runs take no longer than without; a token"),
            "{none}"
        );
    }
}

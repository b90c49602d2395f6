//! How a pair's ratio depends on the state of the machine, in words.

use judge::Metric;
use judge::report::dependence::Dependence;
use untrusted::Foreign;

use super::amount::Differences;

/// A ratio closer to 1 is no difference in words.
const LEAST: f64 = 1.005;

/// The ratio at both ends: "candle decodes 5 % to 22 % faster than ort".
pub(crate) fn clause(found: &Dependence) -> String {
    let (metric, [slow, fast]) = (found.metric, found.ratios);
    let advantage = |ratio: f64| ratio.ln().abs().exp();
    let is_none = |ratio: f64| advantage(ratio) < LEAST;
    if (slow >= 1.0) != (fast >= 1.0) && !is_none(slow) && !is_none(fast) {
        let at = |ratio| at(metric, [&found.a, &found.b], ratio);
        return format!("{} or {}", at(slow), at(fast));
    }
    let (ahead, behind) = if slow * fast >= 1.0 { (&found.a, &found.b) } else { (&found.b, &found.a) };
    let (least, most) = (advantage(slow).min(advantage(fast)), advantage(slow).max(advantage(fast)));
    let (does, than) = (metric.does(), metric.than(behind, most, None));
    match metric.amount(least, None) {
        _ if is_none(least) => format!("{ahead} {does} up to {than}"),
        amount if amount == metric.amount(most, None) => format!("{ahead} {does} {than}"),
        amount => format!("{ahead} {does} {amount} to {than}"),
    }
}

/// The ratio of a and b at one end.
fn at(metric: Metric, [a, b]: [&str; 2], ratio: f64) -> String {
    match ratio.ln().abs().exp() {
        advantage if advantage < LEAST => format!("{a} and {b} {}", metric.equality()),
        advantage if ratio >= 1.0 => metric.difference(a, b, advantage, None),
        advantage => metric.difference(b, a, advantage, None),
    }
}

/// The other programs whose speed shows the state.
pub(crate) fn others(others: &[Foreign]) -> String {
    let names: Vec<&str> = others.iter().map(Foreign::as_str).collect();
    names.join(" and ")
}

/// The ratios of a and b where the others were slowest and where they were fastest, in one sentence.
pub(crate) fn sentence(
    metric: Metric,
    pair: [&str; 2],
    of_state: &[Foreign],
    [slow, fast]: [f64; 2],
) -> String {
    let ([a, b], names) = (pair, others(of_state));
    let verb = if of_state.len() == 1 { "was" } else { "were" };
    format!(
        "{}: the ratio of {a} and {b} depends on the state of the machine: in rounds in which {names} {verb} slowest, {}; \
         in those in which {names} {verb} fastest, {}",
        metric.words(),
        at(metric, pair, slow),
        at(metric, pair, fast)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pair_is_told_with_both_ends() {
        let told = |ratios| sentence(Metric::Throughput, ["a", "b"], &[Foreign::new("c")], ratios);
        let sentence = told([0.75, 1.001]);
        assert!(sentence.contains("c was slowest, b decodes 33 % faster than a"), "{sentence}");
        assert!(sentence.ends_with("c was fastest, a and b decode equally fast"), "{sentence}");
        let clause = |ratios| {
            clause(&Dependence {
                metric: Metric::Throughput,
                a: "a".into(),
                b: "b".into(),
                others: Vec::new(),
                slope: 0.0,
                interval: [0.0; 2],
                ratios,
                points: Vec::new(),
            })
        };
        assert_eq!(clause([0.75, 1.001]), "b decodes up to 33 % faster than a");
        assert_eq!(clause([0.8, 0.9]), "b decodes 11 % to 25 % faster than a");
        assert_eq!(clause([0.8, 1.25]), "b decodes 25 % faster than a or a decodes 25 % faster than b");
    }
}

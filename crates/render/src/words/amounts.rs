//! Ratios and figures in words. There is one form of a ratio: "1.09x".

/// Beyond this an interval says nothing that a reader could use.
const BEYOND: f64 = 1000.0;

/// How many times: "1.09x", "3.4x", "38x". Where two digits would say 1, there are three.
pub(crate) fn times(ratio: f64) -> String {
    let decimals = if ratio != 1.0 && (ratio - 1.0).abs() < 0.005 { 3 } else { decimals(ratio) };
    format!("{ratio:.decimals$}x")
}

/// Both ends: "1.04–1.14".
pub(crate) fn between(low: f64, high: f64) -> String {
    if !(high < BEYOND && low > 1.0 / BEYOND) {
        return "no useful interval".to_owned();
    }
    let with = |decimals: usize| [low, high].map(|end| format!("{end:.decimals$}"));
    let [from, to] = with(decimals(low));
    let [from, to] = if from == to && low < high { with(3) } else { [from, to] };
    format!("{from}–{to}")
}

fn decimals(ratio: f64) -> usize {
    match ratio {
        ratio if ratio >= 9.95 => 0,
        ratio if ratio >= 1.995 => 1,
        _ => 2,
    }
}

/// A figure of the table: at most three digits, and never fewer than the unit.
pub(crate) fn figure(value: f64) -> String {
    let decimals = match value.abs() {
        v if v >= 99.95 => 0,
        v if v >= 9.995 => 1,
        v if v >= 0.095 || v == 0.0 => 2,
        v if v >= 0.0095 => 3,
        _ => 4,
    };
    format!("{value:.decimals$}")
}

/// Figures of a sentence: as few digits as keep unlike figures apart.
pub(crate) fn figures(values: &[f64]) -> Vec<String> {
    let short = |value: &f64| match value.abs() {
        v if v >= 9.95 => format!("{value:.0}"),
        v if v >= 0.995 => format!("{value:.1}"),
        _ => figure(*value),
    };
    let texts: Vec<String> = values.iter().map(short).collect();
    let are_apart = (1..texts.len()).all(|at| values[at] == values[at - 1] || texts[at] != texts[at - 1]);
    if are_apart { texts } else { values.iter().map(|&value| figure(value)).collect() }
}

/// "p = 0.012".
pub(crate) fn p(p: f64) -> String {
    let text = p_alone(p);
    if text.starts_with('<') { format!("p {text}") } else { format!("p = {text}") }
}

/// Two digits are enough.
pub(crate) fn p_alone(p: f64) -> String {
    let text = match p {
        p if p < 0.0001 => "< 0.0001".to_owned(),
        p if p < 0.001 => format!("{p:.4}"),
        p if p < 0.1 => format!("{p:.3}"),
        p => format!("{p:.2}"),
    };
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ratio_has_two_or_three_digits_and_is_never_rounded_to_nothing() {
        let ratios = [1.004, 1.0, 1.094, 1.996, 3.41, 14.2, 0.97];
        assert_eq!(ratios.map(times), ["1.004x", "1.00x", "1.09x", "2.0x", "3.4x", "14x", "0.97x"]);
        assert_eq!(between(0.9799, 1.3101), "0.98–1.31");
        assert_eq!([between(1.0, 1.002), between(1.8, 2.01)], ["1.000–1.002", "1.80–2.01"]);
        assert_eq!(between(1e-9, 1e9), "no useful interval");
    }

    #[test]
    fn a_figure_has_three_digits_and_a_sentence_two() {
        assert_eq!(
            [0.1012, 48.04, 626.6, 0.0123, 14_993.0].map(figure),
            ["0.10", "48.0", "627", "0.012", "14993"]
        );
        assert_eq!(figures(&[54.3, 49.8]), ["54", "50"]);
        assert_eq!(figures(&[54.3, 53.9]), ["54.3", "53.9"]);
    }

    #[test]
    fn p_has_two_digits() {
        assert_eq!(
            [0.00001, 0.00041, 0.0078, 0.081, 1.0].map(p),
            ["p < 0.0001", "p = 0.0004", "p = 0.008", "p = 0.081", "p = 1"]
        );
    }
}

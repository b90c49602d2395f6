//! Numbers in prose.

/// The numbers of a text: 16.32, 1,024. A point or comma that no digit follows is punctuation.
pub(crate) fn numbers(text: &str) -> Vec<f64> {
    let is_part = |c: char| c.is_ascii_digit() || c == '.' || c == ',';
    let words = text.split(|c: char| !is_part(c)).map(|word| word.trim_matches(['.', ',']));
    words.filter_map(|word| word.replace(',', "").parse().ok()).collect()
}

/// Whether a number is among these, but for the rounding of its unit.
pub(crate) fn has(numbers: &[f64], number: f64) -> bool {
    numbers.iter().any(|found| (found - number).abs() <= 1e-9 * number.abs())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_found_between_words_ranges_and_units() {
        assert_eq!(numbers("GPT-2 at 1,024 positions: 10–15x, 0.63 s."), [2.0, 1024.0, 10.0, 15.0, 0.63]);
        assert!(has(&numbers("52.1 %"), 100.0 * 0.521) && !has(&numbers("52.1 %"), 52.0));
    }
}

//! Assigns perf's samples to parts, by the rules in `configs/profile.toml`.

use std::collections::BTreeMap;
use std::path::Path;

use plan::{Failure, Result};
use serde::Deserialize;

/// Name of the rules' file.
pub(crate) const RULES: &str = "profile.toml";

/// Which symbols belong to which part.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Rule {
    part: String,
    #[serde(default)]
    object: String,
    #[serde(default)]
    symbols: Vec<String>,
}

impl Rule {
    fn takes(&self, sample: &Sample) -> bool {
        sample.object.contains(&self.object)
            && (self.symbols.is_empty() || self.symbols.iter().any(|name| sample.symbol.contains(name)))
    }
}

/// The rules for one framework, in the order in which they are tried.
pub(crate) fn rules(file: &Path, framework: &str) -> Result<Vec<Rule>> {
    let cannot = |why: String| Failure::usage(format!("cannot read {}: {why}", file.display()));
    let text = untrusted::file::read_text(file, untrusted::file::CONFIG)
        .map_err(|error| cannot(error.to_string()))?;
    let mut all: BTreeMap<String, Vec<Rule>> =
        toml::from_str(&text).map_err(|error| cannot(error.to_string()))?;
    let mut rules = all.remove(framework).unwrap_or_default();
    rules.extend(all.remove("all").unwrap_or_default());
    Ok(rules)
}

/// perf's line for one symbol.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Sample {
    /// Percent of all samples.
    pub(crate) share: f64,
    pub(crate) object: String,
    pub(crate) symbol: String,
}

/// Reads the output of `perf report`, one line per symbol: `12.34;object;[.] name`.
pub(crate) fn samples(report: &str) -> Vec<Sample> {
    let sample = |line: &str| {
        let mut fields = line.trim().splitn(3, ';');
        let share = fields.next()?.trim().trim_end_matches('%').parse().ok()?;
        let (object, symbol) = (fields.next()?.trim(), fields.next()?);
        // An empty column for call graphs, which are not recorded, may follow.
        let symbol = symbol.split(';').next()?.trim();
        // `[.]` is user code, `[k]` the kernel.
        let symbol = symbol.split_once("] ").map_or(symbol, |(_, name)| name);
        Some(Sample { share, object: object.to_owned(), symbol: symbol.trim().to_owned() })
    };
    report.lines().filter(|line| !line.starts_with('#')).filter_map(sample).collect()
}

/// One part's share and its symbols, the largest first.
#[derive(Debug, PartialEq)]
pub(crate) struct Part {
    pub(crate) name: String,
    pub(crate) share: f64,
    pub(crate) symbols: Vec<Sample>,
}

pub(crate) fn parts(rules: &[Rule], samples: Vec<Sample>) -> Vec<Part> {
    let mut parts: BTreeMap<String, Vec<Sample>> = BTreeMap::new();
    for sample in samples {
        let rule = rules.iter().find(|rule| rule.takes(&sample));
        parts.entry(rule.map_or("other", |rule| &rule.part).to_owned()).or_default().push(sample);
    }
    let mut parts: Vec<Part> = parts
        .into_iter()
        .map(|(name, mut symbols)| {
            symbols.sort_by(|a, b| b.share.total_cmp(&a.share));
            Part { name, share: symbols.iter().map(|sample| sample.share).sum(), symbols }
        })
        .collect();
    parts.sort_by(|a, b| b.share.total_cmp(&a.share));
    parts
}

/// A symbol's name for a table: the end of its path, without type arguments, which can fill pages.
pub(crate) fn short(symbol: &str) -> String {
    const LONGEST: usize = 48;
    let mut plain = String::new();
    let mut depth = 0_usize;
    for c in symbol.chars() {
        match c {
            '<' | '(' => depth += 1,
            '>' | ')' => depth = depth.saturating_sub(1),
            _ if depth == 0 => plain.push(c),
            _ => {}
        }
    }
    let plain = plain.replace(['|', '`'], "");
    // A method of `<T as Trait>` has lost everything except its own name.
    let plain = if plain.trim_matches(':').len() < 8 { symbol.replace(['|', '`'], "") } else { plain };
    let tail: Vec<&str> = plain.trim_start_matches(':').rsplitn(3, "::").take(2).collect();
    let tail = tail.into_iter().rev().collect::<Vec<_>>().join("::");
    tail.trim().chars().take(LONGEST).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(part: &str, object: &str, symbols: &[&str]) -> Rule {
        let symbols = symbols.iter().map(|name| (*name).to_owned()).collect();
        Rule { part: part.into(), object: object.into(), symbols }
    }

    #[test]
    fn the_first_rule_that_matches_takes_a_sample_and_the_rest_is_other() {
        let report = "# header\n 60.50;libx.so;[.] gemm_kernel<float>  ;-  -\n  9.50;libx.so;[.] wait\n\n 30.00;worker;[.] a::b\n";
        let rules = [rule("products", "", &["gemm"]), rule("library", "libx", &[])];
        let found = parts(&rules, samples(report));
        let shares: Vec<_> = found.iter().map(|part| (part.name.as_str(), part.share)).collect();
        assert_eq!(shares, [("products", 60.5), ("other", 30.0), ("library", 9.5)]);
    }

    #[test]
    fn every_framework_with_an_engine_has_rules() {
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../configs").join(RULES);
        let of_all = rules(&file, "no such framework").unwrap().len();
        for framework in ["candle", "tch", "ort"] {
            assert!(rules(&file, framework).unwrap().len() > of_all, "{framework}");
        }
    }

    #[test]
    fn a_symbol_is_shortened_to_the_end_of_its_path() {
        assert_eq!(short("candle_core::quantized::k_quants::matmul<f32>"), "k_quants::matmul");
        assert_eq!(short("void at::native::(anonymous namespace)::kernel<8, 1>(float*)"), "::kernel");
        assert!(!short("a|b").contains('|'), "a cell of a table stays one");
    }
}

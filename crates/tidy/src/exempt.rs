//! What may break a rule until it is mended.

use std::collections::BTreeMap;

use crate::{Finding, code, cycles, files, pages};

/// Crates and pages that are not held to a rule yet. Whoever mends one strikes it here; nothing is to be added.
const EXEMPT: &[(&str, &[&str])] = &[
    (
        cycles::RULE,
        &[
            "bundle",
            "calibrate",
            "charts",
            "driver",
            "engine-candle",
            "engine-ort",
            "engine-tch",
            "prepare",
            "worker",
        ],
    ),
    (code::LONG_FUNCTION, &["charts", "driver", "engine-ort"]),
    (code::LONG_FILE, &["driver"]),
    (
        files::NAMED_OF,
        &[
            "calibrate",
            "charts",
            "driver",
            "engine-ort",
            "engine-tch",
            "prepare",
            "reference-candle-transformers",
            "reference-gguf",
            "statistics",
            "worker",
        ],
    ),
    (
        files::BEGINS_WITH_OF,
        &[
            "bundle",
            "calibrate",
            "charts",
            "driver",
            "engine",
            "engine-candle",
            "engine-mock",
            "engine-ort",
            "engine-tch",
            "history",
            "prepare",
            "protocol",
            "reference-candle-transformers",
            "reference-gguf",
            "statistics",
            "worker",
        ],
    ),
    (
        pages::WIDE,
        &[
            "README.md",
            "docs/adding-an-engine.md",
            "docs/architecture.md",
            "docs/calibration.md",
            "docs/fairness.md",
            "docs/limits.md",
            "docs/measures.md",
            "docs/methodology.md",
            "docs/models.md",
            "docs/performance.md",
            "docs/protocol.md",
            "docs/references.md",
            "docs/regressions.md",
            "docs/report.md",
            "docs/results.md",
            "docs/shards.md",
            "docs/studies.md",
            "docs/troubleshooting.md",
        ],
    ),
];

pub(crate) struct Sorted {
    pub(crate) broken: Vec<Finding>,
    /// How often an exempt place breaks a rule.
    excused: BTreeMap<(&'static str, String), usize>,
}

pub(crate) fn sort(findings: Vec<Finding>) -> Sorted {
    let mut sorted = Sorted { broken: Vec::new(), excused: BTreeMap::new() };
    for finding in findings {
        if is_exempt(&finding) {
            *sorted.excused.entry((finding.rule, finding.place)).or_default() += 1;
        } else {
            sorted.broken.push(finding);
        }
    }
    sorted
}

fn is_exempt(finding: &Finding) -> bool {
    EXEMPT.iter().any(|(rule, places)| *rule == finding.rule && places.contains(&finding.place.as_str()))
}

impl Sorted {
    pub(crate) fn print(&self) {
        for ((rule, place), count) in &self.excused {
            println!("exempt: {place} breaks {count} times: {rule}");
        }
        for (rule, places) in EXEMPT {
            for place in places.iter().filter(|place| !self.excused.contains_key(&(*rule, place.to_string())))
            {
                println!(
                    "exempt for nothing: {place} keeps to: {rule}; strike it in crates/tidy/src/exempt.rs"
                );
            }
        }
        for finding in &self.broken {
            println!("tidy: {finding}");
        }
    }
}

//! What pages are made from: `report.json` as any version of its schema has it, as far as pages show it. A run that
//! has just ended is read back too, so a page made later is the same to the byte.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::Value;

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Run {
    pub(super) environment: Environment,
    pub(super) plan: Plan,
    pub(super) model: Model,
    pub(super) rounds: usize,
    pub(super) rows: Vec<Row>,
    pub(super) prompts: Vec<Prompt>,
    pub(super) comparisons: Vec<Comparison>,
    pub(super) rules: Vec<Rule>,
    pub(super) sanity: Vec<Flag>,
    pub(super) warnings: Vec<String>,
    pub(super) interrupted: bool,
    pub(super) summary: Summary,
}

/// In words.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Summary {
    pub(super) heading: String,
    pub(super) verdicts: Vec<String>,
    pub(super) details: Vec<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Environment {
    pub(super) command: Vec<String>,
    pub(super) started: String,
    /// Everything, as it came.
    #[serde(flatten)]
    pub(super) rest: BTreeMap<String, Value>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Plan {
    pub(super) model: String,
    pub(super) precision: String,
    pub(super) device: String,
    pub(super) threads: usize,
    pub(super) batch: usize,
    pub(super) new_tokens: usize,
    pub(super) fair_comparison: bool,
    pub(super) analysis: String,
    pub(super) prompts: Vec<PlannedPrompt>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct PlannedPrompt {
    pub(super) name: String,
    pub(super) text: Option<String>,
    pub(super) tokens: Vec<u32>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Model {
    pub(super) name: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Row {
    pub(super) framework: String,
    pub(super) state: String,
    pub(super) reasons: Vec<String>,
    pub(super) precision: Requested,
    pub(super) rounds: usize,
    pub(super) metrics: Vec<Figure>,
    pub(super) memory: Option<BTreeMap<String, Value>>,
    pub(super) steadiness: Steadiness,
    pub(super) agreement: Option<Agreement>,
    pub(super) hello: Option<Hello>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Requested {
    pub(super) requested: String,
    pub(super) observed: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Figure {
    pub(super) metric: String,
    pub(super) median: Option<f64>,
    pub(super) values: Vec<Option<f64>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Steadiness {
    pub(super) curve: Vec<CurvePoint>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct CurvePoint {
    pub(super) iteration: usize,
    pub(super) processes: usize,
    pub(super) warmup: usize,
    pub(super) first_token_ms: Option<f64>,
    pub(super) gap_ms: Option<f64>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Agreement {
    pub(super) max_abs: Option<f64>,
    pub(super) broken: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Hello {
    pub(super) library: String,
    pub(super) binding: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Prompt {
    pub(super) name: String,
    pub(super) tokens: usize,
    pub(super) rows: Vec<PromptRow>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct PromptRow {
    pub(super) framework: String,
    pub(super) metrics: Vec<Figure>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Comparison {
    pub(super) metric: String,
    pub(super) a: String,
    pub(super) b: String,
    pub(super) verdict: String,
    pub(super) sentence: String,
    pub(super) advantage: Option<f64>,
    pub(super) interval: Option<(f64, f64)>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Rule {
    pub(super) id: String,
    pub(super) sentence: String,
    pub(super) broken_by: Vec<Breach>,
    pub(super) notes: Vec<Breach>,
    pub(super) unverified: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Breach {
    pub(super) framework: String,
    pub(super) finding: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Flag {
    pub(super) framework: String,
    pub(super) finding: String,
}

/// A study's `report.json`.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Study {
    pub(super) study: String,
    pub(super) command: Vec<String>,
    pub(super) started: String,
    pub(super) analysis: String,
    pub(super) planned: Vec<Settings>,
    pub(super) cells: Vec<Cell>,
    pub(super) outcomes: Vec<Outcome>,
    pub(super) summary: Summary,
}

/// By axis: a number or a name.
pub(super) type Settings = BTreeMap<String, Value>;

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Cell {
    pub(super) settings: Settings,
    pub(super) refused: Option<String>,
    pub(super) rows: Vec<CellRow>,
    pub(super) results: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct CellRow {
    pub(super) framework: String,
    pub(super) state: String,
    pub(super) reasons: Vec<String>,
    pub(super) parity: String,
    pub(super) metrics: BTreeMap<String, Ranged>,
    pub(super) memory: Option<BTreeMap<String, Value>>,
    pub(super) steadiness: Steadiness,
}

#[derive(Debug, Default, Clone, Copy, Deserialize)]
#[serde(default)]
pub(super) struct Ranged {
    pub(super) median: f64,
    pub(super) min: f64,
    pub(super) max: f64,
}

/// What an optimisation was worth at one place.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Outcome {
    pub(super) settings: Settings,
    pub(super) reason: Option<String>,
    pub(super) a: Option<Side>,
    pub(super) b: Option<Side>,
    pub(super) speedup: Option<f64>,
    pub(super) interval: Option<(f64, f64)>,
    pub(super) verdict: Option<String>,
    pub(super) memory_change: Option<f64>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Side {
    pub(super) contender: String,
    pub(super) throughput: Option<f64>,
    pub(super) total_ms: Option<f64>,
    pub(super) peak_memory: Option<f64>,
}

impl Row {
    pub(super) fn figure(&self, metric: &str) -> Option<&Figure> {
        self.metrics.iter().find(|figure| figure.metric == metric)
    }

    pub(super) fn is_measured(&self) -> bool {
        ["measured", "labelled", "struck"].contains(&self.state.as_str())
    }
}

impl Figure {
    pub(super) fn known(&self) -> Vec<f64> {
        self.values.iter().copied().flatten().collect()
    }

    /// 95 % interval of the median over processes.
    pub(super) fn interval(&self) -> Option<(f64, f64)> {
        statistics::median_interval(&self.known())
    }
}

/// Parts of the peak in the order in which they are laid, with the name of each.
pub(super) const PARTS: [(&str, &str); 5] = [
    ("framework", "framework"),
    ("parameters", "parameters"),
    ("kv_cache", "KV cache"),
    ("activations", "activations"),
    ("remainder", "remainder"),
];

/// Bytes by part, and their sum: the peak.
pub(super) fn parts(memory: &BTreeMap<String, Value>) -> Option<(Vec<f64>, f64)> {
    let bytes = |name: &str| memory.get(name).and_then(Value::as_f64);
    let parts: Option<Vec<f64>> = PARTS.iter().map(|(name, _)| bytes(name)).collect();
    Some((parts?, bytes("peak")?))
}

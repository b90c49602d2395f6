//! Figures by prompt. The table's own are of all prompts together; these use the same formulas on the
//! requests of one prompt.

use serde::{Deserialize, Serialize};

use super::Figure;
use crate::metrics::{self, Metric};
use facts::evidence::Evidence;
use plan::Plan;

/// The figures of one prompt.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PromptFigures {
    pub name: String,
    /// Length of the prompt.
    pub tokens: usize,
    /// One for each row of the table, in its order.
    pub rows: Vec<PromptRow>,
}

/// The figures of one contender for one prompt.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PromptRow {
    pub framework: String,
    pub metrics: Vec<Figure>,
}

/// The figures of every prompt, in the order of the plan.
pub fn prompts(plan: &Plan, evidence: &Evidence) -> Vec<PromptFigures> {
    let of_case = |case: usize| {
        let figures = |label: &str| {
            let values = |metric| metrics::by_round_of(metric, case..case + 1, plan, evidence, label);
            let of_a_prompt = Metric::of_a_prompt(plan.work.kind()).into_iter();
            of_a_prompt.map(|metric| Figure::new(metric, values(metric), Vec::new())).collect()
        };
        let of_contender = |label: &String| PromptRow { framework: label.clone(), metrics: figures(label) };
        PromptFigures {
            name: plan.work.case_name(case).to_owned(),
            tokens: plan.work.case_tokens(case),
            rows: plan.contenders.iter().map(|contender| of_contender(&contender.label)).collect(),
        }
    };
    (0..plan.work.cases()).map(of_case).collect()
}

#[cfg(test)]
mod tests {
    use protocol::{Marks, Sample};

    use super::*;
    use facts::run::Run;
    use facts::testing;
    use plan::Prompt;

    fn prompt(name: &str, tokens: usize) -> Prompt {
        Prompt {
            name: name.into(),
            text: None,
            pair: None,
            chat: None,
            tokens: vec![1; tokens],
            types: Vec::new(),
        }
    }

    /// A process of two iterations over two cases, of 10 and of 20 ms a token.
    fn process(label: &str, round: usize) -> Run {
        let case = |first_ms: u64, gap_ms: u64| Sample {
            marks_ns: Marks::new(first_ms * 1_000_000, [gap_ms * 1_000_000; 3]),
            ..Sample::default()
        };
        testing::measured(label, round, Vec::new(), vec![vec![case(40, 10), case(100, 20)]; 2])
    }

    #[test]
    fn each_prompt_has_the_figures_of_its_own_samples() {
        let mut plan = testing::plan(&["a", "absent"]);
        let prompted = testing::prompted(&mut plan);
        (prompted.prompts, prompted.batch) = (vec![prompt("short", 4), prompt("long", 16)], 2);
        let evidence =
            Evidence { runs: vec![process("a", 0), process("a", 1)], rounds: 2, ..Evidence::default() };
        let found = prompts(&plan, &evidence);
        let names: Vec<_> = found.iter().map(|prompt| (prompt.name.as_str(), prompt.tokens)).collect();
        assert_eq!(names, [("short", 4), ("long", 16)]);
        let medians = |prompt: &PromptFigures| {
            prompt.rows[0]
                .metrics
                .iter()
                .map(|figure| (1e9 * figure.median.unwrap()).round() / 1e9)
                .collect::<Vec<_>>()
        };
        // First token, gap, 2 sequences a gap, and 2 × tokens in the first token's time.
        assert_eq!(medians(&found[0]), [40.0, 10.0, 2.0 / 0.01, 2.0 * 4.0 / 0.04]);
        assert_eq!(medians(&found[1]), [100.0, 20.0, 2.0 / 0.02, 2.0 * 16.0 / 0.1]);
        assert_eq!(found[1].rows[0].metrics[0].values.len(), 2);
        assert!(found[0].rows[1].metrics.iter().all(|figure| figure.median.is_none()), "what did not run");
    }
}

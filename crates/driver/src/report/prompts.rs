//! Figures by prompt. The table's own are of all prompts together; these are the same formulas, given the samples of
//! one prompt alone.

use comfy_table::{CellAlignment, Table, TableStyle};
use protocol::{Event, Iteration};
use serde::{Deserialize, Serialize};

use super::Report;
use super::row::{self, Figure};
use super::table::number;
use crate::evidence::Evidence;
use crate::judge::metrics::Metric;
use crate::plan::Plan;
use crate::record::Run;

/// Those that a prompt has of its own.
pub(super) const METRICS: [Metric; 4] =
    [Metric::FirstToken, Metric::Latency, Metric::Throughput, Metric::PrefillThroughput];

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct PromptFigures {
    pub(crate) name: String,
    /// Of the prompt.
    pub(crate) tokens: usize,
    /// One for each row of the table, in its order.
    pub(crate) rows: Vec<PromptRow>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct PromptRow {
    pub(crate) framework: String,
    pub(crate) metrics: Vec<Figure>,
}

pub(super) fn prompts(plan: &Plan, evidence: &Evidence) -> Vec<PromptFigures> {
    let of_prompt = |(case, prompt): (usize, &crate::prompts::Prompt)| {
        let plan = Plan { prompts: vec![prompt.clone()], ..plan.clone() };
        let runs = evidence.runs.iter().map(|run| restricted(run, case)).collect();
        let evidence = Evidence { runs, ..Evidence::default() };
        let figures = |label: &str| {
            METRICS.iter().map(|&metric| row::figure(metric, &plan, &evidence, label)).collect()
        };
        let of_contender = |label: &String| PromptRow { framework: label.clone(), metrics: figures(label) };
        PromptFigures {
            name: prompt.name.clone(),
            tokens: prompt.tokens.len(),
            rows: plan.contenders.iter().map(|contender| of_contender(&contender.label)).collect(),
        }
    };
    plan.prompts.iter().enumerate().map(of_prompt).collect()
}

/// A process as if it had been asked for one case only: its measured iterations, and nothing else.
fn restricted(run: &Run, case: usize) -> Run {
    let of_case = |iteration: &Iteration| {
        let cases = iteration.cases.get(case).cloned().into_iter().collect();
        Event::Iteration(Iteration { index: iteration.index, cases })
    };
    Run {
        purpose: run.purpose,
        framework: run.framework.clone(),
        failure: run.failure.clone(),
        events: run.iterations().map(of_case).collect(),
        agreement: None,
        noise: None,
        ..*run
    }
}

/// One line for each prompt and framework that was measured; `None` where a single prompt makes it the table again.
pub(super) fn grid(report: &Report, style: TableStyle) -> Option<Table> {
    if report.prompts.len() < 2 {
        return None;
    }
    let mut table = Table::new();
    table.load_style(style);
    let titles = METRICS.map(|metric| metric.title().to_owned());
    table.set_header(["Prompt", "Framework"].map(str::to_owned).into_iter().chain(titles));
    for prompt in &report.prompts {
        for row in prompt.rows.iter().filter(|row| row.metrics.iter().any(|f| f.median.is_some())) {
            let start = [format!("{} ({} tokens)", prompt.name, prompt.tokens), row.framework.clone()];
            let figures = row.metrics.iter().map(|figure| figure.median.map_or("–".into(), number));
            table.add_row(start.into_iter().chain(figures));
        }
    }
    if table.is_empty() {
        return None;
    }
    for column in table.column_iter_mut().skip(2) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    Some(table)
}

#[cfg(test)]
mod tests {
    use protocol::CaseSample;

    use super::*;
    use crate::judge::testing;
    use crate::prompts::Prompt;

    fn prompt(name: &str, tokens: usize) -> Prompt {
        Prompt { name: name.into(), text: None, tokens: vec![1; tokens] }
    }

    /// A process of two iterations over two cases: gaps of 10 and of 20 ms.
    fn process(label: &str, round: usize) -> Run {
        let case = |first_ms: u64, gap_ms: u64| CaseSample {
            first_token_ns: first_ms * 1_000_000,
            gaps_ns: vec![gap_ms * 1_000_000; 3],
            tokens: Vec::new(),
        };
        let iteration =
            |index| Event::Iteration(Iteration { index, cases: vec![case(40, 10), case(100, 20)] });
        testing::run(label, round, vec![iteration(0), iteration(1)])
    }

    #[test]
    fn each_prompt_has_the_figures_of_its_own_samples() {
        let plan = Plan {
            prompts: vec![prompt("short", 4), prompt("long", 16)],
            batch: 2,
            ..testing::plan(&["a", "absent"])
        };
        let evidence =
            Evidence { runs: vec![process("a", 0), process("a", 1)], rounds: 2, ..Evidence::default() };
        let found = prompts(&plan, &evidence);
        let names: Vec<_> = found.iter().map(|prompt| (prompt.name.as_str(), prompt.tokens)).collect();
        assert_eq!(names, [("short", 4), ("long", 16)]);
        let medians = |prompt: &PromptFigures| {
            prompt.rows[0].metrics.iter().map(|figure| figure.median.unwrap()).collect::<Vec<_>>()
        };
        // First token, gap, 2 sequences a gap, and 2 × tokens in the first token's time.
        assert_eq!(medians(&found[0]), [40.0, 10.0, 2.0 / 0.01, 2.0 * 4.0 / 0.04]);
        assert_eq!(medians(&found[1]), [100.0, 20.0, 2.0 / 0.02, 2.0 * 16.0 / 0.1]);
        assert_eq!(found[1].rows[0].metrics[0].values, [Some(100.0), Some(100.0)]);
        assert!(found[0].rows[1].metrics.iter().all(|figure| figure.median.is_none()), "what did not run");
    }
}

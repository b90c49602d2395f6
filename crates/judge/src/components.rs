//! How throughput varies within and between processes.

use plan::Plan;
use statistics::Components;

use crate::metrics::{Metric, Work};
use crate::run::Run;

/// Logarithms of throughput vary by so much from request to request of a process, and from process to process. Each
/// prompt is held against its own mean: that prompts differ is no variation.
pub(crate) fn of_throughput(plan: &Plan, runs: &[&Run]) -> Option<Components> {
    let metric = Metric::deciding(plan.generation());
    let figures = |run: &&Run| -> Vec<(usize, f64)> {
        let figure =
            |(case, sample)| Some((case, metric.of_request(sample, Work::request(plan, case))?.ln()));
        run.requests().filter_map(figure).collect()
    };
    let mut rounds: Vec<Vec<(usize, f64)>> = runs.iter().map(figures).collect();
    for case in 0..plan.prompts.len() {
        let of_case = rounds.iter().flatten().filter(|(of, _)| *of == case).map(|(_, figure)| *figure);
        let of_case: Vec<f64> = of_case.collect();
        let mean = of_case.iter().sum::<f64>() / of_case.len().max(1) as f64;
        rounds.iter_mut().flatten().filter(|(of, _)| *of == case).for_each(|(_, figure)| *figure -= mean);
    }
    let plain: Vec<Vec<f64>> =
        rounds.into_iter().map(|round| round.into_iter().map(|(_, figure)| figure).collect()).collect();
    statistics::components(&plain)
}

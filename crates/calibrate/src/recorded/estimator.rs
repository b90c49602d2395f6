//! How a process's figures are computed of its requests and those of the contenders that it took turns with.

use std::collections::BTreeMap;
use std::fmt;

use statistics::{TRIMMED_SLICES, of_turns};

use super::Process;
use super::work::Request;
use crate::figures::Figures;

/// The parts of a round that are compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// Requests of a block.
    Requests,
    /// Slices of a block's requests.
    Slices,
}

/// A way to compute a round's figures.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Estimator {
    pub part: Part,
    /// Share of the parts that is left out at either end.
    pub trimmed: f64,
}

impl Estimator {
    /// The product's.
    pub const USED: Estimator = Estimator { part: Part::Slices, trimmed: TRIMMED_SLICES };

    /// Those that are tried.
    pub fn all() -> Vec<Estimator> {
        let shares = [0.0, 0.125, 0.25, 0.375];
        let of_part = |part| shares.map(|trimmed| Estimator { part, trimmed });
        [Part::Requests, Part::Slices].into_iter().flat_map(of_part).collect()
    }

    /// The figures of each process of a round.
    pub fn figures(&self, round: &[Process]) -> Vec<Figures> {
        let throughput = self.means(round, |request| match self.part {
            Part::Requests => vec![request.speed()],
            Part::Slices => request.slice_speeds(),
        });
        let first = self.means(round, |request| vec![(request.first as f64).ln()]);
        let total = self.means(round, |request| vec![(request.end() as f64).ln()]);
        let of = |(place, process): (usize, &Process)| {
            let [load, cold] = [process.load, process.cold].map(|value| value as f64);
            [load, cold, throughput[place].exp(), first[place].exp(), total[place].exp()]
        };
        round.iter().enumerate().map(of).collect()
    }

    /// The logarithm of a figure of each process, over the parts that all processes have: of each prompt, then over prompts.
    fn means(&self, round: &[Process], parts: impl Fn(&Request) -> Vec<f64>) -> Vec<f64> {
        // By prompt and part: the figure of each process that has one.
        let mut figures: BTreeMap<usize, BTreeMap<(usize, usize), Vec<f64>>> = BTreeMap::new();
        for request in round.iter().flat_map(|process| &process.requests) {
            for (part, figure) in parts(request).into_iter().enumerate() {
                let of_case = figures.entry(request.case).or_default();
                of_case.entry((request.block, part)).or_default().push(figure);
            }
        }
        let mut sums = vec![0.0; round.len()];
        let cases = figures.len().max(1) as f64;
        for of_case in figures.into_values() {
            let parts: Vec<Vec<f64>> =
                of_case.into_values().filter(|figures| figures.len() == round.len()).collect();
            let found = of_turns(&parts, self.trimmed);
            sums.iter_mut().zip(found).for_each(|(sum, figure)| *sum += figure / cases);
        }
        sums
    }
}

impl fmt::Display for Estimator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let part = match self.part {
            Part::Requests => "requests",
            Part::Slices => "slices",
        };
        write!(f, "{part}, {} % left out at either end", 100.0 * self.trimmed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn process(gap: u64) -> Process {
        let request = |case| Request::with_pause(case, gap);
        Process { load: 5, cold: 6, peak_kb: 7, requests: vec![request(0), request(1)] }
    }

    #[test]
    fn what_comes_just_after_a_pause_has_no_part_in_throughput() {
        let round = [process(10), process(20)];
        let figures = Estimator { part: Part::Requests, trimmed: 0.0 }.figures(&round);
        assert!((figures[0][2] - 4.0 / 60.0).abs() < 1e-12, "{figures:?}");
        assert!((figures[0][2] / figures[1][2] - 2.0).abs() < 1e-12);
        let total = |figures: &Figures| figures[4];
        assert!((total(&figures[0]) - 270.0).abs() < 1e-9, "{figures:?}");
    }

    #[test]
    fn slices_are_compared_one_by_one() {
        let figures = Estimator { part: Part::Slices, trimmed: 0.0 }.figures(&[process(10), process(20)]);
        // The geometric mean of 1/10 and 1/20.
        assert!((figures[0][2] - (1.0_f64 / 200.0).sqrt()).abs() < 1e-12, "{figures:?}");
    }
}

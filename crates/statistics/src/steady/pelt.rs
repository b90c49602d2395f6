//! Change points in mean and variance: PELT (Killick, Fearnhead & Eckley 2012).

/// Fewest points between change points: a variance needs two.
const SHORTEST_SEGMENT: usize = 2;
/// Penalty of a change point, in units of ln n (Barrett et al. 2017).
const PENALTY: f64 = 15.0;
/// Standard deviations below this share of the mean count as this: readings of a clock come in steps, and
/// equal ones must not look like infinite evidence.
const LEAST_DEVIATION: f64 = 1e-3;
/// Longer series are first segmented on a grid of so many places, then each change point is moved to where
/// it fits best. A series without a change prunes nothing, and would take quadratic time.
const PLACES: usize = 512;

/// First indices of the segments; the first is 0.
pub(super) fn segment_starts(values: &[f64]) -> Vec<usize> {
    let costs = Costs::new(values);
    let mut starts = costs.optimal();
    costs.refine(&mut starts);
    starts
}

struct Costs {
    /// Sums of the first i values, and of their squares; centred on the mean, for precision.
    sums: Vec<(f64, f64)>,
    least_variance: f64,
    /// Distance of the places on the grid.
    step: usize,
}

impl Costs {
    fn new(values: &[f64]) -> Self {
        let mean = values.iter().sum::<f64>() / values.len() as f64;
        let mut sums = vec![(0.0, 0.0)];
        let mut total = (0.0, 0.0);
        for value in values {
            let x = value - mean;
            total = (total.0 + x, total.1 + x * x);
            sums.push(total);
        }
        let step = values.len().div_ceil(PLACES).max(1);
        Self { sums, least_variance: (LEAST_DEVIATION * mean).powi(2), step }
    }

    fn len(&self) -> usize {
        self.sums.len() - 1
    }

    /// Twice the negative log-likelihood of a normal segment, but for a constant, at its best mean and its
    /// best permitted variance.
    fn segment(&self, start: usize, end: usize) -> f64 {
        let count = (end - start) as f64;
        let sum = self.sums[end].0 - self.sums[start].0;
        let squares = self.sums[end].1 - self.sums[start].1;
        let variance = (squares / count - (sum / count).powi(2)).max(0.0);
        let permitted = variance.max(self.least_variance);
        count * (permitted.ln() + variance / permitted)
    }

    /// Optimal segmentation on the grid.
    fn optimal(&self) -> Vec<usize> {
        let penalty = PENALTY * (self.len() as f64).ln();
        let places: Vec<usize> = (0..self.len()).step_by(self.step).chain([self.len()]).collect();
        // Of the series up to each place: least cost, and the start of its last segment.
        let mut best = vec![(f64::INFINITY, 0); places.len()];
        best[0] = (-penalty, 0);
        let mut candidates = vec![0];
        for end in 1..places.len() {
            let total = |start: usize| best[start].0 + self.segment(places[start], places[end]) + penalty;
            let allowed = candidates.iter().filter(|&&s| places[end] - places[s] >= SHORTEST_SEGMENT);
            let least = allowed.map(|&start| (total(start), start)).min_by(|x, y| x.0.total_cmp(&y.0));
            let Some(least) = least else { continue };
            // A start that is worse by the whole penalty now will never be better (their theorem 3.1).
            let (now, bound) = (places[end], least.0 + penalty);
            candidates.retain(|&s| now - places[s] < SHORTEST_SEGMENT || total(s) <= bound);
            best[end] = least;
            candidates.push(end);
        }
        let mut starts = Vec::new();
        let mut end = places.len() - 1;
        while end > 0 {
            end = best[end].1;
            starts.push(places[end]);
        }
        starts.reverse();
        starts
    }

    /// Moves each change point, by less than a step of the grid, to where it fits best.
    fn refine(&self, starts: &mut [usize]) {
        for index in 1..starts.len() {
            let (from, at) = (starts[index - 1], starts[index]);
            let to = starts.get(index + 1).copied().unwrap_or(self.len());
            let near = (at + 1).saturating_sub(self.step).max(from + SHORTEST_SEGMENT)
                ..(at + self.step).min((to + 1).saturating_sub(SHORTEST_SEGMENT));
            let cost = |at: &usize| self.segment(from, *at) + self.segment(*at, to);
            if let Some(better) = near.min_by(|x, y| cost(x).total_cmp(&cost(y))) {
                starts[index] = better;
            }
        }
    }
}

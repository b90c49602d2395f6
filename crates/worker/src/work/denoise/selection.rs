//! Which masked positions a step unmasks.

use protocol::{Algorithm, Denoise};

/// Selects positions; its buffers are reused for each step.
pub(super) struct Selection {
    steps: usize,
    algorithm: Algorithm,
    alg_temp: f64,
    /// Times between steps, from 1 down to eps: one more than there are steps.
    times: Vec<f32>,
    /// Positions with their keys; the largest key is first.
    order: Vec<(f64, usize)>,
    selected: Vec<usize>,
}

impl Selection {
    pub(super) fn new(task: &Denoise) -> Selection {
        Selection {
            steps: task.steps,
            algorithm: task.algorithm,
            alg_temp: task.alg_temp.into(),
            times: times(task.steps, task.eps),
            order: Vec::new(),
            selected: Vec::new(),
        }
    }

    /// Selects those of one sequence's `masked` places that this step unmasks: see [`Self::selected`].
    /// `uniform` gives numbers in (0, 1]. It is called once for each place if places are drawn, and else not
    /// at all.
    pub(super) fn select(
        &mut self,
        step: usize,
        masked: &[usize],
        confidence: impl Fn(usize) -> f64,
        mut uniform: impl FnMut() -> f64,
    ) {
        self.selected.clear();
        let is_last = step + 1 == self.steps;
        // In f32, as in the published sampler, so that the number of places is cut off to the same integer.
        let share = 1.0 - self.times[step + 1] / self.times[step];
        if self.algorithm == Algorithm::Origin {
            for &place in masked {
                let drawn = uniform();
                if is_last || drawn <= f64::from(share) {
                    self.selected.push(place);
                }
            }
            return;
        }
        let count = if is_last { masked.len() } else { (masked.len() as f32 * share) as usize };
        self.order.clear();
        for &place in masked {
            let mut key = confidence(place);
            if self.alg_temp > 0.0 {
                // The largest of log-probability + Gumbel noise are draws without replacement (Kool and others 2019).
                key = key / self.alg_temp - (-uniform().ln()).ln();
            }
            self.order.push((key, place));
        }
        // The surest first, equals by position.
        self.order.sort_unstable_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
        self.selected.extend(self.order.iter().take(count).map(|&(_, place)| place));
    }

    /// Those of the last step.
    pub(super) fn selected(&self) -> &[usize] {
        &self.selected
    }
}

/// `steps` + 1 equal steps from 1 to `eps` in f32, each half counted from its own end, as torch.linspace does.
fn times(steps: usize, eps: f32) -> Vec<f32> {
    let step = (eps - 1.0) / steps as f32;
    let at = |index: usize| match index {
        _ if index < steps.div_ceil(2) => 1.0 + step * index as f32,
        _ => eps - step * (steps - index) as f32,
    };
    (0..=steps).map(at).collect()
}

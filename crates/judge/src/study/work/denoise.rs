//! Masked diffusion compared with the same body token by token: from how many steps on it is slower.

use plan::sweep::TOKEN_BY_TOKEN;
use plan::{Axis, Setting, Settings};

use crate::metrics::Metric;
use crate::report::State;
use crate::study::cell::Cell;

/// One framework at one place: a step of denoising, and all tokens one by one.
#[derive(Debug, Clone, PartialEq)]
pub struct Crossing {
    pub framework: String,
    /// The place, without the steps.
    pub at: Settings,
    /// Time of a step, in milliseconds: the mean of the cells, weighted by their steps.
    pub step_ms: f64,
    /// Time of a request token by token, in milliseconds.
    pub by_token_ms: f64,
}

impl Crossing {
    /// The least number of steps that take longer than going token by token.
    pub fn slower_from(&self) -> u64 {
        (self.by_token_ms / self.step_ms).floor() as u64 + 1
    }
}

/// Every framework at every place that was measured both ways.
pub fn crossings(cells: &[Cell]) -> Vec<Crossing> {
    let is_by_token = |cell: &Cell| matches!(cell.settings.get(&Axis::Steps), Some(Setting::Name(name)) if name == TOKEN_BY_TOKEN);
    let place = |cell: &Cell| {
        let mut place = cell.settings.clone();
        place.remove(&Axis::Steps);
        place
    };
    let mut crossings = Vec::new();
    for by_token in cells.iter().filter(|cell| is_by_token(cell)) {
        let at = place(by_token);
        for row in by_token.rows.iter().filter(|row| row.state != State::Struck) {
            let Some(by_token_ms) = row.typical(Metric::Total) else { continue };
            let steps =
                cells.iter().filter(|cell| !is_by_token(cell) && place(cell) == at).filter_map(|cell| {
                    let Some(Setting::Number(steps)) = cell.settings.get(&Axis::Steps) else { return None };
                    let denoised = cell.rows.iter().find(|other| other.framework == row.framework)?;
                    Some((f64::from(*steps), denoised.typical(Metric::Total)?))
                });
            let (steps, ms) = steps.fold((0.0, 0.0), |sum, (steps, ms)| (sum.0 + steps, sum.1 + ms));
            if steps > 0.0 {
                let framework = row.framework.clone();
                crossings.push(Crossing { framework, at: at.clone(), step_ms: ms / steps, by_token_ms });
            }
        }
    }
    crossings
}

#[cfg(test)]
mod tests {
    use super::*;

    fn crossing(step_ms: f64, by_token_ms: f64) -> Crossing {
        let at = Settings::from([(Axis::NewTokens, Setting::Number(64))]);
        Crossing { framework: "candle".into(), at, step_ms, by_token_ms }
    }

    #[test]
    fn diffusion_is_slower_from_where_its_steps_add_up_to_more() {
        assert_eq!(crossing(200.0, 1100.0).slower_from(), 6);
        assert_eq!(crossing(200.0, 1000.0).slower_from(), 6, "five take as long, not longer");
        assert_eq!(crossing(200.0, 100.0).slower_from(), 1);
    }
}

//! The tail of a distribution: the share of values that are larger, on a logarithmic axis, so that rare
//! values get as much room as common ones.

use plotters::backend::DrawingBackend;
use plotters::style::RGBColor;
use plotters::style::text_anchor::{HPos, VPos};

use crate::legend;
use crate::palette::Colour;
use crate::pen::{Drawn, Frame, GRID, MUTED, Pen, SMALL};
use crate::scale::{Scale, tick};

/// The values of one series.
#[derive(Debug, Clone)]
pub struct Sample {
    pub label: String,
    pub colour: Colour,
    pub values: Vec<f64>,
}

/// A falling line for each sample, which ends at its largest value, with a mark there and at each percentile.
#[derive(Debug, Clone, Default)]
pub struct Survival {
    pub title: String,
    pub hint: String,
    pub samples: Vec<Sample>,
}

/// If the largest value is this many times the smallest, the axis of values is logarithmic.
const WIDE: f64 = 8.0;

/// Marked percentiles: the share of larger values, and the name.
const MARKED: [(f64, &str); 5] =
    [(0.5, "p50"), (0.1, "p90"), (0.01, "p99"), (0.001, "p99.9"), (0.0001, "p99.99")];

impl Survival {
    pub(crate) fn draw<DB: DrawingBackend>(&self, pen: &Pen<'_, DB>, frame: Frame) -> Drawn<DB> {
        let frame = pen.titled(frame, &self.title, &self.hint)?;
        let entries = self.samples.iter().map(|sample| (sample.label.clone(), sample.colour));
        let frame = legend::draw(pen, frame, &entries.collect::<Vec<_>>())?;
        let left = frame.left + pen.width("p99.99", SMALL, false) + 8;
        let samples: Vec<(&Sample, Vec<f64>)> =
            self.samples.iter().map(|sample| (sample, sorted(&sample.values))).collect();
        let known = || samples.iter().flat_map(|(_, values)| values).copied();
        let (low, high) = (known().fold(f64::INFINITY, f64::min), known().fold(f64::NEG_INFINITY, f64::max));
        if low > high {
            return pen.nothing(frame, "nothing to show");
        }
        let x = Scale::around(known(), low > 0.0 && high / low > WIDE, left + 4, frame.right - 10);
        let frame = Frame { left, top: frame.top + 8, bottom: frame.bottom - SMALL - 8, ..frame };
        let most = samples.iter().map(|(_, values)| values.len()).max().unwrap_or(1);
        let y = Scale::shares(1.0 / most.max(2) as f64, frame.bottom, frame.top);
        let mut free = i32::MIN;
        for at in x.ticks(60) {
            let place = x.pixel(at);
            pen.line(&[(place, frame.top), (place, frame.bottom)], GRID, 1)?;
            let half = pen.width(&tick(at), SMALL, false) / 2;
            if place - half > free {
                pen.text(&tick(at), (place, frame.bottom + 5), SMALL, MUTED, (HPos::Center, VPos::Top))?;
                free = place + half + 6;
            }
        }
        let marked = MARKED.map(|(share, name)| (share, y.pixel(share), name));
        for &(_, height, name) in marked.iter().filter(|(share, ..)| *share * most as f64 >= 1.0) {
            pen.line(&[(left, height), (frame.right, height)], GRID, 1)?;
            pen.text(name, (left - 8, height), SMALL, MUTED, (HPos::Right, VPos::Center))?;
        }
        for (sample, values) in &samples {
            let steps = steps(values, &x, &y);
            let ink = RGBColor::from(sample.colour);
            if steps.len() > 1 {
                pen.line(&steps, ink, 2)?;
            }
            let known = marked.iter().filter(|(share, ..)| *share * values.len() as f64 > 1.0);
            let crossings = known.filter_map(|&(_, height, _)| {
                let (across, _) = steps.iter().find(|(_, foot)| *foot >= height)?;
                Some((*across, height))
            });
            for at in crossings.chain(steps.last().copied()) {
                pen.mark(at, 4, sample.colour)?;
            }
        }
        Ok(())
    }
}

/// The finite values, sorted.
fn sorted(values: &[f64]) -> Vec<f64> {
    let mut sorted: Vec<f64> = values.iter().copied().filter(|value| value.is_finite()).collect();
    sorted.sort_by(f64::total_cmp);
    sorted
}

/// The corners of the falling line, in pixels. The line ends at the largest value's own share.
fn steps(values: &[f64], x: &Scale, y: &Scale) -> Vec<(i32, i32)> {
    let count = values.len();
    let mut steps: Vec<(i32, i32)> = Vec::new();
    for (index, &value) in values.iter().enumerate() {
        let larger = (count - index - 1).max(1) as f64 / count as f64;
        let (across, height) = (x.pixel(value), y.pixel(larger));
        let before = steps.last().copied().unwrap_or((across, y.pixel(1.0)));
        if steps.is_empty() {
            steps.push(before);
        }
        if before.0 != across {
            steps.push((across, before.1));
        }
        match steps.as_mut_slice() {
            // All values in one pixel column make one step.
            [.., (above, _), (last, foot)] if *above == across && *last == across => *foot = height,
            _ => steps.push((across, height)),
        }
    }
    steps
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_falls_to_the_share_of_the_largest_value_and_ends_there() {
        let values: Vec<f64> = (1..=100).map(f64::from).collect();
        let (x, y) = (Scale::around(values.iter().copied(), false, 0, 1000), Scale::shares(0.01, 200, 0));
        let steps = steps(&values, &x, &y);
        assert_eq!(steps[0].1, y.pixel(1.0));
        assert_eq!(*steps.last().unwrap(), (x.pixel(100.0), y.pixel(0.01)));
        assert!(steps.windows(2).all(|pair| pair[0].0 <= pair[1].0 && pair[0].1 <= pair[1].1), "{steps:?}");
    }
}

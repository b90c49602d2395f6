//! Distributions, with every value in them.

use std::collections::BTreeMap;

use plotters::backend::DrawingBackend;
use plotters::style::text_anchor::{HPos, VPos};
use plotters::style::{Color, RGBColor};

use crate::legend;
use crate::palette::Colour;
use crate::pen::{Drawn, Frame, GRID, INK, MUTED, Mark, Pen, SMALL};
use crate::scale::{Scale, tick};

/// The values of one.
#[derive(Debug, Clone)]
pub struct Sample {
    pub label: String,
    pub colour: Colour,
    pub values: Vec<f64>,
}

/// A row for each sample. Values that fall on one pixel pile up around the row's middle, so the outline is that of a
/// violin and a value by itself is a dot; a box spans the quartiles, with the median across it.
#[derive(Debug, Clone, Default)]
pub struct Spread {
    pub title: String,
    pub hint: String,
    pub samples: Vec<Sample>,
}

/// Empirical distribution functions: the share of values up to each value.
#[derive(Debug, Clone, Default)]
pub struct Ecdf {
    pub title: String,
    pub hint: String,
    pub samples: Vec<Sample>,
}

/// Up to this number of values, each is drawn as a dot of its own.
const FEW: usize = 60;

/// Where the largest is this many times the smallest, the axis is logarithmic.
const WIDE: f64 = 8.0;

fn scale(samples: &[Sample], from: i32, to: i32) -> Option<Scale> {
    let values =
        || samples.iter().flat_map(|sample| &sample.values).copied().filter(|value| value.is_finite());
    let (low, high) = (values().fold(f64::INFINITY, f64::min), values().fold(f64::NEG_INFINITY, f64::max));
    (low <= high).then(|| Scale::around(values(), low > 0.0 && high / low > WIDE, from, to))
}

/// In order, finite ones only.
fn sorted(values: &[f64]) -> Vec<f64> {
    let mut sorted: Vec<f64> = values.iter().copied().filter(|value| value.is_finite()).collect();
    sorted.sort_by(f64::total_cmp);
    sorted
}

/// With linear interpolation between neighbours (Hyndman and Fan, 1996, type 7).
fn quantile(sorted: &[f64], share: f64) -> f64 {
    let at = share * (sorted.len().saturating_sub(1)) as f64;
    let (below, above) = (at.floor() as usize, at.ceil() as usize);
    match (sorted.get(below), sorted.get(above)) {
        (Some(low), Some(high)) => low + (high - low) * at.fract(),
        _ => f64::NAN,
    }
}

fn draw_axis<DB: DrawingBackend>(pen: &Pen<'_, DB>, scale: &Scale, frame: Frame) -> Drawn<DB> {
    let mut free = i32::MIN;
    for at in scale.ticks(60) {
        let x = scale.pixel(at);
        pen.line(&[(x, frame.top), (x, frame.bottom)], GRID, 1)?;
        let half = pen.width(&tick(at), SMALL, false) / 2;
        if x - half > free {
            pen.text(&tick(at), (x, frame.bottom + 5), SMALL, MUTED, (HPos::Center, VPos::Top))?;
            free = x + half + 6;
        }
    }
    Ok(())
}

impl Spread {
    pub(crate) fn draw<DB: DrawingBackend>(&self, pen: &Pen<'_, DB>, frame: Frame) -> Drawn<DB> {
        let frame = pen.titled(frame, &self.title, &self.hint)?;
        let labels =
            self.samples.iter().map(|sample| pen.width(&sample.label, SMALL, false)).max().unwrap_or(0);
        let labels = labels.min(frame.width() * 2 / 5);
        let left = frame.left + labels + 10;
        let Some(scale) = scale(&self.samples, left + 6, frame.right - 8) else {
            return pen.nothing(frame, "nothing to show");
        };
        let tall = ((frame.bottom - SMALL - 8 - frame.top) / self.samples.len() as i32).clamp(1, 72);
        let end = frame.top + tall * self.samples.len() as i32;
        draw_axis(pen, &scale, Frame { bottom: end, ..frame })?;
        for (index, sample) in self.samples.iter().enumerate() {
            let middle = frame.top + index as i32 * tall + tall / 2;
            let label = pen.fitted(&sample.label, SMALL, false, labels);
            pen.text(&label, (left - 10, middle), SMALL, INK, (HPos::Right, VPos::Center))?;
            sample.draw(pen, &scale, middle, tall)?;
        }
        Ok(())
    }
}

impl Sample {
    fn draw<DB: DrawingBackend>(
        &self,
        pen: &Pen<'_, DB>,
        scale: &Scale,
        middle: i32,
        tall: i32,
    ) -> Drawn<DB> {
        let values = sorted(&self.values);
        let (Some(&first), Some(&last)) = (values.first(), values.last()) else { return Ok(()) };
        let ink = RGBColor::from(self.colour);
        let room = (tall / 2 - 3).max(2);
        // Columns two pixels wide, so that a lone value is seen.
        let mut columns: BTreeMap<i32, usize> = BTreeMap::new();
        for &value in &values {
            *columns.entry(scale.pixel(value) / 2 * 2).or_default() += 1;
        }
        let most = columns.values().copied().max().unwrap_or(1);
        // A dot each while they fit; beyond, height is in proportion.
        let step = (2 * room) as f64 / most.max(1) as f64;
        for (&x, &count) in &columns {
            let half = ((count as f64 * step.min(5.0)) / 2.0).round().max(2.0) as i32;
            let column = Frame { left: x - 1, top: middle - half, right: x + 1, bottom: middle + half };
            pen.fill(column, ink.mix(0.7))?;
        }
        if values.len() <= FEW {
            for &value in &values {
                pen.dot((scale.pixel(value), middle), 4, ink.mix(0.7))?;
            }
        }
        let [low, median, high] = [0.25, 0.5, 0.75].map(|share| scale.pixel(quantile(&values, share)));
        let half = (room / 3).max(3);
        let quartiles =
            Frame { left: low, top: middle - half, right: high.max(low + 1), bottom: middle + half };
        pen.line(&[(scale.pixel(first), middle), (scale.pixel(last), middle)], MUTED, 1)?;
        pen.outline(quartiles, INK, 1)?;
        pen.line(&[(median, middle - half - 3), (median, middle + half + 3)], INK, 2)
    }
}

impl Ecdf {
    pub(crate) fn draw<DB: DrawingBackend>(&self, pen: &Pen<'_, DB>, frame: Frame) -> Drawn<DB> {
        let frame = pen.titled(frame, &self.title, &self.hint)?;
        let entries = self.samples.iter().map(|sample| (sample.label.clone(), sample.colour, Mark::Square));
        let frame = legend::draw(pen, frame, &entries.collect::<Vec<_>>())?;
        let left = frame.left + pen.width("100 %", SMALL, false) + 8;
        let Some(scale) = scale(&self.samples, left + 4, frame.right - 8) else {
            return pen.nothing(frame, "nothing to show");
        };
        let frame = Frame { left, top: frame.top + 8, bottom: frame.bottom - SMALL - 8, ..frame };
        let height = |share: f64| frame.bottom - (share * f64::from(frame.height())).round() as i32;
        draw_axis(pen, &scale, frame)?;
        for (share, text) in [(0.0, "0 %"), (0.5, "50 %"), (0.9, "90 %"), (1.0, "100 %")] {
            let y = height(share);
            pen.line(&[(left, y), (frame.right, y)], GRID, 1)?;
            // Too near to the one above it in a low chart.
            if share != 0.9 || frame.height() > 10 * SMALL {
                pen.text(text, (left - 8, y), SMALL, MUTED, (HPos::Right, VPos::Center))?;
            }
        }
        for sample in &self.samples {
            let values = sorted(&sample.values);
            let mut steps: Vec<(i32, i32)> = Vec::new();
            for (index, &value) in values.iter().enumerate() {
                let (x, y) = (scale.pixel(value), height((index + 1) as f64 / values.len() as f64));
                match steps.last() {
                    None => steps.push((x, frame.bottom)),
                    Some(&(before, above)) if before != x => steps.push((x, above)),
                    _ => {}
                }
                match steps.as_mut_slice() {
                    // What falls on one pixel column is one rise.
                    [.., (before, _), (last, top)] if *before == x && *last == x => *top = y,
                    _ => steps.push((x, y)),
                }
            }
            if steps.len() > 1 {
                pen.line(&steps, RGBColor::from(sample.colour), 2)?;
            }
        }
        Ok(())
    }
}

//! Figures over an ordered quantity: iterations, lengths, days.

use plotters::backend::DrawingBackend;
use plotters::style::text_anchor::{HPos, VPos};
use plotters::style::{Color, RGBColor};

use crate::charts::pen::{
    DrawError, Drawn, Frame, GRID, INK, MUTED, Pen, SMALL, SURFACE, Scale, number, tick, times,
};
use crate::charts::{self, Colour, figure};

#[derive(Debug, Clone, Default)]
pub struct Lines {
    pub title: String,
    /// Next to the title: the unit and the better direction.
    pub hint: String,
    pub x: LineAxis,
    pub y: LineAxis,
    pub series: Vec<Line>,
    /// An earlier phase, from the start up to this value, and its name.
    pub shaded: Option<(f64, String)>,
}

#[derive(Debug, Clone, Default)]
pub struct LineAxis {
    pub label: String,
    /// Logarithmic, if all values are positive.
    pub log: bool,
    /// Values are seconds since 1970.
    pub time: bool,
    /// Starts at zero.
    pub from_zero: bool,
    /// Values of the ticks, if they are few and known.
    pub ticks: Vec<f64>,
    /// Values that the axis always includes, so that a small range is not drawn as a large one.
    pub shown: Vec<f64>,
    /// Names for the values 0, 1, 2 … instead of numbers, for ordered things such as commits.
    pub names: Vec<String>,
    /// Lines across the chart where something else changed, each with a short name at its top.
    pub marks: Vec<(f64, String)>,
}

#[derive(Debug, Clone)]
pub struct Line {
    pub label: String,
    pub colour: Colour,
    pub points: Vec<Point>,
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Point {
    pub x: f64,
    pub y: f64,
    pub interval: Option<(f64, f64)>,
}

impl Lines {
    pub(crate) fn draw<DB: DrawingBackend>(&self, pen: &Pen<'_, DB>, frame: Frame) -> Drawn<DB> {
        let Some((x, y)) = self.draw_axes_and_legend(pen, frame)? else { return Ok(()) };
        for line in &self.series {
            line.draw(pen, &x, &y)?;
        }
        Ok(())
    }

    /// Draws everything except the lines. `None` if there is nothing to draw.
    pub(crate) fn draw_axes_and_legend<DB: DrawingBackend>(
        &self,
        pen: &Pen<'_, DB>,
        frame: Frame,
    ) -> Result<Option<(Scale, Scale)>, DrawError<DB>> {
        let mut frame = pen.titled(frame, &self.title, &self.hint)?;
        let points = || {
            let all = self.series.iter().flat_map(|line| &line.points);
            all.filter(|point| point.x.is_finite() && point.y.is_finite())
        };
        if points().next().is_none() {
            pen.nothing(frame, "nothing to show")?;
            return Ok(None);
        }
        if self.series.len() > 1 || self.series.iter().any(|line| !line.label.is_empty()) {
            let named = self.series.iter().filter(|line| !line.points.is_empty());
            let entries: Vec<_> = named.map(|line| (line.label.clone(), line.colour)).collect();
            frame = figure::draw(pen, frame, &entries)?;
        }
        let bottom = frame.bottom - 2 * (SMALL + 6);
        let values = || {
            points().flat_map(|point| {
                let (low, high) = point.interval.unwrap_or((point.y, point.y));
                [point.y, low, high]
            })
        };
        let y = if self.y.from_zero {
            Scale::from_zero(
                values().filter(|value| value.is_finite()).fold(0.0, f64::max),
                bottom,
                frame.top + 4,
            )
        } else {
            Scale::around(values().chain(self.y.shown.iter().copied()), self.y.log, bottom, frame.top + 4)
        };
        let y_ticks = y.ticks(40);
        let labels = y_ticks.iter().map(|&at| pen.width(&tick(at), SMALL, false)).max().unwrap_or(0);
        let left = frame.left + labels + 10;
        let xs = points().map(|point| point.x);
        let x = match self.x.time {
            true => Scale::of_time(xs, left, frame.right - 10),
            false => Scale::around(xs, self.x.log, left, frame.right - 10),
        };
        self.draw_axes(pen, (&x, &y), &y_ticks, Frame { left, bottom, ..frame })?;
        Ok(Some((x, y)))
    }

    fn draw_axes<DB: DrawingBackend>(
        &self,
        pen: &Pen<'_, DB>,
        (x, y): (&Scale, &Scale),
        y_ticks: &[f64],
        frame: Frame,
    ) -> Drawn<DB> {
        if let Some((until, name)) = &self.shaded {
            let end = x.pixel(*until).clamp(frame.left, frame.right);
            pen.fill(Frame { right: end, ..frame }, GRID.mix(0.45))?;
            let fits = pen.width(name, SMALL, false) + 6 <= end - frame.left;
            let text = if fits { name.as_str() } else { "" };
            // At the bottom, where there are rarely lines if the axis starts at zero.
            let foot = (frame.left + 5, frame.bottom - SMALL - 4);
            pen.text(text, foot, SMALL, MUTED, (HPos::Left, VPos::Top))?;
        }
        for (at, name) in &self.x.marks {
            let place = x.pixel(*at);
            pen.line(&[(place, frame.top), (place, frame.bottom)], MUTED.mix(0.5), 1)?;
            pen.text(name, (place + 3, frame.top), SMALL, MUTED, (HPos::Left, VPos::Top))?;
        }
        for &at in y_ticks {
            let height = y.pixel(at);
            pen.line(&[(frame.left, height), (frame.right, height)], GRID, 1)?;
            pen.text(&tick(at), (frame.left - 8, height), SMALL, MUTED, (HPos::Right, VPos::Center))?;
        }
        pen.line(&[(frame.left, frame.bottom), (frame.right, frame.bottom)], MUTED, 1)?;
        let ticks: Vec<(f64, String)> = if self.x.time {
            times(x, 120)
        } else if !self.x.names.is_empty() {
            self.x.names.iter().enumerate().map(|(place, name)| (place as f64, name.clone())).collect()
        } else if self.x.ticks.is_empty() {
            x.ticks(56).into_iter().map(|at| (at, tick(at))).collect()
        } else {
            self.x.ticks.iter().map(|&at| (at, tick(at))).collect()
        };
        let mut free = i32::MIN;
        for (at, text) in ticks {
            let place = x.pixel(at);
            pen.line(&[(place, frame.bottom), (place, frame.bottom + 4)], MUTED, 1)?;
            let half = pen.width(&text, SMALL, false) / 2;
            // Kept inside the figure, and only if the previous text leaves room.
            let place = place.min(frame.right + 6 - half);
            if place - half > free {
                pen.text(&text, (place, frame.bottom + 6), SMALL, MUTED, (HPos::Center, VPos::Top))?;
                free = place + half + 8;
            }
        }
        let middle = ((frame.left + frame.right) / 2, frame.bottom + SMALL + 11);
        pen.text(&self.x.label, middle, SMALL, MUTED, (HPos::Center, VPos::Top))
    }
}

impl Line {
    fn draw<DB: DrawingBackend>(&self, pen: &Pen<'_, DB>, x: &Scale, y: &Scale) -> Drawn<DB> {
        let ink = RGBColor::from(self.colour);
        let finite = self.points.iter().filter(|point| point.x.is_finite() && point.y.is_finite());
        let places: Vec<(i32, i32)> =
            finite.clone().map(|point| (x.pixel(point.x), y.pixel(point.y))).collect();
        for (point, &(place, _)) in finite.zip(&places) {
            let known = point.interval.filter(|(low, high)| low.is_finite() && high.is_finite());
            if let Some((low, high)) = known {
                let (from, to) = (y.pixel(low), y.pixel(high));
                pen.line(&[(place, from), (place, to)], ink, 2)?;
                for end in [from, to] {
                    pen.line(&[(place - 4, end), (place + 4, end)], ink, 2)?;
                }
            }
        }
        if places.len() > 1 {
            pen.line(&places, ink, 2)?;
        }
        let crowded = places.len() > 60;
        for &place in &places {
            pen.mark(place, if crowded { 2 } else { 4 }, self.colour)?;
        }
        if let (true, Some(&place)) = (places.len() == 1, places.first()) {
            pen.dot(place, 1, INK.to_rgba())?;
        }
        Ok(())
    }
}

// Stacked bars: parts of a whole, end to end.

#[derive(Debug, Clone, Default)]
pub struct Stack {
    pub title: String,
    pub hint: String,
    /// Names of the parts, in the order of drawing.
    pub parts: Vec<String>,
    pub rows: Vec<StackRow>,
}

#[derive(Debug, Clone)]
pub struct StackRow {
    pub label: String,
    /// By part. A negative one compensates for an excess of the others, and is drawn as an outline.
    pub values: Vec<f64>,
    /// Their sum.
    pub total: f64,
}

impl Stack {
    pub(crate) fn draw<DB: DrawingBackend>(&self, pen: &Pen<'_, DB>, frame: Frame) -> Drawn<DB> {
        let frame = pen.titled(frame, &self.title, &self.hint)?;
        if self.rows.is_empty() {
            return pen.nothing(frame, "nothing to show");
        }
        let parts = self.parts.iter().enumerate();
        let entries: Vec<_> = parts.map(|(index, part)| (part.clone(), charts::part(index))).collect();
        let frame = figure::draw(pen, frame, &entries)?;
        let widest = |texts: &mut dyn Iterator<Item = String>| {
            texts.map(|text| pen.width(&text, SMALL, false)).max().unwrap_or(0)
        };
        let labels = widest(&mut self.rows.iter().map(|row| row.label.clone())).min(frame.width() * 2 / 5);
        let totals = widest(&mut self.rows.iter().map(|row| number(row.total)));
        let (left, right) = (frame.left + labels + 10, frame.right - totals - 12);
        let sum =
            |row: &StackRow| row.values.iter().filter(|value| **value > 0.0).sum::<f64>().max(row.total);
        let scale =
            Scale::from_zero(self.rows.iter().map(sum).fold(0.0, f64::max), left, right.max(left + 20));
        let tall = ((frame.bottom - SMALL - 8 - frame.top) / self.rows.len() as i32).clamp(1, 48);
        let end = frame.top + tall * self.rows.len() as i32;
        for at in scale.ticks(64) {
            let x = scale.pixel(at);
            pen.line(&[(x, frame.top), (x, end)], GRID, 1)?;
            pen.text(&tick(at), (x, end + 5), SMALL, MUTED, (HPos::Center, VPos::Top))?;
        }
        for (index, row) in self.rows.iter().enumerate() {
            row.draw(pen, &scale, (frame.top + index as i32 * tall, tall), (left, labels, frame.right))?;
        }
        Ok(())
    }
}

impl StackRow {
    fn draw<DB: DrawingBackend>(
        &self,
        pen: &Pen<'_, DB>,
        scale: &Scale,
        (y, tall): (i32, i32),
        (left, labels, right): (i32, i32, i32),
    ) -> Drawn<DB> {
        let inset = (tall / 6).max(2);
        let (top, bottom, middle) = (y + inset, y + tall - inset, y + tall / 2);
        let label = pen.fitted(&self.label, SMALL, false, labels);
        pen.text(&label, (left - 10, middle), SMALL, INK, (HPos::Right, VPos::Center))?;
        let mut reached = 0.0;
        for (index, &value) in self.values.iter().enumerate().filter(|(_, value)| **value > 0.0) {
            let (from, to) = (scale.pixel(reached), scale.pixel(reached + value));
            reached += value;
            if to > from {
                pen.fill(Frame { left: from, top, right: to, bottom }, RGBColor::from(charts::part(index)))?;
            }
            if to - from > 3 {
                pen.line(&[(to, top), (to, bottom)], SURFACE, 1)?;
            }
        }
        for (index, &value) in self.values.iter().enumerate().filter(|(_, value)| **value < 0.0) {
            let (from, to) = (scale.pixel(reached + value), scale.pixel(reached));
            reached += value;
            let part = RGBColor::from(charts::part(index));
            pen.fill(Frame { left: from, top, right: to, bottom }, SURFACE)?;
            pen.outline(Frame { left: from, top, right: to, bottom }, part, 1)?;
        }
        let x = scale.pixel(self.total);
        pen.line(&[(x, top - 3), (x, bottom + 3)], INK, 2)?;
        pen.text(&number(self.total), (right, middle), SMALL, INK, (HPos::Right, VPos::Center))
    }
}

// One thin line for each repetition of a series, with a mark at both its ends.

#[derive(Debug, Clone, Default)]
pub struct Strands {
    pub title: String,
    /// Next to the title: the unit.
    pub hint: String,
    pub x: LineAxis,
    pub y: LineAxis,
    pub series: Vec<Strand>,
    /// An earlier phase, from the start up to this value, and its name.
    pub shaded: Option<(f64, String)>,
}

/// A series and its repetitions.
#[derive(Debug, Clone)]
pub struct Strand {
    pub label: String,
    pub colour: Colour,
    /// Points (x, y) of each repetition, in order.
    pub lines: Vec<Vec<(f64, f64)>>,
}

impl Strands {
    pub(crate) fn draw<DB: DrawingBackend>(&self, pen: &Pen<'_, DB>, frame: Frame) -> Drawn<DB> {
        // Title, legend, scales and axes are those of lines through all points.
        let all = |strand: &Strand| {
            let points = strand.lines.iter().flatten().map(|&(x, y)| Point { x, y, interval: None });
            Line { label: strand.label.clone(), colour: strand.colour, points: points.collect() }
        };
        let lines = Lines {
            title: self.title.clone(),
            hint: self.hint.clone(),
            x: self.x.clone(),
            y: self.y.clone(),
            series: self.series.iter().map(all).collect(),
            shaded: self.shaded.clone(),
        };
        let Some((x, y)) = lines.draw_axes_and_legend(pen, frame)? else { return Ok(()) };
        for strand in &self.series {
            let ink = RGBColor::from(strand.colour);
            for line in &strand.lines {
                let finite = line.iter().filter(|(x, y)| x.is_finite() && y.is_finite());
                let places: Vec<(i32, i32)> =
                    finite.map(|&(at, value)| (x.pixel(at), y.pixel(value))).collect();
                if places.len() > 1 {
                    pen.line(&places, ink, 1)?;
                }
                for &end in places.first().into_iter().chain(places.last()) {
                    pen.mark(end, 3, strand.colour)?;
                }
            }
        }
        Ok(())
    }
}

// The tail of a distribution: the share of values that are larger, on a logarithmic axis, so that rare
// values get as much room as common ones.

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
        let frame = figure::draw(pen, frame, &entries.collect::<Vec<_>>())?;
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

//! Figures over an ordered quantity: iterations, lengths, days.

use plotters::backend::DrawingBackend;
use plotters::style::text_anchor::{HPos, VPos};
use plotters::style::{Color, RGBColor};

use crate::charts::pen::{Drawn, Frame, GRID, MUTED, Pen, SMALL, Scale, tick};
use crate::charts::{Colour, figure};

#[derive(Debug, Clone, Default)]
pub(crate) struct Lines {
    pub(crate) x: LineAxis,
    pub(crate) y: LineAxis,
    pub(crate) series: Vec<Line>,
    /// An earlier phase, from the start up to this value, and its name.
    pub(crate) shaded: Option<(f64, String)>,
}

#[derive(Debug, Clone, Default)]
pub(crate) struct LineAxis {
    pub(crate) label: String,
    /// Logarithmic, if all values are positive.
    pub(crate) log: bool,
    /// Starts at zero.
    pub(crate) from_zero: bool,
    /// Values of the ticks, if they are few and known.
    pub(crate) ticks: Vec<f64>,
    /// Values that the axis always includes, so that a small range is not drawn as a large one.
    pub(crate) shown: Vec<f64>,
    /// Names for the values 0, 1, 2 … instead of numbers, for ordered things such as commits.
    pub(crate) names: Vec<String>,
    /// Lines across the chart where something else changed, each with a short name at its top.
    pub(crate) marks: Vec<(f64, String)>,
}

#[derive(Debug, Clone)]
pub(crate) struct Line {
    pub(crate) label: String,
    pub(crate) colour: Colour,
    /// The points of each repetition. Several are thin lines with a mark at both ends.
    pub(crate) strands: Vec<Vec<Point>>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct Point {
    pub(crate) x: f64,
    pub(crate) y: f64,
    pub(crate) interval: Option<(f64, f64)>,
}

impl Lines {
    pub(crate) fn draw<DB: DrawingBackend>(&self, pen: &Pen<'_, DB>, mut frame: Frame) -> Drawn<DB> {
        let points = || self.series.iter().flat_map(Line::finite);
        if points().next().is_none() {
            return pen.nothing(frame, "nothing to show");
        }
        if self.series.len() > 1 || self.series.iter().any(|line| !line.label.is_empty()) {
            let named =
                self.series.iter().filter(|line| line.strands.iter().any(|points| !points.is_empty()));
            let entries: Vec<_> = named.map(|line| (line.label.clone(), line.colour)).collect();
            frame = figure::draw(pen, frame, &entries)?;
        }
        let bottom = frame.bottom - 2 * (SMALL + 6);
        let values = points().flat_map(|point| {
            let (low, high) = point.interval.unwrap_or((point.y, point.y));
            [point.y, low, high]
        });
        let y = if self.y.from_zero {
            let highest = values.filter(|value| value.is_finite()).fold(0.0, f64::max);
            Scale::from_zero(highest, bottom, frame.top + 4)
        } else {
            Scale::around(values.chain(self.y.shown.iter().copied()), self.y.log, bottom, frame.top + 4)
        };
        let y_ticks = y.ticks(40);
        let labels = y_ticks.iter().map(|&at| pen.width(&tick(at), SMALL, false)).max().unwrap_or(0);
        let first = self.x.names.first().map_or(0, |name| pen.width(name, SMALL, false) / 2);
        let left = frame.left + (labels + 10).max(first);
        let x = Scale::around(points().map(|point| point.x), self.x.log, left, frame.right - 10);
        self.draw_axes(pen, (&x, &y), &y_ticks, Frame { left, bottom, ..frame })?;
        for line in &self.series {
            line.draw(pen, &x, &y)?;
        }
        Ok(())
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
        let ticks: Vec<(f64, String)> = if !self.x.names.is_empty() {
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
    pub(crate) fn new(label: impl Into<String>, colour: Colour, points: Vec<Point>) -> Line {
        Line { label: label.into(), colour, strands: vec![points] }
    }

    fn finite(&self) -> impl Iterator<Item = &Point> {
        self.strands.iter().flatten().filter(|point| point.x.is_finite() && point.y.is_finite())
    }

    fn draw<DB: DrawingBackend>(&self, pen: &Pen<'_, DB>, x: &Scale, y: &Scale) -> Drawn<DB> {
        let ink = RGBColor::from(self.colour);
        for point in self.finite() {
            let known = point.interval.filter(|(low, high)| low.is_finite() && high.is_finite());
            if let Some((low, high)) = known {
                let (place, from, to) = (x.pixel(point.x), y.pixel(low), y.pixel(high));
                pen.line(&[(place, from), (place, to)], ink, 2)?;
                for end in [from, to] {
                    pen.line(&[(place - 4, end), (place + 4, end)], ink, 2)?;
                }
            }
        }
        let is_one = self.strands.len() == 1;
        for strand in &self.strands {
            let finite = strand.iter().filter(|point| point.x.is_finite() && point.y.is_finite());
            let places: Vec<(i32, i32)> = finite.map(|point| (x.pixel(point.x), y.pixel(point.y))).collect();
            if places.len() > 1 {
                pen.line(&places, ink, if is_one { 2 } else { 1 })?;
            }
            let marked = places.iter().enumerate();
            for (_, &place) in marked.filter(|(at, _)| is_one || *at == 0 || at + 1 == places.len()) {
                let radius = if !is_one || places.len() > 60 { 2 } else { 4 };
                pen.mark(place, radius, self.colour)?;
            }
        }
        Ok(())
    }
}

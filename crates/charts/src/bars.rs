//! Horizontal bars, so that long names stay readable. The length is the value, whiskers are its interval, and
//! points are processes.

use plotters::backend::DrawingBackend;
use plotters::style::text_anchor::{HPos, VPos};
use plotters::style::{Color, RGBColor};

use crate::palette::Colour;
use crate::pen::{Drawn, Frame, GRID, INK, MUTED, Pen, SMALL, SURFACE};
use crate::scale::{Scale, number, tick};

#[derive(Debug, Clone, Default)]
pub struct Bars {
    pub title: String,
    /// Next to the title: the unit and the better direction.
    pub hint: String,
    pub groups: Vec<Group>,
    /// For ratios: a line across all bars at "no change".
    pub baseline: Option<f64>,
    /// Suffix of each value: "×".
    pub suffix: String,
}

#[derive(Debug, Clone, Default)]
pub struct Group {
    /// Empty if there is only one group.
    pub label: String,
    pub bars: Vec<Bar>,
}

#[derive(Debug, Clone)]
pub struct Bar {
    pub label: String,
    pub colour: Colour,
    /// If `None` or not finite, the note is shown instead.
    pub value: Option<f64>,
    pub interval: Option<(f64, f64)>,
    pub points: Vec<f64>,
    /// Why there is no value.
    pub note: String,
}

/// Greatest height of a bar.
const TALLEST: i32 = 64;

impl Bars {
    /// Number of bars and headings.
    pub(crate) fn lines(&self) -> usize {
        let headings = self.groups.iter().filter(|group| !group.label.is_empty()).count();
        headings + self.groups.iter().map(|group| group.bars.len()).sum::<usize>()
    }

    pub(crate) fn draw<DB: DrawingBackend>(&self, pen: &Pen<'_, DB>, frame: Frame) -> Drawn<DB> {
        let frame = pen.titled(frame, &self.title, &self.hint)?;
        let bars = || self.groups.iter().flat_map(|group| &group.bars);
        let count = bars().count() as i32;
        if count == 0 {
            return pen.nothing(frame, "nothing to show");
        }
        let headings = self.groups.iter().filter(|group| !group.label.is_empty()).count() as i32;
        let labels = bars().map(|bar| pen.width(&bar.label, SMALL, false)).max().unwrap_or(0);
        let labels = labels.min(frame.width() * 2 / 5);
        let values = bars().map(|bar| pen.width(&self.value(bar), SMALL, false)).max().unwrap_or(0);
        let left = frame.left + labels + 10;
        let right = (frame.right - values - 12).max(left + 20);
        let highest = bars().flat_map(Bar::finite).chain(self.baseline).fold(0.0, f64::max);
        let scale = Scale::from_zero(highest, left, right);
        let bottom = frame.bottom - SMALL - 8;
        let tall = ((bottom - frame.top - headings * (SMALL + 6)) / count).clamp(1, TALLEST);
        let end = frame.top + tall * count + headings * (SMALL + 6);
        for at in scale.ticks(64) {
            let x = scale.pixel(at);
            pen.line(&[(x, frame.top), (x, end)], GRID, 1)?;
            pen.text(&tick(at), (x, end + 5), SMALL, MUTED, (HPos::Center, VPos::Top))?;
        }
        pen.line(&[(left, frame.top), (left, end)], MUTED, 1)?;
        let mut y = frame.top;
        for group in &self.groups {
            if !group.label.is_empty() {
                let label = pen.fitted(&group.label, SMALL, false, frame.width() - 4);
                let right = frame.left + pen.width(&label, SMALL, false) + 4;
                let behind = Frame { left: frame.left, top: y, right, bottom: y + SMALL + 5 };
                pen.fill(behind, SURFACE)?;
                pen.text(&label, (frame.left, y + 3), SMALL, MUTED, (HPos::Left, VPos::Top))?;
                y += SMALL + 6;
            }
            for bar in &group.bars {
                let middle = y + tall / 2;
                let label = pen.fitted(&bar.label, SMALL, false, labels);
                pen.text(&label, (left - 10, middle), SMALL, INK, (HPos::Right, VPos::Center))?;
                bar.draw(pen, &scale, (y, tall))?;
                let value = self.value(bar);
                if bar.known().is_some() {
                    pen.text(&value, (frame.right, middle), SMALL, INK, (HPos::Right, VPos::Center))?;
                } else {
                    let note = pen.fitted(&bar.note, SMALL, false, frame.right - left - 6);
                    pen.text(&note, (left + 6, middle), SMALL, MUTED, (HPos::Left, VPos::Center))?;
                }
                y += tall;
            }
        }
        if let Some(at) = self.baseline {
            let x = scale.pixel(at);
            pen.line(&[(x, frame.top), (x, end)], INK, 1)?;
        }
        Ok(())
    }

    fn value(&self, bar: &Bar) -> String {
        bar.known().map_or(String::new(), |value| number(value) + &self.suffix)
    }
}

impl Bar {
    fn known(&self) -> Option<f64> {
        self.value.filter(|value| value.is_finite())
    }

    fn finite(&self) -> impl Iterator<Item = f64> {
        let interval = self.interval.map_or([f64::NAN; 2], |(low, high)| [low, high]);
        let all = self.points.iter().copied().chain(interval).chain(self.value);
        all.filter(|value| value.is_finite())
    }

    fn draw<DB: DrawingBackend>(&self, pen: &Pen<'_, DB>, scale: &Scale, (y, tall): (i32, i32)) -> Drawn<DB> {
        let Some(value) = self.known() else { return Ok(()) };
        let ink = RGBColor::from(self.colour);
        let inset = (tall / 6).max(2);
        let (top, bottom) = (y + inset, y + tall - inset);
        let zero = scale.pixel(0.0);
        let end = scale.pixel(value);
        pen.fill(Frame { left: zero, top, right: end, bottom }, ink.mix(0.32))?;
        pen.fill(Frame { left: end - 3, top, right: end, bottom }, ink)?;
        let middle = y + tall / 2;
        // Separates points with the same value, equally in every drawing.
        let lanes = ((bottom - top) / 2 - 3).max(0);
        for (index, &point) in self.points.iter().filter(|point| point.is_finite()).enumerate() {
            let lane = [0, -2, 2, -1, 1][index % 5] * lanes / 2;
            let radius = if tall < 22 { 2 } else { 3 };
            pen.dot((scale.pixel(point), middle + lane), radius, ink.mix(0.85))?;
        }
        if let Some((low, high)) = self.interval.filter(|(low, high)| low.is_finite() && high.is_finite()) {
            let (from, to) = (scale.pixel(low), scale.pixel(high));
            let cap = (tall / 6).clamp(2, 6);
            pen.line(&[(from, middle), (to, middle)], INK, 2)?;
            for x in [from, to] {
                pen.line(&[(x, middle - cap), (x, middle + cap)], INK, 2)?;
            }
        }
        Ok(())
    }
}

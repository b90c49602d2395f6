//! Stacked bars: parts of a whole, end to end.

use plotters::backend::DrawingBackend;
use plotters::style::RGBColor;
use plotters::style::text_anchor::{HPos, VPos};

use crate::legend;
use crate::palette;
use crate::pen::{Drawn, Frame, GRID, INK, MUTED, Pen, SMALL, SURFACE};
use crate::scale::{Scale, number, tick};

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
        let entries: Vec<_> = parts.map(|(index, part)| (part.clone(), palette::part(index))).collect();
        let frame = legend::draw(pen, frame, &entries)?;
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
                pen.fill(Frame { left: from, top, right: to, bottom }, RGBColor::from(palette::part(index)))?;
            }
            if to - from > 3 {
                pen.line(&[(to, top), (to, bottom)], SURFACE, 1)?;
            }
        }
        for (index, &value) in self.values.iter().enumerate().filter(|(_, value)| **value < 0.0) {
            let (from, to) = (scale.pixel(reached + value), scale.pixel(reached));
            reached += value;
            let part = RGBColor::from(palette::part(index));
            pen.fill(Frame { left: from, top, right: to, bottom }, SURFACE)?;
            pen.outline(Frame { left: from, top, right: to, bottom }, part, 1)?;
        }
        let x = scale.pixel(self.total);
        pen.line(&[(x, top - 3), (x, bottom + 3)], INK, 2)?;
        pen.text(&number(self.total), (right, middle), SMALL, INK, (HPos::Right, VPos::Center))
    }
}

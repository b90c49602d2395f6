//! A dot for each process, and their mean or median: unlike a bar, it shows the individual figures.

use plotters::backend::DrawingBackend;

use crate::palette::Colour;
use crate::pen::{Drawn, Frame, GRID, INK, Pen};
use crate::rows::{Entry, Layout};
use crate::scale::{Scale, number};

/// All rows share one axis from zero.
#[derive(Debug, Clone, Default)]
pub struct Dots {
    pub title: String,
    /// Next to the title: the better direction.
    pub hint: String,
    pub groups: Vec<DotsGroup>,
}

#[derive(Debug, Clone, Default)]
pub struct DotsGroup {
    /// Empty if there is only one group.
    pub label: String,
    pub rows: Vec<DotsRow>,
}

#[derive(Debug, Clone)]
pub struct DotsRow {
    pub label: String,
    pub colour: Colour,
    /// One figure per process.
    pub points: Vec<f64>,
    /// If `None` or not finite, the note replaces all marks.
    pub median: Option<f64>,
    /// Why there is no median.
    pub note: String,
}

/// Greatest height of a row, and the height from which the median has its own line below the dots.
const TALLEST: i32 = 46;
const ROOMY: i32 = 28;

impl Dots {
    /// Number of rows and headings.
    pub(crate) fn lines(&self) -> usize {
        let headings = self.groups.iter().filter(|group| !group.label.is_empty()).count();
        headings + self.rows().count()
    }

    fn rows(&self) -> impl Iterator<Item = &DotsRow> {
        self.groups.iter().flat_map(|group| &group.rows)
    }

    pub(crate) fn draw<DB: DrawingBackend>(&self, pen: &Pen<'_, DB>, frame: Frame) -> Drawn<DB> {
        let frame = pen.titled(frame, &self.title, &self.hint)?;
        if self.rows().next().is_none() {
            return pen.nothing(frame, "nothing to show");
        }
        let mut entries = Vec::new();
        for group in &self.groups {
            entries.extend(Some(group.label.as_str()).filter(|label| !label.is_empty()).map(Entry::Heading));
            entries.extend(group.rows.iter().map(DotsRow::entry));
        }
        let layout = Layout::new(pen, frame, &entries, TALLEST);
        let shown = self.rows().filter(|row| row.known().is_some());
        let highest = shown.flat_map(DotsRow::values).fold(0.0, f64::max);
        let scale = Scale::from_zero(highest, layout.left, layout.right);
        layout.axis(pen, &scale, "")?;
        let rows: Vec<&DotsRow> = self.rows().collect();
        layout.rows(pen, &entries, |index, middle, tall| {
            pen.line(&[(layout.left, middle), (layout.right, middle)], GRID, 1)?;
            rows[index].draw(pen, &scale, middle, tall)
        })
    }
}

impl DotsRow {
    fn known(&self) -> Option<f64> {
        self.median.filter(|median| median.is_finite())
    }

    fn values(&self) -> impl Iterator<Item = f64> {
        self.points.iter().copied().filter(|point| point.is_finite()).chain(self.known())
    }

    fn entry(&self) -> Entry<'_> {
        let nothing = if self.note.is_empty() { "not available" } else { &self.note };
        Entry::Row {
            label: &self.label,
            value: self.known().map(number).unwrap_or_default(),
            note: if self.known().is_some() { "" } else { nothing },
            muted: self.known().is_none(),
        }
    }

    fn draw<DB: DrawingBackend>(
        &self,
        pen: &Pen<'_, DB>,
        scale: &Scale,
        middle: i32,
        tall: i32,
    ) -> Drawn<DB> {
        let Some(median) = self.known() else { return Ok(()) };
        if self.points.len() <= 1 {
            return pen.mark((scale.pixel(median), middle), 5, self.colour);
        }
        let (above, below) =
            if tall >= ROOMY { (middle - tall / 6, middle + tall / 4) } else { (middle, middle) };
        let radius = if tall >= 20 { 3 } else { 2 };
        for (index, &point) in self.points.iter().filter(|point| point.is_finite()).enumerate() {
            // Separates processes with the same figure, equally in every drawing.
            let lane = [0, -3, 3][index % 3] * i32::from(tall >= ROOMY);
            pen.mark((scale.pixel(point), above + lane), radius, self.colour)?;
        }
        let at = scale.pixel(median);
        let half = (tall / 6).clamp(4, 7);
        pen.fill(Frame { left: at - 2, top: below - half, right: at + 2, bottom: below + half }, INK)
    }
}

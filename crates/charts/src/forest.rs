//! A forest plot: one row per comparison, with its ratio and interval on a logarithmic axis around "no
//! difference".

use plotters::backend::DrawingBackend;
use plotters::style::RGBColor;
use plotters::style::text_anchor::{HPos, VPos};

use crate::palette::Colour;
use crate::pen::{Drawn, Frame, GRID, MUTED, Pen, SMALL};
use crate::rows::{Entry, Layout};
use crate::scale::Scale;

#[derive(Debug, Clone, Default)]
pub struct Forest {
    pub title: String,
    /// Next to the title.
    pub hint: String,
    /// The meaning of a ratio below 1 and of one above: "worse", "better".
    pub sides: [&'static str; 2],
    pub groups: Vec<ForestGroup>,
    /// Ratios that count as no difference: a grey band.
    pub band: Option<(f64, f64)>,
}

#[derive(Debug, Clone, Default)]
pub struct ForestGroup {
    /// Empty if there is only one group.
    pub label: String,
    pub pairs: Vec<Pair>,
}

/// One comparison.
#[derive(Debug, Clone, Default)]
pub struct Pair {
    pub label: String,
    /// If `None` or not positive, the note is shown instead.
    pub ratio: Option<f64>,
    pub interval: Option<(f64, f64)>,
    /// The colour of the clear winner; `None` if the result is unclear.
    pub colour: Option<Colour>,
    /// Why there is no ratio.
    pub note: String,
}

/// Greatest height of a row.
const TALLEST: i32 = 34;
/// Height of the line that names the sides.
pub(crate) const SIDES: i32 = SMALL + 6;

impl Forest {
    /// Number of rows and headings.
    pub(crate) fn lines(&self) -> usize {
        let headings = self.groups.iter().filter(|group| !group.label.is_empty()).count();
        headings + self.pairs().count()
    }

    fn pairs(&self) -> impl Iterator<Item = &Pair> {
        self.groups.iter().flat_map(|group| &group.pairs)
    }

    pub(crate) fn draw<DB: DrawingBackend>(&self, pen: &Pen<'_, DB>, frame: Frame) -> Drawn<DB> {
        let frame = pen.titled(frame, &self.title, &self.hint)?;
        if self.pairs().next().is_none() {
            return pen.nothing(frame, "nothing to compare");
        }
        let mut entries = Vec::new();
        for group in &self.groups {
            entries.extend(Some(group.label.as_str()).filter(|label| !label.is_empty()).map(Entry::Heading));
            entries.extend(group.pairs.iter().map(Pair::entry));
        }
        let rows = Frame { top: frame.top + SIDES, ..frame };
        let layout = Layout::new(pen, rows, &entries, TALLEST);
        let band = self.band.filter(|(low, high)| *low > 0.0 && high.is_finite());
        let edges = band.map_or([1.0; 2], |(low, high)| [low, high]);
        let values = self.pairs().flat_map(Pair::values).chain(edges).chain([1.0]);
        let scale = Scale::around(values, true, layout.left, layout.right);
        if let Some((low, high)) = band {
            let (left, right) = (scale.pixel(low), scale.pixel(high));
            let band = Frame { left, top: layout.top(), right, bottom: layout.end };
            pen.fill(band, GRID)?;
            pen.outline(band, MUTED, 1)?;
        }
        layout.axis(pen, &scale, "")?;
        let one = scale.pixel(1.0);
        pen.line(&[(one, frame.top), (one, layout.end)], MUTED, 1)?;
        let [below, above] = [format!("← {}", self.sides[0]), format!("{} →", self.sides[1])];
        let right = (frame.right - pen.width(&above, SMALL, false)).min(one + 8);
        let left = (frame.left + pen.width(&below, SMALL, false)).max(one - 8);
        pen.text(&below, (left, frame.top), SMALL, MUTED, (HPos::Right, VPos::Top))?;
        pen.text(&above, (right, frame.top), SMALL, MUTED, (HPos::Left, VPos::Top))?;
        let pairs: Vec<&Pair> = self.pairs().collect();
        layout.rows(pen, &entries, |index, middle, _| pairs[index].draw(pen, &scale, middle))
    }
}

impl Pair {
    fn known(&self) -> Option<f64> {
        self.ratio.filter(|ratio| ratio.is_finite() && *ratio > 0.0)
    }

    fn ends(&self) -> Option<(f64, f64)> {
        self.interval.filter(|(low, high)| *low > 0.0 && high.is_finite())
    }

    fn values(&self) -> impl Iterator<Item = f64> {
        let ends = self.ends().filter(|_| self.known().is_some()).map(|(low, high)| [low, high]);
        ends.into_iter().flatten().chain(self.known())
    }

    fn entry(&self) -> Entry<'_> {
        let value = match (self.known(), self.ends()) {
            (Some(ratio), Some((low, high))) => {
                let digits = if high < 10.0 { 2 } else { 1 };
                format!("{ratio:.digits$}× ({low:.digits$}–{high:.digits$})")
            }
            (Some(ratio), None) => format!("{ratio:.2}×"),
            (None, _) => String::new(),
        };
        let nothing = if self.note.is_empty() { "not available" } else { &self.note };
        Entry::Row {
            label: &self.label,
            value,
            note: if self.known().is_some() { "" } else { nothing },
            muted: self.colour.is_none(),
        }
    }

    fn draw<DB: DrawingBackend>(&self, pen: &Pen<'_, DB>, scale: &Scale, middle: i32) -> Drawn<DB> {
        let Some(ratio) = self.known() else { return Ok(()) };
        let ink = self.colour.map_or(MUTED, RGBColor::from);
        if let Some((low, high)) = self.ends() {
            let (from, to) = (scale.pixel(low), scale.pixel(high));
            pen.line(&[(from, middle), (to, middle)], ink, 2)?;
            for end in [from, to] {
                pen.line(&[(end, middle - 4), (end, middle + 4)], ink, 2)?;
            }
        }
        let at = (scale.pixel(ratio), middle);
        match self.colour {
            Some(colour) => pen.mark(at, 5, colour),
            // Hollow, because the true ratio could be on either side.
            None => pen.ring(at, 4, ink),
        }
    }
}

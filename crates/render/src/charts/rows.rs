//! Rows over one axis: a label on the left, marks along the axis, the figure on the right, headings above groups. Labels
//! that are too long for that are above their marks.
//!
//! An axis of figures starts at zero; one of ratios is logarithmic around "no difference" (a forest plot).

use plotters::backend::DrawingBackend;
use plotters::style::RGBColor;
use plotters::style::text_anchor::{HPos, VPos};

use crate::charts::Colour;
use crate::charts::pen::{Drawn, Frame, GRID, INK, MUTED, Pen, SMALL, SURFACE, Scale, tick};
use crate::words::{between, figure, times};

#[derive(Debug, Clone, Default)]
pub(crate) struct Rows {
    pub(crate) axis: RowAxis,
    pub(crate) groups: Vec<Group>,
}

#[derive(Debug, Clone, Copy, Default)]
pub(crate) enum RowAxis {
    #[default]
    FromZero,
    Ratio {
        /// The meaning of a ratio below 1 and of one above: "worse", "better".
        sides: [&'static str; 2],
        /// Ratios that count as no difference: a grey band.
        band: Option<(f64, f64)>,
    },
}

#[derive(Debug, Clone, Default)]
pub(crate) struct Group {
    /// Empty if there is only one group.
    pub(crate) label: String,
    pub(crate) rows: Vec<Row>,
}

#[derive(Debug, Clone, Default)]
pub(crate) struct Row {
    pub(crate) label: String,
    /// `None` for a pair without a clear winner: its mark is hollow.
    pub(crate) colour: Option<Colour>,
    /// If `None`, not finite, or a ratio that is not positive, the note replaces all marks.
    pub(crate) value: Option<f64>,
    pub(crate) interval: Option<(f64, f64)>,
    /// The figures that the value is of, one per process. A value of one figure is its own mark.
    pub(crate) points: Vec<f64>,
    /// Beside the figure: "best", "1.09x", "~".
    pub(crate) sign: String,
    pub(crate) note: String,
}

/// Greatest height of a row, and the height from which the value has a line of its own below the points.
const TALLEST: i32 = 46;

const ROOMY: i32 = 28;

/// Height of a heading, and of the line that names the sides of a ratio.
const HEADING: i32 = SMALL + 6;

struct Layout {
    frame: Frame,
    /// Width of the labels; `None` if they are above their marks.
    labels: Option<i32>,
    /// Widths of the figures, and of the signs with the space before them.
    figures: i32,
    signs: i32,
    /// The axis in pixels.
    left: i32,
    right: i32,
    /// Height of a row, and the bottom of the last one.
    tall: i32,
    end: i32,
}

impl Rows {
    pub(crate) fn is_ratio(&self) -> bool {
        matches!(self.axis, RowAxis::Ratio { .. })
    }

    fn all(&self) -> impl Iterator<Item = &Row> {
        self.groups.iter().flat_map(|group| &group.rows)
    }

    fn headings(&self) -> usize {
        self.groups.iter().filter(|group| !group.label.is_empty()).count()
    }

    /// A height at which the texts do not touch.
    pub(crate) fn height<DB: DrawingBackend>(&self, pen: &Pen<'_, DB>, width: i32) -> i32 {
        let rows = self.all().count();
        let lines = self.headings() + rows;
        let sides = if self.is_ratio() { HEADING } else { 0 };
        let above = if self.labels(pen, width).is_none() { (HEADING - 8) * rows as i32 } else { 0 };
        sides + SMALL + 8 + 28 * lines.max(1) as i32 + above
    }

    /// Width of the labels if each fits beside the marks.
    fn labels<DB: DrawingBackend>(&self, pen: &Pen<'_, DB>, width: i32) -> Option<i32> {
        let widest = self.all().map(|row| pen.width(&row.label, SMALL, false)).max().unwrap_or(0);
        Some(widest).filter(|widest| *widest <= width * 2 / 5)
    }

    pub(crate) fn draw<DB: DrawingBackend>(&self, pen: &Pen<'_, DB>, frame: Frame) -> Drawn<DB> {
        if self.all().next().is_none() {
            return pen.nothing(frame, "nothing to show");
        }
        let top = if self.is_ratio() { frame.top + HEADING } else { frame.top };
        let layout = self.layout(pen, Frame { top, ..frame });
        let known = self.all().filter(|row| self.known(row).is_some());
        let values = known.flat_map(|row| {
            let ends = row.ends(self.is_ratio()).map_or([f64::NAN; 2], |(low, high)| [low, high]);
            row.points.iter().copied().chain(row.value).chain(ends).filter(|value| value.is_finite())
        });
        let scale = match self.axis {
            RowAxis::FromZero => Scale::from_zero(values.fold(0.0, f64::max), layout.left, layout.right),
            RowAxis::Ratio { band, .. } => {
                let edges = band.map_or([1.0; 2], |(low, high)| [low, high]);
                Scale::around(values.chain(edges).chain([1.0]), true, layout.left, layout.right)
            }
        };
        if let RowAxis::Ratio { band: Some((low, high)), .. } = self.axis {
            let (left, right) = (scale.pixel(low), scale.pixel(high));
            let band = Frame { left, top, right, bottom: layout.end };
            pen.fill(band, GRID)?;
            pen.outline(band, MUTED, 1)?;
        }
        layout.axis(pen, &scale)?;
        if let RowAxis::Ratio { sides: [below, above], .. } = self.axis {
            let is_used = self.all().any(|row| {
                row.ends(true).map_or(row.value, |(low, _)| Some(low)).is_some_and(|low| low < 1.0)
            });
            draw_sides(pen, frame, (is_used.then_some(below), above), (scale.pixel(1.0), layout.end))?;
        }
        let mut y = top;
        for group in &self.groups {
            if !group.label.is_empty() {
                layout.above(pen, &group.label, y, MUTED)?;
                y += HEADING;
            }
            for row in &group.rows {
                self.draw_row(pen, row, &layout, (&scale, y + layout.tall / 2))?;
                y += layout.tall;
            }
        }
        Ok(())
    }

    fn layout<DB: DrawingBackend>(&self, pen: &Pen<'_, DB>, frame: Frame) -> Layout {
        let widest = |texts: &mut dyn Iterator<Item = String>| {
            texts.map(|text| pen.width(&text, SMALL, false)).max().unwrap_or(0)
        };
        let labels = self.labels(pen, frame.width());
        let figures = widest(&mut self.all().map(|row| self.value_text(row)));
        let signs = match widest(&mut self.all().map(|row| row.sign.clone())) {
            0 => 0,
            signs => signs + 8,
        };
        let left = frame.left + labels.map_or(2, |labels| labels + 10);
        let beside = labels.map_or(6, |_| figures + signs + 12);
        let right = (frame.right - beside).max(left + 20);
        let (rows, headings) = (self.all().count() as i32, self.headings() as i32 * HEADING);
        let room = frame.bottom - SMALL - 8 - frame.top - headings;
        let tall = (room / rows.max(1)).clamp(1, TALLEST);
        Layout { frame, labels, figures, signs, left, right, tall, end: frame.top + tall * rows + headings }
    }

    fn known(&self, row: &Row) -> Option<f64> {
        row.value.filter(|value| value.is_finite() && (*value > 0.0 || !self.is_ratio()))
    }

    /// The text on the right: "41.5", or "1.18x (1.15–1.22)".
    fn value_text(&self, row: &Row) -> String {
        match (self.known(row), row.ends(true)) {
            (None, _) => String::new(),
            (Some(value), _) if !self.is_ratio() => figure(value),
            (Some(ratio), Some((low, high))) => format!("{} ({})", times(ratio), between(low, high)),
            (Some(ratio), None) => times(ratio),
        }
    }

    fn draw_row<DB: DrawingBackend>(
        &self,
        pen: &Pen<'_, DB>,
        row: &Row,
        layout: &Layout,
        (scale, middle): (&Scale, i32),
    ) -> Drawn<DB> {
        let value = self.known(row);
        let ink = if value.is_none() || row.colour.is_none() { MUTED } else { INK };
        let right = layout.frame.right - layout.signs;
        // The texts are beside the marks, or above them.
        let ((texts, upright), (middle, tall)) = match layout.labels {
            Some(_) => {
                pen.text(&row.label, (layout.left - 10, middle), SMALL, ink, (HPos::Right, VPos::Center))?;
                ((middle, VPos::Center), (middle, layout.tall))
            }
            None => {
                let top = middle - layout.tall / 2;
                let room = layout.frame.width() - layout.figures - layout.signs - 12;
                layout.above(pen, &pen.fitted(&row.label, SMALL, false, room), top, ink)?;
                ((top + 3, VPos::Top), (middle + HEADING / 2, layout.tall - HEADING))
            }
        };
        let Some(value) = value else {
            let note = if row.note.is_empty() { "not available" } else { &row.note };
            return layout.note(pen, note, middle);
        };
        if !self.is_ratio() {
            pen.line(&[(layout.left, middle), (layout.right, middle)], GRID, 1)?;
        }
        if let Some((low, high)) = row.ends(self.is_ratio()) {
            let colour = row.colour.map_or(MUTED, RGBColor::from);
            let (from, to) = (scale.pixel(low), scale.pixel(high));
            pen.line(&[(from, middle), (to, middle)], colour, 2)?;
            for end in [from, to] {
                pen.line(&[(end, middle - 4), (end, middle + 4)], colour, 2)?;
            }
        }
        let at = (scale.pixel(value), middle);
        match row.colour {
            Some(colour) if row.points.len() > 1 => {
                row.draw_points(pen, (scale, at), (layout.left, tall), colour)?
            }
            Some(colour) => {
                if !self.is_ratio() {
                    pen.line(&[(layout.left, middle), at], RGBColor::from(colour), 3)?;
                }
                pen.mark(at, 5, colour)?;
            }
            // Hollow, because the true ratio could be on either side.
            None => pen.ring(at, 4, MUTED)?,
        }
        pen.text(&self.value_text(row), (right, texts), SMALL, ink, (HPos::Right, upright))?;
        match row.sign.is_empty() {
            true => Ok(()),
            false => pen.text(&row.sign, (right + 8, texts), SMALL, MUTED, (HPos::Left, upright)),
        }
    }
}

impl Row {
    fn ends(&self, is_ratio: bool) -> Option<(f64, f64)> {
        self.interval.filter(|(low, high)| low.is_finite() && high.is_finite() && (*low > 0.0 || !is_ratio))
    }

    /// A small mark for each process, and a bar up to the value.
    fn draw_points<DB: DrawingBackend>(
        &self,
        pen: &Pen<'_, DB>,
        (scale, (at, middle)): (&Scale, (i32, i32)),
        (left, tall): (i32, i32),
        colour: Colour,
    ) -> Drawn<DB> {
        let (above, below) =
            if tall >= ROOMY { (middle - tall / 6, middle + tall / 4) } else { (middle, middle) };
        let half = if tall >= ROOMY { tall / 10 } else { 1 };
        pen.fill(Frame { left, top: below - half, right: at, bottom: below + half }, RGBColor::from(colour))?;
        let radius = if tall >= 20 { 3 } else { 2 };
        for (index, &point) in self.points.iter().filter(|point| point.is_finite()).enumerate() {
            // Separates processes with the same figure, equally in every drawing.
            let lane = [0, -3, 3][index % 3] * i32::from(tall >= ROOMY);
            pen.mark((scale.pixel(point), above + lane), radius, colour)?;
        }
        Ok(())
    }
}

impl Layout {
    /// Draws lines across all rows, and the values of the axis below them.
    fn axis<DB: DrawingBackend>(&self, pen: &Pen<'_, DB>, scale: &Scale) -> Drawn<DB> {
        let mut free = i32::MIN;
        for at in scale.ticks(44) {
            let x = scale.pixel(at);
            pen.line(&[(x, self.frame.top), (x, self.end)], GRID, 1)?;
            let text = tick(at);
            let half = pen.width(&text, SMALL, false) / 2;
            // Kept inside the figure.
            let x = x.max(self.frame.left + half).min(self.frame.right - half);
            if x - half > free {
                pen.text(&text, (x, self.end + 5), SMALL, MUTED, (HPos::Center, VPos::Top))?;
                free = x + half + 8;
            }
        }
        Ok(())
    }

    /// A text above marks.
    fn above<DB: DrawingBackend>(&self, pen: &Pen<'_, DB>, text: &str, y: i32, ink: RGBColor) -> Drawn<DB> {
        let text = pen.fitted(text, SMALL, false, self.frame.width());
        let right = self.frame.left + pen.width(&text, SMALL, false) + 4;
        // A background, so that no line of the axis runs through the text.
        pen.fill(Frame { left: self.frame.left, top: y, right, bottom: y + HEADING - 1 }, SURFACE)?;
        pen.text(&text, (self.frame.left, y + 3), SMALL, ink, (HPos::Left, VPos::Top))
    }

    fn note<DB: DrawingBackend>(&self, pen: &Pen<'_, DB>, note: &str, middle: i32) -> Drawn<DB> {
        let note = pen.fitted(note, SMALL, false, self.frame.right - self.left - 6);
        let right = self.left + 6 + pen.width(&note, SMALL, false) + 4;
        let half = SMALL / 2 + 2;
        let behind = Frame { left: self.left + 2, top: middle - half, right, bottom: middle + half };
        pen.fill(behind, SURFACE)?;
        pen.text(&note, (self.left + 6, middle), SMALL, MUTED, (HPos::Left, VPos::Center))
    }
}

/// The line at "no difference", and above all rows the names of its sides. The first is absent if no row reaches it.
fn draw_sides<DB: DrawingBackend>(
    pen: &Pen<'_, DB>,
    frame: Frame,
    (below, above): (Option<&str>, &str),
    (one, end): (i32, i32),
) -> Drawn<DB> {
    pen.line(&[(one, frame.top), (one, end)], MUTED, 1)?;
    let (above, mut left) = (format!("{above} →"), one + 8);
    if let Some(below) = below.map(|below| format!("← {below}")) {
        let right = (frame.left + pen.width(&below, SMALL, false)).max(one - 8);
        pen.text(&below, (right, frame.top), SMALL, MUTED, (HPos::Right, VPos::Top))?;
        left = left.max(right + 12);
    }
    let left = left.min(frame.right - pen.width(&above, SMALL, false));
    pen.text(&above, (left, frame.top), SMALL, MUTED, (HPos::Left, VPos::Top))
}

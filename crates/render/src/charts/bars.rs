//! Horizontal bars, so that long names stay readable. The length is the value, whiskers are its interval, and
//! points are processes.

use plotters::backend::DrawingBackend;
use plotters::style::text_anchor::{HPos, VPos};
use plotters::style::{Color, RGBColor};

use crate::charts::Colour;
use crate::charts::figure::{Entry, Layout};
use crate::charts::pen::{Drawn, Frame, GRID, INK, MUTED, Pen, SMALL, SURFACE, Scale, number, tick};

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

// A dot for each process, and their mean or median: unlike a bar, it shows the individual figures.

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
const DOTS_TALLEST: i32 = 46;

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
        let layout = Layout::new(pen, frame, &entries, DOTS_TALLEST);
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

// A forest plot: one row per comparison, with its ratio and interval on a logarithmic axis around "no
// difference".

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
const FOREST_TALLEST: i32 = 34;

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
        let layout = Layout::new(pen, rows, &entries, FOREST_TALLEST);
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

// A heatmap: one figure for each combination of two varied settings.

#[derive(Debug, Clone, Default)]
pub struct Heatmap {
    pub title: String,
    pub hint: String,
    /// Name and values of the setting that varies from left to right.
    pub x: (String, Vec<String>),
    /// The same for the one from top to bottom.
    pub y: (String, Vec<String>),
    /// `[y][x]`; `None` if there is no figure.
    pub values: Vec<Vec<Option<f64>>>,
    /// Lowest and highest value of the colour scale, shared by heatmaps that are read side by side. `None`:
    /// the range of `values`.
    pub range: Option<(f64, f64)>,
}

/// Five colours of cividis (Nuñez, Anderton and Renslow, 2018), which has the same order for all kinds of
/// colour vision.
const CIVIDIS: [[f64; 3]; 5] = [
    [0.0, 34.0, 78.0],
    [66.0, 78.0, 108.0],
    [124.0, 123.0, 120.0],
    [187.0, 173.0, 108.0],
    [254.0, 232.0, 56.0],
];

impl Heatmap {
    pub(crate) fn draw<DB: DrawingBackend>(&self, pen: &Pen<'_, DB>, frame: Frame) -> Drawn<DB> {
        let frame = pen.titled(frame, &self.title, &self.hint)?;
        let ((x_name, columns), (y_name, rows)) = (&self.x, &self.y);
        let known = || self.values.iter().flatten().copied().flatten().filter(|value| value.is_finite());
        if columns.is_empty() || rows.is_empty() || known().next().is_none() {
            return pen.nothing(frame, "nothing to show");
        }
        let own = || (known().fold(f64::INFINITY, f64::min), known().fold(f64::NEG_INFINITY, f64::max));
        let (low, high) = self.range.unwrap_or_else(own);
        let labels = rows.iter().map(|row| pen.width(row, SMALL, false)).max().unwrap_or(0);
        let left = frame.left + labels.max(pen.width(y_name, SMALL, false)).min(frame.width() / 3) + 10;
        let (top, bottom) = (frame.top + SMALL + 6, frame.bottom - SMALL - 8);
        let wide = (frame.right - left) / columns.len() as i32;
        let tall = ((bottom - top) / rows.len() as i32).clamp(1, 140);
        pen.text(y_name, (left - 10, frame.top), SMALL, MUTED, (HPos::Right, VPos::Top))?;
        let x_title = format!("{x_name} →");
        pen.text(&x_title, (left, frame.top), SMALL, MUTED, (HPos::Left, VPos::Top))?;
        for (row, label) in rows.iter().enumerate() {
            let y = top + row as i32 * tall;
            let label = pen.fitted(label, SMALL, false, left - 10 - frame.left);
            pen.text(&label, (left - 10, y + tall / 2), SMALL, MUTED, (HPos::Right, VPos::Center))?;
            for column in 0..columns.len() {
                let value = self.values.get(row).and_then(|values| values.get(column).copied()).flatten();
                let x = left + column as i32 * wide;
                let cell = Frame { left: x, top: y, right: x + wide - 2, bottom: y + tall - 2 };
                draw_cell(pen, cell, value.filter(|value| value.is_finite()), (low, high))?;
            }
        }
        for (column, label) in columns.iter().enumerate() {
            let x = left + column as i32 * wide + wide / 2;
            let label = pen.fitted(label, SMALL, false, wide);
            let y = top + rows.len() as i32 * tall + 3;
            pen.text(&label, (x, y), SMALL, MUTED, (HPos::Center, VPos::Top))?;
        }
        Ok(())
    }
}

fn draw_cell<DB: DrawingBackend>(
    pen: &Pen<'_, DB>,
    cell: Frame,
    value: Option<f64>,
    (low, high): (f64, f64),
) -> Drawn<DB> {
    let middle = ((cell.left + cell.right) / 2, (cell.top + cell.bottom) / 2);
    let Some(value) = value else {
        pen.outline(cell, MUTED, 1)?;
        return pen.text("–", middle, SMALL, MUTED, (HPos::Center, VPos::Center));
    };
    let share = if high > low { ((value - low) / (high - low)).clamp(0.0, 1.0) } else { 0.5 };
    let at = share * (CIVIDIS.len() - 1) as f64;
    let (below, above) = (CIVIDIS[at.floor() as usize], CIVIDIS[at.ceil() as usize]);
    let mixed: Vec<f64> = below.iter().zip(above).map(|(from, to)| from + (to - from) * at.fract()).collect();
    pen.fill(cell, RGBColor(mixed[0] as u8, mixed[1] as u8, mixed[2] as u8))?;
    let light = 0.2126 * mixed[0] + 0.7152 * mixed[1] + 0.0722 * mixed[2];
    // Independent of the page's theme, because the cell's colour is.
    let ink = if light > 110.0 { RGBColor(0x10, 0x12, 0x14) } else { RGBColor(0xFF, 0xFF, 0xFF) };
    let text = pen.fitted(&number(value), SMALL, false, cell.width());
    pen.text(&text, middle, SMALL, ink, (HPos::Center, VPos::Center))
}

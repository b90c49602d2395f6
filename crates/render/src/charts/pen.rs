//! Drawing for all charts: shapes, colours and text, with sizes in layout pixels.

use plotters::backend::DrawingBackend;
use plotters::coord::Shift;
use plotters::drawing::{DrawingArea, DrawingAreaErrorKind};
use plotters::element::{Circle, PathElement, Polygon, Rectangle};
use plotters::style::text_anchor::{HPos, Pos, VPos};
use plotters::style::{Color, FontStyle, IntoFont, RGBAColor, RGBColor, ShapeStyle, TextStyle};

use crate::charts::{self, Colour, FAMILY};

pub(crate) type Area<DB> = DrawingArea<DB, Shift>;

pub(crate) type DrawError<DB> = DrawingAreaErrorKind<<DB as DrawingBackend>::ErrorType>;

pub(crate) type Drawn<DB> = Result<(), DrawError<DB>>;

/// Colours other than those of series. In an SVG for a page they are placeholders for style variables.
pub(crate) const INK: RGBColor = RGBColor(charts::INK.0, charts::INK.1, charts::INK.2);

pub(crate) const MUTED: RGBColor = RGBColor(0x5B, 0x60, 0x66);

pub(crate) const GRID: RGBColor = RGBColor(0xDF, 0xE2, 0xE6);

pub(crate) const SURFACE: RGBColor = RGBColor(0xFE, 0xFE, 0xFE);

/// Text sizes in layout pixels; `SMALL` is the smallest that is used.
pub(crate) const SMALL: i32 = 14;

pub(crate) const PANEL_TITLE: i32 = 16;

pub(crate) const FIGURE_TITLE: i32 = 21;

/// plotters' font sizes are this many times the em.
const PER_EM: f64 = 1.24;

#[derive(Debug, Clone, Copy)]
pub(crate) struct Frame {
    pub(crate) left: i32,
    pub(crate) top: i32,
    pub(crate) right: i32,
    pub(crate) bottom: i32,
}

impl Frame {
    pub(crate) fn width(&self) -> i32 {
        (self.right - self.left).max(1)
    }

    pub(crate) fn height(&self) -> i32 {
        (self.bottom - self.top).max(1)
    }
}

/// Draws on an area with `scale` pixels per layout pixel.
pub(crate) struct Pen<'a, DB: DrawingBackend> {
    pub(crate) area: &'a Area<DB>,
    pub(crate) scale: i32,
}

/// The corners of each contender's mark, for a radius of 12. Marks with similar colours differ in shape. The
/// first, without corners, is a circle.
const MARKS: [&[(i32, i32)]; 8] = [
    &[],
    SQUARE,
    &[(-15, 0), (0, -15), (15, 0), (0, 15)],
    &[(-15, 12), (0, -15), (15, 12)],
    &[(-15, -12), (0, 15), (15, -12)],
    &[
        (-15, -5),
        (-5, -5),
        (-5, -15),
        (5, -15),
        (5, -5),
        (15, -5),
        (15, 5),
        (5, 5),
        (5, 15),
        (-5, 15),
        (-5, 5),
        (-15, 5),
    ],
    &[
        (-14, -8),
        (-8, -14),
        (0, -6),
        (8, -14),
        (14, -8),
        (6, 0),
        (14, 8),
        (8, 14),
        (0, 6),
        (-8, 14),
        (-14, 8),
        (-6, 0),
    ],
    &[(-17, -5), (17, -5), (17, 5), (-17, 5)],
];

const SQUARE: &[(i32, i32)] = &[(-10, -10), (10, -10), (10, 10), (-10, 10)];

/// The text, with a sign that the bitmap font lacks replaced.
fn drawable(text: &str) -> String {
    text.replace('✗', "✕")
}

impl<DB: DrawingBackend> Pen<'_, DB> {
    fn at(&self, (x, y): (i32, i32)) -> (i32, i32) {
        (x * self.scale, y * self.scale)
    }

    fn style(&self, size: i32, bold: bool, ink: RGBColor) -> TextStyle<'static> {
        let size = f64::from(size * self.scale) * PER_EM;
        let style = if bold { FontStyle::Bold } else { FontStyle::Normal };
        let mut style = TextStyle::from((FAMILY, size, style).into_font());
        style.color = ink.to_backend_color();
        style
    }

    pub(crate) fn text(
        &self,
        text: &str,
        at: (i32, i32),
        size: i32,
        ink: RGBColor,
        (horizontal, vertical): (HPos, VPos),
    ) -> Drawn<DB> {
        // In SVG the reader's font has the sign.
        let text = if self.scale > 1 { &drawable(text) } else { text };
        let style = self.style(size, false, ink).pos(Pos::new(horizontal, vertical));
        let (x, mut y) = self.at(at);
        // In bitmaps plotters centres the line's box, and the glyphs are in its upper part.
        if self.scale > 1 && matches!(vertical, VPos::Center) {
            y += size * self.scale / 6;
        }
        self.area.draw_text(text, &style, (x, y))
    }

    pub(crate) fn bold(&self, text: &str, at: (i32, i32), size: i32) -> Drawn<DB> {
        let style = self.style(size, true, INK).pos(Pos::new(HPos::Left, VPos::Top));
        self.area.draw_text(text, &style, self.at(at))
    }

    /// Width of a line of text, in pixels.
    pub(crate) fn width(&self, text: &str, size: i32, bold: bool) -> i32 {
        let extent = self.area.estimate_text_size(&drawable(text), &self.style(size, bold, INK));
        extent.map_or(0, |(width, _)| width as i32 / self.scale + 1)
    }

    /// As much of a text as fits, with an ellipsis if it is cut.
    pub(crate) fn fitted(&self, text: &str, size: i32, bold: bool, width: i32) -> String {
        if self.width(text, size, bold) <= width {
            return text.to_owned();
        }
        let mut kept: Vec<char> = text.chars().collect();
        while kept.pop().is_some() {
            let shorter = kept.iter().collect::<String>().trim_end().to_owned() + "…";
            if self.width(&shorter, size, bold) <= width {
                return shorter;
            }
        }
        String::new()
    }

    /// Breaks a text into lines, at most `lines`.
    pub(crate) fn wrapped(
        &self,
        text: &str,
        (size, bold): (i32, bool),
        width: i32,
        lines: usize,
    ) -> Vec<String> {
        let mut wrapped: Vec<String> = Vec::new();
        // A per cent sign stays with its number.
        let text = text.split_whitespace().collect::<Vec<_>>().join(" ").replace(" %", "\u{a0}%");
        for word in text.split(' ').filter(|word| !word.is_empty()) {
            match wrapped.last_mut() {
                Some(line) if self.width(&format!("{line} {word}"), size, bold) <= width => {
                    *line += &format!(" {word}");
                }
                _ => wrapped.push(word.to_owned()),
            }
        }
        if wrapped.len() > lines {
            let rest = wrapped.split_off(lines.saturating_sub(1)).join(" ");
            wrapped.push(rest);
        }
        wrapped.iter().map(|line| self.fitted(line, size, bold, width)).collect()
    }

    /// The title of a panel as shown, and the offset of the hint: after the title or below it.
    fn title_places(&self, title: &str, hint: &str, width: i32) -> (String, (i32, i32)) {
        let shown = self.fitted(title, PANEL_TITLE, true, width);
        let used = self.width(&shown, PANEL_TITLE, true) + 10;
        let is_beside = used + self.width(hint, SMALL, false) <= width && !shown.is_empty();
        (shown, if is_beside { (used, 1) } else { (0, PANEL_TITLE + 5) })
    }

    /// The height of a panel's title and hint.
    pub(crate) fn title_height(&self, title: &str, hint: &str, width: i32) -> i32 {
        let (_, (_, y)) = self.title_places(title, hint, width);
        if hint.is_empty() { PANEL_TITLE + 9 } else { y + SMALL + 9 }
    }

    /// Draws the title of a panel, with `hint` in a muted colour after or below it. Returns the rest of the
    /// frame.
    pub(crate) fn titled(&self, frame: Frame, title: &str, hint: &str) -> Result<Frame, DrawError<DB>> {
        let (shown, (x, y)) = self.title_places(title, hint, frame.width());
        if !shown.is_empty() {
            self.bold(&shown, (frame.left, frame.top), PANEL_TITLE)?;
        }
        if !hint.is_empty() {
            let hint = self.fitted(hint, SMALL, false, frame.width() - x);
            self.text(&hint, (frame.left + x, frame.top + y), SMALL, MUTED, (HPos::Left, VPos::Top))?;
        }
        Ok(Frame { top: frame.top + self.title_height(title, hint, frame.width()), ..frame })
    }

    /// Writes the reason for an empty panel in its middle.
    pub(crate) fn nothing(&self, frame: Frame, why: &str) -> Drawn<DB> {
        let middle = ((frame.left + frame.right) / 2, (frame.top + frame.bottom) / 2);
        self.text(why, middle, SMALL, MUTED, (HPos::Center, VPos::Center))
    }

    pub(crate) fn line(&self, points: &[(i32, i32)], ink: impl Color, width: i32) -> Drawn<DB> {
        let points: Vec<(i32, i32)> = points.iter().map(|&point| self.at(point)).collect();
        self.area.draw(&PathElement::new(points, self.stroke(ink, width)))
    }

    fn stroke(&self, ink: impl Color, width: i32) -> ShapeStyle {
        ShapeStyle { color: ink.to_rgba(), filled: false, stroke_width: (width * self.scale) as u32 }
    }

    pub(crate) fn fill(&self, frame: Frame, ink: impl Color) -> Drawn<DB> {
        let corners = [self.at((frame.left, frame.top)), self.at((frame.right, frame.bottom))];
        self.area.draw(&Rectangle::new(corners, ink.to_rgba().filled()))
    }

    pub(crate) fn outline(&self, frame: Frame, ink: impl Color, width: i32) -> Drawn<DB> {
        let corners = [self.at((frame.left, frame.top)), self.at((frame.right, frame.bottom))];
        self.area.draw(&Rectangle::new(corners, self.stroke(ink, width)))
    }

    pub(crate) fn dot(&self, at: (i32, i32), radius: i32, ink: RGBAColor) -> Drawn<DB> {
        self.area.draw(&Circle::new(self.at(at), radius * self.scale, ink.filled()))
    }

    /// A circle that covers the axis inside it.
    pub(crate) fn ring(&self, at: (i32, i32), radius: i32, ink: impl Color) -> Drawn<DB> {
        self.dot(at, radius, SURFACE.to_rgba())?;
        self.area.draw(&Circle::new(self.at(at), radius * self.scale, self.stroke(ink, 2)))
    }

    /// The mark of the contender with this colour; a square if no contender has it.
    pub(crate) fn mark(&self, at: (i32, i32), radius: i32, colour: Colour) -> Drawn<DB> {
        let corners = colour.contender().map_or(SQUARE, |place| MARKS[place]);
        if corners.is_empty() {
            return self.dot(at, radius, RGBColor::from(colour).to_rgba());
        }
        let (x, y) = self.at(at);
        let scaled = |part: i32| (f64::from(part * radius * self.scale) / 12.0).round() as i32;
        let corners: Vec<(i32, i32)> =
            corners.iter().map(|&(dx, dy)| (x + scaled(dx), y + scaled(dy))).collect();
        self.area.draw(&Polygon::new(corners, RGBColor::from(colour).filled()))
    }
}

// Positions of values on an axis, and the values of its ticks.

/// An axis in pixels, from `from` (its lowest value) to `to`.
#[derive(Debug, Clone)]
pub(crate) struct Scale {
    low: f64,
    high: f64,
    log: bool,
    from: i32,
    to: i32,
}

impl Scale {
    /// From zero to above `highest`, so that lengths of bars can be compared.
    pub(crate) fn from_zero(highest: f64, from: i32, to: i32) -> Scale {
        let high = if highest.is_finite() && highest > 0.0 { highest * 1.02 } else { 1.0 };
        Scale { low: 0.0, high, log: false, from, to }
    }

    /// Around values, with some room; logarithmic only if all are positive.
    pub(crate) fn around(values: impl Iterator<Item = f64>, log: bool, from: i32, to: i32) -> Scale {
        let (mut low, mut high) = (f64::INFINITY, f64::NEG_INFINITY);
        for value in values.filter(|value| value.is_finite()) {
            (low, high) = (low.min(value), high.max(value));
        }
        if low > high {
            (low, high) = (0.0, 1.0);
        }
        let log = log && low > 0.0;
        if log {
            let room = (high / low).powf(0.04).max(1.02);
            return Scale { low: low / room, high: high * room, log, from, to };
        }
        let room = if high > low { (high - low) * 0.05 } else { low.abs().max(1.0) * 0.1 };
        // Below non-negative values, the room ends at zero.
        let lowest = if low >= 0.0 { (low - room).max(0.0) } else { low - room };
        Scale { low: lowest, high: high + room, log, from, to }
    }

    pub(crate) fn pixel(&self, value: f64) -> i32 {
        let share = if self.log {
            (value.max(f64::MIN_POSITIVE) / self.low).ln() / (self.high / self.low).ln()
        } else {
            (value - self.low) / (self.high - self.low)
        };
        let share = if share.is_finite() { share.clamp(-0.02, 1.02) } else { 0.0 };
        self.from + (share * f64::from(self.to - self.from)).round() as i32
    }

    /// Round values, about one per `spacing` pixels.
    pub(crate) fn ticks(&self, spacing: i32) -> Vec<f64> {
        let count = ((self.to - self.from).abs() / spacing.max(1)).clamp(2, 10);
        if self.log && self.high / self.low >= 4.0 {
            let decades = (self.high / self.low).log10();
            // Within the exponents of numbers: the room around an extreme value may be infinite.
            let (first, last) = (self.low.log10().floor().max(-308.0), self.high.log10().ceil().min(308.0));
            let (first, last) = (first as i32, last as i32);
            let ticks = |steps: &[f64]| -> Vec<f64> {
                let all =
                    (first..=last).flat_map(|power| steps.iter().map(move |step| step * 10f64.powi(power)));
                all.filter(|tick| (self.low..=self.high).contains(tick)).collect()
            };
            // Only powers of ten if more would be too many, unless there is just one.
            let sparse = ticks(&[1.0]);
            let is_enough = decades * 3.0 > f64::from(count) && sparse.len() > 1;
            return if is_enough { sparse } else { ticks(&[1.0, 2.0, 5.0]) };
        }
        let step = round_step((self.high - self.low) / f64::from(count));
        let first = (self.low / step).ceil() as i64;
        let last = (self.high / step).floor() as i64;
        (first..=last).take(50).map(|index| index as f64 * step).collect()
    }
}

/// The smallest of 1, 2, 5 × 10ⁿ that is at least `least`.
fn round_step(least: f64) -> f64 {
    if !(least.is_finite() && least > 0.0) {
        return 1.0;
    }
    let power = 10f64.powf(least.log10().floor());
    let step = [1.0, 2.0, 5.0, 10.0].into_iter().find(|step| step * power >= least * 0.999);
    step.unwrap_or(10.0) * power
}

/// A tick's value, with no more digits than it needs.
pub(crate) fn tick(value: f64) -> String {
    if value.abs() >= 1e6 || (value != 0.0 && value.abs() < 1e-4) {
        return format!("{value:.0e}");
    }
    let text = format!("{value:.4}");
    text.trim_end_matches('0').trim_end_matches('.').replace('-', "−")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_round_and_within() {
        let ticks = Scale::from_zero(43.0, 0, 400).ticks(80);
        assert_eq!(ticks, [0.0, 10.0, 20.0, 30.0, 40.0]);
        let ticks = Scale::around([1.0, 500.0].into_iter(), true, 0, 400).ticks(40);
        assert_eq!(ticks, [1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0]);
        let ticks = Scale::around([0.42, 5.97].into_iter(), true, 0, 100).ticks(56);
        assert_eq!(ticks, [0.5, 1.0, 2.0, 5.0]);
    }

    #[test]
    fn the_lowest_value_is_at_the_start_and_nothing_leaves_the_axis() {
        let scale = Scale::from_zero(100.0, 10, 112);
        assert_eq!((scale.pixel(0.0), scale.pixel(100.0)), (10, 110));
        assert!((8..=114).contains(&scale.pixel(1e300)) && (8..=114).contains(&scale.pixel(f64::NAN)));
    }

    #[test]
    fn an_axis_without_an_end_has_few_ticks() {
        let scale = Scale::around([1e-300, 1e308].into_iter(), true, 0, 400);
        assert!(scale.ticks(60).len() <= 617, "{}", scale.ticks(60).len());
    }

    #[test]
    fn ticks_have_no_more_digits_than_they_need() {
        assert_eq!([tick(0.0), tick(2.5), tick(100.0)], ["0", "2.5", "100"]);
    }
}

//! Drawing for all charts: shapes, colours and text, with sizes in layout pixels.

use plotters::backend::DrawingBackend;
use plotters::coord::Shift;
use plotters::drawing::{DrawingArea, DrawingAreaErrorKind};
use plotters::element::{Circle, PathElement, Polygon, Rectangle};
use plotters::style::text_anchor::{HPos, Pos, VPos};
use plotters::style::{Color, FontStyle, IntoFont, RGBAColor, RGBColor, ShapeStyle, TextStyle};

use crate::font::FAMILY;
use crate::palette::{self, Colour};

pub(crate) type Area<DB> = DrawingArea<DB, Shift>;
pub(crate) type DrawError<DB> = DrawingAreaErrorKind<<DB as DrawingBackend>::ErrorType>;
pub(crate) type Drawn<DB> = Result<(), DrawError<DB>>;

/// Colours other than those of series. In an SVG for a page they are placeholders for style variables.
pub(crate) const INK: RGBColor = RGBColor(palette::INK.0, palette::INK.1, palette::INK.2);
pub(crate) const MUTED: RGBColor = RGBColor(0x5B, 0x60, 0x66);
pub(crate) const GRID: RGBColor = RGBColor(0xDF, 0xE2, 0xE6);
pub(crate) const SURFACE: RGBColor = RGBColor(0xFE, 0xFE, 0xFE);

/// Text sizes in layout pixels; `SMALL` is the smallest that is used.
pub(crate) const SMALL: i32 = 14;
pub(crate) const PANEL_TITLE: i32 = 16;
pub(crate) const FIGURE_TITLE: i32 = 21;

/// plotters' font sizes are this many times the em.
const PER_EM: f64 = 1.24;

/// A rectangle in pixels.
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

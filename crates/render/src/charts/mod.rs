//! Charts of plain series, as SVG and PNG.
//!
//! A [`Figure`] is one or several [`Panel`]s with a title. Panels contain labels, values, intervals and
//! units, but not their origin. A value that is absent or not finite is marked as such, never drawn as zero.
//! Text is laid out and rasterised with a font in this crate, so that all machines draw the same.

mod figure;
mod heatmap;
mod lines;
mod pen;
mod rows;
#[cfg(test)]
mod tests;

use std::sync::Once;

pub(crate) use figure::{Content, Figure, Panel, Size};
pub(crate) use heatmap::Heatmap;
pub(crate) use lines::{Line, LineAxis, Lines, Point};
use plotters::style::{FontStyle, RGBColor, register_font};
pub(crate) use rows::{Group, Row, RowAxis, Rows};

// The font, registered under the family name used in SVG text.

/// The font family: in SVG it is the reader's own font; here it is DejaVu Sans, which is wider than most.
const FAMILY: &str = "sans-serif";

/// Latin letters and the signs that figures need; `fonts/README.md` says how the subsets were made.
const REGULAR: &[u8] = include_bytes!("../../fonts/DejaVuSans-subset.ttf");

const BOLD: &[u8] = include_bytes!("../../fonts/DejaVuSans-Bold-subset.ttf");

fn register() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        for (style, bytes) in [(FontStyle::Normal, REGULAR), (FontStyle::Bold, BOLD)] {
            assert!(register_font(FAMILY, style, bytes).is_ok(), "the bundled font is a font");
        }
    });
}

// Colours that people with any kind of colour vision can distinguish.

/// The colour of a series, as red, green and blue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Colour(pub(crate) u8, pub(crate) u8, pub(crate) u8);

/// A colour on white, and its lighter tint for dark pages. Each has a contrast of at least 3 to 1 with its page.
struct Tint {
    light: Colour,
    dark: Colour,
}

const fn tint(light: [u8; 3], dark: [u8; 3]) -> Tint {
    Tint { light: Colour(light[0], light[1], light[2]), dark: Colour(dark[0], dark[1], dark[2]) }
}

/// The colours of contenders: the hues of Okabe and Ito, Color Universal Design (2008), darkened if they are
/// faint on white and lightened if they are dim on a dark page. Grey replaces black, which is invisible on a
/// dark page.
const CONTENDERS: [Tint; 8] = [
    tint([0xD5, 0x5E, 0x00], [0xFF, 0x8A, 0x45]),
    tint([0x00, 0x72, 0xB2], [0x5A, 0xAE, 0xF0]),
    tint([0x00, 0x8F, 0x68], [0x2E, 0xC7, 0x9A]),
    tint([0xB8, 0x54, 0x8F], [0xE0, 0x8F, 0xBE]),
    tint([0xB0, 0x79, 0x00], [0xF0, 0xB4, 0x29]),
    tint([0x2B, 0x8F, 0xCB], [0x8F, 0xD3, 0xFF]),
    tint([0x7A, 0x80, 0x87], [0xA9, 0xAE, 0xB5]),
    tint([0x85, 0x7B, 0x00], [0xF0, 0xE4, 0x42]),
];

/// The colour of series without their own colour.
pub(crate) const GREY: Colour = CONTENDERS[6].light;

/// The colour of text, for decided pairs without a winner (equivalent).
pub(crate) const INK: Colour = Colour(0x1C, 0x1E, 0x21);

/// CSS declarations of the style variables for the colours of inline charts: `--contender-0: #D55E00;` and so
/// on.
pub(crate) fn variables(theme: Theme) -> String {
    let declared = |(name, tint): (String, &Tint)| {
        let colour = if theme == Theme::Dark { tint.dark } else { tint.light };
        format!("--{name}: {};", colour.hex())
    };
    named().map(declared).collect::<Vec<_>>().join(" ")
}

/// The theme of the page around a chart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Theme {
    Light,
    Dark,
}

fn named() -> impl Iterator<Item = (String, &'static Tint)> {
    CONTENDERS.iter().enumerate().map(|(index, tint)| (format!("contender-{index}"), tint))
}

/// Replaces every colour of the palette in SVG text with its style variable.
fn with_variables(mut svg: String) -> String {
    for (name, tint) in named() {
        svg = svg.replace(&format!("\"{}\"", tint.light.hex()), &format!("\"var(--{name})\""));
    }
    svg
}

impl Colour {
    /// Index in the contenders' colours, if it is one.
    pub(crate) fn contender(self) -> Option<usize> {
        CONTENDERS.iter().position(|tint| tint.light == self)
    }

    /// In the notation of CSS and plotters.
    fn hex(self) -> String {
        let Colour(red, green, blue) = self;
        format!("#{red:02X}{green:02X}{blue:02X}")
    }
}

/// A colour for each name. Each of the `known` names has its own colour, and so has a name that begins with
/// it (`candle (no cache)` has candle's), so that charts of different runs can be read side by side. If that
/// colour is already taken, or the name is unknown, it gets the next free colour.
pub(crate) fn assign(names: &[String], known: &[&str]) -> Vec<Colour> {
    let mut taken = vec![false; CONTENDERS.len()];
    let mut places: Vec<Option<usize>> = vec![None; names.len()];
    let own = |name: &str| {
        known.iter().position(|known| {
            let rest = name.strip_prefix(known);
            rest.is_some_and(|rest| !rest.starts_with(|c: char| c.is_alphanumeric()))
        })
    };
    // Names before their variants.
    for exact in [true, false] {
        for (name, place) in names.iter().zip(&mut places) {
            let wanted = own(name).filter(|&index| !exact || known[index] == name);
            if let Some(index) =
                wanted.filter(|&index| place.is_none() && index < taken.len() && !taken[index])
            {
                taken[index] = true;
                *place = Some(index);
            }
        }
    }
    let reserved = known.len().min(CONTENDERS.len());
    for (index, place) in places.iter_mut().enumerate() {
        let free = (reserved..CONTENDERS.len()).chain(0..reserved).find(|&free| !taken[free]);
        let found = *place.get_or_insert(free.unwrap_or(index % CONTENDERS.len()));
        taken[found] = true;
    }
    places.into_iter().flatten().map(|place| CONTENDERS[place].light).collect()
}

impl From<Colour> for RGBColor {
    fn from(Colour(red, green, blue): Colour) -> RGBColor {
        RGBColor(red, green, blue)
    }
}

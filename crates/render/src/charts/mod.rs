//! Charts of plain series, as SVG and PNG.
//!
//! A [`Figure`] is one or several [`Panel`]s with a title. Panels contain labels, values, intervals and
//! units, but not their origin. A value that is absent or not finite is marked as such, never drawn as zero.
//! Text is laid out and rasterised with a font in this crate, so that all machines draw the same.

mod bars;
mod figure;
mod lines;
mod pen;

use std::collections::BTreeMap;
use std::sync::Once;

pub use bars::{Bar, Bars, Dots, DotsGroup, DotsRow, Forest, ForestGroup, Group, Heatmap, Pair};
pub use figure::{Error, Figure, Panel, Size};
pub use lines::{Line, LineAxis, Lines, Point, Sample, Stack, StackRow, Strand, Strands, Survival};
pub use pen::number;
use plotters::style::{FontStyle, RGBColor, register_font};

// The figure that scripts in this field usually draw in addition to their tables.

/// A framework with and without its optimisation.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Optimised {
    pub framework: String,
    pub base: Option<Arm>,
    pub optimised: Option<Arm>,
    /// Speed of the optimised arm divided by that of the base.
    pub speedup: Option<Estimate>,
    /// The share of the base's memory that the optimised arm saves; negative if it needs more.
    pub memory_saved: Option<Estimate>,
}

/// One arm: medians.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Arm {
    pub tokens_per_second: Option<Estimate>,
    pub ms_per_token: Option<Estimate>,
    /// Time of a whole request, in seconds.
    pub total_s: Option<Estimate>,
    pub memory_mb: Option<Estimate>,
}

/// A figure with its 95 % interval, if there is one.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Estimate {
    pub value: f64,
    pub interval: Option<(f64, f64)>,
}

type Value = fn(&Arm) -> Option<Estimate>;

/// Four panels: throughput, time per token, total time and memory. Each has the base and the optimised arm of
/// a framework next to each other. Throughput and memory also show the gain from the optimisation. `case`
/// describes the work, `note` the origin of the figures.
pub fn optimisation_comparison(runs: &[Optimised], case: &str, note: &str, known: &[&str]) -> Figure {
    let colours = colours(runs, known);
    let panel = |title: &str, hint: &str, value: Value, worth: fn(&Optimised) -> Option<String>| {
        let group = |run: &Optimised| {
            let own = colours.get(&run.framework).copied().unwrap_or(PLAIN);
            let arms = [("base", PLAIN, &run.base), ("optimised", own, &run.optimised)];
            let bars = arms.into_iter().filter_map(|(label, colour, arm)| {
                let estimate = value(arm.as_ref()?).filter(|estimate| estimate.value.is_finite());
                Some(Bar {
                    label: label.into(),
                    colour,
                    value: estimate.map(|estimate| estimate.value),
                    interval: estimate.and_then(|estimate| estimate.interval),
                    points: Vec::new(),
                    note: "not available".into(),
                })
            });
            let worth = worth(run).map_or_else(String::new, |worth| format!(": {worth}"));
            Group { label: format!("{}{worth}", run.framework), bars: bars.collect() }
        };
        let groups = runs.iter().map(group).collect();
        Panel::Bars(Bars { title: title.into(), hint: hint.into(), groups, ..Bars::default() })
    };
    Figure {
        title: "Base and optimised".into(),
        subtitle: case.to_owned(),
        panels: vec![
            panel("Tokens per second", "higher is better", |arm| arm.tokens_per_second, speedup),
            panel("Time per token", "ms, lower is better", |arm| arm.ms_per_token, |_| None),
            panel("Total time", "s, lower is better", |arm| arm.total_s, |_| None),
            panel("Memory", "MB, lower is better", |arm| arm.memory_mb, memory),
        ],
        columns: 2,
        note: vec![note.to_owned()],
        ..Figure::default()
    }
}

/// "1.42× as fast (1.38–1.46)".
fn speedup(run: &Optimised) -> Option<String> {
    let found = run.speedup.filter(|found| found.value.is_finite())?;
    let interval = found.interval.map_or_else(String::new, |(low, high)| format!(" ({low:.2}–{high:.2})"));
    Some(format!("{:.2}× as fast{interval}", found.value))
}

/// "21 % less memory (20–21 %)".
fn memory(run: &Optimised) -> Option<String> {
    let found = run.memory_saved.filter(|found| found.value.is_finite())?;
    let (word, sign) = if found.value < 0.0 { ("more", -1.0) } else { ("less", 1.0) };
    let decimals = usize::from(found.value.abs() < 0.1);
    let percent = |share: f64| format!("{:.decimals$}", share * sign * 100.0);
    let interval = found.interval.map_or_else(String::new, |(low, high)| {
        let (low, high) = if sign < 0.0 { (high, low) } else { (low, high) };
        format!(" ({}–{} %)", percent(low), percent(high))
    });
    Some(format!("{} % {word} memory{interval}", percent(found.value)))
}

/// The colour of the base.
const PLAIN: Colour = GREY;

fn colours(runs: &[Optimised], known: &[&str]) -> BTreeMap<String, Colour> {
    let mut names: Vec<String> = runs.iter().map(|run| run.framework.clone()).collect();
    names.sort();
    names.dedup();
    names.iter().cloned().zip(assign(&names, known)).collect()
}

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
pub struct Colour(pub u8, pub u8, pub u8);

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

/// The colours of parts of a whole. They differ from the contenders' colours.
const PARTS: [Tint; 5] = [
    tint([0x5F, 0x70, 0x86], [0x9D, 0xB0, 0xC9]),
    tint([0x4B, 0x3F, 0xA8], [0xA7, 0x9C, 0xF7]),
    tint([0xA3, 0x28, 0x4F], [0xF2, 0x7A, 0x9E]),
    tint([0x7A, 0x4A, 0x21], [0xCF, 0x9B, 0x6B]),
    tint([0x1D, 0x5F, 0x66], [0x63, 0xB7, 0xBF]),
];

/// The colour of series without their own colour.
pub const GREY: Colour = CONTENDERS[6].light;

/// The colour of text, for decided pairs without a winner (equivalent).
pub const INK: Colour = Colour(0x1C, 0x1E, 0x21);

/// CSS declarations of the style variables for the colours of inline charts: `--contender-0: #D55E00;` and so
/// on.
pub fn variables(theme: Theme) -> String {
    let declared = |(name, tint): (String, &Tint)| {
        let colour = if theme == Theme::Dark { tint.dark } else { tint.light };
        format!("--{name}: {};", colour.hex())
    };
    named().map(declared).collect::<Vec<_>>().join(" ")
}

/// The theme of the page around a chart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Theme {
    Light,
    Dark,
}

fn named() -> impl Iterator<Item = (String, &'static Tint)> {
    let contenders = CONTENDERS.iter().enumerate().map(|(index, tint)| (format!("contender-{index}"), tint));
    contenders.chain(PARTS.iter().enumerate().map(|(index, tint)| (format!("part-{index}"), tint)))
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
pub fn assign(names: &[String], known: &[&str]) -> Vec<Colour> {
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

/// The colour of part `index` of a whole.
fn part(index: usize) -> Colour {
    PARTS[index % PARTS.len()].light
}

impl From<Colour> for RGBColor {
    fn from(Colour(red, green, blue): Colour) -> RGBColor {
        RGBColor(red, green, blue)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KNOWN: [&str; 3] = ["candle", "tch", "ort"];

    fn assigned(names: &[&str]) -> Vec<Colour> {
        assign(&names.iter().map(|&name| name.to_owned()).collect::<Vec<_>>(), &KNOWN)
    }

    #[test]
    fn a_framework_keeps_its_colour_whoever_is_beside_it() {
        let all = assigned(&KNOWN);
        assert_eq!(assigned(&["ort", "candle"]), [all[2], all[0]]);
        assert_eq!(assigned(&["tch (KV cache)"]), [all[1]]);
    }

    #[test]
    fn eight_are_told_apart_and_a_variant_leaves_the_framework_its_own() {
        let eight = assigned(&["tch-base", "tch", "a", "b", "c", "d", "e", "orthogonal"]);
        assert!((0..8).all(|i| (0..i).all(|j| eight[i] != eight[j])), "{eight:?}");
        assert_eq!(eight[1], CONTENDERS[1].light);
        assert_eq!(assigned(&["x"; 20]).len(), 20);
    }

    /// Relative luminance and contrast are defined in the Web Content Accessibility Guidelines 2.2.
    fn luminance(Colour(red, green, blue): Colour) -> f64 {
        let linear = |channel: u8| {
            let share = f64::from(channel) / 255.0;
            if share <= 0.04045 { share / 12.92 } else { ((share + 0.055) / 1.055).powf(2.4) }
        };
        0.2126 * linear(red) + 0.7152 * linear(green) + 0.0722 * linear(blue)
    }

    fn contrast(a: Colour, b: Colour) -> f64 {
        let (a, b) = (luminance(a), luminance(b));
        (a.max(b) + 0.05) / (a.min(b) + 0.05)
    }

    #[test]
    fn every_colour_stands_out_from_its_page() {
        for (name, tint) in named() {
            let (light, dark) =
                (contrast(tint.light, Colour(255, 255, 255)), contrast(tint.dark, Colour(0x1D, 0x20, 0x24)));
            assert!(light >= 3.0 && dark >= 3.0, "{name}: {light:.2} on white, {dark:.2} on the dark page");
        }
    }

    #[test]
    fn parts_have_no_contenders_colour() {
        let distance = |a: Colour, b: Colour| {
            let squared = |a: u8, b: u8| (f64::from(a) - f64::from(b)).powi(2);
            (squared(a.0, b.0) + squared(a.1, b.1) + squared(a.2, b.2)).sqrt()
        };
        for part in &PARTS {
            for contender in &CONTENDERS {
                assert!(distance(part.light, contender.light) > 30.0, "{:?}", part.light);
                assert!(distance(part.dark, contender.dark) > 20.0, "{:?}", part.dark);
            }
        }
    }
}

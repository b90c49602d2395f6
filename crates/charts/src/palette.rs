//! Colours that people with any kind of colour vision can distinguish.

use plotters::style::RGBColor;

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
pub(crate) fn with_variables(mut svg: String) -> String {
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
pub(crate) fn part(index: usize) -> Colour {
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

//! Colours that people who see colours differently can tell apart.

use plotters::style::RGBColor;

/// The colour of a series, as red, green and blue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Colour(pub u8, pub u8, pub u8);

/// Okabe and Ito, Color Universal Design (2008), less black, which a dark page swallows; the yellow, faint on
/// white, comes late, and a grey takes black's place.
const PALETTE: [Colour; 8] = [
    Colour(0xD5, 0x5E, 0x00),
    Colour(0x00, 0x72, 0xB2),
    Colour(0x00, 0x9E, 0x73),
    Colour(0xCC, 0x79, 0xA7),
    Colour(0xE6, 0x9F, 0x00),
    Colour(0x56, 0xB4, 0xE9),
    Colour(0x8C, 0x8C, 0x8C),
    Colour(0xF0, 0xE4, 0x42),
];

/// A colour for each name. Each of the `known` names has its own colour, and a name that begins with it has the same
/// (`candle (no cache)` has candle's), so that charts of different runs can be read side by side. A colour that is
/// taken already, or a name that is not known, gets the next free one.
pub fn assign(names: &[String], known: &[&str]) -> Vec<Colour> {
    let mut taken = vec![false; PALETTE.len()];
    let mut places: Vec<Option<usize>> = vec![None; names.len()];
    let own = |name: &str| {
        known.iter().position(|known| {
            let rest = name.strip_prefix(known);
            rest.is_some_and(|rest| !rest.starts_with(|c: char| c.is_alphanumeric()))
        })
    };
    // The name itself before its variants.
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
    let reserved = known.len().min(PALETTE.len());
    for (index, place) in places.iter_mut().enumerate() {
        let free = (reserved..PALETTE.len()).chain(0..reserved).find(|&free| !taken[free]);
        let found = *place.get_or_insert(free.unwrap_or(index % PALETTE.len()));
        taken[found] = true;
    }
    places.into_iter().flatten().map(|place| PALETTE[place]).collect()
}

/// The `index`th of what has no name to be known by: parts of a whole.
pub(crate) fn part(index: usize) -> Colour {
    const PARTS: [usize; 8] = [6, 1, 4, 2, 3, 0, 5, 7];
    PALETTE[PARTS[index % PARTS.len()]]
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
        assert_eq!(eight[1], PALETTE[1]);
        assert_eq!(assigned(&["x"; 20]).len(), 20);
    }
}

//! What a source says of a figure, and whether ours agrees.

use serde::Deserialize;

use crate::found::Found;
use crate::unit::Unit;

/// How far from a published figure ours may lie where that is read as "about".
const ABOUT: f64 = 0.2;

/// A published figure, in the unit of the figure that is held against it.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Published {
    /// As the source has it: "10–15x".
    pub text: String,
    pub reading: Sense,
    /// The figure, or the lower end of a range.
    #[serde(default)]
    pub low: Option<f64>,
    /// The upper end.
    #[serde(default)]
    pub high: Option<f64>,
    /// How far "about" goes, as a share.
    #[serde(default)]
    pub within: Option<f64>,
}

/// How a published figure is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Sense {
    AtLeast,
    AtMost,
    About,
}

/// What comes of a figure, or of a claim.
#[derive(Debug, Clone, PartialEq)]
pub enum Verdict {
    Holds,
    DoesNot,
    /// With the reason.
    NotMeasurable(String),
}

impl Verdict {
    pub(crate) fn words(&self) -> &'static str {
        match self {
            Verdict::Holds => "holds here",
            Verdict::DoesNot => "does not",
            Verdict::NotMeasurable(_) => "not measurable here",
        }
    }
}

impl Published {
    pub(crate) fn check(&self) -> Result<(), String> {
        let bad = |what: &str| Err(format!("published {:?}: {what}", self.text));
        match (self.reading, self.low, self.high) {
            (Sense::AtLeast, None, _) => bad("at_least needs low"),
            (Sense::AtMost, _, None) => bad("at_most needs high"),
            (Sense::About, None, _) => bad("about needs low, or low and high"),
            (_, Some(low), Some(high)) if low > high => bad("low is above high"),
            _ => Ok(()),
        }
    }

    /// The range that ours must meet.
    fn range(&self) -> (f64, f64) {
        let (low, high) = (self.low.unwrap_or(f64::NEG_INFINITY), self.high.unwrap_or(f64::INFINITY));
        match self.reading {
            Sense::AtLeast => (low, f64::INFINITY),
            Sense::AtMost => (f64::NEG_INFINITY, high),
            Sense::About => {
                let high = self.high.unwrap_or(low);
                let within = 1.0 + self.within.unwrap_or(ABOUT);
                // The farther end of a negative figure is below it.
                let outward = |value: f64, out: bool| {
                    if out == (value > 0.0) { value * within } else { value / within }
                };
                (outward(low, false), outward(high, true))
            }
        }
    }

    /// How it is read, for people.
    pub(crate) fn words(&self) -> String {
        match self.reading {
            Sense::AtLeast => "at least".into(),
            Sense::AtMost => "at most".into(),
            Sense::About => match self.within {
                Some(within) => format!("about (factor {} either way)", 1.0 + within),
                None => "about".into(),
            },
        }
    }

    /// Whether what was found here agrees.
    pub fn verdict(&self, found: &Found, unit: Unit) -> Verdict {
        let (least, most) = self.range();
        let (low, high) = found.interval.map_or((found.value, found.value), |interval| interval.bounds);
        if high < least || low > most {
            return Verdict::DoesNot;
        }
        let spans = |value: f64, (low, high): (f64, f64)| low <= value && value <= high;
        match unit.no_effect() {
            // An interval that wide would agree with the contrary, too.
            Some(none) if low < high && spans(none, (low, high)) && !spans(none, (least, most)) => {
                Verdict::NotMeasurable(format!(
                    "the interval ({}) holds both the published figure and no effect at all: more rounds, or a \
                     quieter machine",
                    unit.bounds((low, high))
                ))
            }
            _ => Verdict::Holds,
        }
    }
}

/// The verdict on a claim, from those on its figures: it holds if all do, and does not if one does not.
pub fn of_all(verdicts: &[Verdict]) -> Verdict {
    if verdicts.contains(&Verdict::DoesNot) {
        return Verdict::DoesNot;
    }
    let reason = verdicts.iter().find(|verdict| matches!(verdict, Verdict::NotMeasurable(_)));
    reason.cloned().unwrap_or(Verdict::Holds)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::found::Interval;

    fn published(reading: Sense, low: Option<f64>, high: Option<f64>) -> Published {
        Published { text: "x".into(), reading, low, high, within: None }
    }

    fn verdict(published: &Published, value: f64, bounds: Option<(f64, f64)>) -> Verdict {
        let interval = bounds.map(|bounds| Interval { bounds, is_confidence: true });
        published.verdict(&Found { value, interval }, Unit::Times)
    }

    #[test]
    fn a_figure_holds_where_its_interval_meets_the_published_range() {
        let range = published(Sense::About, Some(10.0), Some(15.0));
        assert_eq!(verdict(&range, 12.0, Some((11.0, 13.0))), Verdict::Holds);
        assert_eq!(verdict(&range, 17.0, Some((16.0, 18.5))), Verdict::Holds, "about reaches to 18");
        assert_eq!(verdict(&range, 21.0, Some((19.0, 23.0))), Verdict::DoesNot);
        assert_eq!(verdict(&range, 8.4, None), Verdict::Holds);
        assert_eq!(verdict(&range, 8.3, None), Verdict::DoesNot);
    }

    #[test]
    fn at_least_and_at_most_are_open_at_one_end() {
        let least = published(Sense::AtLeast, Some(2.0), None);
        assert_eq!(verdict(&least, 50.0, Some((40.0, 60.0))), Verdict::Holds);
        assert_eq!(verdict(&least, 1.5, Some((1.4, 1.9))), Verdict::DoesNot);
        let most = published(Sense::AtMost, None, Some(2.0));
        assert_eq!(verdict(&most, 1.5, Some((1.4, 1.9))), Verdict::Holds);
        assert_eq!(verdict(&most, 3.0, Some((2.5, 3.5))), Verdict::DoesNot);
    }

    #[test]
    fn an_interval_that_holds_everything_decides_nothing() {
        let ten = published(Sense::About, Some(10.0), None);
        assert!(matches!(verdict(&ten, 4.0, Some((0.5, 30.0))), Verdict::NotMeasurable(_)));
        let none = published(Sense::About, Some(1.0), None);
        assert_eq!(verdict(&none, 1.0, Some((0.9, 1.1))), Verdict::Holds, "no effect is what is claimed");
    }

    #[test]
    fn about_reaches_both_ways_from_a_negative_figure() {
        let less = published(Sense::About, Some(-0.5), None);
        for (value, expected) in [
            (-0.45, Verdict::Holds),
            (-0.55, Verdict::Holds),
            (-0.3, Verdict::DoesNot),
            (-0.7, Verdict::DoesNot),
        ] {
            assert_eq!(less.verdict(&Found { value, interval: None }, Unit::Percent), expected, "{value}");
        }
    }

    #[test]
    fn a_claim_holds_if_all_its_figures_do() {
        let open = Verdict::NotMeasurable("why".into());
        assert_eq!(of_all(&[Verdict::Holds, Verdict::Holds]), Verdict::Holds);
        assert_eq!(of_all(&[Verdict::Holds, open.clone(), Verdict::DoesNot]), Verdict::DoesNot);
        assert_eq!(of_all(&[Verdict::Holds, open.clone()]), open);
    }

    #[test]
    fn a_published_figure_needs_the_ends_that_it_is_read_by() {
        assert!(published(Sense::AtLeast, None, Some(1.0)).check().is_err());
        assert!(published(Sense::AtMost, Some(1.0), None).check().is_err());
        assert!(published(Sense::About, Some(2.0), Some(1.0)).check().is_err());
        assert!(published(Sense::About, Some(2.0), None).check().is_ok());
    }
}

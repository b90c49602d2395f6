//! A source's figure, how it is read, and whether ours agrees.
//!
//! There is one rule for all claims: the kind of claim decides how its figure is read. A claim's file names
//! the kind and never the reading, and a figure that does not fit its kind is refused.

use serde::Deserialize;

use crate::claims::claim::Unit;
use crate::claims::claim::Verdict;
use crate::claims::rows::Found;
use crate::claims::rows::{has, numbers};

/// How far from a published figure ours may be where that is read as "about", unless the claim's file says so.
const ABOUT: f64 = 0.2;

/// A published figure, in the unit of the figure that is compared with it.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Published {
    /// In the source's words: "10–15x".
    pub text: String,
    pub kind: Kind,
    /// The figure, or the lower end of a range.
    #[serde(default)]
    pub low: Option<f64>,
    /// The upper end.
    #[serde(default)]
    pub high: Option<f64>,
    /// How far "about" goes, as a share.
    #[serde(default)]
    pub within: Option<f64>,
    /// How the figure was derived here, where the source does not state it.
    #[serde(default)]
    pub derived: Option<Derived>,
}

/// How a figure follows from the source's.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(untagged)]
pub enum Derived {
    /// The first of these figures of the source ÷ the second; for a saving, the share by which the first is
    /// less.
    Quotient([f64; 2]),
    /// In words, with the figure in `low`.
    Words(String),
}

/// The kind of a claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    Gain,
    Saving,
    Equality,
    Bound,
    More,
    Less,
}

impl Kind {
    pub(crate) const ALL: [Kind; 6] =
        [Kind::Gain, Kind::Saving, Kind::Equality, Kind::Bound, Kind::More, Kind::Less];

    /// Its name in a claim's file, the claim in words, and how its figure is read.
    pub(crate) fn rule(self) -> [&'static str; 3] {
        match self {
            Kind::Gain => ["gain", "one thing is so many times better than another", "at least"],
            Kind::Saving => ["saving", "it needs so much less", "at least"],
            Kind::Equality => ["equality", "something is so large", "about"],
            Kind::Bound => ["bound", "something is no larger", "at most"],
            Kind::More => ["more", "something is larger or better, without a figure", "above no difference"],
            Kind::Less => ["less", "something is smaller, without a figure", "below no difference"],
        }
    }
}

impl Published {
    /// Refuses figures that do not fit their kind, and figures that the source does not have.
    pub(crate) fn check(&self, unit: Unit, says: &str) -> Result<(), String> {
        self.check_kind(unit).and_then(|()| self.check_source(unit, says)).map_err(|what| {
            let text = &self.text;
            format!("published {text:?}: {what}")
        })
    }

    fn check_kind(&self, unit: Unit) -> Result<(), String> {
        let [name, _, reading] = self.kind.rule();
        let bad = |what: &str| Err(format!("a {name} {what}"));
        let is_above = |least: f64| self.low().is_some_and(|low| low > least);
        match self.kind {
            Kind::Gain if unit != Unit::Times || !is_above(1.0) => bad("is a number of times above 1"),
            Kind::Saving if unit != Unit::Percent || !is_above(0.0) || is_above(1.0) => {
                bad("is a share between 0 and 1")
            }
            Kind::Gain | Kind::Saving if self.high.is_some() => {
                bad("is read by its lower end: leave high out")
            }
            Kind::Equality if self.low().is_none() => bad("needs low, or low and high"),
            Kind::Bound if self.high.is_none() || self.low().is_some() => bad("needs high and no low"),
            Kind::More | Kind::Less if self.low().is_some() || self.high.is_some() => {
                bad("has no figure: leave low, high and derived out")
            }
            Kind::More | Kind::Less if unit.no_effect().is_none() => {
                bad("needs a unit that has a value of no difference: times or percent")
            }
            _ if self.low().zip(self.high).is_some_and(|(low, high)| low > high) => bad("has low above high"),
            kind if kind != Kind::Equality && self.within.is_some() => {
                bad(&format!("is read {reading}: leave within out"))
            }
            _ => Ok(()),
        }
    }

    /// A published figure must be in its text and in the claim; a derived one follows from figures that are
    /// there.
    fn check_source(&self, unit: Unit, says: &str) -> Result<(), String> {
        let (text, says) = (numbers(&self.text), numbers(says));
        let is_said = |number: &f64| has(&says, *number);
        if let Some(number) = text.iter().find(|number| !is_said(number)) {
            return Err(format!("the source says no {number}: name it in `says`"));
        }
        match &self.derived {
            Some(Derived::Quotient(_)) if self.low.is_some() => {
                Err("low follows from derived: leave it out".into())
            }
            Some(Derived::Quotient(of)) => match of.iter().find(|number| !is_said(number)) {
                Some(number) => Err(format!("it is derived from {number}, which the source does not say")),
                None => Ok(()),
            },
            Some(Derived::Words(_)) => Ok(()),
            None => {
                let ends = [self.low, self.high].into_iter().flatten().map(|end| unit.shown(end));
                match ends.into_iter().find(|end| !has(&text, *end)) {
                    Some(end) => Err(format!("{end} is not in its text: say how it is derived")),
                    None => Ok(()),
                }
            }
        }
    }

    /// The figure, or the lower end of a range.
    fn low(&self) -> Option<f64> {
        match self.derived {
            Some(Derived::Quotient([a, b])) if self.kind == Kind::Saving => Some(1.0 - a / b),
            Some(Derived::Quotient([a, b])) => Some(a / b),
            _ => self.low,
        }
    }

    /// The range that ours must meet.
    fn range(&self, unit: Unit) -> (f64, f64) {
        let none = unit.no_effect().unwrap_or_default();
        let low = self.low().unwrap_or(none);
        match self.kind {
            Kind::Gain | Kind::Saving => (low, f64::INFINITY),
            Kind::Bound => (f64::NEG_INFINITY, self.high.unwrap_or(none)),
            Kind::More => (none, f64::INFINITY),
            Kind::Less => (f64::NEG_INFINITY, none),
            Kind::Equality => {
                let within = 1.0 + self.within.unwrap_or(ABOUT);
                // The farther end of a negative figure is below it.
                let outward = |value: f64, out: bool| {
                    if out == (value > 0.0) { value * within } else { value / within }
                };
                (outward(low, false), outward(self.high.unwrap_or(low), true))
            }
        }
    }

    /// Whether our figure agrees.
    pub fn verdict(&self, found: &Found, unit: Unit) -> Verdict {
        let (least, most) = self.range(unit);
        let (low, high) = found.interval.map_or((found.value, found.value), |interval| interval.bounds);
        // A direction is open at the value of no difference, which is neither more nor less.
        let is_open = matches!(self.kind, Kind::More | Kind::Less);
        if high < least || low > most || (is_open && (high == least || low == most)) {
            return Verdict::DoesNot;
        }
        let spans = |value: f64, (low, high): (f64, f64)| low <= value && value <= high;
        match unit.no_effect() {
            // An interval that wide would agree with the contrary, too.
            Some(none)
                if low < high && spans(none, (low, high)) && (is_open || !spans(none, (least, most))) =>
            {
                Verdict::NotMeasurable(format!(
                    "the interval ({}) holds both what is published and no difference at all: more rounds, or a \
                     quieter machine",
                    unit.bounds((low, high))
                ))
            }
            _ => Verdict::Holds,
        }
    }

    /// Where a figure is that does not agree: on the other side of no difference, below the published one, or above.
    pub(crate) fn place(&self, value: f64, unit: Unit) -> Place {
        let (least, most) = self.range(unit);
        let middle = if least.is_finite() { least } else { most };
        let is_contrary = unit.no_effect().is_some_and(|none| {
            matches!(self.kind, Kind::More | Kind::Less) || (value < none) != (middle < none)
        });
        match value < least {
            _ if is_contrary => Place::Contrary,
            true => Place::Below,
            false => Place::Above,
        }
    }

    /// The source's text, with derived figures marked: "38.43 and 15.66 s; *derived*: 2.45x".
    pub(crate) fn shown(&self, unit: Unit) -> String {
        let text = &self.text;
        match (&self.derived, self.low()) {
            (Some(Derived::Words(words)), _) => format!("{text}; *derived*: {words}"),
            (Some(Derived::Quotient(_)), Some(low)) => format!("{text}; *derived*: {}", unit.text(low)),
            _ => text.clone(),
        }
    }

    /// How it is read, for people.
    pub(crate) fn reading(&self) -> String {
        let [_, _, reading] = self.kind.rule();
        match self.kind {
            Kind::Equality => format!("{reading} (factor {})", 1.0 + self.within.unwrap_or(ABOUT)),
            _ => reading.to_owned(),
        }
    }
}

/// How a figure that does not agree compares with the published one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    Contrary,
    Below,
    Above,
}

/// The rule for readings, as a table for the page.
pub(crate) fn rules() -> String {
    let rows = Kind::ALL.map(|kind| {
        let [_, claimed, reading] = kind.rule();
        let factor = if kind == Kind::Equality {
            format!(": within a factor of {} either way, unless another is given", 1.0 + ABOUT)
        } else {
            String::new()
        };
        format!("| {claimed} | *{reading}*{factor} |")
    });
    format!("| a source claims that | its figure is read as |\n|---|---|\n{}\n", rows.join("\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    use crate::claims::rows::Interval;

    fn published(kind: Kind, low: Option<f64>, high: Option<f64>) -> Published {
        Published { text: String::new(), kind, low, high, within: None, derived: None }
    }

    fn verdict(published: &Published, value: f64, bounds: Option<(f64, f64)>) -> Verdict {
        let interval = bounds.map(|bounds| Interval { bounds, is_confidence: true });
        published.verdict(&Found { value, interval }, Unit::Times)
    }

    #[test]
    fn an_equality_holds_where_the_interval_meets_the_published_range() {
        let range = published(Kind::Equality, Some(10.0), Some(15.0));
        assert_eq!(verdict(&range, 12.0, Some((11.0, 13.0))), Verdict::Holds);
        assert_eq!(verdict(&range, 17.0, Some((16.0, 18.5))), Verdict::Holds, "about reaches to 18");
        assert_eq!(verdict(&range, 21.0, Some((19.0, 23.0))), Verdict::DoesNot);
        assert_eq!(verdict(&range, 8.4, None), Verdict::Holds);
        assert_eq!(verdict(&range, 8.3, None), Verdict::DoesNot);
    }

    #[test]
    fn a_gain_is_read_at_least_and_a_bound_at_most() {
        let gain = published(Kind::Gain, Some(2.0), None);
        assert_eq!(verdict(&gain, 50.0, Some((40.0, 60.0))), Verdict::Holds);
        assert_eq!(verdict(&gain, 1.5, Some((1.4, 1.9))), Verdict::DoesNot);
        let bound = published(Kind::Bound, None, Some(2.0));
        assert_eq!(verdict(&bound, 1.5, Some((1.4, 1.9))), Verdict::Holds);
        assert_eq!(verdict(&bound, 3.0, Some((2.5, 3.5))), Verdict::DoesNot);
    }

    #[test]
    fn a_direction_is_decided_by_the_value_of_no_difference() {
        let (more, less) = (published(Kind::More, None, None), published(Kind::Less, None, None));
        for (value, bounds, is_more) in [(1.2, (1.1, 1.3), true), (0.8, (0.7, 0.9), false)] {
            let expected =
                if is_more { [Verdict::Holds, Verdict::DoesNot] } else { [Verdict::DoesNot, Verdict::Holds] };
            assert_eq!([&more, &less].map(|of| verdict(of, value, Some(bounds))), expected);
        }
        for of in [&more, &less] {
            assert!(matches!(verdict(of, 1.1, Some((0.9, 1.3))), Verdict::NotMeasurable(_)));
            assert_eq!(verdict(of, 1.0, None), Verdict::DoesNot, "no difference is neither");
        }
    }

    #[test]
    fn an_interval_that_holds_everything_decides_nothing() {
        let ten = published(Kind::Equality, Some(10.0), None);
        assert!(matches!(verdict(&ten, 4.0, Some((0.5, 30.0))), Verdict::NotMeasurable(_)));
        let none = published(Kind::Equality, Some(1.0), None);
        assert_eq!(verdict(&none, 1.0, Some((0.9, 1.1))), Verdict::Holds, "no difference is what is claimed");
    }

    #[test]
    fn about_reaches_both_ways_from_a_negative_figure() {
        let less = published(Kind::Equality, Some(-0.5), None);
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
    fn a_figure_that_does_not_agree_is_below_above_or_on_the_other_side() {
        let gain = published(Kind::Gain, Some(2.0), None);
        assert_eq!([1.5, 0.5].map(|value| gain.place(value, Unit::Times)), [Place::Below, Place::Contrary]);
        let equality = published(Kind::Equality, Some(2.0), None);
        let places = [1.5, 3.0, 0.5].map(|value| equality.place(value, Unit::Times));
        assert_eq!(places, [Place::Below, Place::Above, Place::Contrary]);
        assert_eq!(equality.place(0.5, Unit::Plain), Place::Below, "no value of it is no difference");
        assert_eq!(published(Kind::More, None, None).place(0.9, Unit::Times), Place::Contrary);
        assert_eq!(published(Kind::Less, None, None).place(0.1, Unit::Percent), Place::Contrary);
    }

    #[test]
    fn a_figure_must_fit_its_kind() {
        let fits = |kind, low, high, unit| published(kind, low, high).check_kind(unit).is_ok();
        for (is_fit, kind, low, high, unit) in [
            (true, Kind::Gain, Some(2.0), None, Unit::Times),
            (false, Kind::Gain, Some(0.5), None, Unit::Times),
            (false, Kind::Gain, None, None, Unit::Times),
            (false, Kind::Gain, Some(2.0), Some(3.0), Unit::Times),
            (false, Kind::Gain, Some(2.0), None, Unit::Seconds),
            (true, Kind::Saving, Some(0.5), None, Unit::Percent),
            (false, Kind::Saving, Some(50.0), None, Unit::Percent),
            (false, Kind::Saving, Some(0.5), None, Unit::Times),
            (true, Kind::Equality, Some(0.5), Some(2.0), Unit::Seconds),
            (false, Kind::Equality, Some(2.0), Some(0.5), Unit::Seconds),
            (false, Kind::Equality, None, Some(2.0), Unit::Seconds),
            (true, Kind::Bound, None, Some(2.0), Unit::Seconds),
            (false, Kind::Bound, Some(2.0), Some(2.0), Unit::Seconds),
            (true, Kind::More, None, None, Unit::Times),
            (false, Kind::More, Some(1.0), None, Unit::Times),
            (false, Kind::Less, None, None, Unit::Seconds),
        ] {
            assert_eq!(fits(kind, low, high, unit), is_fit, "{kind:?} {low:?} {high:?} {unit:?}");
        }
        let wide = Published { within: Some(1.0), ..published(Kind::Gain, Some(2.0), None) };
        assert!(wide.check_kind(Unit::Times).is_err(), "only about has a factor");
    }

    #[test]
    fn the_source_has_every_figure_or_those_that_it_is_derived_from() {
        let says = "81.4 and 40.9 tok/s, 1.86 times as fast, 201 MB";
        let of = |text: &str, low, derived| {
            let kind = Kind::Gain;
            Published { text: text.into(), derived, ..published(kind, low, None) }.check(Unit::Times, says)
        };
        assert_eq!(of("1.86x", Some(1.86), None), Ok(()));
        assert!(of("1.87x", Some(1.87), None).unwrap_err().contains("the source says no 1.87"));
        assert!(of("1.86x", Some(1.9), None).unwrap_err().contains("1.9 is not in its text"));
        let quotient = |a, b| Some(Derived::Quotient([a, b]));
        assert_eq!(of("81.4 and 40.9 tok/s", None, quotient(81.4, 40.9)), Ok(()));
        assert!(of("", None, quotient(81.4, 40.8)).unwrap_err().contains("derived from 40.8"));
        assert!(of("", Some(2.0), quotient(81.4, 40.9)).unwrap_err().contains("leave it out"));
        assert_eq!(of("fast", Some(2.0), Some(Derived::Words("twice".into()))), Ok(()));
        let memory = Published { text: "201 MB".into(), ..published(Kind::Equality, Some(201e6), None) };
        assert_eq!(memory.check(Unit::Megabytes, says), Ok(()));
    }

    #[test]
    fn a_derived_figure_is_computed_and_labelled() {
        let derived = Some(Derived::Quotient([3.0, 6.0]));
        let saving = Published { text: "3 and 6 GB".into(), derived, ..published(Kind::Saving, None, None) };
        assert_eq!(saving.shown(Unit::Percent), "3 and 6 GB; *derived*: 50.0 %");
        assert_eq!(saving.verdict(&Found::alone(0.51), Unit::Percent), Verdict::Holds);
        assert_eq!(saving.verdict(&Found::alone(0.49), Unit::Percent), Verdict::DoesNot);
    }
}

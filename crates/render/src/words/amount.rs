//! Differences in words: how much better one contender is, and between which bounds that is.

use judge::Metric;
use judge::metrics::Amount;

/// From here on a difference is shown as a factor.
const FACTOR: f64 = 1.5;
/// Beyond this an interval says nothing that a reader could use.
const BEYOND: f64 = 1000.0;

/// A number in one of the two forms.
#[derive(Clone, Copy, PartialEq)]
enum Form {
    Percent,
    Factor,
}

/// Differences of a metric in words. `ratio` says how many times better `a` is, `interval` between which bounds that is.
pub(crate) trait Differences {
    /// The sentence for a difference: "a loads 1.9x faster than b".
    fn difference(self, a: &str, b: &str, ratio: f64, interval: Option<(f64, f64)>) -> String;

    /// The verb of its comparatives: "decodes", "needs".
    fn does(self) -> String;

    /// The rest of a comparative: "18 % faster than b".
    fn than(self, b: &str, ratio: f64, interval: Option<(f64, f64)>) -> String;

    /// The same where the sentence has named the metric: "20 % less than b".
    fn than_briefly(self, b: &str, ratio: f64, interval: Option<(f64, f64)>) -> String;

    /// The phrase for several that are equivalent: "decode equally fast".
    fn equality(self) -> String;

    /// The phrase for the best: "decodes fastest", "needs the least memory".
    fn superlative(self) -> String;

    /// How many times better: "18 %", "1.9x". It has as many decimals as its interval, so that rounding never
    /// moves it out of the interval.
    fn amount(self, ratio: f64, interval: Option<(f64, f64)>) -> String;

    /// The interval of a ratio in the form of its amount: "15–22 %".
    fn interval(self, ratio: f64, interval: (f64, f64)) -> String;

    /// The interval of a ratio that includes no difference: "−2 to 5 %", "0.42–2.8x".
    fn open_interval(self, ratio: f64, interval: (f64, f64)) -> String;
}

impl Differences for Metric {
    fn difference(self, a: &str, b: &str, ratio: f64, interval: Option<(f64, f64)>) -> String {
        format!("{a} {} {}", self.does(), self.than(b, ratio, interval))
    }

    fn does(self) -> String {
        self.phrases().map_or("has".to_owned(), |phrases| phrases.verb.to_owned())
    }

    fn than(self, b: &str, ratio: f64, interval: Option<(f64, f64)>) -> String {
        let amount = self.amount(ratio, interval);
        match self.phrases() {
            Some(phrases) => format!("{amount} {} than {b}", phrases.comparative),
            None => format!("{amount} better {} than {b}", self.words()),
        }
    }

    fn than_briefly(self, b: &str, ratio: f64, interval: Option<(f64, f64)>) -> String {
        let brief = self.phrases().map_or("better", |phrases| phrases.short);
        format!("{} {brief} than {b}", self.amount(ratio, interval))
    }

    fn equality(self) -> String {
        self.phrases()
            .map_or_else(|| format!("have equivalent {}", self.words()), |phrases| phrases.equal.to_owned())
    }

    fn superlative(self) -> String {
        self.phrases().map_or_else(
            || format!("has the best {}", self.words()),
            |phrases| phrases.superlative.to_owned(),
        )
    }

    fn amount(self, ratio: f64, interval: Option<(f64, f64)>) -> String {
        let form = form(self, ratio, None);
        let decimals = decimals(self, form, ratio, interval);
        let unit = if form == Form::Factor { "x" } else { " %" };
        format!("{}{unit}", text(shown(self, form, ratio), decimals))
    }

    fn interval(self, ratio: f64, interval: (f64, f64)) -> String {
        bounds(self, form(self, ratio, None), ratio, interval)
    }

    fn open_interval(self, ratio: f64, interval: (f64, f64)) -> String {
        bounds(self, form(self, ratio, Some(interval.1)), ratio, interval)
    }
}

fn bounds(metric: Metric, form: Form, ratio: f64, (low, high): (f64, f64)) -> String {
    if !(high.is_finite() && high < BEYOND && low > 1.0 / BEYOND) {
        return "too few rounds for one".to_owned();
    }
    let decimals = decimals(metric, form, ratio, Some((low, high)));
    let [from, to] = [low, high].map(|end| text(shown(metric, form, end), decimals));
    let unit = if form == Form::Factor { "x" } else { " %" };
    let between = if from.starts_with('−') { " to " } else { "–" };
    format!("{from}{between}{to}{unit}")
}

/// Savings are always in percent. An open interval is shown as factors if its end is large enough.
fn form(metric: Metric, ratio: f64, end: Option<f64>) -> Form {
    let is_factor = ratio >= FACTOR || end.is_some_and(|end| end >= 2.0 * FACTOR);
    if metric.amount_form() == Amount::Times && is_factor { Form::Factor } else { Form::Percent }
}

fn shown(metric: Metric, form: Form, ratio: f64) -> f64 {
    match (form, metric.amount_form()) {
        (Form::Factor, _) => ratio,
        (Form::Percent, Amount::Times) => 100.0 * (ratio - 1.0),
        (Form::Percent, Amount::Less) => 100.0 * (1.0 - 1.0 / ratio),
    }
}

/// The fewest decimals at which the ends of the interval differ, and the amount is not rounded to nothing.
fn decimals(metric: Metric, form: Form, ratio: f64, interval: Option<(f64, f64)>) -> usize {
    let (fewest, most) = if form == Form::Factor { (1, 2) } else { (0, 2) };
    let tells = |&decimals: &usize| {
        let of = |ratio: f64| text(shown(metric, form, ratio), decimals);
        let differ = interval.is_none_or(|(low, high)| low >= high || of(low) != of(high));
        differ && (ratio == 1.0 || of(ratio) != of(1.0))
    };
    (fewest..most).find(tells).unwrap_or(most)
}

/// A number with a true minus sign. A number that rounds to zero has none.
fn text(value: f64, decimals: usize) -> String {
    let digits = format!("{:.decimals$}", value.abs());
    let is_zero = digits.bytes().all(|digit| matches!(digit, b'0' | b'.'));
    if value < 0.0 && !is_zero { format!("−{digits}") } else { digits }
}

/// A run that could only have shown differences above this factor had too few rounds to show any.
pub(crate) const TELLING: f64 = 3.0;

/// The least difference that a run could have shown: "6 %", "2.3x".
pub(crate) fn detectable(ratio: f64) -> String {
    match 100.0 * (ratio - 1.0) {
        _ if ratio >= FACTOR => format!("{ratio:.1}x"),
        percent if percent < 10.0 => format!("{percent:.1} %"),
        percent => format!("{percent:.0} %"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(metric: Metric, ratio: f64, interval: (f64, f64)) -> String {
        let sentence = metric.difference("a", "b", ratio, Some(interval));
        format!("{sentence} ({})", metric.interval(ratio, interval))
    }

    #[test]
    fn a_difference_is_told_in_the_words_of_its_metric() {
        assert_eq!(told(Metric::Load, 1.874, (1.34, 2.4)), "a loads 1.9x faster than b (1.3–2.4x)");
        assert_eq!(told(Metric::Throughput, 1.187, (1.152, 1.219)), "a decodes 19 % faster than b (15–22 %)");
        assert_eq!(
            told(Metric::PeakMemory, 1.26, (1.257, 1.262)),
            "a needs 21 % less memory than b (20–21 %)"
        );
        assert_eq!(told(Metric::PeakMemory, 1.25, (1.24, 1.27)), "a needs 20 % less memory than b (19–21 %)");
        assert_eq!(told(Metric::Startup, 1.25, (1.2, 1.3)), "a has 25 % better start-up than b (20–30 %)");
        assert_eq!(Metric::Load.difference("a", "b", 1.004, None), "a loads 0.4 % faster than b");
    }

    #[test]
    fn a_small_difference_is_not_rounded_away_nor_out_of_its_interval() {
        assert_eq!(
            told(Metric::Throughput, 1.004, (1.001, 1.007)),
            "a decodes 0.4 % faster than b (0.1–0.7 %)"
        );
        // Rounding is monotone: with the same decimals the amount stays between the ends.
        assert_eq!(told(Metric::Load, 1.5004, (1.5001, 1.54)), "a loads 1.50x faster than b (1.50–1.54x)");
    }

    #[test]
    fn an_interval_around_nothing_has_a_sign_and_a_wide_one_factors() {
        assert_eq!(Metric::Throughput.open_interval(1.01, (0.98, 1.05)), "−2 to 5 %");
        assert_eq!(Metric::Load.open_interval(1.1, (0.42, 3.1)), "0.4–3.1x");
        assert_eq!(Metric::Load.open_interval(1.1, (1e-9, 1e9)), "too few rounds for one");
    }

    #[test]
    fn what_could_have_been_shown_is_in_percent_or_a_factor() {
        assert_eq!([1.06, 1.12, 3.3].map(detectable), ["6.0 %", "12 %", "3.3x"]);
    }
}

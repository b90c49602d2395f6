//! A published claim as data: `configs/claims/NN-name.toml`. `crates/evidence/README.md` describes the fields.

use std::path::Path;

use anyhow::{Context, Result};
use comparison::judge::report::number;
use serde::Deserialize;
use setup::tooling::BadInput;

use crate::claims::judged::Reading;
use crate::claims::published::Published;

/// Where the claims are, from the root of the checkout.
pub const CLAIMS: &str = "configs/claims";

/// The first word of every command.
const PROGRAM: &str = "photofinish";

/// One claim, and how it is tested here.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Claim {
    /// From the file's name.
    #[serde(skip)]
    pub number: u32,
    pub title: String,
    /// The sources: titles of the documents.
    pub source: String,
    /// The claim, with its figures.
    pub says: String,
    /// Model, lengths, hardware and versions of those figures.
    pub conditions: String,
    /// The substitutes used here, and the questions that they leave open.
    pub here: String,
    /// The reasons for the difference: prose without a figure of ours.
    pub explains: String,
    /// The part that cannot be measured here, and why.
    #[serde(default)]
    pub open: Option<String>,
    /// Why the work here is not comparable with the source's: then its figures are shown and decide nothing.
    #[serde(default)]
    pub incomparable: Option<String>,
    #[serde(rename = "run")]
    pub runs: Vec<Run>,
    #[serde(rename = "figure")]
    pub figures: Vec<Figure>,
}

/// A study that is run for a claim.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Run {
    /// Its directory below that of the claim.
    pub name: String,
    /// As it is typed: `photofinish ab …`.
    pub command: String,
    /// Raised if the same command starts to measure something else: earlier results are then of another
    /// study.
    #[serde(default = "first_revision")]
    pub revision: u32,
    /// The change of the last revision.
    #[serde(default)]
    pub changed: Option<String>,
}

pub(crate) fn first_revision() -> u32 {
    1
}

/// One figure that is read from a run.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Figure {
    pub what: String,
    /// Name of a run of the claim; none for plain arithmetic.
    #[serde(default)]
    pub run: Option<String>,
    pub read: Reading,
    pub unit: Unit,
    /// The source's figure. Without it nothing is decided.
    #[serde(default)]
    pub published: Option<Published>,
    /// Why this figure is not comparable with the source's.
    #[serde(default)]
    pub incomparable: Option<String>,
}

impl Claim {
    /// Its directory below that of all claims: "03".
    pub fn directory(&self) -> String {
        format!("{:02}", self.number)
    }

    pub fn run(&self, name: &str) -> Option<&Run> {
        self.runs.iter().find(|run| run.name == name)
    }

    fn check(&self) -> Result<(), String> {
        for run in &self.runs {
            run.words()?;
            let is_plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
            if run.name.is_empty() || !run.name.chars().all(is_plain) {
                return Err(format!("the run {:?} needs a name of small letters, digits and -", run.name));
            }
            if self.runs.iter().filter(|other| other.name == run.name).count() > 1 {
                return Err(format!("two runs are called {:?}", run.name));
            }
            if run.changed.is_some() != (run.revision > first_revision()) {
                return Err(format!(
                    "the run {:?} needs a revision above 1 and what changed, or neither",
                    run.name
                ));
            }
        }
        self.figures.iter().try_for_each(|figure| figure.check(self))?;
        if self.figures.iter().all(|figure| figure.published.is_none()) {
            return Err("no figure is compared with a published one".into());
        }
        Ok(())
    }
}

impl Figure {
    fn check(&self, claim: &Claim) -> Result<(), String> {
        let bad = |what: String| Err(format!("the figure {:?} {what}", self.what));
        match &self.run {
            Some(name) if claim.run(name).is_none() => {
                return bad(format!("names a run {name:?}, which is not there"));
            }
            None if self.read.needs_run() => return bad("names no run".into()),
            _ => {}
        }
        if self.read.unit().is_some_and(|unit| unit != self.unit) {
            return bad(format!("has the unit {:?}, which its reader does not give", self.unit));
        }
        if matches!(self.read, Reading::Absent) && self.incomparable.is_none() {
            return bad("is absent: say why in incomparable".into());
        }
        self.published.iter().try_for_each(|published| published.check(self.unit, &claim.says))
    }
}

impl Run {
    /// The words after `photofinish`.
    pub fn words(&self) -> Result<Vec<String>, String> {
        let mut words = shlex::split(&self.command)
            .ok_or_else(|| format!("the command {:?} has an open quote", self.command))?;
        if words.first().is_none_or(|first| first != PROGRAM) {
            return Err(format!("the command {:?} must begin with {PROGRAM}", self.command));
        }
        words.remove(0);
        Ok(words)
    }
}

/// Reads every claim below `root`, in the order of their numbers.
pub fn read_all(root: &Path) -> Result<Vec<Claim>> {
    let directory = root.join(CLAIMS);
    let entries = std::fs::read_dir(&directory)
        .map_err(|error| BadInput(format!("cannot read {}: {error}", directory.display())))?;
    let mut claims = Vec::new();
    for entry in entries {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "toml") {
            claims.push(read(&path)?);
        }
    }
    claims.sort_by_key(|claim| claim.number);
    if let Some(pair) = claims.windows(2).find(|pair| pair[0].number == pair[1].number) {
        return Err(BadInput(format!("{CLAIMS} has two claims {}", pair[0].number)).into());
    }
    Ok(claims)
}

fn read(path: &Path) -> Result<Claim> {
    let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let bad = |reason: String| BadInput(format!("{CLAIMS}/{name}: {reason}"));
    let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    let mut claim: Claim = toml::from_str(&text).map_err(|error| bad(error.to_string()))?;
    let number = name.split('-').next().and_then(|digits| digits.parse().ok());
    claim.number = number.ok_or_else(|| bad("its name must begin with a number and a -".into()))?;
    claim.check().map_err(bad)?;
    Ok(claim)
}

// Units of figures, and how a figure is written.

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Unit {
    /// A ratio: "16.3x".
    Times,
    /// A share, read as a fraction and written in percent: 0.45 is "45 %".
    Percent,
    /// A plain number, such as an exponent or a perplexity.
    Plain,
    Seconds,
    Milliseconds,
    /// 10⁶ bytes, read in bytes.
    Megabytes,
    /// 10⁹ bytes, read in gigabytes as in the metrics.
    Gigabytes,
    TokensPerSecond,
    Tokens,
}

impl Unit {
    /// "16.3x".
    pub(crate) fn text(self, value: f64) -> String {
        format!("{}{}", self.bare(value), self.suffix())
    }

    /// "16.3x (15.1 to 17.2)".
    pub(crate) fn bounds(self, (low, high): (f64, f64)) -> String {
        format!("{} to {}", self.bare(low), self.bare(high))
    }

    /// The value at which there is no effect; none where the unit has no such value.
    pub(crate) fn no_effect(self) -> Option<f64> {
        match self {
            Unit::Times => Some(1.0),
            Unit::Percent => Some(0.0),
            _ => None,
        }
    }

    /// A value as its figure is written: percent of a share, megabytes of bytes.
    pub(crate) fn shown(self, value: f64) -> f64 {
        match self {
            Unit::Percent => 100.0 * value,
            Unit::Megabytes => value / 1e6,
            _ => value,
        }
    }

    fn bare(self, value: f64) -> String {
        match self {
            Unit::Tokens => format!("{value:.0}"),
            _ => number(self.shown(value)),
        }
    }

    fn suffix(self) -> &'static str {
        match self {
            Unit::Times => "x",
            Unit::Percent => " %",
            Unit::Plain => "",
            Unit::Seconds => " s",
            Unit::Milliseconds => " ms",
            Unit::Megabytes => " MB",
            Unit::Gigabytes => " GB",
            Unit::TokensPerSecond => " tok/s",
            Unit::Tokens => " tokens",
        }
    }
}

// The outcome for a figure, or for a claim.

/// The verdict on a figure or a claim.
#[derive(Debug, Clone, PartialEq)]
pub enum Verdict {
    Holds,
    DoesNot,
    /// With the reason.
    NotMeasurable(String),
    /// It was never run.
    NotRun,
    /// No stored result decides it, for this reason.
    ToRun(String),
}

impl Verdict {
    pub(crate) fn words(&self) -> &'static str {
        match self {
            Verdict::Holds => "holds here",
            Verdict::DoesNot => "does not",
            Verdict::NotMeasurable(_) => "not measurable here",
            Verdict::NotRun => "not run yet",
            Verdict::ToRun(_) => "to be run again",
        }
    }
}

/// The verdict on a claim, from those on its figures: it holds if all do, and does not if one does not.
pub(crate) fn of_all(verdicts: &[Verdict]) -> Verdict {
    if verdicts.contains(&Verdict::DoesNot) {
        return Verdict::DoesNot;
    }
    verdicts.iter().find(|verdict| **verdict != Verdict::Holds).cloned().unwrap_or(Verdict::Holds)
}

#[cfg(test)]
mod tests {
    use super::*;

    const WHOLE: &str = r#"
title = "t"
source = "s"
says = "16.32x"
conditions = "c"
here = "h"
explains = "e"
[[run]]
name = "both"
command = "photofinish ab jax jax-neither --rounds 6"
[[figure]]
what = "w"
run = "both"
unit = "times"
read = { kind = "advantage", a = "jax", b = "jax-neither", metric = "throughput", at = { batch = 2 } }
published = { text = "16.32x", low = 16.32, kind = "gain" }
"#;

    fn read_text(name: &str, text: &str) -> Result<Claim> {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join(name);
        std::fs::write(&file, text).unwrap();
        read(&file)
    }

    #[test]
    fn a_claim_is_read_with_the_number_of_its_file() {
        let claim = read_text("07-x.toml", WHOLE).unwrap();
        assert_eq!((claim.number, claim.directory().as_str()), (7, "07"));
        assert_eq!(claim.runs[0].words().unwrap()[..2], ["ab", "jax"]);
    }

    #[test]
    fn a_mistake_names_the_file_and_what_is_wrong() {
        for (name, from, to, expected) in [
            ("x.toml", "", "", "must begin with a number"),
            ("01-x.toml", "title", "titel", "unknown field"),
            ("01-x.toml", "command = \"photofinish ", "command = \"cargo ", "must begin with photofinish"),
            ("01-x.toml", "run = \"both\"", "run = \"other\"", "which is not there"),
            ("01-x.toml", "run = \"both\"", "", "names no run"),
            ("01-x.toml", "published =", "#", "no figure is compared with"),
            ("01-x.toml", "low = 16.32, ", "", "a gain is a number of times above 1"),
            ("01-x.toml", "kind = \"gain\"", "reading = \"about\"", "unknown field `reading`"),
            ("01-x.toml", "says = \"16.32x\"", "says = \"fast\"", "the source says no 16.32"),
            ("01-x.toml", "unit = \"times\"", "unit = \"seconds\"", "which its reader does not give"),
            ("01-x.toml", "[[figure]]", "revision = 2\n[[figure]]", "what changed"),
        ] {
            let error = read_text(name, &WHOLE.replacen(from, to, 1)).unwrap_err();
            assert!(setup::tooling::is_bad_input(&error), "{error:#}");
            let text = error.to_string();
            assert!(text.starts_with(&format!("{CLAIMS}/{name}: ")) && text.contains(expected), "{text}");
        }
    }

    #[test]
    fn figures_are_written_with_their_unit() {
        assert_eq!(Unit::Times.text(16.32), "16.3x");
        assert_eq!(Unit::Percent.text(-0.521), "-52.1 %");
        assert_eq!(Unit::Megabytes.text(37_748_736.0), "37.7 MB");
        assert_eq!(Unit::Times.bounds((9.5, 12.0)), "9.50 to 12.0");
    }

    #[test]
    fn a_claim_holds_if_all_its_figures_do() {
        let open = Verdict::NotMeasurable("why".into());
        assert_eq!(of_all(&[Verdict::Holds, Verdict::Holds]), Verdict::Holds);
        assert_eq!(of_all(&[Verdict::Holds, open.clone(), Verdict::DoesNot]), Verdict::DoesNot);
        assert_eq!(of_all(&[Verdict::Holds, open.clone()]), open);
    }
}

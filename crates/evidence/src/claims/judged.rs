//! A claim with its figures and verdicts, as read from the stored runs.

use std::path::Path;

use anyhow::Result;
use comparison::facts::Environment;
use comparison::judge::Metric;
use comparison::judge::study::StudyReport;
use comparison::plan::{Axis, Settings};
use serde::Deserialize;

use crate::claims::claim::{Claim, Figure, Run, Unit, Verdict, of_all};
use crate::claims::kept::{self, Kept};
use crate::claims::published::{Place, Published};
use crate::claims::rows::{self, Found, Outcome, cell, place, quiet_row, row};

/// A claim, judged.
#[derive(Debug)]
pub struct Judged<'a> {
    pub claim: &'a Claim,
    /// Every run of the claim; none where it was not run.
    pub runs: Vec<(&'a Run, Option<Kept>)>,
    pub figures: Vec<JudgedFigure<'a>>,
    pub verdict: Verdict,
}

#[derive(Debug)]
pub struct JudgedFigure<'a> {
    pub figure: &'a Figure,
    /// The figure, or the reason why there is none.
    pub found: Result<Found, String>,
    /// None where it is compared with nothing.
    pub verdict: Option<Verdict>,
    /// Which side a figure favours that does not agree with the published one.
    pub favours: Option<String>,
}

/// Judges a claim by the runs below `root`.
pub fn judge<'a>(root: &Path, claim: &'a Claim) -> Result<Judged<'a>> {
    let unpacked = kept::unpack(&root.join(kept::archive(claim)))?;
    let runs: Result<Vec<_>> =
        claim.runs.iter().map(|run| Ok((run, kept::read(unpacked.path(), run)?))).collect();
    Ok(of_runs(claim, runs?))
}

fn of_runs<'a>(claim: &'a Claim, runs: Vec<(&'a Run, Option<Kept>)>) -> Judged<'a> {
    let figures: Vec<_> = claim.figures.iter().map(|figure| judged(claim, figure, &runs)).collect();
    let verdicts: Vec<Verdict> = figures.iter().filter_map(|figure| figure.verdict.clone()).collect();
    let verdict = match (&claim.incomparable, runs.iter().find_map(due)) {
        (Some(reason), _) => Verdict::NotMeasurable(reason.clone()),
        (None, Some(due)) => due,
        (None, None) => of_all(&verdicts),
    };
    Judged { claim, runs, figures, verdict }
}

fn due((run, kept): &(&Run, Option<Kept>)) -> Option<Verdict> {
    kept.as_ref().map_or(Some(Verdict::NotRun), |kept| kept.due(run).map(Verdict::ToRun))
}

fn judged<'a>(claim: &Claim, figure: &'a Figure, runs: &[(&Run, Option<Kept>)]) -> JudgedFigure<'a> {
    let run = figure.run.as_ref().and_then(|name| runs.iter().find(|(run, _)| run.name == *name));
    // Figures of an unclean checkout are of this study: they are shown, and the claim has no verdict.
    let due = run.and_then(|(run, kept)| match kept {
        None => Some(Verdict::NotRun),
        Some(kept) => kept.changed(run).map(Verdict::ToRun),
    });
    let kept = run.and_then(|(_, kept)| kept.as_ref());
    let refused = kept.and_then(|kept| kept.record.refused.clone());
    let found = match due.as_ref().map(|due| due.words().to_owned()).or(refused) {
        Some(reason) => Err(reason),
        None => figure.read.read(kept.and_then(|kept| kept.report.as_ref())),
    };
    let compared = figure.published.as_ref().map(|published| match &found {
        Ok(found) => published.verdict(found, figure.unit),
        Err(reason) => Verdict::NotMeasurable(reason.clone()),
    });
    let favours = match (&figure.published, &found, &compared) {
        (Some(published), Ok(found), Some(Verdict::DoesNot)) => Some(favours(figure, published, found)),
        _ => None,
    };
    let incomparable = figure.incomparable.as_ref().or(claim.incomparable.as_ref());
    let verdict = compared.map(|verdict| match (incomparable, due) {
        (Some(reason), _) => Verdict::NotMeasurable(reason.clone()),
        (None, Some(due)) => due,
        (None, None) => verdict,
    });
    JudgedFigure { figure, found, verdict, favours }
}

/// "in favour of jax, less than published", from the figure and the published one.
fn favours(figure: &Figure, published: &Published, found: &Found) -> String {
    let (Figure { unit, read, .. }, value) = (figure, found.value);
    let place = published.place(value, *unit);
    let spans = |none: f64| found.interval.is_some_and(|at| at.bounds.0 <= none && none <= at.bounds.1);
    if unit.no_effect().is_some_and(spans) {
        return "in favour of neither side".to_owned();
    }
    let sides = read.sides().zip(unit.no_effect());
    let favoured =
        sides.map(|(sides, none)| if (value > none) == sides.larger_favours_a { sides.a } else { sides.b });
    match (favoured, place) {
        (Some(side), Place::Contrary) => format!("in favour of {side}, the contrary of what is published"),
        (Some(side), Place::Below) => format!("in favour of {side}, less than published"),
        (Some(side), Place::Above) => format!("in favour of {side}, more than published"),
        (None, Place::Contrary) => "the contrary of what is published".to_owned(),
        (None, Place::Below) => "smaller than published".to_owned(),
        (None, Place::Above) => "larger than published".to_owned(),
    }
}

impl Judged<'_> {
    /// The machine of the first run that has one.
    pub(crate) fn machine(&self) -> Option<&Environment> {
        self.runs.iter().find_map(|(_, kept)| kept.as_ref()?.environment.as_ref())
    }

    /// Libraries with their versions, each once.
    pub(crate) fn libraries(&self) -> Vec<&str> {
        let reports = self.runs.iter().filter_map(|(_, kept)| kept.as_ref()?.report.as_ref());
        let all = reports.flat_map(|report| &report.cells).flat_map(|cell| &cell.origin.libraries);
        let mut libraries: Vec<&str> = Vec::new();
        for library in all {
            if !libraries.contains(&library.as_str()) {
                libraries.push(library);
            }
        }
        libraries
    }
}

// Readers of a study's report: a small typed set. Each gives a figure or the reason why there is none.

/// One reader with its arguments. `at` names the cell by its place on the axes, if there are several.
#[derive(Debug, Clone, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum Reading {
    /// How many times better `a` is than `b`, from the verdict on the pair.
    Advantage {
        a: String,
        b: String,
        metric: Metric,
        #[serde(default)]
        at: Settings,
    },
    /// By which share `a` needs less than `b` (time or memory), from the same verdict.
    Less {
        a: String,
        b: String,
        metric: Metric,
        #[serde(default)]
        at: Settings,
    },
    /// How many times as large the advantage of `a` is at `at` as at `from`.
    Growth { a: String, b: String, metric: Metric, from: Settings, at: Settings },
    /// A contender's figure.
    Figure {
        framework: String,
        metric: Metric,
        #[serde(default)]
        at: Settings,
    },
    /// One figure ÷ another.
    Ratio(Quotient),
    /// By which share one figure is less than another.
    Saving(Quotient),
    /// How a figure grows along an axis.
    Scaling {
        framework: String,
        axis: Axis,
        of: rows::Growth,
        #[serde(default)]
        at: Settings,
    },
    /// The result of a benchmark with too short a warm-up.
    /// `over` divides it by the same of another contender.
    ShortWarmup {
        framework: String,
        of: rows::Short,
        over: Option<String>,
        #[serde(default)]
        at: Settings,
    },
    /// Time of this iteration of a process, counted from 1, ÷ that of a steady one.
    Iteration {
        framework: String,
        iteration: usize,
        #[serde(default)]
        at: Settings,
    },
    /// The cost of compiling for a contender, compared with itself without its JIT.
    Compiling {
        framework: String,
        of: rows::Compiling,
        #[serde(default)]
        at: Settings,
    },
    /// The first time of a prompt of this many tokens, compared with later ones.
    NewPrompt {
        framework: String,
        tokens: usize,
        of: rows::NewPrompt,
        #[serde(default)]
        at: Settings,
    },
    /// A part of a contender's memory, in bytes; `over` divides it by the same part in another cell.
    Memory {
        framework: String,
        part: rows::Part,
        #[serde(default)]
        at: Settings,
        over: Option<Settings>,
    },
    /// Perplexity of the bundled text.
    Perplexity {
        framework: String,
        #[serde(default)]
        at: Settings,
    },
    /// The product of these factors: arithmetic on a source's statement about a model.
    Product { factors: Vec<f64> },
    /// A figure that no study here has; the claim's file says why.
    Absent,
}

/// The two things that a figure compares.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Sides {
    pub(crate) a: String,
    pub(crate) b: String,
    /// Whether a larger figure is in favour of `a`.
    pub(crate) larger_favours_a: bool,
}

/// A figure of one contender and another figure. Fields that `over` leaves out are those of the first.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Quotient {
    pub framework: String,
    pub metric: Metric,
    #[serde(default)]
    pub at: Settings,
    pub over: Over,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Over {
    pub framework: Option<String>,
    pub metric: Option<Metric>,
    pub at: Option<Settings>,
}

impl Reading {
    /// Whether it is read from a run.
    pub(crate) fn needs_run(&self) -> bool {
        !matches!(self, Reading::Product { .. } | Reading::Absent)
    }

    /// The unit of the figure, if it has only one.
    pub(crate) fn unit(&self) -> Option<Unit> {
        match self {
            Reading::Advantage { .. } | Reading::Growth { .. } | Reading::Ratio(_) => Some(Unit::Times),
            Reading::Iteration { .. }
            | Reading::ShortWarmup { over: Some(_), .. }
            | Reading::Memory { over: Some(_), .. } => Some(Unit::Times),
            Reading::Less { .. } | Reading::Saving(_) => Some(Unit::Percent),
            _ => None,
        }
    }

    /// The two sides of a comparison, of which one can be better.
    pub(crate) fn sides(&self) -> Option<Sides> {
        let better = |a: &str, b: &str| Sides { a: a.to_owned(), b: b.to_owned(), larger_favours_a: true };
        match self {
            Reading::Advantage { a, b, .. } | Reading::Less { a, b, .. } => Some(better(a, b)),
            Reading::ShortWarmup { framework, over: Some(other), .. } => Some(better(framework, other)),
            Reading::Ratio(quotient) => quotient.sides(true),
            Reading::Saving(quotient) => quotient.sides(false),
            _ => None,
        }
    }

    /// Reads the figure. `report` is that of its run.
    pub fn read(&self, report: Option<&StudyReport>) -> Outcome {
        if let Reading::Product { factors } = self {
            return Ok(Found::alone(factors.iter().product()));
        }
        let report = report.ok_or("no study here has it")?;
        match self {
            Reading::Absent => Err("no study here has it".into()),
            Reading::Product { factors } => Ok(Found::alone(factors.iter().product())),
            Reading::Advantage { a, b, metric, at } => rows::advantage(cell(report, at)?, a, b, *metric),
            Reading::Less { a, b, metric, at } => {
                Ok(rows::advantage(cell(report, at)?, a, b, *metric)?.map(|times| 1.0 - 1.0 / times))
            }
            Reading::Growth { a, b, metric, from, at } => {
                let [small, large] = [from, at].map(|at| rows::advantage(cell(report, at)?, a, b, *metric));
                Ok(rows::pairs_quotient(large?, small?))
            }
            Reading::Figure { framework, metric, at } => {
                let found = rows::figure(cell(report, at)?, framework, *metric)?;
                // Shares are fractions here.
                let scale = if metric.unit() == "%" { 0.01 } else { 1.0 };
                Ok(found.map(|value| scale * value))
            }
            Reading::Ratio(quotient) => quotient.read(report),
            Reading::Saving(quotient) => Ok(quotient.read(report)?.map(|ratio| 1.0 - ratio)),
            Reading::Scaling { framework, axis, of, at } => rows::scaling(report, framework, *axis, of, at),
            Reading::ShortWarmup { framework, of, over, at } => {
                let figure = |framework| rows::short_warmup(quiet_row(report, at, framework)?.1, *of);
                let other = over.as_ref().map(|other| figure(other)).transpose()?;
                let figure = figure(framework)?;
                Ok(other.map_or(figure, |other| rows::quotient(figure, other)))
            }
            Reading::Iteration { framework, iteration, at } => {
                rows::iteration(quiet_row(report, at, framework)?.1, *iteration)
            }
            Reading::Compiling { framework, of, at } => {
                let (cell, row) = quiet_row(report, at, framework)?;
                rows::compiling(cell, row, *of)
            }
            Reading::NewPrompt { framework, tokens, of, at } => {
                rows::new_prompt(quiet_row(report, at, framework)?.1, *tokens, *of)
            }
            Reading::Memory { framework, part, at, over } => {
                let part = |at| rows::memory(row(cell(report, at)?, framework)?, *part);
                let other = over.as_ref().map(part).transpose()?;
                Ok(part(at)?.map(|bytes| other.map_or(bytes, |other| bytes / other.value)))
            }
            Reading::Perplexity { framework, at } => rows::perplexity(row(cell(report, at)?, framework)?),
        }
    }
}

impl Quotient {
    /// `is_ratio` is false for a saving.
    fn sides(&self, is_ratio: bool) -> Option<Sides> {
        let Over { framework, metric, at } = &self.over;
        let (a, b) = match (framework, metric, at) {
            (Some(other), None, _) => (self.framework.clone(), other.clone()),
            (None, None, Some(other)) => (place(&self.at), place(other)),
            // Two metrics of one contender: neither is better.
            _ => return None,
        };
        Some(Sides { a, b, larger_favours_a: self.metric.higher_is_better() == is_ratio })
    }

    fn read(&self, report: &StudyReport) -> Outcome {
        let Over { framework, metric, at } = &self.over;
        let first = rows::figure(cell(report, &self.at)?, &self.framework, self.metric)?;
        let other = cell(report, at.as_ref().unwrap_or(&self.at))?;
        let framework = framework.as_ref().unwrap_or(&self.framework);
        let second = rows::figure(other, framework, metric.unwrap_or(self.metric))?;
        Ok(rows::quotient(first, second))
    }
}

#[cfg(test)]
mod tests {
    use crate::claims::kept::RunRecord;
    use crate::claims::rows::Interval;

    use super::*;

    fn claim() -> Claim {
        toml::from_str(
            r#"
            title = "t"
            source = "s"
            says = "2 times, 38 MB"
            conditions = "c"
            here = "h"
            explains = "e"
            [[run]]
            name = "both"
            command = "photofinish ab a b"
            [[figure]]
            what = "from the run"
            run = "both"
            unit = "times"
            read = { kind = "advantage", a = "a", b = "b", metric = "throughput" }
            published = { text = "2x", low = 2.0, kind = "gain" }
            [[figure]]
            what = "the arithmetic"
            unit = "megabytes"
            read = { kind = "product", factors = [12, 12, 64, 1024, 4] }
            published = { text = "38 MB", low = 38e6, kind = "equality" }
            "#,
        )
        .unwrap()
    }

    fn kept(command: &str, refused: Option<&str>) -> Kept {
        let record = RunRecord {
            command: command.into(),
            revision: 1,
            exit_code: Some(2),
            seconds: 1.0,
            refused: refused.map(str::to_owned),
            left_out: Vec::new(),
        };
        Kept { record, report: None, environment: None }
    }

    fn verdict(kept: Option<Kept>) -> Verdict {
        let claim = claim();
        of_runs(&claim, vec![(&claim.runs[0], kept)]).verdict
    }

    #[test]
    fn arithmetic_needs_no_run() {
        let claim = claim();
        let judged = of_runs(&claim, vec![(&claim.runs[0], None)]);
        assert_eq!(judged.figures[1].found, Ok(Found { value: 37_748_736.0, interval: None }));
        assert_eq!(judged.figures[1].verdict, Some(Verdict::Holds));
    }

    #[test]
    fn a_claim_without_its_runs_has_no_verdict() {
        assert_eq!(verdict(None), Verdict::NotRun);
        let refused = verdict(Some(kept("photofinish ab a b", Some("no such model"))));
        assert_eq!(refused, Verdict::NotMeasurable("no such model".into()));
        let other = verdict(Some(kept("photofinish ab a b --rounds 2", None)));
        assert_eq!(
            other,
            Verdict::ToRun(
                "its study has changed since: its command was `photofinish ab a b --rounds 2`".into()
            )
        );
    }

    #[test]
    fn work_that_is_not_comparable_is_not_measurable_whatever_was_run() {
        let claim = Claim { incomparable: Some("a GPU".into()), ..claim() };
        let judged = of_runs(&claim, vec![(&claim.runs[0], None)]);
        let expected = Verdict::NotMeasurable("a GPU".into());
        assert_eq!(judged.verdict, expected);
        assert!(judged.figures.iter().all(|figure| figure.verdict == Some(expected.clone())));
    }

    #[test]
    fn a_figure_that_does_not_agree_names_the_side_that_it_favours() {
        let claim = claim();
        let [of_run, arithmetic] = &claim.figures[..] else { panic!() };
        let told = |figure: &Figure, value| {
            favours(figure, figure.published.as_ref().unwrap(), &Found::alone(value))
        };
        assert_eq!(told(of_run, 1.5), "in favour of a, less than published");
        assert_eq!(told(of_run, 0.5), "in favour of b, the contrary of what is published");
        assert_eq!(told(arithmetic, 80e6), "larger than published");
        let interval = Some(Interval { bounds: (0.9, 1.1), is_confidence: true });
        let around_one = favours(of_run, of_run.published.as_ref().unwrap(), &Found { value: 1.0, interval });
        assert_eq!(around_one, "in favour of neither side");
    }

    fn sides(text: &str) -> Option<(String, String, bool)> {
        let reading: Reading = toml::from_str(text).unwrap();
        reading.sides().map(|Sides { a, b, larger_favours_a }| (a, b, larger_favours_a))
    }

    fn expected(a: &str, b: &str, larger_favours_a: bool) -> Option<(String, String, bool)> {
        Some((a.to_owned(), b.to_owned(), larger_favours_a))
    }

    #[test]
    fn a_ratio_favours_its_first_side_by_the_direction_of_its_metric() {
        let ratio = |metric: &str, over: &str| {
            sides(&format!("kind = \"ratio\"\nframework = \"x\"\nmetric = \"{metric}\"\nover = {over}"))
        };
        assert_eq!(ratio("throughput", "{ framework = \"y\" }"), expected("x", "y", true));
        assert_eq!(ratio("peak_memory", "{ framework = \"y\" }"), expected("x", "y", false));
        assert_eq!(ratio("cold_start", "{ metric = \"first_token\" }"), None);
    }

    #[test]
    fn a_saving_in_another_cell_is_that_of_its_place() {
        let saving = "kind = \"saving\"\nframework = \"x\"\nmetric = \"peak_memory\"\n\
                      at = { precision = \"f16\" }\nover = { at = { precision = \"f32\" } }";
        assert_eq!(sides(saving), expected("f16", "f32", true));
    }
}

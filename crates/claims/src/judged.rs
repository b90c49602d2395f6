//! A claim with its figures and verdicts, as read from the stored runs.

use std::path::Path;

use anyhow::Result;
use facts::Environment;

use crate::claim::{Claim, Figure, Run};
use crate::found::Found;
use crate::kept::{self, Kept};
use crate::published::{Place, Published};
use crate::verdict::{Due, Verdict, of_all};

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
        (None, Some(due)) => Verdict::ToRun(due),
        (None, None) => of_all(&verdicts),
    };
    Judged { claim, runs, figures, verdict }
}

fn due((run, kept): &(&Run, Option<Kept>)) -> Option<Due> {
    kept.as_ref().map_or(Some(Due::Never), |kept| kept.due(run))
}

fn judged<'a>(claim: &Claim, figure: &'a Figure, runs: &[(&Run, Option<Kept>)]) -> JudgedFigure<'a> {
    let run = figure.run.as_ref().and_then(|name| runs.iter().find(|(run, _)| run.name == *name));
    // Figures of an unclean checkout are of this study: they are shown, and the claim has no verdict.
    let due = run.and_then(due).filter(|due| !matches!(due, Due::Unclean(_)));
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
        (None, Some(due)) => Verdict::ToRun(due),
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::found::Interval;
    use crate::kept::RunRecord;

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
        assert_eq!(verdict(None), Verdict::ToRun(Due::Never));
        let refused = verdict(Some(kept("photofinish ab a b", Some("no such model"))));
        assert_eq!(refused, Verdict::NotMeasurable("no such model".into()));
        let other = verdict(Some(kept("photofinish ab a b --rounds 2", None)));
        assert_eq!(
            other,
            Verdict::ToRun(Due::Changed("its command was `photofinish ab a b --rounds 2`".into()))
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
}

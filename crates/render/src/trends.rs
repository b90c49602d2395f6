//! A figure over the runs of one framework, in one case, on one machine. Text, pages and pictures show the same.

use comparison::history::{Figure, Record};
use comparison::judge::Metric;
use comparison::judge::regression::{self, pairing};

/// Fewest runs to draw a trend. Fewer are listed.
pub(crate) const FEWEST_RUNS: usize = 3;

/// Seed of the random orders that a change is compared with: the same history has the same changes.
const SEED: u64 = 1;

/// One figure over the runs in which the framework took part in verdicts.
pub(crate) struct Trend<'a> {
    pub(crate) metric: Metric,
    /// Points, oldest first; at least one.
    pub(crate) points: Vec<Point<'a>>,
    /// Where its runs have other figures than before, among those that are comparable with the last.
    pub(crate) steps: Vec<Step<'a>>,
}

/// A change that many runs before and after it agree on.
pub(crate) struct Step<'a> {
    /// The first run with other figures.
    pub(crate) first: &'a Record,
    /// Change of the median, from the runs since the step before to those until the next, as a share.
    pub(crate) share: f64,
    /// Number of these runs before and after.
    pub(crate) runs: (usize, usize),
}

pub(crate) struct Point<'a> {
    pub(crate) record: &'a Record,
    pub(crate) figure: &'a Figure,
    /// Change from the previous comparable run; `None` if there is none.
    pub(crate) change: Option<Change<'a>>,
    /// Other changes since the previous run: versions, the machine, settings.
    pub(crate) changed: Vec<String>,
}

/// A change of a figure from one run to another.
#[derive(Clone, Copy)]
pub(crate) struct Change<'a> {
    pub(crate) since: &'a Record,
    /// As a share of the earlier figure.
    pub(crate) share: f64,
    /// Whether the 95 % intervals of the two do not overlap; `None` if one has none.
    pub(crate) intervals_apart: Option<bool>,
}

impl<'a> Trend<'a> {
    /// The newest record; all have its machine and case.
    pub(crate) fn last(&self) -> &'a Record {
        self.points.last().expect("a trend has a point").record
    }

    pub(crate) fn is_drawn(&self) -> bool {
        self.points.len() >= FEWEST_RUNS
    }

    /// From the first run that is comparable with the last to the last; `None` if there is none, or if its figure is
    /// zero.
    pub(crate) fn whole(&self) -> Option<Change<'a>> {
        let (last, earlier) = self.points.split_last()?;
        let first = earlier.iter().find(|point| regression::is_comparable(point.record, last.record))?;
        Change::between(first, last.figure)
    }
}

impl<'a> Change<'a> {
    fn between(earlier: &Point<'a>, later: &Figure) -> Option<Change<'a>> {
        let share = later.typical / earlier.figure.typical - 1.0;
        let apart = |a: (f64, f64), b: (f64, f64)| a.1 < b.0 || b.1 < a.0;
        let intervals = earlier.figure.interval.zip(later.interval);
        share.is_finite().then(|| Change {
            since: earlier.record,
            share,
            intervals_apart: intervals.map(|(earlier, later)| apart(earlier, later)),
        })
    }
}

/// The trends of these metrics. `records` are in the order of their times.
pub(crate) fn trends<'a>(records: &[&'a Record], metrics: &[Metric]) -> Vec<Trend<'a>> {
    let mut trends: Vec<Trend<'a>> = Vec::new();
    for &metric in metrics {
        for &record in records.iter().filter(|record| record.state.takes_part()) {
            let Some(figure) = record.metrics.get(metric.name()) else { continue };
            let mut point = Point { record, figure, change: None, changed: Vec::new() };
            match trends.iter_mut().find(|trend| trend.metric == metric && is_same(trend.last(), record)) {
                Some(trend) => {
                    let comparable = trend
                        .points
                        .iter()
                        .rev()
                        .find(|earlier| regression::is_comparable(earlier.record, record));
                    point.change = comparable.and_then(|earlier| Change::between(earlier, figure));
                    point.changed = regression::changed(trend.last(), record);
                    trend.points.push(point);
                }
                None => trends.push(Trend { metric, points: vec![point], steps: Vec::new() }),
            }
        }
    }
    for trend in &mut trends {
        trend.steps = steps(&trend.points);
    }
    trends
}

fn steps<'a>(points: &[Point<'a>]) -> Vec<Step<'a>> {
    let Some(last) = points.last() else { return Vec::new() };
    let comparable = points
        .iter()
        .filter(|point| regression::is_comparable(point.record, last.record))
        .collect::<Vec<_>>();
    let figures: Vec<f64> = comparable.iter().map(|point| point.figure.typical).collect();
    let places = statistics::changes(&figures, SEED);
    let ends: Vec<usize> = [0].into_iter().chain(places).chain([figures.len()]).collect();
    let step = |ends: &[usize]| {
        let (before, after) = (&figures[ends[0]..ends[1]], &figures[ends[1]..ends[2]]);
        let share = statistics::median(after)? / statistics::median(before)? - 1.0;
        Some(Step { first: comparable[ends[1]].record, share, runs: (before.len(), after.len()) })
    };
    ends.windows(3).filter_map(step).collect()
}

fn is_same(a: &Record, b: &Record) -> bool {
    a.framework == b.framework
        && a.machine.fingerprint == b.machine.fingerprint
        && pairing::is_same(&a.case, &b.case)
}

#[cfg(test)]
mod tests {
    use comparison::judge::regression::testing::record;
    use comparison::judge::report::State;
    use comparison::plan::Schedule;

    use super::*;

    #[test]
    fn a_change_is_from_the_last_run_that_measured_in_the_same_way() {
        let mut other = record("one", 50.0);
        other.settings.schedule = Schedule::Interleaved;
        other.library = Some("lib 2".into());
        let records = [record("one", 100.0), other, record("one", 110.0)];
        let found = trends(&records.iter().collect::<Vec<_>>(), &[Metric::Throughput]);
        let [trend] = found.as_slice() else { panic!("one trend") };
        let changes: Vec<Option<i32>> = trend
            .points
            .iter()
            .map(|point| point.change.map(|change| (change.share * 100.0).round() as i32))
            .collect();
        assert_eq!(changes, [None, None, Some(10)]);
        assert_eq!(trend.points[1].changed, ["library: lib 1 → lib 2", "schedule: sequential → interleaved"]);
        assert!(trend.is_drawn());
        assert!(trend.whole().unwrap().share > 0.09);
    }

    #[test]
    fn a_step_is_where_many_runs_before_and_after_differ() {
        let figure = |run: usize| (100 + run * 7 % 5) as f64 * if run < 9 { 1.0 } else { 1.1 };
        let records: Vec<Record> = (0..16).map(|run| record("one", figure(run))).collect();
        let found = trends(&records.iter().collect::<Vec<_>>(), &[Metric::Throughput]);
        let [step] = found[0].steps.as_slice() else { panic!("one step") };
        assert!(std::ptr::eq(step.first, &records[9]) && step.runs == (9, 7));
        assert!((0.08..0.12).contains(&step.share), "{}", step.share);
    }

    #[test]
    fn what_failed_has_no_point_and_another_machine_is_another_trend() {
        let mut failed = record("one", 1.0);
        failed.state = State::Failed;
        let mut elsewhere = record("one", 1.0);
        elsewhere.machine.fingerprint = "other".into();
        let records = [record("one", 100.0), failed, elsewhere];
        let found = trends(&records.iter().collect::<Vec<_>>(), &[Metric::Throughput, Metric::Load]);
        let lengths: Vec<usize> = found.iter().map(|trend| trend.points.len()).collect();
        assert_eq!(lengths, [1, 1, 1, 1]);
        assert!(!found[0].is_drawn() && found[0].whole().is_none());
    }
}

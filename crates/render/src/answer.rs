//! The answer of a report in one to three sentences: those of its summary, or, where an older version made the report,
//! what its verdicts say.

use judge::Metric;
use judge::report::Report;
use judge::study::report::varied;
use judge::study::{StudyReport, cell};
use judge::verdicts::Verdict;
use plan::StudyView;
use plan::sweep::SweepKind;

/// Greatest number of findings that an answer names.
const MOST: usize = 3;

/// "1 pair", "2 pairs".
fn count(count: usize, noun: &str) -> String {
    format!("{count} {noun}{}", if count == 1 { "" } else { "s" })
}

pub(crate) fn of_run(report: &Report) -> Vec<String> {
    if !report.summary.answer.is_empty() {
        return report.summary.answer.clone();
    }
    let mut answers = Vec::new();
    if report.interrupted {
        answers.push("Interrupted: the figures are those of the rounds that were done.".to_owned());
    }
    let deciding = Metric::deciding(report.plan.new_tokens);
    let compared: Vec<_> = report.comparisons.iter().filter(|found| found.metric == deciding).collect();
    let is_clear = |verdict: Verdict| matches!(verdict, Verdict::Faster | Verdict::Equivalent);
    let clear: Vec<_> = compared.iter().filter(|found| is_clear(found.verdict)).collect();
    answers.extend(clear.iter().take(MOST).map(|found| found.sentence.clone()));
    if clear.len() > MOST {
        answers.push(format!("{} more decided.", count(clear.len() - MOST, "pair")));
    }
    if compared.iter().all(|found| found.verdict == Verdict::Inconclusive) && !compared.is_empty() {
        answers.push("Inconclusive: these figures do not support a claim that one is faster.".to_owned());
    } else if compared.iter().any(|found| found.verdict == Verdict::NotMeasurable) {
        answers.push("Not measurable: the machine was too noisy for a verdict.".to_owned());
    } else if compared.is_empty() {
        let measured = report.rows.iter().filter(|row| row.state.has_figures()).count();
        answers.push(match measured {
            0 => "Nothing could be measured.".to_owned(),
            1 => "One framework was measured: there is nothing to compare it with.".to_owned(),
            _ => "No two frameworks could be compared.".to_owned(),
        });
    }
    answers
}

pub(crate) fn of_study(report: &StudyReport) -> Vec<String> {
    if !report.summary.answer.is_empty() {
        return report.summary.answer.clone();
    }
    if report.cells.len() < report.planned.len() {
        return vec![format!("{} of {} cells are done.", report.cells.len(), report.planned.len())];
    }
    match &report.view {
        StudyView::Sweep(kind) => sweep(report, *kind),
        StudyView::Ab(_) => ab(report),
    }
}

/// For each pair of contenders, who is better in how many cells.
fn sweep(report: &StudyReport, kind: SweepKind) -> Vec<String> {
    let deciding = match kind {
        SweepKind::Forward => Metric::PrefillThroughput,
        SweepKind::Memory => Metric::PeakMemory,
        _ => Metric::Throughput,
    };
    let mut pairs: Vec<([&str; 2], [usize; 4])> = Vec::new();
    let verdicts = report.cells.iter().flat_map(|cell| &cell.verdicts);
    for found in verdicts.filter(|found| found.metric == deciding) {
        let (a, b) = (found.a.as_str(), found.b.as_str());
        let place = pairs.iter().position(|([x, y], _)| (*x == a && *y == b) || (*x == b && *y == a));
        let place = place.unwrap_or_else(|| {
            pairs.push(([a, b], [0; 4]));
            pairs.len() - 1
        });
        let ([first, _], counts) = &mut pairs[place];
        let kind = match found.verdict {
            Verdict::Faster | Verdict::Slower if *first == a => 0,
            Verdict::Faster | Verdict::Slower => 1,
            Verdict::Equivalent => 2,
            Verdict::Inconclusive | Verdict::NotMeasurable => 3,
        };
        counts[kind] += 1;
    }
    let sentence = |([a, b], counts): &([&str; 2], [usize; 4])| {
        let words = [
            format!("{a} is better"),
            format!("{b} is better"),
            "they are equivalent".into(),
            "undecided".into(),
        ];
        let told = counts.iter().zip(words).filter(|(count, _)| **count > 0);
        let told: Vec<String> = told.map(|(count, words)| format!("{words} in {count}")).collect();
        let all: usize = counts.iter().sum();
        format!("{a} and {b}, {} in {}: {}.", deciding.words(), count(all, "cell"), told.join(", "))
    };
    let mut answers: Vec<String> = pairs.iter().take(MOST).map(sentence).collect();
    if pairs.len() > MOST {
        answers.push(format!("{} more in the findings.", count(pairs.len() - MOST, "pair")));
    }
    answers
}

/// The clear outcomes of an A/B study.
fn ab(report: &StudyReport) -> Vec<String> {
    let axes = varied(&report.planned);
    let clear = report.outcomes.iter().filter_map(|outcome| {
        let is_clear =
            |verdict: &Verdict| matches!(verdict, Verdict::Faster | Verdict::Slower | Verdict::Equivalent);
        let verdict = outcome.verdict.filter(is_clear)?;
        let (a, b) = (&outcome.a.as_ref()?.contender, &outcome.b.as_ref()?.contender);
        let place = cell::name(&outcome.settings, &axes);
        let place = if place.is_empty() { place } else { format!("{place}: ") };
        Some(match (verdict, outcome.speedup) {
            (Verdict::Equivalent, _) => format!("{place}{a} and {b} are equivalent"),
            (_, Some(speedup)) => format!("{place}{a} decodes {speedup:.2} times as fast as {b}"),
            (verdict, None) => format!("{place}{a} is {} than {b}", verdict.words()),
        })
    });
    let mut clear: Vec<String> = clear.collect();
    if clear.is_empty() {
        return vec!["Inconclusive: too little evidence for a verdict in any cell.".into()];
    }
    if clear.len() > MOST {
        let more = clear.split_off(MOST).len();
        clear.push(format!("{} more in the table.", count(more, "clear outcome")));
    }
    clear
}

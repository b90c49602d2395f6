//! A study in words: its heading, and the findings of its cells.

use std::collections::BTreeMap;

use comparison::judge::report::generate::FirstOfPrompt;
use comparison::judge::report::verdicts::Verdict;
use comparison::judge::report::{State, number};
use comparison::judge::study::columns::Scaling;
use comparison::judge::study::{self, Cell, CellRow, Compiled, Crossing, Outcome, StudyReport, axes};
use comparison::judge::{self, Metric};
use comparison::plan::sweep::SweepKind;
use comparison::plan::{Axis, Setting, Settings, StudyView};
use statistics::MIN_ROUNDS;

use crate::table::Tone;
use crate::words::answer::Standing;
use crate::words::verdicts::{self, sentence};
use crate::words::{Line, Summary, count, grouped, times};

/// The summary in words. The study's own statements about cells are not split any further.
pub(crate) fn summary(document: &StudyReport) -> Summary {
    Summary {
        answer: answer(&document.view, &document.cells, &document.outcomes),
        heading: heading(document),
        details: findings(document),
        ..Summary::default()
    }
}

fn heading(document: &StudyReport) -> String {
    let (done, planned) = (document.cells.len(), document.planned.len());
    let cells = if done == planned { format!("{done} cells") } else { format!("{done} of {planned} cells") };
    let rounds: Vec<usize> =
        document.cells.iter().map(|cell| cell.rounds).filter(|&rounds| rounds > 0).collect();
    let rounds = match (rounds.iter().min(), rounds.iter().max()) {
        (Some(least), Some(most)) if least == most => format!(", {least} rounds each"),
        (Some(least), Some(most)) => format!(", {least} to {most} rounds each"),
        _ => String::new(),
    };
    let shared = shared(document);
    let shared = if shared.is_empty() { String::new() } else { format!(" ({})", shared.join(", ")) };
    format!("{}{shared}: {cells}{rounds}", document.study)
}

/// Axes with one value, which have no column.
fn shared(document: &StudyReport) -> Vec<String> {
    let columns = axes(document);
    let first = document.planned.first();
    let single = first.into_iter().flatten().filter(|(axis, _)| !columns.contains(axis));
    single.map(|(axis, value)| format!("{} {value}", axis.title().to_lowercase())).collect()
}

fn findings(document: &StudyReport) -> Vec<Line> {
    let mut lines = Vec::new();
    let axes = axes(document);
    let name = |cell: &Cell| study::name(&cell.settings, &axes);
    if document.interrupted {
        let (done, planned) = (document.cells.len(), document.planned.len());
        let text = format!("interrupted: {done} of {planned} cells are done; --resume goes on");
        lines.push(Line::qualifying(Tone::Plain, text));
    }
    for cell in &document.cells {
        let refused = |reason| format!("{}: not run: {reason}", name(cell));
        lines.extend(cell.refused.iter().map(refused).map(|text| Line::qualifying(Tone::Plain, text)));
        for row in cell.rows.iter().filter(|row| row.state != State::Measured) {
            let told = |reason| format!("{}: {}: {reason}", name(cell), row.framework);
            lines.extend(row.reasons.iter().map(told).map(|text| Line::qualifying(Tone::Plain, text)));
        }
    }
    lines.extend(document.scaling.iter().filter_map(|found| scaling(found, &axes)).map(Line::plain));
    let of_view = match &document.view {
        StudyView::Sweep(kind) => {
            let mut found = verdicts(document, *kind);
            found.extend(short_warmups(document, *kind));
            found.extend(compiling(document, *kind));
            if *kind == SweepKind::Denoise {
                found.extend(judge::study::crossings(&document.cells).iter().map(crossing));
            }
            found
        }
        StudyView::Ab(_) => speed_ups(&document.outcomes),
    };
    lines.extend(of_view.into_iter().map(Line::plain));
    let warnings = document.cells.iter().flat_map(|cell| {
        cell.warnings.iter().map(move |warning| (verdicts::warnings_sentence(warning), cell))
    });
    for (warning, cells) in grouped(warnings) {
        let place = match cells.len() {
            count if count == document.cells.len() => String::new(),
            1 => format!("{}: ", name(cells[0])),
            count => format!("{count} cells, {} the first: ", name(cells[0])),
        };
        lines.push(Line::warning(&format!("{place}{warning}")));
    }
    lines.extend(noisy(document, &axes).map(|text| Line::qualifying(Tone::Plain, text)));
    lines
}

/// The last line, if the machine was too noisy for verdicts in some cells.
fn noisy(document: &StudyReport, axes: &[Axis]) -> Option<String> {
    let noisy: Vec<&Cell> = document.cells.iter().filter(|cell| cell.is_noisy()).collect();
    let first = study::name(&noisy.first()?.settings, axes);
    Some(format!(
        "too noisy: {} of {} cells, {first} the first; their figures are disturbed and have no verdicts on speed: \
         run them again on a quiet machine, or add --accept-noise",
        noisy.len(),
        document.cells.len()
    ))
}

/// The verdicts on the study's main metric, if there were enough rounds.
fn verdicts(document: &StudyReport, kind: SweepKind) -> Vec<String> {
    let rounds = document.cells.iter().map(|cell| cell.rounds).max().unwrap_or(0);
    let fewest = statistics::MIN_ROUNDS;
    let is_compared = document.cells.iter().any(|cell| cell.rows.len() > 1);
    if !is_compared || rounds == 0 {
        return Vec::new();
    }
    if rounds < fewest {
        return vec![format!(
            "inconclusive: a verdict takes {fewest} rounds in each cell, and there were {rounds} (--rounds {fewest})"
        )];
    }
    let deciding = self::deciding(kind);
    let axes = axes(document);
    let (mut clear, mut open) = (Vec::new(), Vec::new());
    for cell in &document.cells {
        let deciding = of_cell(cell, deciding);
        for verdict in cell.verdicts.iter().filter(|verdict| verdict.metric == deciding) {
            if verdict.verdict == Verdict::Inconclusive {
                let (name, pair) =
                    (study::name(&cell.settings, &axes), format!("{} and {}", verdict.a, verdict.b));
                open.push(if name.is_empty() { pair } else { format!("{name} ({pair})") });
            } else {
                clear.push(place(cell, &axes) + &sentence(verdict, cell.origin.margin));
            }
        }
    }
    if !open.is_empty() {
        clear.push(format!("inconclusive: {}", open.join("; ")));
    }
    clear
}

/// The result of a benchmark with too short a warm-up, next to the steady one.
fn short_warmups(document: &StudyReport, kind: SweepKind) -> Vec<String> {
    if !matches!(kind, SweepKind::Warmup | SweepKind::ShortWarmup) {
        return Vec::new();
    }
    let of_row = |row: &CellRow| {
        let short = row.steadiness.short_warmup.as_ref()?;
        Some(format!(
            "{}: a script with {} tokens of warm-up and {} of test would have reported {:.1} tok/s, {:+.1} % from the steady {:.1} at the same places",
            row.framework,
            short.warmup_tokens,
            short.test_tokens,
            short.tokens_per_second,
            100.0 * short.error,
            short.steady_tokens_per_second,
        ))
    };
    document.cells.iter().flat_map(|cell| &cell.rows).filter_map(of_row).collect()
}

/// The cost of compiling, the tokens from which it pays, and the first times by length of prompt.
fn compiling(document: &StudyReport, kind: SweepKind) -> Vec<String> {
    if kind != SweepKind::Warmup {
        return Vec::new();
    }
    let axes = axes(document);
    let mut lines = Vec::new();
    for cell in &document.cells {
        let told = |row: &CellRow| Some(compiled(&Compiled::new(cell, row)?, &row.framework));
        let told = cell.rows.iter().filter_map(told).chain(cell.rows.iter().filter_map(prompts));
        lines.extend(told.map(|told| place(cell, &axes) + &told));
    }
    lines
}

/// The beginning of a sentence about a cell: "batch 4: ", or nothing where there is one cell alone.
fn place(cell: &Cell, axes: &[Axis]) -> String {
    let name = study::name(&cell.settings, axes);
    if name.is_empty() { name } else { name + ": " }
}

/// The first times of prompts of several lengths, next to later ones.
fn prompts(row: &CellRow) -> Option<String> {
    let prompts = &row.steadiness.first_runs.as_ref()?.prompts;
    let is_varied = prompts.iter().any(|prompt| prompt.tokens != prompts[0].tokens);
    let told = prompts.iter().map(|prompt| {
        let FirstOfPrompt { tokens, first_ms, steady_ms } = prompt;
        format!("{tokens} tokens {first_ms:.0} ms, later {steady_ms:.0}")
    });
    is_varied.then(|| {
        format!("{}, first time of each prompt: {}", row.framework, told.collect::<Vec<_>>().join("; "))
    })
}

// The findings of a study along its axes, a sentence each.

/// "candle: time to first token grows with prompt^1.08 (batch 1)".
fn scaling(scaling: &Scaling, axes: &[Axis]) -> Option<String> {
    let exponent = scaling.exponent?;
    let at = study::name(&scaling.at, axes);
    let at = if at.is_empty() { at } else { format!(" ({at})") };
    let axis = scaling.axis.title().to_lowercase();
    Some(format!("{}: {} grows with {axis}^{exponent:.2}{at}", scaling.framework, scaling.metric.title()))
}

/// "candle, new tokens 64: a step takes 200 ms, all tokens one by one 1100 ms: diffusion is slower from 6 steps on".
fn crossing(crossing: &Crossing) -> String {
    let Crossing { framework, step_ms, by_token_ms, .. } = crossing;
    let at = study::name(&crossing.at, &[Axis::Batch, Axis::PromptTokens, Axis::NewTokens]);
    let steps = match crossing.slower_from() {
        1 => "a single step is slower".to_owned(),
        steps => format!("diffusion is slower from {steps} steps on"),
    };
    let (step, by_token) = (number(*step_ms), number(*by_token_ms));
    format!("{framework}, {at}: a step takes {step} ms, all tokens one by one {by_token} ms: {steps}")
}

fn compiled(compiled: &Compiled, framework: &str) -> String {
    let Compiled { compiling_ms, with_ms, without_ms } = *compiled;
    let took = match compiling_ms {
        ms if ms >= 1000.0 => format!("compiling takes {:.1} s once", ms / 1e3),
        ms if ms > 0.0 => format!("compiling takes {ms:.0} ms once"),
        // Without its JIT a framework may compile every operation by itself.
        _ => "with its JIT the first runs take no longer than without".to_owned(),
    };
    let steady = format!("a token takes {with_ms:.1} ms with it and {without_ms:.1} without");
    let pays = match compiled.pays_from() {
        None => "it gains nothing, so it never pays".to_owned(),
        Some(tokens) => format!("it pays from {tokens} new tokens on"),
    };
    format!("{framework}: {took}; {steady}: {pays}")
}

/// The change of each speed-up with the number of new tokens, one sentence for each framework and switch. Only
/// speed-ups with a verdict count: an estimate from a round or two is noise.
fn speed_ups(outcomes: &[Outcome]) -> Vec<String> {
    let along = outcomes.iter().filter_map(|outcome| {
        let mut place = outcome.settings.clone();
        let tokens = place.remove(&Axis::NewTokens)?;
        let is_decided =
            matches!(outcome.verdict, Some(Verdict::Faster | Verdict::Slower | Verdict::Equivalent));
        Some((place, (tokens, outcome.speedup.filter(|_| is_decided)?)))
    });
    let told = |(place, points): (Settings, Vec<(Setting, f64)>)| {
        let [(first, least), .., (last, most)] = points.as_slice() else { return None };
        let name = study::name(&place, &place.keys().copied().collect::<Vec<_>>());
        Some(format!(
            "{name}: the speed-up goes from {least:.2}x at {first} new tokens to {most:.2}x at {last}"
        ))
    };
    grouped(along).into_iter().filter_map(told).collect()
}

// The answer of a study: the sentences that every output begins with.

fn deciding(kind: SweepKind) -> Metric {
    match kind {
        SweepKind::Forward => Metric::PrefillThroughput,
        SweepKind::Memory => Metric::PeakMemory,
        SweepKind::Denoise => Metric::DenoisingThroughput,
        SweepKind::Embed => Metric::EncodingThroughput,
        SweepKind::Callers => Metric::RequestThroughput,
        _ => Metric::Throughput,
    }
}

/// One sentence, or two where cells are open.
fn answer(view: &StudyView, cells: &[Cell], outcomes: &[Outcome]) -> Vec<String> {
    let measured: Vec<&Cell> = cells.iter().filter(|cell| cell.rounds > 0).collect();
    let Some(rounds) = measured.iter().map(|cell| cell.rounds).max() else {
        return vec!["Nothing was measured.".into()];
    };
    if rounds < MIN_ROUNDS {
        let each = if rounds == 1 { "One round decides".into() } else { format!("{rounds} rounds decide") };
        return vec![format!(
            "A first look at {}. {each} nothing; a verdict takes {MIN_ROUNDS} in each cell (`--rounds {MIN_ROUNDS}`).",
            count(measured.len(), "cell")
        )];
    }
    match view {
        StudyView::Sweep(kind) => sweep(&measured, deciding(*kind)),
        StudyView::Ab(_) if has_mistakes(outcomes) => vec![mistakes(outcomes)],
        StudyView::Ab(arms) => ab(outcomes, arms),
    }
}

/// "ort decodes fastest in 5 of 8 cells, candle in 1; 2 too close to call."
fn sweep(measured: &[&Cell], metric: Metric) -> Vec<String> {
    let compared: Vec<&&Cell> = measured.iter().filter(|cell| cell.rows.len() > 1).collect();
    if compared.is_empty() {
        return vec![format!(
            "{} of one framework: there is nothing to compare it with.",
            count(measured.len(), "cell")
        )];
    }
    let mut wins: BTreeMap<&str, usize> = BTreeMap::new();
    for best in compared.iter().filter_map(|cell| standing(cell, of_cell(cell, metric)).winner()) {
        *wins.entry(best).or_default() += 1;
    }
    let open = compared.len() - wins.values().sum::<usize>();
    let mut ranked: Vec<(&str, usize)> = wins.into_iter().collect();
    ranked.sort_by_key(|(name, count)| (std::cmp::Reverse(*count), *name));
    let all = count(compared.len(), "cell");
    let is_one = |metric| compared.iter().all(|cell| of_cell(cell, metric) == metric);
    // Cells may have several questions: batches of texts, and a single one.
    let is_best =
        metric.phrases().filter(|_| is_one(metric)).map_or("is fastest", |phrases| phrases.superlative);
    let told: Vec<String> = ranked
        .iter()
        .enumerate()
        .map(|(place, (name, count))| match place {
            0 => format!("{name} {is_best} in {count} of {all}"),
            _ => format!("{name} in {count}"),
        })
        .collect();
    vec![match (told.is_empty(), open) {
        (true, _) => format!("Too close to call in all of {all}."),
        (false, 0) => format!("{}.", told.join(", ")),
        (false, open) => format!("{}; {open} too close to call.", told.join(", ")),
    }]
}

/// The metric in a cell: in a study of denoising some go token by token, and in one of texts some have a single text.
fn of_cell(cell: &Cell, metric: Metric) -> Metric {
    let has = cell.verdicts.iter().any(|verdict| verdict.metric == metric);
    match metric {
        Metric::DenoisingThroughput if !has => Metric::Throughput,
        Metric::EncodingThroughput if !has => Metric::SingleText,
        _ => metric,
    }
}

/// The contenders of a cell in one metric.
pub(super) fn standing(cell: &Cell, metric: Metric) -> Standing<'_> {
    let rows = cell.rows.iter().filter(|row| row.state.takes_part());
    Standing::new(metric, &cell.verdicts, rows.map(|row| (row.framework.as_str(), row.typical(metric))))
}

fn has_mistakes(outcomes: &[Outcome]) -> bool {
    outcomes.iter().any(|outcome| outcome.settings.contains_key(&Axis::Mistake))
}

/// "candle: a debug build costs most: a request takes 38x as long. 5 of 7 mistakes cost time for certain."
fn mistakes(outcomes: &[Outcome]) -> String {
    let at = |outcome: &Outcome, axis| outcome.settings.get(&axis).map_or(String::new(), ToString::to_string);
    let compared: Vec<&Outcome> = outcomes.iter().filter(|outcome| outcome.verdict.is_some()).collect();
    let mut costly = compared.iter().filter(|outcome| outcome.verdict == Some(Verdict::Faster));
    let (count, all) = (costly.clone().count(), compared.len());
    let Some(worst) = costly.next() else {
        return format!("None of {all} mistakes costs time for certain.");
    };
    let (framework, mistake) = (at(worst, Axis::Framework), at(worst, Axis::Mistake));
    let long = times(worst.speedup.unwrap_or(1.0));
    format!(
        "{framework}: {mistake} costs most, a request takes {long} as long. {count} of {all} mistakes cost time for certain."
    )
}

/// "fused against base: faster in 6 of 9 cells (1.05x to 12x), slower in 1 (1.1x); 2 too close to call."
fn ab(outcomes: &[Outcome], [with, without]: &[String; 2]) -> Vec<String> {
    let outcomes: Vec<(Option<Verdict>, f64)> =
        outcomes.iter().filter_map(|outcome| Some((outcome.verdict, outcome.speedup?))).collect();
    let all = count(outcomes.len(), "cell");
    let (mut told, mut open): (Vec<String>, usize) = (Vec::new(), outcomes.len());
    for (word, verdict) in
        [("faster", Verdict::Faster), ("slower", Verdict::Slower), ("equally fast", Verdict::Equivalent)]
    {
        let of_word = outcomes.iter().filter(|(found, _)| *found == Some(verdict));
        let ratios = of_word.map(|(_, ratio)| if verdict == Verdict::Slower { 1.0 / ratio } else { *ratio });
        let ratios: Vec<f64> = ratios.collect();
        let (Some(least), Some(most)) =
            (ratios.iter().copied().reduce(f64::min), ratios.iter().copied().reduce(f64::max))
        else {
            continue;
        };
        let range = match (times(least), times(most)) {
            _ if verdict == Verdict::Equivalent => String::new(),
            (least, most) if least == most => format!(" ({least})"),
            (least, most) => format!(" ({least} to {most})"),
        };
        let of_all = if told.is_empty() { format!(" of {all}") } else { String::new() };
        told.push(format!("{word} in {}{of_all}{range}", ratios.len()));
        open -= ratios.len();
    }
    let rest = match (told.is_empty(), open) {
        (_, 0) => String::new(),
        (true, _) => format!("too close to call in all of {all}"),
        (false, open) => format!("; {open} too close to call"),
    };
    vec![format!("{with} against {without}: {}{rest}.", told.join(", "))]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_change_of_a_speed_up_is_told_for_each_switch() {
        let outcome = |switch: &str, tokens: u32, speedup: f64, verdict| Outcome {
            settings: Settings::from([
                (Axis::Framework, Setting::Name("jax".into())),
                (Axis::Switch, Setting::Name(switch.into())),
                (Axis::NewTokens, Setting::Number(tokens)),
            ]),
            reason: None,
            a: None,
            b: None,
            speedup: Some(speedup),
            interval: None,
            verdict: Some(verdict),
            memory_change: None,
            tokens: 0,
            same_tokens: 0,
            parity: Default::default(),
        };
        let found = speed_ups(&[
            outcome("all on", 15, 1.2, Verdict::Faster),
            outcome("cache", 15, 1.1, Verdict::Inconclusive),
            outcome("all on", 100, 3.4, Verdict::Faster),
            outcome("cache", 100, 2.0, Verdict::Faster),
        ]);
        assert_eq!(
            found,
            ["jax, all on: the speed-up goes from 1.20x at 15 new tokens to 3.40x at 100"],
            "what is open is no point"
        );
    }

    #[test]
    fn diffusion_is_compared_with_going_token_by_token() {
        let told = |step_ms: f64, by_token_ms: f64| {
            let at = Settings::from([(Axis::NewTokens, Setting::Number(64))]);
            crossing(&Crossing { framework: "candle".into(), at, step_ms, by_token_ms })
        };
        assert_eq!(
            told(200.0, 1100.0),
            "candle, new tokens 64: a step takes 200 ms, all tokens one by one 1100 ms: diffusion is slower from 6 \
             steps on"
        );
        assert!(told(200.0, 100.0).ends_with("a single step is slower"));
    }

    #[test]
    fn compiling_has_a_cost_a_gain_and_a_break_even() {
        let told = |compiling_ms: f64, with_ms: f64, without_ms: f64, framework: &str| {
            compiled(&Compiled { compiling_ms, with_ms, without_ms }, framework)
        };
        assert_eq!(
            told(2310.0, 12.9, 61.0, "jax"),
            "jax: compiling takes 2.3 s once; a token takes 12.9 ms with it and 61.0 without: it pays from 49 new \
             tokens on"
        );
        assert!(told(80.0, 13.0, 12.0, "ort").ends_with("gains nothing, so it never pays"));
        let none = told(-1443.0, 13.5, 93.2, "jax");
        assert!(
            none.starts_with("jax: with its JIT the first runs take no longer than without; a token"),
            "{none}"
        );
    }
}

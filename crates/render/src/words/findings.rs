//! The report in words: its heading and the details of the measurement.

use std::collections::BTreeSet;

use comparison::facts::agreement::RetrievalScore;
use comparison::facts::evidence::{End, Shipped, Slices, Stage, Stages};
use comparison::judge::report::limit::{Bound, Limit, Share};
use comparison::judge::report::{Report, Row, Spread};
use comparison::judge::{self, Metric};
use comparison::plan::{Plan, Rounds, Schedule};
use protocol::{Padding, Side};

use super::{Line, Summary, verdicts};
use crate::table::Tone;
use crate::words::answer;

/// The report in words.
pub(crate) fn summary(report: &Report) -> Summary {
    let mut details = Vec::new();
    details.extend(quantisation(report).map(Line::plain));
    details.extend(retrieval(report).map(Line::plain));
    details.extend(loads(report).into_iter().map(Line::plain));
    details.extend(disturbed_starts(report).map(Line::plain));
    details.extend(limits(report).into_iter().map(Line::plain));
    details.extend(memory(report).into_iter().map(Line::tabled));
    details.extend(steadiness(report).map(Line::plain));
    details.extend(energy(report).map(Line::plain));
    details.extend(findings(report).into_iter().map(Line::plain));
    details.extend(devices(report).map(Line::plain));
    details.extend(compiled(report).map(Line::plain));
    details.extend(padding(report).map(Line::plain));
    details.extend(largest_batch(report).map(Line::plain));
    details.extend(self::details(report).into_iter().map(Line::plain));
    details.extend(shipped(report).map(Line::plain));
    details.extend(libraries(report).map(Line::tabled));
    let hybrids = report.hybrids.iter().flat_map(|it| verdicts::sentences(it, report.plan.margin));
    let said = [verdicts::floor(report), same_outputs(report)].into_iter().flatten();
    Summary {
        answer: answer::sentences(report),
        heading: answer::about(report),
        notes: verdicts::reasons(report)
            .into_iter()
            .chain(impossible(report))
            .chain(hybrids.chain(said).map(Line::plain))
            .collect(),
        verdicts: verdicts::all(report),
        details,
    }
}

/// Whether the versions of one column computed the same, if there is no other column.
fn same_outputs(report: &Report) -> Option<String> {
    let engines: Vec<_> = report.plan.contenders.iter().map(|contender| &contender.engine).collect();
    let are_versions = engines.iter().all(|engine| engine.base() == engines[0].base())
        && engines.iter().any(|engine| engine.version != engines[0].version);
    let mut compared = report.rows.iter().filter(|row| row.state.takes_part());
    let first = compared.next().filter(|row| are_versions && row.outputs.is_some())?;
    let others: Vec<&str> =
        compared.filter(|row| row.outputs != first.outputs).map(|row| row.framework.as_str()).collect();
    Some(match others.as_slice() {
        [] => "the outputs of all versions are identical".to_owned(),
        others => format!(
            "the outputs of {} differ from those of {}, within the tolerance",
            answer::listed(others),
            first.framework
        ),
    })
}

/// Starts that other activity disturbed. They count.
fn disturbed_starts(report: &Report) -> Option<String> {
    let of_row = |row: &Row| {
        let (count, rounds) = (row.disturbed_starts.len(), row.rounds);
        (count > 0).then(|| format!("{}: {count} of {rounds}", row.framework))
    };
    let known: Vec<String> = report.rows.iter().filter_map(of_row).collect();
    (!known.is_empty()).then(|| format!("starts beside other work, which count: {}", known.join("; ")))
}

fn impossible(report: &Report) -> impl Iterator<Item = Line> {
    let text =
        |flag: &judge::report::limit::Flag| format!("impossible: {}: {}", flag.framework, flag.finding);
    report.sanity.iter().map(move |flag| Line::qualifying(Tone::Struck, text(flag)))
}

/// Most shapes to name of those that a contender compiled for.
const SHOWN_SHAPES: usize = 3;

/// Share from which on a page cache counts as warm, rounded as it is shown: the missing part is read in a millisecond or
/// two.
const WARM_PERCENT: f64 = 98.0;

fn percent(share: f64) -> String {
    format!("{:.0} %", share * 100.0)
}

fn loads(report: &Report) -> Vec<String> {
    let measured: Vec<&Row> = report.rows.iter().filter(|row| row.rounds > 0).collect();
    let warm = measured.iter().filter_map(|row| row.load.warm_resident_before).reduce(f64::min);
    let load = Metric::Load.plain_title();
    let table = match warm {
        Some(share) if (100.0 * share).round() >= WARM_PERCENT => {
            format!("{load} is from a warm page cache ({} of the weights resident before)", percent(share))
        }
        Some(share) => format!(
            "{load}: the page cache was not fully warm (at least {} of the weights were resident before)",
            percent(share)
        ),
        None => format!("{load}: the state of the page cache before is not available"),
    };
    let cold = measured.iter().map(|row| {
        let load = &row.load;
        match (load.cold_median, load.cold_resident_before, &load.cold_unavailable) {
            (Some(seconds), Some(share), _) => {
                format!("{} {seconds:.2} s ({} resident)", row.framework, percent(share))
            }
            (_, _, reason) => {
                format!("{} not available ({})", row.framework, reason.as_deref().unwrap_or("no reading"))
            }
        }
    });
    let cold: Vec<String> = cold.collect();
    let ready = measured.iter().map(|row| row.load.memory_ready_in);
    let ready = ready.reduce(|a, b| a.zip(b).map(|(a, b)| [a[0].min(b[0]), a[1].max(b[1])])).flatten();
    let table = match ready {
        Some([shortest, longest]) => format!(
            "{table}, into memory that the system had ready (making it ready took {shortest:.2} to {longest:.2} s)"
        ),
        None => table,
    };
    let parts: Vec<String> = measured.iter().filter_map(|row| load_parts(row)).collect();
    let parts = (!parts.is_empty()).then(|| format!("{load} consists of: {}", parts.join("; ")));
    let table = match cold.is_empty() {
        true => return Vec::new(),
        false if report.plan.cold_loads == 0 => table,
        false => format!("{table}; from a cold one: {}", cold.join(", ")),
    };
    [Some(table), parts].into_iter().flatten().collect()
}

fn load_parts(row: &Row) -> Option<String> {
    let judge::report::LoadParts { framework_cpu_s, system_cpu_s, own_bytes, mapped_bytes } =
        row.load.parts?;
    let megabytes = |bytes: f64| bytes / 1e6;
    Some(format!(
        "{} {framework_cpu_s:.2} s of CPU time in the framework and {system_cpu_s:.2} s in the system, {:.0} MB of new \
         memory, {:.0} MB mapped",
        row.framework,
        megabytes(own_bytes),
        megabytes(mapped_bytes)
    ))
}

/// The readings of the machine's probes, and each contender's share of the machine's limit.
fn limits(report: &Report) -> Vec<String> {
    let of_phase = |phase: &str, of: fn(&Limit) -> Option<&Share>| {
        let of_row = |row: &Row| {
            let share = of(row.limit.as_ref()?)?;
            let (limit, unit) =
                (share.limit / 1e9, if share.bound == Bound::Memory { "GB/s" } else { "GFLOP/s" });
            Some(format!("{} {} of {limit:.0} {unit}", row.framework, percent(share.median)))
        };
        let known: Vec<String> = report.rows.iter().filter_map(of_row).collect();
        let whose = whose(report);
        (!known.is_empty()).then(|| format!("share of {whose} limit, {phase}: {}", known.join("; ")))
    };
    let phases = [
        of_phase("decode", |limit| limit.decode.as_ref()),
        of_phase("prefill", |limit| limit.prefill.as_ref()),
        of_phase("the largest batch, without padding", |limit| limit.encoding.as_ref()),
    ];
    phases.into_iter().flatten().chain(machine(report)).collect()
}

fn whose(report: &Report) -> String {
    if report.plan.is_on_gpu() { format!("{}'s", report.plan.device) } else { "the machine's".to_owned() }
}

fn machine(report: &Report) -> Option<String> {
    let machine = &report.machine;
    let of = |spread: &Spread, unit: &str| {
        let [median, min, best] = [spread.median, spread.min, spread.best].map(|value| value / 1e9);
        format!("{median:.0} {unit} (range {min:.0}–{best:.0})")
    };
    let device = report.plan.device.as_str();
    let precision = machine.probes.iter().find(|probe| probe.device == device).map(|probe| &probe.precision);
    Some(format!(
        "{}: memory bandwidth {}, {} arithmetic {}",
        if report.plan.is_on_gpu() { device } else { "the machine" },
        of(machine.read_bandwidth.as_ref()?, "GB/s"),
        precision.map_or("f32", |precision| precision.as_str()),
        of(machine.arithmetic.as_ref()?, "GFLOP/s")
    ))
}

fn memory(report: &Report) -> Vec<String> {
    let of_row = |row: &Row| {
        let parts = row.memory.as_ref()?;
        let mb = |bytes: f64| format!("{:.0}", bytes.abs() / 1e6);
        let [framework, parameters, cache, activations, remainder] = parts.summands().map(|(_, bytes)| bytes);
        Some(format!(
            "{} {} framework + {} parameters + {} KV cache + {} activations {} {} remainder = {}",
            row.framework,
            mb(framework),
            mb(parameters),
            mb(cache),
            mb(activations),
            if remainder < 0.0 { '−' } else { '+' },
            mb(remainder),
            mb(parts.peak)
        ))
    };
    let known: Vec<String> = report.rows.iter().filter_map(of_row).collect();
    let against = |row: &Row| {
        let parts = row.memory.as_ref()?;
        Some(format!("{} {:.2}x of {:.0} MB", row.framework, parts.times_needed?, parts.needed / 1e6))
    };
    let times: Vec<String> = report.rows.iter().filter_map(against).collect();
    let peak = Metric::PeakMemory.words();
    let by_part = match report.plan.is_on_gpu() {
        true => format!("memory of the host by part (MB): {}", known.join("; ")),
        false => format!("{peak} by part (MB): {}", known.join("; ")),
    };
    let against = format!("{peak} against weights + KV cache: {}", times.join("; "));
    let lines = [(by_part, known.is_empty()), (against, times.is_empty())];
    lines.into_iter().filter(|(_, is_empty)| !is_empty).map(|(line, _)| line).collect()
}

fn steadiness(report: &Report) -> Option<String> {
    let of_row = |row: &Row| {
        let s = &row.steadiness;
        let classes = [
            (s.flat, "flat"),
            (s.warm_up, "warming up"),
            (s.slowdown, "slowing down"),
            (s.no_steady_state, "without a steady state"),
            (s.unclassified, "too short to say"),
        ];
        let classes: Vec<String> = classes
            .iter()
            .filter(|(count, _)| *count > 0)
            .map(|(count, word)| format!("{count} {word}"))
            .collect();
        let time = s.time_to_steady_ms.map_or(String::new(), |ms| format!(", steady after {ms:.0} ms"));
        (!classes.is_empty()).then(|| format!("{} {}{time}", row.framework, classes.join(", ")))
    };
    let known: Vec<String> = report.rows.iter().filter_map(of_row).collect();
    (!known.is_empty()).then(|| format!("processes: {}", known.join("; ")))
}

/// The cost of quantising. It is not part of parity, which gives engines the same codes and scales.
fn quantisation(report: &Report) -> Option<String> {
    let of_row = |row: &Row| {
        let loss = row.agreement.as_ref()?.quantisation_loss?;
        let top1 = 100.0 * loss.top1;
        Some(format!("{} {top1:.1} % of its top-1 tokens, mean KL {:.1e}", row.framework, loss.mean_kl))
    };
    let known: Vec<String> = report.rows.iter().filter_map(of_row).collect();
    (!known.is_empty()).then(|| format!("against the unquantised model in f32: {}", known.join("; ")))
}

/// The cost of an encoder's precisions.
fn retrieval(report: &Report) -> Option<String> {
    let of_row = |row: &Row| {
        let RetrievalScore { mean_cosine, min_cosine, top10, kendall_tau, .. } = row.text?.retrieval()?;
        let top10 = top10.map(|share| format!(", {:.1} % of the ten best documents", 100.0 * share));
        let tau = kendall_tau.map(|tau| format!(", Kendall's τ {tau:.4}"));
        let searched = top10.into_iter().chain(tau).collect::<String>();
        Some(format!("{} cosine {mean_cosine:.6} (least {min_cosine:.6}){searched}", row.framework))
    };
    let known: Vec<String> = report.rows.iter().filter_map(of_row).collect();
    (!known.is_empty()).then(|| format!("against f32, on the bundled texts: {}", known.join("; ")))
}

/// Weights by device, and on a CPU the meaning of the difference.
fn devices(report: &Report) -> Option<String> {
    let of_row = |row: &Row| {
        let bytes = row.in_effect.as_ref()?.shard_bytes.as_ref()?;
        let each: Vec<String> = bytes.iter().map(|&bytes| format!("{:.2}", bytes as f64 / 1e9)).collect();
        Some(format!("{} {} GB", row.framework, each.join(" + ")))
    };
    let known: Vec<String> = report.rows.iter().filter_map(of_row).collect();
    let note = match report.plan.device.as_str() {
        "cpu" => {
            "; devices that a CPU plays share its cores and its memory, so what several take longer than one is \
                  the overhead of communication and scheduling"
        }
        _ => "",
    };
    (!known.is_empty()).then(|| format!("weights by device: {}{note}", known.join("; ")))
}

/// How the batch was found, and how near the estimates were to the workers' memory.
fn largest_batch(report: &Report) -> Option<String> {
    let words = report.plan.largest_batch.as_ref()?;
    let of_row = |row: &Row| {
        let expected = *report.plan.expected_memory.get(&row.framework)? as f64;
        let observed = row.memory.as_ref()?.peak;
        let off = 100.0 * (expected - observed) / observed;
        let (expected, observed) = (expected / 1e9, observed / 1e9);
        let name = &row.framework;
        Some(format!("{name} {expected:.2} GB expected, {observed:.2} GB observed ({off:+.1} %)"))
    };
    let known: Vec<String> = report.rows.iter().filter_map(of_row).collect();
    Some(format!("{words}; peaks: {}", if known.is_empty() { "none".into() } else { known.join("; ") }))
}

/// The side on which each padded prompts of different lengths, and the cost of that.
fn padding(report: &Report) -> Option<String> {
    let of_row = |row: &Row| {
        let Padding { side, computed } = row.padding.as_ref()?;
        let cost = match computed {
            0 => "in the KV cache alone".to_owned(),
            1 => "1 position computed".to_owned(),
            positions => format!("{positions} positions computed"),
        };
        let side = if *side == Side::Left { "left" } else { "right" };
        Some(format!("{} on the {side}, {cost}", row.framework))
    };
    let known: Vec<String> = report.rows.iter().filter_map(of_row).collect();
    (!known.is_empty()).then(|| {
        format!("padding of the shorter prompts, which no figure counts as tokens: {}", known.join("; "))
    })
}

fn compiled(report: &Report) -> Option<String> {
    let of_row = |row: &Row| {
        let shapes = row.compiled.as_ref().filter(|shapes| !shapes.is_empty())?;
        let shown: Vec<&str> = shapes.iter().take(SHOWN_SHAPES).map(|shape| shape.as_str()).collect();
        let more = match shapes.len().saturating_sub(SHOWN_SHAPES) {
            0 => String::new(),
            more => format!(", and {more} more"),
        };
        Some(format!("{} for {}{more}", row.framework, shown.join(", ")))
    };
    let known: Vec<String> = report.rows.iter().filter_map(of_row).collect();
    (!known.is_empty()).then(|| format!("compiled: {}", known.join("; ")))
}

fn energy(report: &Report) -> Option<String> {
    let of_row = |row: &Row| {
        let energy = row.energy.as_ref()?;
        Some(format!("{} {:.3} J ({})", row.framework, energy.joules_per_token, energy.method))
    };
    let known: Vec<String> = report.rows.iter().filter_map(of_row).collect();
    (!known.is_empty()).then(|| format!("energy by token: {}", known.join("; ")))
}

/// The size of the files to ship for each, without the model.
fn shipped(report: &Report) -> Option<String> {
    let of_row = |row: &Row| {
        let Shipped { bytes, files } = row.shipped?;
        let noun = if files == 1 { "file" } else { "files" };
        Some(format!("{} {:.1} MB in {files} {noun}", row.framework, bytes as f64 / 1e6))
    };
    let known: Vec<String> = report.rows.iter().filter_map(of_row).collect();
    (!known.is_empty()).then(|| format!("shipped without the model: {}", known.join("; ")))
}

/// The workers' own descriptions, so that a pasted table names its versions.
fn libraries(report: &Report) -> Option<String> {
    let of_row = |row: &Row| {
        let hello = row.hello.as_ref()?;
        let binding =
            if hello.binding == hello.library { String::new() } else { format!(" ({})", hello.binding) };
        Some(format!("{}: {}{binding}", row.framework, hello.library))
    };
    let known: Vec<String> = report.rows.iter().filter_map(of_row).collect();
    (!known.is_empty()).then(|| format!("versions: {}", known.join("; ")))
}

// The cost of a comparison: why its rounds ended, how contenders took turns, and where its time went.

/// The stages of rounds. All others happen once in a run.
const OF_ROUNDS: [Stage; 6] =
    [Stage::Starts, Stage::Probes, Stage::Requests, Stage::Turns, Stage::Finishing, Stage::Judging];

/// The lines for people.
pub(super) fn details(report: &Report) -> Vec<String> {
    let lines = [Some(ended(report)), slices(report), time(&report.time)];
    lines.into_iter().flatten().collect()
}

/// A schedule that does not interleave all contenders, with the reason.
pub(crate) fn schedule(plan: &Plan) -> Option<String> {
    let reason = plan.schedule_reason.as_ref()?;
    match plan.schedule {
        Schedule::Interleaved => None,
        Schedule::Sequential => {
            Some(format!("sequential: one framework after another in each round ({reason})"))
        }
        Schedule::Grouped => {
            let (count, anchor) = (plan.groups.len(), plan.anchor()?);
            Some(format!(
                "{count} groups, one after another in each round, with {anchor} in each: frameworks of two groups are \
                 compared by way of it ({reason})"
            ))
        }
    }
}

/// Why there were no more rounds.
fn ended(report: &Report) -> String {
    let why = match (&report.end, report.plan.rounds) {
        (End::Clear, _) => "no question of the answer needed more",
        (End::Budget, _) => "the time budget was used",
        (End::Noisy { .. }, _) => "the machine was too noisy for more",
        (End::Interrupted | End::Killed, _) => "the run was ended",
        (End::Planned, Rounds::Auto { .. }) => "the most there are",
        _ => "as planned",
    };
    format!("rounds: {} ({why})", report.rounds)
}

fn slices(report: &Report) -> Option<String> {
    Some(match report.slices.as_ref()? {
        Slices::Tokens { tokens, lead_in } => {
            let what = report.plan.work.mark_noun();
            let figures = report.plan.work.steps_noun();
            let first = if *lead_in == 1 { what.to_owned() } else { format!("{lead_in} {what}s") };
            let verb = if *lead_in == 1 { "counts" } else { "count" };
            format!(
                "frameworks alternate within requests, after {tokens} {what}s each; the first {first} after a pause {verb} \
                 for the whole request, and not for {figures}"
            )
        }
        Slices::Whole { reason } => format!("each turn is a whole request: {reason}"),
    })
}

fn time(stages: &Stages) -> Option<String> {
    let of = |stage: Stage| stages.get(&stage).copied().unwrap_or(0.0);
    let all: f64 = stages.values().sum();
    let rounds: f64 = OF_ROUNDS.into_iter().map(of).sum();
    if all <= 0.0 || rounds <= 0.0 {
        return None;
    }
    let share = |stage: Stage| format!("{} {:.0} %", words(stage), 100.0 * of(stage) / rounds);
    let of_rounds = OF_ROUNDS.into_iter().filter(|&stage| of(stage) >= 0.005 * rounds).map(share);
    let of_rounds: Vec<String> = of_rounds.collect();
    let once = stages.iter().filter(|(stage, seconds)| !OF_ROUNDS.contains(stage) && **seconds >= 0.05);
    let once: Vec<String> =
        once.map(|(&stage, seconds)| format!("{} {seconds:.1} s", words(stage))).collect();
    let before = if once.is_empty() { String::new() } else { format!("; in addition: {}", once.join(", ")) };
    Some(format!("time: {all:.0} s, of which rounds {rounds:.0} s: {}{before}", of_rounds.join(", ")))
}

fn words(stage: Stage) -> &'static str {
    match stage {
        Stage::Before => "greeting workers and waiting for a quiet machine",
        Stage::Reference => "the reference",
        Stage::ColdLoads => "loads from a cold page cache",
        Stage::Pilot => "the pilot",
        Stage::Starts => "starting processes",
        Stage::Probes => "probing the machine",
        Stage::Requests => "timed requests",
        Stage::Turns => "untimed passes and handing over",
        Stage::Finishing => "readings and outputs after the last request",
        Stage::Judging => "deciding",
    }
}

// The findings about the GPU of a run.

/// The origin of the figures of memory, and each contender's clocks, heat and slowdowns.
pub(super) fn findings(report: &Report) -> Vec<String> {
    if !report.plan.is_on_gpu() {
        return Vec::new();
    }
    let device = &report.plan.device;
    let peak = Metric::PeakMemory.words();
    let memory = match report.rows.iter().any(|row| row.typical(Metric::PeakMemory).is_some()) {
        true => {
            format!("{peak} is what each process held on {device}, as its driver reported after each phase")
        }
        false => format!("{peak} on {device} is not available"),
    };
    let told: Vec<String> = report.rows.iter().filter_map(did).collect();
    let did = (!told.is_empty()).then(|| format!("{device} in measured requests: {}", told.join("; ")));
    let parts: Vec<String> = report.rows.iter().filter_map(by_part).collect();
    let parts = (!parts.is_empty()).then(|| format!("{device}'s memory by part (MB): {}", parts.join("; ")));
    [memory].into_iter().chain(parts).chain(did).chain(remarks(report)).collect()
}

/// The parts of a row's peak on the GPU, and the mean.
fn by_part(row: &Row) -> Option<String> {
    let parts = row.memory.as_ref()?.gpu_parts.as_ref()?;
    let mb = |bytes: f64| format!("{:.0}", bytes / 1e6);
    let summands = parts.summands().into_iter();
    let told = summands.filter_map(|(name, bytes)| Some(format!("{} {name}", mb(bytes?))));
    let told = told.collect::<Vec<_>>().join(" + ");
    let mean = parts.mean.map_or_else(String::new, |mean| format!(", {} on average", mb(mean)));
    Some(format!("{} {told} = {}{mean}", row.framework, mb(parts.peak)))
}

fn did(row: &Row) -> Option<String> {
    let work = row.gpu.as_ref()?;
    let clock = match (work.slowest_mhz, work.fastest_mhz, work.most_mhz) {
        (Some(slowest), Some(fastest), Some(most)) if slowest == fastest => {
            Some(format!("{fastest} of {most} MHz"))
        }
        (Some(slowest), Some(fastest), Some(most)) => Some(format!("{slowest}–{fastest} of {most} MHz")),
        _ => None,
    };
    let heat = work.celsius.map(|celsius| format!("{celsius} °C at most"));
    let causes: Vec<&str> = work.held_back.iter().map(|cause| cause.as_str()).collect();
    let slowed = (!causes.is_empty()).then(|| format!("slowed down by {}", causes.join(" and ")));
    let told: Vec<String> = [clock, heat, slowed].into_iter().flatten().collect();
    (!told.is_empty()).then(|| format!("{} {}", row.framework, told.join(", ")))
}

/// Remarks; one common to all contenders appears once.
fn remarks(report: &Report) -> BTreeSet<String> {
    let works = report.rows.iter().filter_map(|row| row.gpu.as_ref());
    works.flat_map(|work| &work.remarks).map(|remark| remark.as_str().to_owned()).collect()
}

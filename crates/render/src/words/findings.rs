//! The report in words: its answer, what limits it, and the findings about each contender.

use std::collections::BTreeSet;

use comparison::facts::agreement::RetrievalScore;
use comparison::facts::arithmetic;
use comparison::facts::evidence::{End, Shipped, Slices, Stage, Stages};
use comparison::judge::Metric;
use comparison::judge::report::limit::{Bound, Share};
use comparison::judge::report::{LoadParts, Prepared, Report, Row, Spread};
use comparison::plan::{Plan, Rounds, Schedule};
use protocol::untrusted::Foreign;
use protocol::{Padding, Served, Side, Unit};

use super::{Line, Summary, verdicts};
use crate::table::{Table, Tone};
use crate::words::{self, answer};

pub(crate) fn summary(report: &Report) -> Summary {
    let impossible = report.sanity.iter().map(|flag| {
        Line::qualifying(Tone::Struck, format!("impossible: {}: {}", flag.framework, flag.finding))
    });
    let hybrids = report.hybrids.iter().flat_map(|it| verdicts::sentences(it, report.plan.margin));
    let others = report.other_runs.as_ref().map(verdicts::others);
    let said = [verdicts::floor(report), same_outputs(report), others].into_iter().flatten();
    let lines = hybrids.chain(said).map(Line::plain);
    Summary {
        answer: answer::sentences(report),
        heading: answer::about(report),
        notes: verdicts::reasons(report).into_iter().chain(impossible).chain(lines).collect(),
        verdicts: verdicts::all(report),
        details: FINDINGS
            .iter()
            .filter_map(|finding| finding.sentence(report))
            .chain(facts(report))
            .map(Line::plain)
            .collect(),
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

// Findings: a row each, with a cell for every contender that has one.

struct Finding {
    /// `{machine}` is the device if that is a GPU, beside which `{memory}` is the host's.
    label: &'static str,
    cell: fn(&Report, &Row) -> Option<String>,
    /// Whether the page has a table of its own with the same.
    is_tabled: bool,
}

const fn finding(label: &'static str, cell: fn(&Report, &Row) -> Option<String>) -> Finding {
    Finding { label, cell, is_tabled: false }
}

const FINDINGS: [Finding; 31] = [
    finding("activations are multiplied with weights in", |_, row| products(row)),
    finding("arithmetic that is not the framework's, of the CPU time of {phases}", |_, row| own_code(row)),
    finding("instructions, as the framework says", |_, row| {
        Some(row.hello.as_ref()?.cpu_capability.as_ref()?.as_str().to_owned())
    }),
    finding("most CPU time in", |_, row| {
        let kernels = &row.own_code.as_ref()?.kernels;
        (!kernels.is_empty()).then(|| kernels.join("; "))
    }),
    finding("uses outside the framework's documented interface", |_, row| {
        listed(&row.in_effect.as_ref()?.semi_public)
    }),
    finding("defaults of the framework that it changes", |_, row| {
        listed(&row.in_effect.as_ref()?.changed_defaults)
    }),
    // The cost of quantising. It is not part of parity, which gives engines the same codes and scales.
    finding("against the unquantised model in f32", |_, row| {
        let loss = row.agreement.as_ref()?.quantisation_loss?;
        Some(format!("{:.1} % of its top-1 tokens, mean KL {:.1e}", 100.0 * loss.top1, loss.mean_kl))
    }),
    finding("outputs against the first file's", |_, row| other_file(row)),
    finding("against f32, on the bundled texts", retrieval),
    finding("load from a cold page cache", cold_load),
    finding("load consists of", |_, row| {
        let parts = row.load.parts.filter(|_| row.rounds > 0)?;
        let LoadParts { framework_cpu_s, system_cpu_s, own_bytes, mapped_bytes } = parts;
        let (new, mapped) = (megabytes(own_bytes), megabytes(mapped_bytes));
        Some(format!(
            "{framework_cpu_s:.2} s of CPU time in the framework, {system_cpu_s:.2} s in the system; {new} MB of new \
             memory, {mapped} MB mapped"
        ))
    }),
    finding("starts beside other work, which count", |_, row| {
        let count = row.disturbed_starts.len();
        (count > 0).then(|| format!("{count} of {}", row.rounds))
    }),
    finding("share of {machine}'s limit, decode", |_, row| row.limit.as_ref()?.decode.as_ref().map(share)),
    finding("share of {machine}'s limit, prefill", |_, row| row.limit.as_ref()?.prefill.as_ref().map(share)),
    finding("share of {machine}'s limit, the largest batch, without padding", |_, row| {
        row.limit.as_ref()?.encoding.as_ref().map(share)
    }),
    Finding { is_tabled: true, ..finding("{memory} by part (MB)", by_part) },
    Finding {
        is_tabled: true,
        ..finding("peak memory against weights + KV cache", |_, row| {
            let parts = row.memory.as_ref()?;
            Some(format!("{:.2}x of {} MB", parts.times_needed?, megabytes(parts.needed)))
        })
    },
    finding("processes", steadiness),
    finding("energy by token", |_, row| {
        let energy = row.energy.as_ref()?;
        Some(format!("{:.3} J ({})", energy.joules_per_token, energy.method))
    }),
    finding("{machine}'s memory by part (MB)", by_part_on_gpu),
    finding("{machine} in measured requests", clocks),
    finding("weights by device", |_, row| {
        let bytes = row.in_effect.as_ref()?.shard_bytes.as_ref()?;
        let each: Vec<String> = bytes.iter().map(|&bytes| format!("{:.2}", bytes as f64 / 1e9)).collect();
        Some(format!("{} GB", each.join(" + ")))
    }),
    finding("compiled for", compiled),
    finding("fresh kernel cache on disk (in memory its kernels are part of the remainder)", |_, row| {
        Some(format!("{:.1} MB", row.kernel_cache_bytes? as f64 / 1e6))
    }),
    finding("padding of the shorter prompts, which no figure counts as tokens", |_, row| {
        let Padding { side, computed } = row.padding.as_ref()?;
        let side = if *side == Side::Left { "left" } else { "right" };
        Some(match computed {
            0 => format!("on the {side}, in the KV cache alone"),
            1 => format!("on the {side}, 1 position computed"),
            positions => format!("on the {side}, {positions} positions computed"),
        })
    }),
    finding("prompt tokens that a server had in a cache", |_, row| {
        let served = row.served?;
        Some(format!("{} of {}", served.cached_tokens?, served.prompt_tokens))
    }),
    finding("tokens of a server by step, and share of its drafts that it accepted", |_, row| {
        let Served { new_tokens, drafted_tokens, accepted_tokens, .. } = row.served?;
        let (drafted, accepted) =
            (drafted_tokens.filter(|&drafted| drafted > 0)? as f64, accepted_tokens? as f64);
        let steps = (new_tokens as f64 - accepted).max(1.0);
        Some(format!("{:.2}, {:.0} %", new_tokens as f64 / steps, 100.0 * accepted / drafted))
    }),
    // How near the estimates of the largest batch were to the workers' memory.
    finding("peak expected of the largest batch, and observed", |report, row| {
        report.plan.largest_batch.as_ref()?;
        let expected = *report.plan.expected_memory.get(&row.framework)? as f64;
        let observed = row.memory.as_ref()?.peak;
        let off = 100.0 * (expected - observed) / observed;
        Some(format!("{:.2} and {:.2} GB ({off:+.1} %)", expected / 1e9, observed / 1e9))
    }),
    finding("shipped without the model", |_, row| {
        let Shipped { bytes, files } = row.shipped?;
        Some(format!("{:.1} MB in {}", bytes as f64 / 1e6, words::count(files, "file")))
    }),
    // So that a pasted table names its versions.
    Finding { is_tabled: true, ..finding("library", |_, row| Some(row.hello.as_ref()?.library.to_string())) },
    Finding {
        is_tabled: true,
        ..finding("binding", |_, row| {
            let hello = row.hello.as_ref()?;
            (hello.binding != hello.library).then(|| hello.binding.to_string())
        })
    },
];

impl Finding {
    fn label(&self, report: &Report) -> String {
        let plan = &report.plan;
        let (machine, memory) = match plan.is_on_gpu() {
            true => (plan.device.as_str(), "memory of the host"),
            false => ("the machine", "peak memory"),
        };
        let label = self.label.replace("{machine}", machine).replace("{memory}", memory);
        label.replace("{phases}", &plan.work.phases().join(" and of "))
    }

    /// "processes: candle 6 flat; ort 5 flat, 1 warming up".
    fn sentence(&self, report: &Report) -> Option<String> {
        let of_row = |row: &Row| Some(format!("{} {}", row.framework, (self.cell)(report, row)?));
        let known: Vec<String> = report.rows.iter().filter_map(of_row).collect();
        (!known.is_empty()).then(|| format!("{}: {}", self.label(report), known.join("; ")))
    }
}

/// The findings as a table; `all`: also those that the page has tables of.
pub(crate) fn table(report: &Report, all: bool) -> Option<Table> {
    let mut table = Table::of_contenders(report);
    for finding in FINDINGS.iter().filter(|finding| all || !finding.is_tabled) {
        let cells: Vec<Option<String>> = report.rows.iter().map(|row| (finding.cell)(report, row)).collect();
        if cells.iter().any(Option::is_some) {
            let cells = cells.into_iter().map(|cell| words::or_dash(cell, |text| text));
            table.push([finding.label(report)], cells);
        }
    }
    (!table.rows.is_empty()).then(|| table.captioned("What else was measured"))
}

fn percent(share: f64) -> String {
    format!("{:.0} %", share * 100.0)
}

fn megabytes(bytes: f64) -> String {
    format!("{:.0}", bytes / 1e6)
}

/// The share of the limit, and the limit.
fn share(share: &Share) -> String {
    let speed = match (share.bound, share.unit) {
        (Bound::Memory, _) => format!("{:.0} GB/s", share.limit / 1e9),
        (Bound::Compute, None) => format!("{:.0} GFLOP/s", share.limit / 1e9),
        (Bound::Compute, Some(unit)) => operations(unit, share.limit),
    };
    format!("{} of {speed}", percent(share.median))
}

/// The speed of a unit: `2100 GFLOP/s (AMX BF16)`.
fn operations(unit: Unit, speed: f64) -> String {
    let of = if matches!(unit, Unit::Avx512Vnni | Unit::AmxInt8) { "GOP/s" } else { "GFLOP/s" };
    format!("{:.0} {of} ({})", speed / 1e9, unit.name())
}

/// The cost of precisions for vectors of texts.
fn retrieval(_: &Report, row: &Row) -> Option<String> {
    let RetrievalScore { mean_cosine, min_cosine, top10, kendall_tau, .. } = row.text?.retrieval()?;
    let top10 = top10.map(|share| format!(", {:.1} % of the ten best documents", 100.0 * share));
    let tau = kendall_tau.map(|tau| format!(", Kendall's τ {tau:.4}"));
    let searched = top10.into_iter().chain(tau).collect::<String>();
    Some(format!("cosine {mean_cosine:.6} (least {min_cosine:.6}){searched}"))
}

/// How near the outputs of another file come to those of the first.
pub(super) fn other_file(row: &Row) -> Option<String> {
    let found = row.agreement.as_ref().filter(|_| row.is_other_file)?.vectors?;
    let top = (found.rows > 0).then(|| {
        let share = 100.0 * found.same_top as f64 / found.rows as f64;
        format!(", the largest of {share:.1} % of {} rows in the same place", found.rows)
    });
    let top = top.unwrap_or_default();
    Some(format!(
        "least cosine {:.4}, largest difference {:.2e} of the largest number{top}",
        found.cosine, found.max_abs
    ))
}

fn cold_load(report: &Report, row: &Row) -> Option<String> {
    if row.rounds == 0 || report.plan.cold_loads == 0 {
        return None;
    }
    let load = &row.load;
    Some(match (load.cold_median, load.cold_resident_before) {
        (Some(seconds), Some(share)) => format!("{seconds:.2} s ({} resident)", percent(share)),
        _ => format!("not available ({})", load.cold_unavailable.as_deref().unwrap_or("no reading")),
    })
}

fn by_part(_: &Report, row: &Row) -> Option<String> {
    let parts = row.memory.as_ref()?;
    let mb = |bytes: f64| megabytes(bytes.abs());
    let [framework, parameters, cache, activations, remainder] = parts.summands().map(|(_, bytes)| bytes);
    Some(format!(
        "{} framework + {} parameters + {} KV cache + {} activations {} {} remainder = {}",
        mb(framework),
        mb(parameters),
        mb(cache),
        mb(activations),
        if remainder < 0.0 { '−' } else { '+' },
        mb(remainder),
        mb(parts.peak)
    ))
}

/// The parts of a row's peak on the GPU, and the mean.
fn by_part_on_gpu(report: &Report, row: &Row) -> Option<String> {
    let parts = row.memory.as_ref()?.gpu_parts.as_ref().filter(|_| report.plan.is_on_gpu())?;
    let summands = parts.summands().into_iter();
    let told = summands.filter_map(|(name, bytes)| Some(format!("{} {name}", megabytes(bytes?))));
    let told = told.collect::<Vec<_>>().join(" + ");
    let mean = parts.mean.map_or_else(String::new, |mean| format!(", {} on average", megabytes(mean)));
    Some(format!("{told} = {}{mean}", megabytes(parts.peak)))
}

fn clocks(report: &Report, row: &Row) -> Option<String> {
    let work = row.gpu.as_ref().filter(|_| report.plan.is_on_gpu())?;
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
    (!told.is_empty()).then(|| told.join(", "))
}

fn steadiness(_: &Report, row: &Row) -> Option<String> {
    let found = &row.steadiness;
    let classes = [
        (found.flat, "flat"),
        (found.warm_up, "warming up"),
        (found.slowdown, "slowing down"),
        (found.no_steady_state, "without a steady state"),
        (found.unclassified, "too short to say"),
    ];
    let known = classes.iter().filter(|(count, _)| *count > 0);
    let known: Vec<String> = known.map(|(count, word)| format!("{count} {word}")).collect();
    let time = found.time_to_steady_ms.map_or(String::new(), |ms| format!(", steady after {ms:.0} ms"));
    (!known.is_empty()).then(|| format!("{}{time}", known.join(", ")))
}

fn listed(phrases: &[Foreign]) -> Option<String> {
    let phrases: Vec<&str> = phrases.iter().map(|phrase| phrase.as_str()).collect();
    (!phrases.is_empty()).then(|| phrases.join("; "))
}

/// Most shapes to name of those that a contender compiled for.
const SHOWN_SHAPES: usize = 3;

/// In what it multiplies activations and weights.
pub(crate) fn products(row: &Row) -> Option<String> {
    arithmetic::words(&row.arithmetic, row.precision.requested.name())
}

/// The engine's own arithmetic: "0.9 %, 6.1 % (own attention, own norms)", of the two phases.
pub(crate) fn own_code(row: &Row) -> Option<String> {
    let own = row.own_code.as_ref()?;
    let recorded = own.recorded.as_ref().map(|day| format!("measured on {day}"));
    let about: Vec<String> = own.parts.iter().cloned().chain(recorded).collect();
    let about = if about.is_empty() { String::new() } else { format!(" ({})", about.join(", ")) };
    Some(format!("{:.1} %, {:.1} %{about}", 100.0 * own.decode, 100.0 * own.prefill))
}

fn compiled(_: &Report, row: &Row) -> Option<String> {
    let shapes = row.compiled.as_ref().filter(|shapes| !shapes.is_empty())?;
    let shown: Vec<&str> = shapes.iter().take(SHOWN_SHAPES).map(|shape| shape.as_str()).collect();
    Some(match shapes.len().saturating_sub(SHOWN_SHAPES) {
        0 => shown.join(", "),
        more => format!("{}, and {more} more", shown.join(", ")),
    })
}

// Facts about the run as a whole, a sentence each.

pub(crate) fn facts(report: &Report) -> Vec<String> {
    let facts = [load(report), processor(report), limits(report)].into_iter().flatten();
    let mut facts: Vec<String> = facts.collect();
    if report.plan.is_on_gpu() {
        let (device, peak) = (&report.plan.device, Metric::PeakMemory.words());
        facts.push(match report.rows.iter().any(|row| row.typical(Metric::PeakMemory).is_some()) {
            true => format!(
                "{peak} is what each process held on {device}, as its driver reported after each phase"
            ),
            false => format!("{peak} on {device} is not available"),
        });
        // A remark that is common to all contenders appears once.
        let remarks = report.rows.iter().filter_map(|row| row.gpu.as_ref()).flat_map(|work| &work.remarks);
        facts.extend(remarks.map(|remark| remark.as_str().to_owned()).collect::<BTreeSet<_>>());
    }
    let is_sharded = |row: &Row| row.in_effect.as_ref().is_some_and(|it| it.shard_bytes.is_some());
    if report.plan.device == "cpu" && report.rows.iter().any(is_sharded) {
        facts.push(
            "devices that a CPU plays share its cores and its memory, so what several take longer than one is the \
             overhead of communication and scheduling"
                .to_owned(),
        );
    }
    facts.extend(report.plan.largest_batch.clone());
    facts.push(ended(report));
    facts.extend(slices(report));
    facts.extend(time(&report.time));
    facts
}

/// Share from which on a page cache counts as warm, rounded as it is shown: the missing part is read in a millisecond
/// or two.
const WARM_PERCENT: f64 = 98.0;

/// The state of the page cache and of the memory before loads.
fn load(report: &Report) -> Option<String> {
    let measured: Vec<&Row> = report.rows.iter().filter(|row| row.rounds > 0).collect();
    let warm = measured.iter().filter_map(|row| row.load.warm_resident_before).reduce(f64::min);
    let load = Metric::Load.plain_title();
    let text = match warm {
        _ if measured.is_empty() => return None,
        Some(share) if (100.0 * share).round() >= WARM_PERCENT => {
            format!("{load} is from a warm page cache ({} of the weights resident before)", percent(share))
        }
        Some(share) => format!(
            "{load}: the page cache was not fully warm (at least {} of the weights were resident before)",
            percent(share)
        ),
        None => format!("{load}: the state of the page cache before is not available"),
    };
    let ready = measured.iter().map(|row| row.load.memory_ready_in);
    let ready = ready.reduce(|a, b| a.zip(b).map(|(a, b)| [a[0].min(b[0]), a[1].max(b[1])])).flatten();
    Some(match ready {
        Some([shortest, longest]) => format!(
            "{text}, into memory that the system had ready (making it ready took {shortest:.2} to {longest:.2} s)"
        ),
        None => text,
    })
}

/// Which processor it is, where the system reports that: "the processor: AuthenticAMD, family 25, model 17; caches: L1d 32K".
fn processor(report: &Report) -> Option<String> {
    let environment = &report.environment;
    let caches = &environment.cpu_caches;
    let caches = (!caches.is_empty()).then(|| format!("caches of a core: {}", caches.join(", ")));
    let told: Vec<String> = environment.cpu_family.clone().into_iter().chain(caches).collect();
    (!told.is_empty()).then(|| format!("the processor: {}; {}", environment.cpu, told.join("; ")))
}

fn limits(report: &Report) -> Option<String> {
    let machine = &report.machine;
    let of = |spread: &Spread, unit: &str| {
        let [median, min, best] = [spread.median, spread.min, spread.best].map(|value| value / 1e9);
        format!("{median:.0} {unit} (range {min:.0}–{best:.0})")
    };
    let device = report.plan.device.as_str();
    let precision = machine.probes.iter().find(|probe| probe.device == device).map(|probe| &probe.precision);
    let units = machine.units.iter().map(|(&unit, &speed)| format!(", {}", operations(unit, speed)));
    let experts = experts(&report.model).map(|experts| format!("; {experts}"));
    Some(format!(
        "{}: memory bandwidth {}, {} arithmetic {}{}{}",
        if report.plan.is_on_gpu() { device } else { "the machine" },
        of(machine.read_bandwidth.as_ref()?, "GB/s"),
        precision.map_or("f32", |precision| precision.as_str()),
        of(machine.arithmetic.as_ref()?, "GFLOP/s"),
        units.collect::<String>(),
        experts.unwrap_or_default(),
    ))
}

/// How many experts a token goes through, and what a step reads of the parameters: the share of the limit counts that.
pub(crate) fn experts(model: &Prepared) -> Option<String> {
    let experts = (0..model.config.layers.len()).find_map(|index| model.config.experts(index))?;
    let [active, all] = [model.active_parameters(), model.parameters? as f64].map(|count| count / 1e6);
    let (top, count) = (experts.top, experts.count);
    Some(format!("a token reads {top} of {count} experts of a layer, {active:.0}M of {all:.0}M parameters"))
}

// The cost of a comparison: why its rounds ended, how contenders took turns, and where its time went.

/// The stages of rounds. All others happen once in a run.
const OF_ROUNDS: [Stage; 6] =
    [Stage::Starts, Stage::Probes, Stage::Requests, Stage::Turns, Stage::Finishing, Stage::Judging];

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
